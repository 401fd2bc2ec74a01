"""What a way, or a limitation, asks of a target: ops that it must know, each of them alone or one of several."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from decomp.ir.ops import Op, op as op_of
from decomp.rules.target import Target


class Absent(tuple[Op, ...]):
    """Ops of which a target must know none."""

    __slots__ = ()


Needs = tuple[tuple[Op, ...], ...]
"""A target must know one op of each group, and none of those that are to be absent."""


def needs_of(spellings: Iterable[Any], unless: Iterable[Any] = ()) -> Needs:
    """The groups that are meant by spellings of ops, and by tuples of them; those of `unless` are to be absent. Raises
    `UnknownOp`."""
    groups = (each if isinstance(each, tuple) else (each,) for each in spellings)
    absent = tuple(map(op_of, unless))
    return (*(tuple(map(op_of, group)) for group in groups), *((Absent(absent),) if absent else ()))


def missing_ops(needs: Needs, target: Target) -> str | None:
    """What `target` would have to know, as text: the first group of which it knows no op, or should know none; None if
    it has what is asked for."""
    for group in needs:
        known = any(map(target.knows, group))
        if known and isinstance(group, Absent):
            return f"no {spelled_out(group)}"
        if not known and not isinstance(group, Absent):
            return spelled_out(group)
    return None


def spelled_out(group: Iterable[Op]) -> str:
    """A group as text: `aten.softmax or aten._softmax`."""
    return " or ".join(map(str, group))
