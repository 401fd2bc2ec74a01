"""Where it pays that views sink: parts of a program that are computed between views of one kind. What leads into such a
part is a view no longer, if nothing else uses it; what leads out and turns the other way is nothing; and what is used
as it was needs a view. A part is taken if that makes fewer calls."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator

from decomp.simplification.chains import RESHAPING, RESHAPING_WHERE_POSSIBLE
from decomp.simplification.laws import PERMUTING, order_of
from decomp.simplification.sinking import Turn, Turned, shape_of, sunk, turned
from decomp.simplification.terms import Term


def paying(order: Iterable[Term], barred: Collection[Term]) -> set[Term]:
    """The terms, of those that are computed in this `order`, below which views are to sink; none of those `barred`."""
    regions = _Regions(list(order), barred)
    if not regions.inside:
        return set()
    regions.count_users()
    regions.prune()
    return set(regions.chosen())


class _Regions:
    """All calls below which views could sink, and what that changes."""

    def __init__(self, order: list[Term], barred: Collection[Term]) -> None:
        self.order = order
        self.inside: dict[Term, Turn] = {}
        """The calls, and by what views."""
        self._entries: dict[Term, Turned | None] = {}
        for term in order:
            found = sunk(term, self._known) if term.op == _CALL and term not in barred else None
            if found is not None:
                self.inside[term] = found[0]

    def _known(self, term: Term) -> Turned | None:
        turn = self.inside.get(term)
        if turn is not None:
            shape = shape_of(term)
            return Turned(turn, term, shape) if shape is not None else None
        if term not in self._entries:
            self._entries[term] = turned(term)
        return self._entries[term]

    def count_users(self) -> None:
        """Find out who uses the calls and the views that lead to them."""
        self._views = {term for term in self.order if self._entries.get(term) is not None}
        self._uses: dict[Term, list[Term]] = defaultdict(list)
        self._outside: Counter[Term] = Counter()
        self._needing: Counter[Term] = Counter()
        self._undone: Counter[Term] = Counter()
        for term in self.order:
            for given in set(term.operands):
                if given in self.inside or given in self._views:
                    self._uses[given].append(term)
                    if term not in self.inside:
                        self._outside[given] += 1
                        self._note_exit(given, term)

    def _note_exit(self, given: Term, user: Term) -> None:
        turn = self.inside.get(given)
        if turn is None:
            return
        if _undoes(turn, given, user):
            self._undone[given] += 1
        elif id(user.target) not in (_RESHAPES if turn.leading is not None else _PERMUTES):
            self._needing[given] += 1

    def prune(self) -> None:
        """Leave out, from the last on, what saves nothing."""
        for term in reversed(self.order):
            if term not in self.inside or self._outside[term] < len(self._uses[term]):
                continue
            given = [each for each in set(term.operands) if each in self.inside or each in self._views]
            newly = sum(self._needing[each] == 0 if each in self.inside else not self._outside[each] for each in given)
            if bool(self._needing[term]) >= self._undone[term] + newly:
                del self.inside[term]
                for each in given:
                    self._outside[each] += 1
                    self._needing[each] += each in self.inside

    def chosen(self) -> Iterator[Term]:
        """The calls of the regions that make fewer calls."""
        parent: dict[Term, Term] = {}

        def of(term: Term) -> Term:
            while (above := parent.get(term, term)) is not term:
                parent[term] = parent.get(above, above)
                term = above
            return term

        for term in self.inside:
            for given in term.operands:
                if given in self.inside or given in self._views:
                    parent[of(given)] = of(term)
        gain: Counter[Term] = Counter()
        for term in self.inside:
            gain[of(term)] += self._undone[term] - bool(self._needing[term])
        for view in self._views:
            if self._uses[view] and not self._outside[view]:
                gain[of(view)] += 1
        return (term for term in self.inside if gain[of(term)] > 0)


_CALL = "call_function"
_RESHAPES = frozenset(map(id, (*RESHAPING, *RESHAPING_WHERE_POSSIBLE)))
_PERMUTES = frozenset(map(id, PERMUTING))


def _undoes(turn: Turn, given: Term, user: Term) -> bool:
    """Whether a view of `given` leads back to what it has been a view of."""
    shape, result = shape_of(given), shape_of(user)
    before = turn.before(shape) if shape is not None else None
    if before is None or result is None or user.args[0] is not given:
        return False
    if turn.leading is not None:
        return id(user.target) in _RESHAPES and result == before
    order = order_of(user)
    return order is not None and [turn.given[dim] for dim in order] == sorted(order)
