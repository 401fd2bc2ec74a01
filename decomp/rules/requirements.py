"""What a way, or a limitation, asks of a target: ops that it must know, each of them alone or one of several."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from decomp.ir.ops import Op, op as op_of
from decomp.rules.target import Target

Needs = tuple[tuple[Op, ...], ...]
"""A target must know one op of each group."""


def needs_of(spellings: Iterable[Any]) -> Needs:
    """The groups that are meant by spellings of ops, and by tuples of them. Raises `UnknownOp`."""
    groups = (each if isinstance(each, tuple) else (each,) for each in spellings)
    return tuple(tuple(map(op_of, group)) for group in groups)


def missing_ops(needs: Needs, target: Target) -> str | None:
    """The first group of which `target` knows no op, as text; None if it has what is asked for."""
    return next((spelled_out(group) for group in needs if not any(map(target.knows, group))), None)


def spelled_out(group: Iterable[Op]) -> str:
    """A group as text: `aten.softmax or aten._softmax`."""
    return " or ".join(map(str, group))
