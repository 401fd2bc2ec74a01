"""Powers at the levels standard and fast, for targets without any. Errors are in ULP against float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
import functools
import math
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.support.floating import is_tensor, working_dtype
from decomp_rules.support.operands import cast, plain, promoted, rounded
from decomp_rules.support.short_logarithm import (
    power_of_number,
    short_logarithm,
    times,
    times_number,
)

RULES = Rules(level="standard")
register = RULES.register

_PRODUCTS = (-3.0, 5.0, 6.0)
_QUARTERS = (-1.5, -1.25, -0.75, -0.25, 0.25, 0.75, 1.25, 1.5, 1.75, 2.25, 2.5, 3.5)
"""Exponents whose products and roots stay within 3.6 ULP together."""
_EXACT = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 4.0)
"""Those that are cheap and exact."""


@register(aten.pow)
def power_with_slopes(x: Any, exponent: Any) -> Tensor:
    """±2^(y·log₂|x|), the logarithm to 29 bits from tables, or known if x is a number. ≤ 2.7 ULP. Gradients are 0 where
    |x| is no normal number, but for those of 0¹ and 0². x⁵ and x⁶ are products, and x⁻³ is that of 1/x, whose powers
    vanish where those of x would overflow. ≤ 3.5 ULP."""
    if not is_tensor(x):
        return _of_number(x, exponent)
    if is_tensor(exponent):
        return _to_tensor(x, exponent, _with_both_slopes)
    return _by_factors(x, exponent) if exponent in _PRODUCTS else _to_number(x, exponent, _with_slope)


@register(aten.pow, forward_only=True)
def power_without_slopes(x: Any, exponent: Any) -> Tensor:
    """The same without gradients, for a tensor x; xʸ for small y = n + k/4 as xⁿ, √x and √√x: of 1/x for negative y.
    ≤ 3.6 ULP. Their gradient at 0 would be NaN."""
    if is_tensor(x) and is_tensor(exponent):
        return _to_tensor(x, exponent, _value)
    return _by_factors(x, exponent) if plain(exponent) and exponent in _QUARTERS else _to_number(x, exponent, _value)


@register(aten.pow, level="fast")
def power_by_binary(x: Any, exponent: Any) -> Tensor:
    """2^(y·log₂x) for a number x > 0, and ±2^(y·log₂|x|) for tensors; xⁿ for −24 ≤ n ≤ 48 as products. ≤ 64 ULP where
    |y·log₂x| ≤ 16 and 10⁻³⁷ < |x|. Where a tensor x is negative, a tensor y is taken to be whole."""
    if not is_tensor(x):
        return _of_number_by_binary(x, exponent)
    if is_tensor(exponent):
        return _to_tensor_by_binary(x, exponent)
    if not plain(exponent) or not -24 <= exponent <= 48 or exponent != int(exponent):
        return decline("the exponent is a number that is not whole, or whose products would be off by more")
    return _by_factors(x, exponent)


@register(aten.pow, level="fast", forward_only=True)
def power_to_number_by_binary(x: Tensor, exponent: Any) -> Tensor:
    """2^(y·log₂x) for numbers y that are not whole. ≤ 64 ULP where |y·log₂x| ≤ 16. The gradient at 0 would be NaN."""
    if not is_tensor(x) or not plain(exponent) or not math.isfinite(exponent) or exponent == int(exponent):
        return decline("the exponent is a tensor, or whole")
    dtype = promoted(x, exponent)
    return torch.exp2(torch.log2(cast(x, dtype)) * exponent) if dtype.is_floating_point else decline("only floats")


def _narrow(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and working_dtype(dtype) == torch.float32


def _turning(condition: Tensor, dtype: torch.dtype) -> Tensor:
    """−1 where it holds, else 1. The product of a condition and a number is of the default dtype."""
    return (condition if dtype == torch.get_default_dtype() else cast(condition, dtype)) * -2.0 + 1


# By the target's own logarithm


def _of_number_by_binary(x: Any, exponent: Tensor) -> Tensor:
    dtype = promoted(exponent, x)
    if not dtype.is_floating_point or not plain(x) or not 0 < x < math.inf:
        return decline("the base is no positive number")
    return torch.exp2(cast(exponent, dtype) * math.log2(x))


def _to_tensor_by_binary(x: Tensor, exponent: Tensor) -> Tensor:
    dtype = promoted(x, exponent)
    if not dtype.is_floating_point:
        return decline("only floats")
    x, exponent = cast(x, dtype), cast(exponent, dtype)
    negative = torch.lt(x, 0)
    if dtype != torch.float32:  # the product of a condition and a number is of the default dtype
        negative = cast(negative, dtype)
    size = torch.exp2(torch.log2(x * (negative * -2.0 + 1) + torch.finfo(dtype).tiny) * exponent)
    rest = torch.fmod(exponent.detach(), 2.0)
    return size * (negative * (rest * rest) * -2.0 + 1)


# Products and roots


def _by_factors(x: Tensor, exponent: float) -> Tensor:
    """x to the power of so many quarters, other than those that are exact."""
    dtype = promoted(x, exponent)
    if exponent in _EXACT or not dtype.is_floating_point:
        return decline("integers, or an exponent that has a way of its own")
    x = cast(x, working_dtype(dtype))
    return cast(_product(torch.reciprocal(x) if exponent < 0 else x, round(abs(exponent) * 4)), dtype)


def _product(x: Tensor, quarters: int) -> Tensor:
    """x to the power of so many quarters."""
    whole, rest = divmod(quarters, 4)
    base = x * _turning(_minus_infinity(x), x.dtype) if rest else x  # −∞ has a root here: ∞
    factors = _binary_powers(base, whole)
    if rest:
        root = torch.sqrt(base)
        factors += [root] * (rest // 2) + [torch.sqrt(root)] * (rest % 2)
    return functools.reduce(torch.mul, factors)


def _binary_powers(x: Tensor, count: int) -> list[Tensor]:
    """Those of x, x², x⁴, … whose product is x to the power of `count`."""
    found = []
    while count:
        if count & 1:
            found.append(x)
        count >>= 1
        x = x * x if count else x
    return found


# Logarithms to more digits


@dataclass(frozen=True)
class _ShortPower:
    """A power and what it is made of."""

    base: Tensor
    exponent: Any
    """A tensor or a number."""
    turn: Tensor | None
    """−1 where it is the size of the base whose logarithm counts, else 1, without gradient; None for 1 everywhere."""
    sign: Tensor | None
    """Of the power; None for 1 everywhere."""
    right: Tensor
    """Whether the base is a normal number, after its turn, and the exponent finite."""
    first: Tensor
    """The exponent of two is the sum of it…"""
    rest: Tensor
    """… and of this, less in size."""
    value: Tensor


def _value(power: _ShortPower) -> Tensor:
    return power.value


def _of_number(x: Any, exponent: Tensor) -> Tensor:
    dtype = promoted(exponent, x)
    if not plain(x) or not _narrow(dtype):
        return decline("the base is no real number, or the exponent wider than 32 bits")
    base = rounded(x, dtype)
    if not 0 < base < math.inf or base in (1, 2):
        return decline("the base is not positive, or has a way of its own")
    return cast(power_of_number(base, cast(exponent, torch.float32)), dtype)


def _to_number(x: Any, exponent: Any, finished: Callable[[_ShortPower], Tensor]) -> Tensor:
    if not is_tensor(x) or not plain(exponent) or not _narrow(dtype := promoted(x, exponent)):
        return decline("only floats of at most 32 bits to the power of a number")
    y = rounded(exponent, dtype)
    if not math.isfinite(y) or y in _EXACT:
        return decline("the exponent is not finite, or has a way of its own")
    x = cast(x, torch.float32)
    base, whole, odd = x.detach(), y == int(y), y % 2 == 1
    turn = _turning(_negative(base, odd) if whole else _minus_infinity(base), base.dtype)
    logarithm = short_logarithm(base * turn)
    first, rest = times_number(logarithm, y)
    value = torch.where(logarithm.right, torch.exp2(first) * torch.exp2(rest), torch.exp2(logarithm.own * y))
    sign = turn if odd else None
    value = value * sign if odd else value
    return cast(finished(_ShortPower(x, y, turn if whole else None, sign, logarithm.right, first, rest, value)), dtype)


def _to_tensor(x: Tensor, exponent: Tensor, finished: Callable[[_ShortPower], Tensor]) -> Tensor:
    if not _narrow(dtype := promoted(x, exponent)):
        return decline("only two tensors of at most 32 bits, one of them of floats")
    x, exponent = cast(x, torch.float32), cast(exponent, torch.float32)
    base, y = x.detach(), exponent.detach()
    turn, sign = _turn_and_sign(base, y)
    logarithm = short_logarithm(base * turn)
    first, rest = times(logarithm, y)
    right = torch.logical_and(logarithm.right, torch.lt(rest * 0, 1))  # NaN where the exponent is infinite
    size = torch.where(right, torch.exp2(first) * torch.exp2(rest), torch.exp2(logarithm.own * y))
    changed = torch.logical_and(cast(y, torch.bool), cast(logarithm.own, torch.bool))
    value = torch.where(changed, size, 1.0) * sign  # also 1 to the power of NaN, and NaN to the power of 0
    return cast(finished(_ShortPower(x, exponent, turn, sign, right, first, rest, value)), dtype)


def _turn_and_sign(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The factor (±1) that makes x positive, and the sign of the power. Where y is not whole, x stays negative and its
    logarithm is NaN, unless x is −∞, or y is infinite or so large that it is even."""
    negative = _negative(x, True)
    broken = cast(torch.fmod(y, 1.0), torch.bool)  # or infinite, or NaN
    even = torch.logical_or(torch.lt(y * y * -1, -(2.0**48)), _minus_infinity(x))
    turned = torch.lt(torch.lt(even, broken), negative)
    odd = torch.lt(broken, torch.logical_and(cast(torch.fmod(y, 2.0), torch.bool), negative))
    return _turning(turned, x.dtype), _turning(odd, x.dtype)


def _negative(x: Tensor, zero: bool) -> Tensor:
    """Whether x is; also −0, if `zero`."""
    return torch.lt(torch.reciprocal(x) + x if zero else x, 0)


def _minus_infinity(x: Tensor) -> Tensor:
    return torch.lt(x, -torch.finfo(x.dtype).max)


# Gradients


def _with_slope(power: _ShortPower) -> Tensor:
    """The power of a number, with first and second gradients as a polynomial in x minus its detached value: y·xʸ⁻¹ is
    there where xʸ overflows, or vanishes."""
    _, inverse, step, slope = _slope_along_base(power)
    y = power.exponent
    return power.value + _signed(slope * y * (1 + step * inverse * (0.5 * (y - 1))), power.sign)


def _with_both_slopes(power: _ShortPower) -> Tensor:
    """The same for two tensors. Where x is 0, x¹ has a slope too, and x² its curvature."""
    # Beyond, xʸ is 0 or infinite, and so are its gradients; y·ln x may be infinite too.
    power = replace(power, right=torch.logical_and(power.right, torch.lt(power.first * power.first, 2.0**20)))
    size, inverse, step, slope = _slope_along_base(power)
    exponent = torch.where(power.right, power.exponent, 0.0)
    y, height = exponent.detach(), torch.log2(size) * math.log(2)
    further = exponent - y
    lift = further * height
    along_base = slope * (y * (1 + step * inverse * (0.5 * (y - 1))) + further * (1 + y * height))
    along_exponent = _finite(torch.exp2(power.first) * torch.exp2(power.rest)) * lift * (1 + lift * 0.5)
    return power.value + _signed(along_base + along_exponent, power.sign) + _slope_of_zero(power)


def _slope_along_base(power: _ShortPower) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The magnitude of a base that is a normal number, else 1, and its reciprocal; the base minus its detached value,
    with the sign flipped where that of the base is; and that times the magnitude to the power of y − 1, or 0 where this
    is infinite."""
    base = torch.where(power.right, power.base, 1.0)
    size = _signed(base.detach(), power.turn)
    size = torch.where(power.right, size, 1.0) if power.turn is not None else size
    inverse = torch.reciprocal(size)
    step = _signed(base - base.detach(), power.turn)
    half = torch.exp2(power.first * 0.5)
    slope = half * inverse * (half * torch.exp2(power.rest))
    return size, inverse, step, step * _finite(slope)


def _finite(x: Tensor) -> Tensor:
    """A positive number; 0 instead of ∞ and NaN, whose product with 0 would be NaN."""
    return torch.where(torch.lt(x, math.inf), x, 0.0)


def _signed(x: Tensor, sign: Tensor | None) -> Tensor:
    return x if sign is None else x * sign


def _slope_of_zero(power: _ShortPower) -> Tensor:
    """0, with the slope of x¹ and the curvature of x² where x is 0."""
    x, y = power.base, power.exponent.detach()
    zero = torch.where(torch.eq(x.detach(), 0), x, 0.0)
    return zero * cast(torch.eq(y, 1), x.dtype) + zero * zero * cast(torch.eq(y, 2), x.dtype)
