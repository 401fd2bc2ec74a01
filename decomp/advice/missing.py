"""Possible additions to a target: an op, or a dtype."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
import functools

import torch

from decomp.ir.dtypes import dtype_named, name_of
from decomp.ir.ops import Op
from decomp.rules.library import shipped_targets
from decomp.rules.target import Target

# Small against one, so that fewer ops always win, and large against rounding.
_UNUSUAL = 1e-3
"""The surcharge of an op that no shipped target knows."""


@dataclass(frozen=True, slots=True)
class MissingOp:
    """An op that a target could add."""

    op: Op
    overload: str | None = None
    """The missing overload, if the target knows other overloads of this op."""
    condition: str = ""
    """The target's current condition on calls of the op, which it would have to lift."""

    @property
    def spelling(self) -> str:
        """The op as written in a list of ops."""
        name = self.op.name.removeprefix("aten.")
        return f"{name}.{self.overload}" if self.overload is not None else name

    @property
    def explained(self) -> str:
        """`str(self)`, with the target's current condition."""
        return f"{self} (refused now: {self.condition})" if self.condition else str(self)

    def __str__(self) -> str:
        return f"{self.spelling} on more calls" if self.condition else self.spelling

    def added_to(self, target: Target) -> Target:
        """The target with this op added."""
        return target | [self.op if self.overload is None else f"{self.op}.{self.overload}"]

    @property
    def usual(self) -> int:
        """How many shipped targets know the op."""
        return count_targets_knowing(self.op)

    @property
    def price(self) -> float:
        """The op's weight in a set: one, plus a little if few targets have it."""
        return 1.0 + _UNUSUAL / (1 + self.usual) + _UNUSUAL * bool(self.condition)

    @property
    def row(self) -> tuple[str, str | None, str]:
        """Plain data, for `capability_of`."""
        return str(self.op), self.overload, self.condition


@dataclass(frozen=True, slots=True)
class MissingDtype:
    """A dtype that a target could add, for all ops that it has."""

    dtype: torch.dtype

    @property
    def explained(self) -> str:
        """`str(self)`."""
        return str(self)

    def __str__(self) -> str:
        return name_of(self.dtype)

    def added_to(self, target: Target) -> Target:
        """The target with this dtype added."""
        return target.with_more_dtypes([self.dtype])

    @property
    def usual(self) -> int:
        """Zero: dtypes are not counted over the shipped targets, and always rank after ops."""
        return 0

    @property
    def price(self) -> float:
        """The dtype's weight in a set: one, plus more than for any op, because all ops have to support it."""
        return 1.0 + 2 * _UNUSUAL

    @property
    def row(self) -> tuple[str]:
        """Plain data, for `capability_of`."""
        return (str(self),)


MissingCapability = MissingOp | MissingDtype


def capability_of(row: Sequence[str | None]) -> MissingCapability:
    """The capability that a row of plain data describes."""
    if len(row) == 1:
        dtype = dtype_named(row[0])
        assert dtype is not None
        return MissingDtype(dtype)
    op, overload, condition = row
    return MissingOp(Op(str(op)), overload, str(condition))


def extend_target(target: Target, capabilities: Iterable[MissingCapability]) -> Target:
    """A target with these added. Dtypes are added first: an op takes every dtype that the target has."""
    # False sorts before True: dtypes first.
    first = sorted(capabilities, key=lambda capability: isinstance(capability, MissingOp))
    return functools.reduce(lambda known, capability: capability.added_to(known), first, target)


def is_advisable(op: Op, target: Target) -> bool:
    """Whether adding an op to a target is sensible advice: prims only for targets with prims, and ops internal to
    PyTorch only if a shipped target knows them."""
    namespace, _, name = op.name.partition(".")
    if namespace in ("prims", "higher_order", "operator") or op.packet is None:
        return namespace == "prims" and _has_prims(target)
    return not name.startswith("_") or count_targets_knowing(op) > 0


@functools.cache
def count_targets_knowing(op: Op) -> int:
    """How many shipped targets know an op: a measure of how common it is."""
    # A target of prims knows everything by definition, and says nothing of what is common.
    return sum(target.knows(op) for target in shipped_targets() if not _has_prims(target))


@functools.lru_cache(maxsize=256)
def _has_prims(target: Target) -> bool:
    return any(spelling.startswith("prims.") for spelling in target)
