"""Which of several matches that overlap are taken: those that save most together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import fx

from decomp.patterns.found import Match

EXACT = 12
"""Of so many matches that overlap with one another, directly or through others, all choices are compared; of more, the
one that saves most is taken first, then the next of those that are left."""


@dataclass(frozen=True, eq=False)
class PatternCandidate:
    """A match, and what taking it saves."""

    match: Match
    saving: float

    @property
    def worth(self) -> tuple[float, int]:
        """What it saves, then how many calls of the program it stands for."""
        return self.saving, len(self.match.nodes)


def disjoint(candidates: Sequence[PatternCandidate]) -> list[PatternCandidate]:
    """The matches to be taken, no two of which share a node: those that save most together, then those that stand for
    most calls, then those that come first."""
    taken: list[PatternCandidate] = []
    for group in _groups(candidates):
        if len(group) == 1:
            taken += group
        else:
            taken += _best(group) if len(group) <= EXACT else _greedy(group)
    return taken


def _groups(candidates: Sequence[PatternCandidate]) -> list[list[PatternCandidate]]:
    """The candidates, those together that overlap, directly or through others."""
    leader = list(range(len(candidates)))

    def leader_of(i: int) -> int:
        while leader[i] != i:
            leader[i] = leader[leader[i]]
            i = leader[i]
        return i

    first: dict[fx.Node, int] = {}
    for i, candidate in enumerate(candidates):
        for node in candidate.match.nodes:
            one, other = sorted((leader_of(first.setdefault(node, i)), leader_of(i)))
            leader[other] = one
    groups: dict[int, list[PatternCandidate]] = {}
    for i, candidate in enumerate(candidates):
        groups.setdefault(leader_of(i), []).append(candidate)
    return list(groups.values())


def _overlap(one: PatternCandidate, other: PatternCandidate) -> bool:
    return not set(one.match.nodes).isdisjoint(other.match.nodes)


def _best(group: list[PatternCandidate]) -> list[PatternCandidate]:
    """The choice that is worth most; of equal ones that which takes earlier candidates."""
    if not group:
        return []
    first, rest = group[0], group[1:]
    with_first = [first, *_best([each for each in rest if not _overlap(first, each)])]
    if all(not _overlap(first, each) for each in rest):
        return with_first
    without = _best(rest)
    return without if _worth(without) > _worth(with_first) else with_first


def _worth(chosen: list[PatternCandidate]) -> tuple[float, int, int]:
    return sum(each.saving for each in chosen), sum(len(each.match.nodes) for each in chosen), -len(chosen)


def _greedy(group: list[PatternCandidate]) -> list[PatternCandidate]:
    taken: list[PatternCandidate] = []
    used: set[fx.Node] = set()
    for candidate in sorted(group, key=lambda each: each.worth, reverse=True):
        if used.isdisjoint(candidate.match.nodes):
            used.update(candidate.match.nodes)
            taken.append(candidate)
    return taken
