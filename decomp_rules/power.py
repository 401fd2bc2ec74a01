"""Powers and roots. Errors are in ULP against float64, over all float32."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp_rules.double_float import binary_logarithm, power_of_two
from decomp_rules.floating import float_math, is_tensor, promoted_in_any_order, working_dtype
from decomp_rules.operands import cast, constant, promoted

RULES = Rules()
register = RULES.register
aten = torch.ops.aten


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
    """xⁿ for exponents that PyTorch treats apart (0, ±1/2, ±1, ±2, 3) and small whole ones, by products. ≤ 2 ULP."""
    if is_tensor(exponent) or not is_tensor(x):
        return decline("the exponent is a tensor")
    dtype = promoted(x, exponent)
    if dtype.is_complex:
        return decline("only real numbers")
    inner = working_dtype(dtype)
    base = cast(x, inner)
    if dtype.is_floating_point and exponent in _ROOTS:
        return cast(_ROOTS[exponent](base), dtype)
    whole = int(exponent) if math.isfinite(exponent) and exponent == int(exponent) else -1
    if 0 <= whole <= (4 if dtype.is_floating_point else 64):
        return cast(_repeated_product(base, whole), dtype)
    return decline("the exponent is neither small and whole nor 1/2, -1/2, -1 or -2")


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


@register(aten.pow)
def power_with_scalar(x: Any, exponent: Any) -> Tensor:
    """xʸ where one of them is a number, as the power of two tensors; 2ʸ as exp2."""
    if is_tensor(x) and is_tensor(exponent):
        return decline("both are tensors")
    dtype = promoted(x, exponent) if is_tensor(x) else promoted(exponent, x)
    if dtype.is_complex:
        return decline("only real numbers")
    if is_tensor(x) and dtype.is_floating_point and (exponent in _ROOTS or exponent in range(5)):
        return decline("roots, inverses and small whole powers have a way of their own")
    if is_tensor(x):
        return torch.pow(cast(x, dtype), constant(x, exponent, dtype))
    if x == 1:
        return torch.ones_like(exponent, dtype=dtype)
    if x == 2 and dtype.is_floating_point:
        return torch.exp2(cast(exponent, dtype))
    return torch.pow(constant(exponent, x, dtype), cast(exponent, dtype))


@register(aten.pow)
def power_of_tensors(x: Any, exponent: Any) -> Tensor:
    """±2^(y·log₂|x|), for targets without a power: the logarithm from a table, to half as many digits again as the
    result has, and its product with y exactly. ≤ 1 ULP. Gradients are those of 2^(y·log₂|x|), by y NaN
    where x < 0: they overflow with the power, and where x < 0 they have the right sign also for y so huge that y − 1 is
    y, with which the op's has the other one."""
    if not is_tensor(x) or not is_tensor(exponent):
        return decline("one of them is a number")
    dtype = promoted(x, exponent)
    if not dtype.is_floating_point:
        return decline("only floats")
    inner = working_dtype(dtype)
    x, exponent = cast(x, inner), cast(exponent, inner)
    # The inverse has the sign of −0.
    negative = torch.logical_or(x.detach() < 0, torch.reciprocal(x.detach()) < 0)
    size = torch.where(negative, -x, x)
    end = torch.logical_or(size == 0, size == math.inf)
    unordered = torch.isnan(x)
    point = torch.where(torch.logical_or(end, unordered), 1.0, size.detach())
    magnitude, moderate = power_of_two(exponent.detach(), *binary_logarithm(point))
    # y·log₂x less its value, so that it is finite: 0, which has the gradients.
    logarithm = torch.log2(torch.where(end, 1.0, size))
    height = logarithm.detach()
    top = torch.finfo(size.dtype).max
    power = torch.where(exponent == math.inf, top, torch.where(exponent == -math.inf, -top, exponent))
    # A factor that is 0 must not meet an infinite gradient.
    factor = torch.where(torch.logical_or(end, magnitude == math.inf), power.detach(), power)
    slope = torch.where(end, torch.where(size == 0, -1.0, constant(size, 1.0)), height)
    smooth = (logarithm - height) * factor + (power - power.detach()) * slope
    ends = torch.where(size == 1, 1.0, _power_of_end(size, end, exponent))
    regular = torch.logical_and(torch.logical_not(end), torch.logical_or(moderate, size != 1))
    magnitude = torch.where(regular, magnitude, ends) * torch.exp2(smooth)
    zeroth = torch.logical_and(exponent == 0, torch.logical_or(unordered, torch.logical_not(regular)))
    of_one = torch.logical_and(x == 1, torch.isnan(exponent))
    return cast(_signed_power(x, exponent, negative, magnitude, torch.logical_or(zeroth, of_one)), dtype)


def _power_of_end(size: Tensor, end: Tensor, exponent: Tensor) -> Tensor:
    """Powers of 0 and infinity, with their slopes: those of the inverse, of the root and of the cube."""
    size = size + 0.0
    inverse = torch.logical_and(end, exponent < 0)
    root = torch.logical_and(end, (0 < exponent) & (exponent < 1))
    cube = torch.where(torch.logical_and(end, torch.logical_not(exponent <= 1)), size, 1.0)
    fraction = torch.reciprocal(torch.where(inverse, size, 1.0))
    return fraction * torch.sqrt(torch.where(root, size, 1.0)) * (cube * cube * cube)


def _signed_power(x: Tensor, exponent: Tensor, negative: Tensor, magnitude: Tensor, certain: Tensor) -> Tensor:
    """xʸ from |x|ʸ: its sign, NaN, and 1 where that is `certain` whatever |x|ʸ is, as C99 has it."""
    base = x.detach()
    rest = torch.fmod(exponent.detach(), 2.0)  # NaN of an infinite exponent, which is even
    parity = rest * rest
    broken = torch.logical_and(torch.logical_and(rest != 0, parity != 1), parity < 4)
    finite = torch.logical_and(base < 0, base > -math.inf)
    unordered = torch.logical_or(torch.isnan(base), torch.isnan(exponent.detach()))
    undefined = torch.logical_or(torch.logical_and(finite, broken), unordered)
    sign = torch.where(torch.logical_and(negative, parity == 1), constant(x, -1.0), 1.0)
    # As a factor, so that the gradient is NaN as well.
    result = magnitude * torch.where(undefined, math.nan, sign)
    # The first power has a gradient also where x is 0 or infinite.
    at_end = torch.logical_or(base == 0, torch.abs(base) == math.inf)
    result = torch.where(torch.logical_and(at_end, exponent == 1), x, result)
    # Not taken but of NaN, a product whose gradient is NaN without being looked at, as 0 · NaN is.
    unknown = torch.where(torch.logical_or(base < 0, unordered), math.nan, constant(x, 1.0))
    result = torch.where(torch.isnan(exponent), exponent * unknown, result)
    return torch.where(certain, 1.0, result)


@register(aten.float_power)
def float_power(x: Any, exponent: Any) -> Tensor:
    """xʸ in float64."""
    if promoted_in_any_order(x, exponent).is_complex:
        return decline("only real numbers")
    x, exponent = (cast(value, torch.float64) if is_tensor(value) else value for value in (x, exponent))
    return torch.pow(x, exponent)


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
