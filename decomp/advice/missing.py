"""What a target could know in addition: an op, or a dtype of tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
import functools

import torch

from decomp._library import shipped_targets
from decomp.ir.dtypes import dtype_named, name_of
from decomp.ir.ops import Op
from decomp.rules.target import Target

_UNUSUAL = 1e-3
"""What an op costs more that no shipped target knows."""


@dataclass(frozen=True, slots=True)
class MissingOp:
    """An op that a target could know in addition."""

    op: Op
    overload: str | None = None
    """The one that is asked for, where the target knows others of this op."""
    condition: str = ""
    """What the target asks of its calls now: it would have to take all."""

    @property
    def spelling(self) -> str:
        """How it is written in a list of ops."""
        name = self.op.name.removeprefix("aten.")
        return f"{name}.{self.overload}" if self.overload is not None else name

    @property
    def explained(self) -> str:
        """As `str` has it, with what the target asks now."""
        return f"{self} (refused now: {self.condition})" if self.condition else str(self)

    def __str__(self) -> str:
        return f"{self.spelling} on more calls" if self.condition else self.spelling

    def added_to(self, target: Target) -> Target:
        """The target, if it knew this too."""
        return target | [self.op if self.overload is None else f"{self.op}.{self.overload}"]

    @property
    def usual(self) -> int:
        """How many shipped targets know it."""
        return known_to(self.op)

    @property
    def price(self) -> float:
        """What it counts in a set: one, and a little more where few targets have it."""
        return 1.0 + _UNUSUAL / (1 + self.usual) + _UNUSUAL * bool(self.condition)

    @property
    def row(self) -> tuple[str, str | None, str]:
        """Plain data, for `capability_of`."""
        return str(self.op), self.overload, self.condition


@dataclass(frozen=True, slots=True)
class MissingDtype:
    """A dtype that tensors could have in addition, in all calls of ops that the target has."""

    dtype: torch.dtype

    @property
    def explained(self) -> str:
        """As `str` has it."""
        return str(self)

    def __str__(self) -> str:
        return name_of(self.dtype)

    def added_to(self, target: Target) -> Target:
        """The target, if it knew this too."""
        return target.with_more_dtypes([self.dtype])

    @property
    def usual(self) -> int:
        """No measure of how many have it is kept: each is more than an op."""
        return 0

    @property
    def price(self) -> float:
        """What it counts in a set: one, and more than any op, for all ops have to take it."""
        return 1.0 + 2 * _UNUSUAL

    @property
    def row(self) -> tuple[str]:
        """Plain data, for `capability_of`."""
        return (str(self),)


MissingCapability = MissingOp | MissingDtype


def capability_of(row: Sequence[str | None]) -> MissingCapability:
    """The wish of a row of plain data."""
    if len(row) == 1:
        dtype = dtype_named(row[0])
        assert dtype is not None
        return MissingDtype(dtype)
    op, overload, condition = row
    return MissingOp(Op(str(op)), overload, str(condition))


def extend_target(target: Target, wishes: Iterable[MissingCapability]) -> Target:
    """A target, if it knew these too: dtypes first, for an op that is added takes tensors of any."""
    first = sorted(wishes, key=lambda wish: isinstance(wish, MissingOp))
    return functools.reduce(lambda known, wish: wish.added_to(known), first, target)


def is_advisable(op: Op, target: Target) -> bool:
    """Whether anybody would want to be told to add an op to a target: an op of its own kind, and none that is internal
    to PyTorch, unless a shipped target knows it."""
    namespace, _, name = op.name.partition(".")
    if namespace in ("prims", "higher_order", "operator") or op.packet is None:
        return namespace == "prims" and _has_prims(target)
    return not name.startswith("_") or known_to(op) > 0


@functools.cache
def known_to(op: Op) -> int:
    """How many shipped targets know an op: a measure of how usual it is."""
    return sum(target.knows(op) for target in shipped_targets() if not _has_prims(target))


@functools.lru_cache(maxsize=256)
def _has_prims(target: Target) -> bool:
    return any(spelling.startswith("prims.") for spelling in target)
