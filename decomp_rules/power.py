"""Powers and roots. Errors are in ULP against float64, over all float32."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp_rules.floating import float_math, is_tensor, promoted_in_any_order, working_dtype
from decomp_rules.operands import cast, constant, promoted

RULES = Rules()
register = RULES.register
aten = torch.ops.aten


@register(aten.square)
def square(x: Tensor) -> Tensor:
    """x·x. ≤ 0.5 ULP."""
    return x * x


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
    if is_tensor(x):
        return torch.pow(cast(x, dtype), constant(x, exponent, dtype))
    if x == 1:
        return torch.ones_like(exponent, dtype=dtype)
    if x == 2 and dtype.is_floating_point:
        return torch.exp2(cast(exponent, dtype))
    return torch.pow(constant(exponent, x, dtype), cast(exponent, dtype))


@register(aten.pow)
def power_of_tensors(x: Any, exponent: Any) -> Tensor:
    """±2^(y·log₂|x|), for targets without a power: the exponent's rounding costs up to |y·log₂x| / 2 ULP; −0 as 0."""
    if not is_tensor(x) or not is_tensor(exponent):
        return decline("one of them is a number")
    dtype = promoted(x, exponent)
    if not dtype.is_floating_point:
        return decline("only floats")
    inner = working_dtype(dtype)
    x, exponent = cast(x, inner), cast(exponent, inner)
    size = torch.abs(x)
    regular = torch.logical_and(size > 0, size != 1)
    magnitude = torch.exp2(exponent * torch.log2(torch.where(regular, size, 2.0)))
    of_zero = torch.where(exponent > 0, constant(x, 0.0), math.inf)
    magnitude = torch.where(regular, magnitude, torch.where(size == 1, 1.0, torch.where(x == 0, of_zero, x)))
    # An infinite exponent and one beyond 2⁵³ are even.
    point = exponent.detach()
    odd = torch.logical_and(torch.abs(point) < 2.0**53, point - torch.trunc(point * 0.5) * 2 != 0)
    whole = torch.trunc(point) == point
    fraction = torch.where(size == math.inf, magnitude, math.nan)
    signed = torch.where(whole, torch.where(odd, -magnitude, magnitude), fraction)
    result = torch.where(x < 0, signed, magnitude)
    result = torch.where(exponent == exponent, result, exponent)
    return cast(torch.where(torch.logical_or(exponent == 0, x == 1), 1.0, result), dtype)


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
    edge = 64 if x.dtype == torch.float32 else 512
    smaller = torch.where(size < 2.0 ** (20 - edge), constant(x, 2.0**edge), 1.0)
    scale = torch.where(2.0 ** (edge - 4) < size, constant(x, 2.0**-edge), smaller)
    x, other = x * scale, other * scale
    root = torch.sqrt(x * x + other * other) * torch.reciprocal(scale)
    infinite = torch.logical_or(torch.abs(x) == math.inf, torch.abs(other) == math.inf)
    return torch.where(infinite, math.inf, root)
