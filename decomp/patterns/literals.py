"""Compares the constants of a program with those of a pattern."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from decomp.ir.arguments import equal
from decomp.ir.call import metadata
from decomp.metadata.nonfinite_constants import same_constant
from decomp.patterns.terms import NodeReading

_DIMS = frozenset({"dim", "dims", "dim0", "dim1", "start_dim", "end_dim"})
_ONE_MORE = frozenset({"aten.unsqueeze", "aten.stack"})
"""Ops whose `dim` refers to the result, which has one dimension more than the operand."""
_FLOATS = frozenset({"eps", "p", "dropout_p", "scale", "negative_slope", "lambd", "threshold", "momentum"})
"""Arguments that are read as floats, also if an int is given."""


def is_same_literal(wanted: Any, found: Any, name: str, host: NodeReading) -> bool:
    """Whether `found`, the argument `name` of a call of the program, means the constant `wanted`. Numbers are compared
    by value, and by type where that determines the dtype of the result; dimensions may count from either end."""
    return equal(wanted, found, lambda one, other: _is_same_leaf(one, other, name, host))


def _is_same_leaf(wanted: Any, found: Any, name: str, host: NodeReading) -> bool:
    if same_constant(found, wanted):
        return True
    kinds = type(wanted), type(found)
    if name in _DIMS and kinds == (int, int):
        rank = _rank(host)
        # A pattern says `dim=-1` and the program `dim=3`, as exporters write either.
        return rank is not None and rank > 0 and wanted % rank == found % rank
    if set(kinds) == {int, float}:
        # `x + 1` and `x + 1.0` differ for integers, which the second makes float.
        return bool(wanted == found) and (name in _FLOATS or _is_floating(host))
    if {str, torch.device} == set(kinds):
        return str(wanted) == str(found)
    return False


def _operand(host: NodeReading) -> Any:
    first = next(iter(host.arguments.values()), None)
    # `cat` and `stack` take a list first.
    first = first[0] if isinstance(first, (list, tuple)) and first else first
    return metadata(first) if isinstance(first, fx.Node) else None


def _rank(host: NodeReading) -> int | None:
    value = _operand(host)
    return value.dim() + (host.op in _ONE_MORE) if isinstance(value, torch.Tensor) else None


def _is_floating(host: NodeReading) -> bool:
    """Whether the operand is floating point or complex, so that an int and the equal float have the same effect."""
    value = _operand(host)
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())
