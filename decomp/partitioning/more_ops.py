"""Which ops a target lacks that would leave fewer parts: for what each blocked op needs, the program is planned and
assigned again for the target with these ops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from decomp.advice.suggestions import Suggestion, join_names
from decomp.partitioning.assignment import Assignment
from decomp.partitioning.choices import Choices

# Each is a plan of the whole program.
MOST = 6
"""How many sets of ops are tried, those first that unblock most calls."""


@dataclass(frozen=True)
class MoreOps:
    """What becomes of the parts if the target has some more ops."""

    ops: tuple[str, ...]
    """As written in a list of ops."""
    parts: int
    """How many parts are on the chip then, without a limit."""
    instead_of: int
    """How many there are now."""
    price: float
    """The price then."""
    saves: float
    """How much less that is than now."""

    def as_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        names = ("parts", "instead_of", "price", "saves")
        return {"ops": list(self.ops), **{name: getattr(self, name) for name in names}}

    def __str__(self) -> str:
        """`one more op, sort, removes 6 of 7 parts`."""
        lead = "one more op" if len(self.ops) == 1 else f"{len(self.ops)} more ops"
        gone = self.instead_of - self.parts
        change = f"removes {gone} of {self.instead_of} parts" if gone > 0 else "removes no part"
        return f"{lead}, {join_names(self.ops, 'and')}, {change}; the price is then {self.price:,.0f}"


def more_ops(choices: Choices, now: Assignment, again: Callable[[tuple[str, ...]], Assignment]) -> tuple[MoreOps, ...]:
    """What some more ops would change, the fewest parts first, then the lowest price. `again(ops)`: the assignment for
    the target with these ops."""
    found = []
    for ops in list(dict.fromkeys(_candidates(choices.suggest())))[:MOST]:
        then = again(ops)
        if then.parts < now.parts or then.price < now.price:
            found.append(MoreOps(ops, then.parts, now.parts, then.price, now.price - then.price))
    return tuple(sorted(found, key=lambda each: (each.parts, each.price)))


def _candidates(suggestion: Suggestion) -> Iterator[tuple[str, ...]]:
    """For each blocked op, the smallest set of ops that is enough, or the op itself."""
    for each in suggestion.requirements:
        # A target that has the op on some calls is asked about the op itself.
        yield tuple(op.removesuffix(" on more calls") for op in each.needs[0]) if each.needs else (_itself(each.op),)


def _itself(op: str) -> str:
    return op.removeprefix("aten.")
