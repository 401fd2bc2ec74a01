"""Sets without a common element, which are joined as it is found out that they belong together."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class DisjointSets(Generic[T]):
    """A union-find. What was never joined is in a set of its own."""

    def __init__(self) -> None:
        self._above: dict[T, T] = {}

    def of(self, item: T) -> T:
        """The one item that stands for the set of another, until that set is joined with a further one."""
        above = self._above
        while (parent := above.get(item, item)) is not item:
            above[item] = item = above.get(parent, parent)
        return item

    def join(self, one: T, other: T) -> None:
        """Make the sets of two items one, for which stands what stood for that of `other`."""
        self._above[self.of(one)] = self.of(other)
