"""Chooses among overlapping matches: the disjoint ones that together save most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import fx

from decomp.graphs.disjoint_sets import DisjointSets
from decomp.patterns.found import Match

# 2^12 choices at most, and far fewer in practice, as a taken match excludes those that overlap it.
MAX_EXACT_GROUP = 12
"""The largest group of connected overlapping matches for which all choices are compared. Larger groups are chosen from
greedily, the largest saving first, because the number of choices is exponential."""


@dataclass(frozen=True, eq=False)
class PatternCandidate:
    """A match, and the saving if it is replaced."""

    match: Match
    saving: float

    @property
    def worth(self) -> tuple[float, int]:
        """The sort key: the saving, then the number of calls that the match replaces."""
        return self.saving, len(self.match.nodes)


def choose_disjoint(candidates: Sequence[PatternCandidate]) -> list[PatternCandidate]:
    """A choice of matches that share no node: the one with the largest total saving; of equal ones, the one that
    replaces most calls, then the one with earlier matches."""
    taken: list[PatternCandidate] = []
    for group in _groups(candidates):
        if len(group) == 1:
            taken += group
        else:
            taken += _best(group) if len(group) <= MAX_EXACT_GROUP else _greedy(group)
    return taken


def _groups(candidates: Sequence[PatternCandidate]) -> list[list[PatternCandidate]]:
    """The candidates, grouped by overlap, direct or through others."""
    sets = DisjointSets[fx.Node]()
    for candidate in candidates:
        for node in candidate.match.nodes:
            sets.join(candidate.match.nodes[0], node)
    groups: dict[fx.Node, list[PatternCandidate]] = {}
    for candidate in candidates:
        groups.setdefault(sets.of(candidate.match.nodes[0]), []).append(candidate)
    return list(groups.values())


def _overlap(one: PatternCandidate, other: PatternCandidate) -> bool:
    return not set(one.match.nodes).isdisjoint(other.match.nodes)


def _best(group: list[PatternCandidate]) -> list[PatternCandidate]:
    """The choice that is worth most, by trying all of them; of equal ones, the one with earlier candidates."""
    if not group:
        return []
    first, rest = group[0], group[1:]
    with_first = [first, *_best([each for each in rest if not _overlap(first, each)])]
    if all(not _overlap(first, each) for each in rest):
        # Nothing is lost by taking it: no need to try without.
        return with_first
    without = _best(rest)
    return without if _worth(without) > _worth(with_first) else with_first


def _worth(chosen: list[PatternCandidate]) -> tuple[float, int, int]:
    # Fewer matches at equal worth: each is one call, so larger ones win.
    return sum(each.saving for each in chosen), sum(len(each.match.nodes) for each in chosen), -len(chosen)


def _greedy(group: list[PatternCandidate]) -> list[PatternCandidate]:
    taken: list[PatternCandidate] = []
    used: set[fx.Node] = set()
    for candidate in sorted(group, key=lambda each: each.worth, reverse=True):
        if used.isdisjoint(candidate.match.nodes):
            used.update(candidate.match.nodes)
            taken.append(candidate)
    return taken
