"""Powers and roots. Errors are in ULP against float64, over all float32."""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.support.double_float import binary_logarithm, exponent_of_power, mantissa_and_exponent
from decomp_rules.support.floating import float_math, is_tensor, nearest, promoted_in_any_order, working_dtype
from decomp_rules.support.operands import cast, constant, promoted

RULES = Rules(level="exact")
register = RULES.register


@register(aten.square)
def square(x: Tensor) -> Tensor:
    """x·x. ≤ 0.5 ULP."""
    return cast(x, torch.int64) if x.dtype == torch.bool else x * x


@register(aten.rsqrt)
@float_math
def rsqrt(x: Tensor) -> Tensor:
    """1 / √x. ≤ 1.5 ULP."""
    return torch.reciprocal(torch.sqrt(x))


@register(aten.pow)
def power(x: Any, exponent: Any) -> Tensor:
    """xⁿ for exponents that PyTorch treats apart (0, ±1/2, ±1, ±2, 3) and small whole ones, by products; 2ʸ as exp2;
    numbers else as tensors. ≤ 2 ULP.

    Of tensors ±2^(y·log₂|x|), for targets without a power: the logarithm from a table, to half as many digits again as
    the result has, and its product with y exactly. ≤ 1 ULP. Gradients are those of 2^(y·log₂|x|), and where they would
    overflow or vanish on the way y·xʸ⁻¹ and xʸ·ln x, with second ones of 0 where x is 0 or infinite. That by y is NaN
    where x < 0; that by x has there the right sign also for y so huge that y − 1 is y, with which the op's has the
    other one."""
    dtype = promoted(x, exponent)
    if dtype.is_complex:
        return decline("only real numbers")
    if not is_tensor(x):
        return _power_of_number(x, exponent, dtype)
    if not is_tensor(exponent):
        return _power_to_number(x, exponent, dtype)
    if not dtype.is_floating_point:
        return decline("of two tensors only floats")
    inner = working_dtype(dtype)
    return cast(_power(cast(x, inner), cast(exponent, inner)), dtype)


def _power_of_number(x: float, exponent: Tensor, dtype: torch.dtype) -> Tensor:
    if x == 1:
        return torch.ones_like(exponent, dtype=dtype)
    if x == 2 and dtype.is_floating_point:
        return torch.exp2(cast(exponent, dtype))
    return torch.pow(constant(exponent, x, dtype), cast(exponent, dtype))


def _power_to_number(x: Tensor, exponent: float, dtype: torch.dtype) -> Tensor:
    base = cast(x, working_dtype(dtype))
    if dtype.is_floating_point and exponent in _ROOTS:
        return cast(_ROOTS[exponent](base), dtype)
    whole = int(exponent) if math.isfinite(exponent) and exponent == int(exponent) else -1
    if 0 <= whole <= (4 if dtype.is_floating_point else 64):
        return cast(_repeated_product(base, whole), dtype)
    return torch.pow(cast(x, dtype), constant(x, exponent, dtype))


_ROOTS = {
    0.5: torch.sqrt,
    -0.5: torch.rsqrt,
    -1: torch.reciprocal,
    -2: lambda x: torch.reciprocal(x * x),
}


def _repeated_product(x: Tensor, count: int) -> Tensor:
    """x·x·…·x by squaring; of no factors, ones."""
    result = None
    while count:
        if count & 1:
            result = x if result is None else result * x
        count >>= 1
        if count:
            x = x * x
    return torch.ones_like(x) if result is None else result


@dataclass(frozen=True)
class _Power:
    """A power and its parts, without gradient."""

    point: Tensor
    """The size of the base; 1 where that is 0, infinite or NaN."""
    none: Tensor
    """Whether it is 0."""
    endless: Tensor
    """Whether it is infinite."""
    end: Tensor
    """The one as −1 and the other as 1, else 0."""
    exponent: Tensor
    """The largest number in place of what is `unbounded`."""
    unbounded: Tensor
    """Whether the exponent is infinite or NaN."""
    logarithm: Tensor
    whole: Tensor
    """The exponent of two; what is left of it goes into the first of the factors."""
    factors: tuple[Tensor, Tensor, Tensor]
    """Their product is the size of the power, and none of them overflows."""

    @property
    def size(self) -> Tensor:
        fraction, first, second = self.factors
        return fraction * first * second


# Exponents of two that are low, or high, enough for any result: half of them is the exponent of a float.
_BOUNDS = {torch.float32: (-400.0, 250.0), torch.float64: (-3000.0, 2040.0)}


def _power(x: Tensor, y: Tensor) -> Tensor:
    base, exponent = x.detach(), y.detach()
    # The inverse has the sign of −0.
    turn = torch.where(torch.logical_or(base < 0, torch.reciprocal(base) < 0), -1.0, constant(x, 1.0))
    parity, broken = _parity(exponent)
    sign = torch.where(torch.logical_and(turn < 0, parity), constant(x, -1.0), 1.0)
    lost = torch.logical_and(torch.logical_and(base < 0, base > -math.inf), broken)
    power = _power_of_size(base * turn, exponent)
    size = power.size
    # Where nothing overflows on the way, x over itself to the power of y.
    known = torch.logical_and(2.0**-100 < base * turn, base * turn < 2.0**100)
    known = torch.logical_and(known, torch.logical_and(2.0**-100 < size, size < math.inf))
    known = torch.logical_and(known, torch.logical_not(power.unbounded))
    smooth = torch.logical_and(known, size * (power.exponent * power.exponent + 1) < torch.finfo(x.dtype).max / 4)
    logarithm, factor = torch.log2(torch.where(known, x * turn, 1.0)), torch.where(known, y, 1.0)
    product = logarithm * factor
    growth = torch.exp2((product - product.detach()) * cast(smooth, x.dtype))
    # Elsewhere, the slopes of what is known in addition.
    ratio, further = (logarithm - logarithm.detach()) * (power.exponent - 1), factor - factor.detach()
    height = power.logarithm * math.log(2)
    by_x = _along_base(x, smooth, power, turn * sign * (power.exponent + further))
    by_y = _along_exponent(y, smooth, power, sign)
    linear = by_x * (1 + (ratio * (0.5 * math.log(2)) + further * height)) + by_y * (1 + further * height * 0.5)
    # +0 is subtracted, so that −0 stays.
    return _with_nan(x, y, lost, size * torch.where(lost, math.nan, sign) * growth - (0.0 - linear))


def _power_of_size(size: Tensor, y: Tensor) -> _Power:
    """The power of a base that is not negative; of 1 where the exponent is NaN, of anything where the base is."""
    top = torch.finfo(y.dtype).max
    none, endless = size == 0, size == math.inf
    point = torch.where(torch.logical_or(torch.logical_or(none, endless), torch.isnan(size)), 1.0, size)
    unbounded = torch.logical_not(torch.abs(y) <= top)
    exponent = torch.where(unbounded, torch.where(0 < y, top, constant(y, -top)), y)
    first, second = binary_logarithm(point)
    whole, rest = exponent_of_power(exponent, first, second)
    # 0 and infinity are powers of two too, of exponents without end.
    end = cast(endless, y.dtype) - cast(none, y.dtype)
    bounded = torch.clamp(whole + end * top * exponent * 2.0**100, *_BOUNDS[y.dtype])
    half = nearest(bounded * 0.5)
    factors = torch.exp2(rest), torch.exp2(half), torch.exp2(bounded - half)
    return _Power(point, none, endless, end, exponent, unbounded, first + second, whole, factors)


def _along_base(x: Tensor, smooth: Tensor, power: _Power, factor: Tensor) -> Tensor:
    """x minus its detached value (0) times y·xʸ⁻¹, whose last factor is given; 0 where the power is `smooth`. Infinite
    like the power where x is infinite and this is not 0."""
    falling = torch.logical_and(power.endless, power.exponent < 1)
    dx = _difference(x, torch.logical_or(smooth, falling), torch.logical_or(smooth, power.endless))
    mantissa, place = mantissa_and_exponent(power.point)
    # None of the factors overflows, and if one of them is 0, so is the next.
    whole = power.whole - place + power.end * 1e30 * (power.exponent - 1)
    half = torch.exp2(torch.clamp(whole, max=_BOUNDS[x.dtype][1]) * 0.5)
    infinite = 1 + cast(power.unbounded, x.dtype)
    return dx * infinite * half * (half * power.factors[0] * torch.reciprocal(mantissa)) * factor


def _along_exponent(y: Tensor, smooth: Tensor, power: _Power, sign: Tensor) -> Tensor:
    """y minus its detached value (0) times xʸ·ln|x|; 0 where the power is `smooth`, and where x and y are 0. Infinite
    like the power where y is infinite and this is not 0."""
    without_slope = torch.logical_and(power.unbounded, power.size < math.inf)
    dy = _difference(y, torch.logical_or(smooth, without_slope), torch.logical_or(smooth, power.unbounded))
    end = cast(power.endless, y.dtype) - cast(torch.logical_and(power.none, y.detach() != 0), y.dtype)
    height = power.logarithm * math.log(2) + end * torch.finfo(y.dtype).max
    fraction, first, second = power.factors
    return dy * (1 + 3 * end * end) * height * (first * sign) * (second * fraction)


def _difference(x: Tensor, zero: Tensor, whole: Tensor) -> Tensor:
    """x minus its detached value; 0 without gradient where `nothing` holds, else x itself where `whole` holds."""
    return torch.where(zero, 0.0, x) - torch.where(whole, 0.0, x.detach())


def _parity(exponent: Tensor) -> tuple[Tensor, Tensor]:
    """Where an exponent is odd, and where it is not whole; neither where it is infinite."""
    rest = torch.fmod(exponent, 2.0)
    square = rest * rest
    return square == 1, torch.logical_and(torch.logical_and(rest != 0, square != 1), square < 4)


def _with_nan(x: Tensor, y: Tensor, lost: Tensor, power: Tensor) -> Tensor:
    """xʸ with what NaN makes of it, but 1 for 1ʸ and x⁰, and gradients that are NaN: what is not taken has a gradient
    of 0, and a product with NaN makes NaN of it without being looked at."""
    base, exponent = x.detach(), y.detach()
    no_base, no_exponent = torch.isnan(base), torch.isnan(exponent)
    by_x = torch.logical_or(lost, torch.logical_or(no_exponent, no_base & (exponent * (exponent - 1) != 0)))
    by_y = torch.logical_or(no_base, torch.logical_or(base < 0, torch.logical_and(no_exponent, base != 1)))
    unknown = x * torch.where(by_x, math.nan, constant(x, 1.0)) + y * torch.where(by_y, math.nan, constant(x, 1.0))
    result = torch.where(torch.logical_or(no_base, no_exponent), unknown, power)
    of_one, zeroth = torch.logical_and(base == 1, no_exponent), torch.logical_and(exponent == 0, no_base)
    return torch.where(torch.logical_or(of_one, zeroth), 1.0, result)


@register(aten.float_power)
def float_power(x: Any, exponent: Any) -> Tensor:
    """xʸ in float64."""
    if promoted_in_any_order(x, exponent).is_complex:
        return decline("only real numbers")
    x, exponent = (cast(value, torch.float64) if is_tensor(value) else value for value in (x, exponent))
    return torch.pow(x, exponent)


@register(aten.hypot, level="fast")
@float_math
def hypot_of_squares(x: Tensor, other: Tensor) -> Tensor:
    """√(x² + y²) of numbers times 2⁸⁰, 1 or 2⁻⁶⁶, whose squares neither overflow nor vanish. ≤ 1.5 ULP."""
    up, down = (80, 66) if x.dtype == torch.float32 else (640, 514)
    square = x * x + other * other
    small, ordinary = torch.lt(square, 2.0 ** (20 - up)), torch.lt(square, 2.0 ** (2 * down - 12))
    if x.dtype != torch.float32:  # the product of a condition and a number is of the default dtype
        small, ordinary = cast(small, x.dtype), cast(ordinary, x.dtype)
    scale = small * 2.0**up + ordinary + 2.0**-down
    x, other = x * scale, other * scale
    return torch.sqrt(x * x + other * other) * torch.reciprocal(scale)


@register(aten.hypot)
@float_math
def hypot(x: Tensor, other: Tensor) -> Tensor:
    """√(x² + y²), scaled by a power of two so that no square overflows or vanishes. ≤ 1.5 ULP."""
    size = torch.maximum(torch.abs(x.detach()), torch.abs(other.detach()))
    edge, lift = (64, 100) if x.dtype == torch.float32 else (512, 700)
    smallest = torch.where(size < 2.0**-lift, constant(x, 2.0**lift), 2.0**edge)
    smaller = torch.where(size < 2.0 ** (20 - edge), smallest, 1.0)
    scale = torch.where(2.0 ** (edge - 4) < size, constant(x, 2.0**-edge), smaller)
    x, other = x * scale, other * scale
    root = torch.sqrt(x * x + other * other) * torch.reciprocal(scale)
    infinite = torch.logical_or(torch.abs(x) == math.inf, torch.abs(other) == math.inf)
    return torch.where(infinite, math.inf, root)
