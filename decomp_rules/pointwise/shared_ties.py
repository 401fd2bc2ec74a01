"""Bounds and extrema whose equal operands share the gradient, while a bound that is a number leaves none: as PyTorch
has them from 2.14 on (https://github.com/pytorch/pytorch/pull/191142). For older versions `arithmetic` has the rules.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from decomp import Rules
from decomp.ops import aten, changes
from decomp_rules.support.operands import cast, constant, is_scalar, promoted

RULES = Rules(level="exact")


def register(*spellings: Any, **how: Any) -> Any:
    """`RULES.register`, where the installed PyTorch shares gradients."""
    return RULES.register(*spellings, when=changes.ties_share_gradients, **how)


@register(aten.fmax)
def fmax(x: Tensor, other: Tensor) -> Tensor:
    """max(x, other) of numbers, else the one that is no NaN; x where both are. Exact."""
    dtype = promoted(x, other)
    x, other = cast(x, dtype), cast(other, dtype)
    if not dtype.is_floating_point:
        return torch.maximum(x, other)
    return torch.where(torch.isnan(other), x, torch.where(torch.isnan(x), other, torch.maximum(x, other)))


@register(aten.fmin)
def fmin(x: Tensor, other: Tensor) -> Tensor:
    """min(x, other) of numbers, else the one that is no NaN; x where both are. Exact."""
    dtype = promoted(x, other)
    x, other = cast(x, dtype), cast(other, dtype)
    if not dtype.is_floating_point:
        return torch.minimum(x, other)
    return torch.where(torch.isnan(other), x, torch.where(torch.isnan(x), other, torch.minimum(x, other)))


@register(aten.clamp)
def clamp(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """x, but `min` below it and then `max` above it, NaN of a NaN bound. At a number and at NaN there is no gradient,
    and a tensor of bounds shares it where it is reached. Exact."""
    dtype = promoted(*(operand for operand in (x, min, max) if operand is not None))
    x = cast(x, dtype)
    given = [bound for bound in (min, max) if bound is not None]
    if len(given) == 2 and not any(map(is_scalar, given)):
        return _between(x, cast(min, dtype), cast(max, dtype))
    if dtype.is_floating_point and all(map(is_scalar, given)):
        x = torch.where(x == x, x, x.detach())
    for bound, beyond, extremum in ((min, torch.le, torch.maximum), (max, torch.ge, torch.minimum)):
        if bound is None:
            continue
        if not is_scalar(bound):
            x = extremum(x, cast(bound, dtype))
        elif bound != bound:
            x = torch.full_like(x, bound)
        else:
            limit = constant(x, bound)
            x = torch.where(beyond(x, limit), limit, x)
    return x


def _between(x: Tensor, least: Tensor, most: Tensor) -> Tensor:
    """The same for two tensors of bounds. Where they meet, neither has a share in a tie; where the lower is above the
    upper it has no gradient; and NaN leaves that of x, unless x is beyond a bound."""
    if not x.is_floating_point():
        return torch.minimum(torch.maximum(x, least), most)
    apart = least < most
    bounded = torch.where(x < least, torch.where(least <= most, least, least.detach()), x)
    bounded = torch.where(bounded > most, most, bounded)
    bounded = torch.where(apart & (x == least), torch.maximum(x, least), bounded)
    bounded = torch.where(apart & (x == most), torch.minimum(x, most), bounded)
    inside = torch.where((x < least) | (x > most), x.detach(), x)
    missing = inside + least.detach() + torch.where(most < least, most, most.detach())
    return torch.where((x == x) & (least == least) & (most == most), bounded, missing)
