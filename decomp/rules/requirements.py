"""Requirements of rules and limitations on a target: ops that it must have, or one of several."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from decomp.ir.ops import Op, op as op_of
from decomp.rules.target import Target


# A tuple like the other groups: part of a frozen rule, hashed and pickled with it.
class Absent(tuple[Op, ...]):
    """Ops that a target must not have."""

    __slots__ = ()


Needs = tuple[tuple[Op, ...], ...]
"""A target must have one op of each group, and none of the `Absent` ops."""


def needs_of(spellings: Iterable[Any], unless: Iterable[Any] = ()) -> Needs:
    """The groups for spellings of ops, or tuples of them; the ops of `unless` must be absent. Raises `UnknownOp`."""
    groups = (each if isinstance(each, tuple) else (each,) for each in spellings)
    absent = tuple(map(op_of, unless))
    return (*(tuple(map(op_of, group)) for group in groups), *((Absent(absent),) if absent else ()))


def missing_ops(needs: Needs, target: Target) -> str | None:
    """The first requirement that `target` does not meet, as text; None if it meets all."""
    for group in needs:
        known = any(map(target.knows, group))
        if known and isinstance(group, Absent):
            return f"no {spell_group(group)}"
        if not known and not isinstance(group, Absent):
            return spell_group(group)
    return None


def spell_group(group: Iterable[Op]) -> str:
    """A group as text: `aten.softmax or aten._softmax`."""
    return " or ".join(map(str, group))
