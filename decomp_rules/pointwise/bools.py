"""Arithmetic on bools, for targets whose arithmetic takes numbers alone, as `mask * x` needs it: of two bools it is
logic, and beside a number a bool is cast first. Exactly the ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.reduce.reduction import Dims, known_empty, reduced_dims
from decomp_rules.support.operands import cast, is_scalar, plain, promoted

RULES = Rules(level="exact")
register = RULES.register
_NO_BOOL = "no operand is a bool"


@register(aten.mul)
def mul_of_bools(x: Tensor, other: Any) -> Tensor:
    """x · other; of two bools x ∧ other."""
    return _computed(torch.mul, torch.logical_and, x, other)


@register(aten.add)
def add_of_bools(x: Tensor, other: Any, alpha: Any = 1) -> Tensor:
    """x + other; of two bools x ∨ other."""
    if alpha != 1:
        return decline("one of them is scaled")
    return _computed(torch.add, torch.logical_or, x, other)


@register(aten.maximum)
def maximum_of_bools(x: Tensor, other: Tensor) -> Tensor:
    """The larger; of two bools x ∨ other."""
    return _computed(torch.maximum, torch.logical_or, x, other)


@register(aten.minimum)
def minimum_of_bools(x: Tensor, other: Tensor) -> Tensor:
    """The smaller; of two bools x ∧ other."""
    return _computed(torch.minimum, torch.logical_and, x, other)


def _computed(
    arithmetic: Callable[[Any, Any], Tensor], logic: Callable[[Any, Any], Tensor], x: Tensor, other: Any
) -> Tensor:
    if torch.bool not in (x.dtype, None if is_scalar(other) else other.dtype):
        return decline(_NO_BOOL)
    dtype = promoted(x, other)
    if dtype != torch.bool:
        return arithmetic(cast(x, dtype), other if is_scalar(other) else cast(other, dtype))
    return decline("a number is a bool") if is_scalar(other) else logic(x, other)


@register(aten.amax)
def amax_of_bools(x: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
    """Whether any holds."""
    return _reduced(torch.any, x, dim, keepdim)


@register(aten.amin)
def amin_of_bools(x: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
    """Whether all hold."""
    return _reduced(torch.all, x, dim, keepdim)


def _reduced(reduction: Callable[..., Tensor], x: Tensor, dim: Dims, keepdim: bool) -> Tensor:
    if x.dtype != torch.bool:
        return decline(_NO_BOOL)
    dims: Sequence[int] = reduced_dims(x, dim)
    for each in sorted(dims, reverse=True):
        x = reduction(x, each, keepdim)
    return x if dims else x.clone()


@register(aten.any)
def any_of_floats(x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """max(x ≠ 0) in float32, for targets that reduce floats alone."""
    dims = reduced_dims(x, dim, empty_is_all=False)
    if not dims or known_empty(x):
        return decline("nothing is reduced")
    holds = cast(torch.amax(cast(x != 0, torch.float32), dims, keepdim), torch.bool)
    return cast(holds, torch.uint8) if x.dtype == torch.uint8 else holds


@register(aten.eq)
def eq_of_bools(x: Tensor, other: Any) -> Tensor:
    """x where the number is 1, ¬x where it is 0, and false for all others."""
    return _same(x, other, True)


@register(aten.ne)
def ne_of_bools(x: Tensor, other: Any) -> Tensor:
    """¬x where the number is 1, x where it is 0, and true for all others."""
    return _same(x, other, False)


def _same(x: Tensor, other: Any, same: bool) -> Tensor:
    if x.dtype != torch.bool or not plain(other):
        return decline("not a bool with a number")
    if other not in (0, 1):
        return torch.full_like(x, not same)
    return x.clone() if (other == 1) is same else torch.logical_not(x)


@register(aten.where)
def where_of_bools(condition: Tensor, x: Any, other: Any) -> Tensor:
    """(condition ∧ x) ∨ (¬condition ∧ other)."""
    if is_scalar(x) or is_scalar(other) or not condition.dtype == x.dtype == other.dtype == torch.bool:
        return decline("not of two bools")
    return torch.logical_or(torch.logical_and(condition, x), torch.logical_and(torch.logical_not(condition), other))


@register(aten.constant_pad_nd)
def constant_pad_of_bools(x: Tensor, pad: Sequence[Any], value: Any = 0) -> Tensor:
    """The padding of integers that are 0 and 1."""
    if x.dtype != torch.bool or not plain(value):
        return decline("not of bools by a number")
    return torch.ne(torch.constant_pad_nd(cast(x, torch.int32), pad, int(bool(value))), 0)


@register(aten.clone)
def clone_of_bools(x: Tensor, memory_format: torch.memory_format | None = None) -> Tensor:
    """x ∧ x, which has the strides of x."""
    if x.dtype != torch.bool or memory_format not in (None, torch.preserve_format):
        return decline("not of bools as they are laid out")
    return torch.logical_and(x, x)
