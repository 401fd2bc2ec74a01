"""The smallest sets of leaves that derive all goals. A cut of a goal is a set of leaves without which it cannot be
derived. A set derives a goal exactly if it hits each of its cuts, so the answer is a minimum hitting set of all cuts.
These are too many to list, so they are found as needed: take a minimum hitting set of the cuts known so far; if it
fails on a goal, grow it until no leaf can be added without deriving the goal. The leaves left out are a new cut
(implicit hitting sets: Reiter, "A theory of diagnosis from first principles", 1987; Moreno-Centeno and Karp, 2013)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
import math
from typing import TypeVar

from decomp.advice.derivability import Derivability

_T = TypeVar("_T")
Cut = frozenset[int]
_MOST_STEPS = 20_000
"""How many branches to try for one hitting set; then the best one found is used, without proof that it is minimal."""

_MOST_TRIED = 6
"""How many sets may fail when planned before the search gives up."""


@dataclass(frozen=True, slots=True)
class MinimalSet:
    """A set of leaves that derives all goals."""

    leaves: frozenset[int]
    least: int
    """A lower bound: no set that derives all goals has fewer leaves."""

    @property
    def smallest(self) -> bool:
        """Whether the search proved that no smaller set derives all goals."""
        return len(self.leaves) <= self.least


@dataclass
class SmallestSets:
    """Searches for the cheapest sets of leaves that derive goals. Cuts found by one search are reused by the next."""

    known: Derivability
    prices: Mapping[int, float]
    """The price of each leaf that may be assumed. Prices should be so close to each other that fewer leaves are always
    cheaper."""
    cuts: dict[int, list[Cut]] = field(default_factory=dict)
    """By goal: sets of leaves, from each of which every derivation of the goal needs at least one."""
    failed: list[Cut] = field(default_factory=list)
    """Cuts for all goals together, from attempts that failed: the leaves outside the set that was attempted."""

    def search(self, goals: Sequence[int], without: Collection[int] = ()) -> MinimalSet | None:
        """The cheapest set that derives all goals without the leaves `without`; None if no set does."""
        prices = {leaf: price for leaf, price in self.prices.items() if leaf not in without}
        least = 0
        # It ends: each round adds a cut that the last set did not hit.
        while True:
            cuts = [cut for goal in goals for cut in self.cuts.get(goal, ())] + self.failed
            cuts = [cut.intersection(prices) for cut in cuts]
            if not all(cuts):
                return None
            hitting, proved = _smallest_hitting_set(cuts, prices)
            least = max(least, len(hitting)) if proved else least
            missed = self._first_missed(goals, hitting)
            if missed is None:
                return MinimalSet(hitting, least)
            self.cuts.setdefault(missed, []).append(self._cut(missed, hitting))

    def tried(self, goals: Sequence[int], attempt: Callable[[Cut], _T | None]) -> tuple[MinimalSet, _T | None]:
        """The cheapest set that derives all goals and for which `attempt` succeeds, and its result. If several attempts
        fail (a rule may require that an op is absent), the first set, and None."""
        first = self.search(goals) or MinimalSet(frozenset(), 0)
        found: MinimalSet | None = first
        for _ in range(_MOST_TRIED):
            if found is None:
                break
            made = attempt(found.leaves)
            if made is not None:
                return found, made
            # A set that succeeds must contain a leaf that this one lacks.
            self.failed.append(frozenset(self.prices) - found.leaves)
            found = self.search(goals)
        return MinimalSet(first.leaves, 0), None

    def derived(self, goals: Sequence[int], leaves: Collection[int]) -> list[int]:
        """The goals that can be derived from some leaves."""
        mark = self._assumed(leaves)
        found = [goal for goal in goals if self.known.holds(goal)]
        self.known.retract(mark)
        return found

    def _assumed(self, leaves: Collection[int]) -> int:
        mark = self.known.mark()
        for leaf in leaves:
            self.known.assume(leaf)
        return mark

    def _first_missed(self, goals: Sequence[int], leaves: Collection[int]) -> int | None:
        derived = set(self.derived(goals, leaves))
        return next((goal for goal in goals if goal not in derived), None)

    def _cut(self, goal: int, leaves: Collection[int]) -> Cut:
        """Grow a set as far as it goes without deriving the goal; returns the leaves left out. Expensive leaves are
        added first, so that the cut consists of cheap ones."""
        first, rest = self._assumed(leaves), []
        for leaf in sorted(self.prices.keys() - set(leaves), key=lambda leaf: (-self.prices[leaf], leaf)):
            mark = self._assumed((leaf,))
            if self.known.holds(goal):
                self.known.retract(mark)
                rest.append(leaf)
        self.known.retract(first)
        return frozenset(rest)


def _smallest_hitting_set(cuts: Sequence[Cut], prices: Mapping[int, float]) -> tuple[frozenset[int], bool]:
    """The cheapest set with an element of each cut, by branch and bound, and whether it is proved minimal."""
    # Who hits the smaller cut hits the larger one.
    cuts = [cut for cut in set(cuts) if not any(other < cut for other in cuts)]
    best = _greedy(cuts, prices)
    search = _Branches(prices, best, sum(prices[leaf] for leaf in best))
    search.follow(cuts, (), 0.0, frozenset())
    return search.best, search.steps < _MOST_STEPS


@dataclass
class _Branches:
    """Branch and bound: takes the smallest cut not hit yet, and branches on its elements."""

    prices: Mapping[int, float]
    best: frozenset[int]
    price: float
    steps: int = 0

    def follow(self, cuts: Sequence[Cut], taken: tuple[int, ...], price: float, barred: frozenset[int]) -> None:
        """Hit the remaining `cuts` without the leaves that earlier branches have tried."""
        self.steps += 1
        if not cuts:
            if price < self.price:
                self.best, self.price = frozenset(taken), price
            return
        # Prices are sums of floats in another order.
        if self.steps >= _MOST_STEPS or price + self._bound(cuts, barred) >= self.price - 1e-9:
            return
        cut = min(cuts, key=lambda cut: (len(cut - barred), sorted(cut)))
        for leaf in sorted(cut - barred, key=lambda leaf: (self.prices[leaf], leaf)):
            rest = [other for other in cuts if leaf not in other]
            self.follow(rest, (*taken, leaf), price + self.prices[leaf], barred)
            # Sets with this leaf were all seen in its own branch.
            barred |= {leaf}

    def _bound(self, cuts: Sequence[Cut], barred: frozenset[int]) -> float:
        """A lower bound on the price of hitting cuts: disjoint ones need an element each."""
        found, seen = 0.0, set[int]()
        for cut in sorted(cuts, key=len):
            if seen.isdisjoint(cut):
                # All its leaves are barred: this branch cannot hit it.
                found += min((self.prices[leaf] for leaf in cut - barred), default=math.inf)
                seen |= cut
        return found


# Chvátal, "A greedy heuristic for the set-covering problem", 1979: within a factor of ln n of the cheapest.
def _greedy(cuts: Sequence[Cut], prices: Mapping[int, float]) -> frozenset[int]:
    """Take the leaf that hits most cuts for its price, until all cuts are hit."""
    left, taken = list(cuts), set[int]()
    while left:
        hits: dict[int, int] = {}
        for cut in left:
            for leaf in cut:
                hits[leaf] = hits.get(leaf, 0) + 1
        best = min(hits, key=lambda leaf: (-hits[leaf] / prices[leaf], leaf))
        taken.add(best)
        left = [cut for cut in left if best not in cut]
    return frozenset(taken)
