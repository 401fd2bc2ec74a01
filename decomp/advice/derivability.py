"""Forward chaining over definite Horn clauses (`body → head`): which heads follow from the leaves assumed so far.
Assumptions are made one by one and retracted, so that a search pays only for the differences between its sets."""

from __future__ import annotations

from collections.abc import Iterable


class Derivability:
    """Clauses over numbered propositions, and the propositions that follow from the assumptions."""

    # Counting what is open in each body makes deriving linear in the clauses (Dowling and Gallier, "Linear-time
    # algorithms for testing the satisfiability of propositional Horn formulae", 1984).
    def __init__(self, size: int, clauses: Iterable[tuple[tuple[int, ...], int]]) -> None:
        self._heads: list[int] = []
        self._open: list[int] = []
        """For each clause: how many propositions of its body do not hold yet."""
        self._reads: list[list[int]] = [[] for _ in range(size)]
        """For each proposition: the clauses whose bodies contain it."""
        self._holds = bytearray(size)
        self._trail: list[int] = []
        facts = []
        for body, head in clauses:
            # A proposition that a body has twice is one condition.
            distinct = set(body)
            for each in distinct:
                self._reads[each].append(len(self._heads))
            if not distinct:
                facts.append(head)
            self._heads.append(head)
            self._open.append(len(distinct))
        for head in facts:
            self.assume(head)

    def holds(self, proposition: int) -> bool:
        """Whether a proposition follows from the assumptions."""
        return bool(self._holds[proposition])

    def mark(self) -> int:
        """The current state, for `retract`."""
        return len(self._trail)

    def assume(self, proposition: int) -> None:
        """Assume a proposition, and derive everything that follows."""
        pending = [proposition]
        while pending:
            found = pending.pop()
            if self._holds[found]:
                continue
            self._holds[found] = 1
            self._trail.append(found)
            for clause in self._reads[found]:
                self._open[clause] -= 1
                if not self._open[clause]:
                    pending.append(self._heads[clause])

    def retract(self, mark: int) -> None:
        """Undo all assumptions made since `mark`."""
        while len(self._trail) > mark:
            found = self._trail.pop()
            # In reverse, as on the trail of a Prolog machine: only what follows is undone.
            self._holds[found] = 0
            for clause in self._reads[found]:
                self._open[clause] += 1
