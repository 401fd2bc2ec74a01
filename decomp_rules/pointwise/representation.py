"""Floating point numbers as a significand and a power of two: taking them apart, scaling, and the number next to one.
Targets that reinterpret bits step through them as integers; elsewhere powers of two come from exp2, exact there,
and steps from a sum that rounds."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.support.operands import HALVES, cast, constant, wide

RULES = Rules(level="exact")
register = RULES.register

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _least_exponent(dtype: torch.dtype) -> int:
    """Of the smallest subnormal number, −149 of float32."""
    return round(math.log2(torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps))


@register(aten.ldexp)
def ldexp(x: Tensor, other: Tensor) -> Tensor:
    """x · 2ⁿ for whole n, in three steps, each a power of two that the dtype has, the last one alone rounding: exactly
    the op, but for its gradient, which torch 2.13 takes to be 0 for n < 0. As x · 2ʸ, rounded twice, where the exponent
    is no integer or x is one."""
    # That gradient is reported as https://github.com/pytorch/pytorch/issues/187460.
    if not x.is_floating_point() or other.is_floating_point() or x.is_complex() or other.is_complex():
        return x * torch.pow(2.0, other)
    scaled, exponent = wide(x), cast(other, wide(x).dtype)
    lowest, highest = _least_exponent(scaled.dtype), round(math.log2(torch.finfo(scaled.dtype).max)) - 1
    factors = []
    for _ in range(3):
        step = torch.clamp(exponent, min=lowest, max=highest)
        factors.append(torch.exp2(step))
        exponent = exponent - step
    for factor in reversed(factors):
        scaled = scaled * factor
    return cast(scaled, x.dtype)


@register(aten.frexp)
def frexp(x: Tensor) -> tuple[Tensor, Tensor]:
    """m · 2ⁿ with ½ ≤ |m| < 1: n from log₂, and corrected by one where that rounds. Exactly the op; of 0, ∞ and NaN the
    significand is itself. The gradient is that of x · 2⁻ⁿ."""
    if not x.is_floating_point():
        return decline("only floats")
    value = wide(x)
    size = torch.abs(value.detach())
    plain = torch.gt(size, 0) & torch.lt(size, math.inf)
    tiny = torch.lt(size, torch.finfo(value.dtype).smallest_normal)
    lift = 1 - round(math.log2(torch.finfo(value.dtype).eps))
    lifted = torch.where(plain, torch.where(tiny, size * 2.0**lift, size), constant(size, 0.5))
    exponent = torch.floor(torch.log2(lifted)) + 1
    # Half a power at a time: 2 to the greatest exponent is beyond the dtype, and to its opposite below normal numbers.
    half = torch.exp2(-torch.floor(exponent * 0.5))
    other = torch.exp2(torch.floor(exponent * 0.5) - exponent)
    rough = (lifted * half) * other
    exponent = exponent + torch.ge(rough, 1).to(size.dtype) - torch.lt(rough, 0.5).to(size.dtype)
    half = torch.exp2(-torch.floor(exponent * 0.5))
    other = torch.exp2(torch.floor(exponent * 0.5) - exponent)
    significand = (torch.where(tiny, value * 2.0**lift, value) * half) * other
    exponent = exponent - torch.where(tiny, constant(exponent, lift), constant(exponent, 0))
    whole = cast(torch.where(plain, exponent, constant(exponent, 0)), torch.int32)
    return cast(torch.where(plain, significand, value), x.dtype), whole


@register(aten.nextafter)
def nextafter_by_bits(x: Tensor, other: Tensor) -> Tensor:
    """The bits of x as an integer one further from zero, or one nearer to it. Exactly the op, but that its gradient is
    0 at infinite x."""
    source = x
    x, other = _alike(x, other)
    integer = _INTEGERS[x.element_size()]
    # Neither those of −0 nor of NaN may be counted on: they are next to an end of the integers.
    positive = torch.gt(x, 0)
    bits = torch.where(positive | torch.lt(x, 0), x.view(integer), constant(x, 0, integer))
    outward = torch.eq(torch.lt(x, other), positive)
    moved = (bits + torch.where(outward, constant(bits, 1), constant(bits, -1))).view(x.dtype)
    least = constant(x, 2.0 ** _least_exponent(x.dtype))
    from_zero = torch.where(torch.gt(other, 0), least, -least)
    return _moved(source, x, other, torch.where(torch.eq(x, 0), from_zero, moved))


@register(aten.nextafter)
def nextafter(x: Tensor, other: Tensor) -> Tensor:
    """x ± φ|x|, which rounds to the next number for φ a little more than half of ε. Exactly the op, but that its
    gradient is 0 at infinite x. S. M. Rump et al., Computing predecessor and successor in rounding to nearest, BIT 49
    (2009)."""
    source = x
    x, other = _alike(x, other)
    eps = torch.finfo(x.dtype).eps
    value = wide(x)
    size = torch.abs(value)
    direction = torch.where(torch.lt(value, wide(other)), constant(value, 1.0), constant(value, -1.0))
    smallest = torch.finfo(x.dtype).smallest_normal
    # Below, φ|x| would not be a normal number: a power of two lifts it up.
    lift = 1.0 if x.dtype in HALVES else 2.0 ** round(-2 * math.log2(eps))
    low = torch.lt(size, smallest / eps**2) if lift != 1.0 else None
    scaled = value if low is None else torch.where(low, value * lift, value)
    stepped = scaled + direction * (torch.abs(scaled) * (eps / 2 * (1 + 4 * eps)))
    stepped = stepped if low is None else torch.where(low, stepped * (1 / lift), stepped)
    subnormal = value + direction * 2.0 ** _least_exponent(x.dtype)
    subnormal = torch.where(torch.eq(subnormal, 0), value * 0.0, subnormal)  # the zero keeps the sign
    stepped = torch.where(torch.lt(size, 2 * smallest), subnormal, stepped)
    largest = torch.where(
        torch.lt(value, 0), constant(value, torch.finfo(x.dtype).min), constant(value, torch.finfo(x.dtype).max)
    )
    return _moved(source, x, other, cast(torch.where(torch.eq(size, math.inf), largest, stepped), x.dtype))


def _alike(x: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Both in one dtype and shape, without gradients."""
    dtype = torch.result_type(x, other)
    shape = torch.broadcast_shapes(x.shape, other.shape)
    return cast(x.detach(), dtype).expand(shape).clone(), cast(other.detach(), dtype)


def _moved(source: Tensor, x: Tensor, other: Tensor, moved: Tensor) -> Tensor:
    """`moved` unless the two are equal, or one is NaN; with the gradient of the source where they are not equal."""
    moved = torch.where(torch.ne(x, x) | torch.ne(other, other), x + other, moved)
    # A sum with −0 changes nothing; where the source is infinite, its difference from itself is no zero.
    source = torch.where(torch.eq(torch.abs(x), math.inf), constant(x, 0), cast(source, x.dtype))
    return torch.where(torch.eq(x, other), other, moved + torch.neg(source.detach() - source))
