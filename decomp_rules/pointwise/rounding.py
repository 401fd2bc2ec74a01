"""Rounding to whole numbers. All exact."""

from __future__ import annotations

import torch
from torch import Tensor

from decomp import Rules
from decomp.ops import aten
from decomp_rules.support.floating import float_math
from decomp_rules.support.operands import cast

RULES = Rules(level="exact")
register = RULES.register


@register(aten.trunc)
def trunc(x: Tensor) -> Tensor:
    """x − fmod(x, 1), for targets with fmod. Exact."""
    if not x.is_floating_point():
        return x.clone()
    rest = torch.fmod(x, 1.0)
    # Of an infinite x the rest is NaN; the product with 0 has the sign of x. The gradients of x and the rest cancel.
    whole = torch.where(torch.isnan(rest), x.detach(), x - rest)
    return torch.where(whole == 0, x.detach() * 0.0, whole)


@register(aten.trunc, level="standard")
def trunc_by_remainder(x: Tensor) -> Tensor:
    """x − fmod(x, 1), which infinite x do not have. Exact."""
    if not x.is_floating_point():
        return x.clone()
    rest = torch.fmod(x, 1.0)
    return x - torch.where(rest < 1, rest, 0.0)


@register(aten.trunc, needs=("floor", "ceil"))
def trunc_by_sign(x: Tensor) -> Tensor:
    """floor x, or ceil x below 0. Exact."""
    return torch.where(x < 0, torch.ceil(x), torch.floor(x)) if x.is_floating_point() else x.clone()


@register(aten.floor, level="standard")
def floor_by_step(x: Tensor) -> Tensor:
    """trunc x, less one where that is above x. Exact."""
    if not x.is_floating_point():
        return x.clone()
    whole = torch.trunc(x)
    return whole + (x < whole) * -1.0 if x.dtype == torch.get_default_dtype() else whole - cast(x < whole, x.dtype)


@register(aten.ceil, level="standard")
def ceil_by_step(x: Tensor) -> Tensor:
    """trunc x, and one more where that is below x. Exact."""
    if not x.is_floating_point():
        return x.clone()
    whole = torch.trunc(x)
    return whole + (whole < x)


@register(aten.round, level="standard")
def round_away_then_even(x: Tensor) -> Tensor:
    """The nearest whole number, by the fraction; of two the even one, which is the lesser in size of an odd one found.
    Exact."""
    if not x.is_floating_point():
        return x.clone()
    whole = torch.trunc(x)
    rest = x - whole
    nearest = whole + torch.trunc(rest * 2)
    even = torch.trunc(nearest * 0.5) * 2
    nearest = torch.where(torch.ne(rest * rest, 0.25), nearest, even)
    return torch.where(torch.ne(rest, rest), whole, nearest)


@register(aten.floor)
def floor(x: Tensor) -> Tensor:
    """The whole number at or below x. Exact."""
    if not x.is_floating_point():
        return x.clone()
    whole = torch.trunc(x)
    return torch.where(x.detach() < whole, whole - 1, whole)


@register(aten.ceil)
def ceil(x: Tensor) -> Tensor:
    """The whole number at or above x. Exact."""
    if not x.is_floating_point():
        return x.clone()
    whole = torch.trunc(x)
    return torch.where(whole < x.detach(), whole + 1, whole)


@register(aten.round)
def round_half_even(x: Tensor) -> Tensor:
    """The nearest whole number, the even one of two. Exact: from the even part of trunc x, which leaves less than 2."""
    if not x.is_floating_point():
        return x.clone()
    even = torch.trunc(x * 0.5) * 2
    rest = x.detach() - even
    step = torch.where(torch.abs(rest) < 1.5, 1.0, 2.0).to(x.dtype)
    up, down = even + step, even - step
    return torch.where(0.5 < rest, up, torch.where(rest < -0.5, down, even))


@register(aten.round)
@float_math
def round_to_decimals(x: Tensor, decimals: int) -> Tensor:
    """round(x·10ᵈ) / 10ᵈ."""
    power = 10.0 ** abs(decimals)
    return torch.round(x * power) / power if decimals > 0 else torch.round(x / power) * power


@register(aten.frac)
def frac(x: Tensor) -> Tensor:
    """x − trunc x. Exact."""
    return x - torch.trunc(x)
