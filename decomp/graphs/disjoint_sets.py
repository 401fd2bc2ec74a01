"""Disjoint sets that are merged incrementally (union-find)."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class DisjointSets(Generic[T]):
    """A union-find. An item that was never joined is in a set of its own."""

    def __init__(self) -> None:
        self._above: dict[T, T] = {}

    def of(self, item: T) -> T:
        """The representative of an item's set, until that set is joined with another one."""
        above = self._above
        while (parent := above.get(item, item)) is not item:
            # Path halving keeps chains short without recursion.
            above[item] = item = above.get(parent, parent)
        return item

    def join(self, one: T, other: T) -> None:
        """Merge the sets of two items; the representative is that of `other`."""
        self._above[self.of(one)] = self.of(other)
