"""Quotients of floats and their remainders."""

from __future__ import annotations

from fractions import Fraction
import math
from typing import Any

import torch
from torch import Tensor

from decomp import Declined, Rules, decline
from decomp_rules.double_float import mantissa_and_exponent
from decomp_rules.floating import (
    corrected,
    float_dtype,
    float_math,
    is_tensor,
    nearest,
    nearest_float,
    promoted_in_any_order,
    split,
    times_exact,
    upper_half,
    working_dtype,
)
from decomp_rules.operands import HALVES, cast, constant

RULES = Rules()
register = RULES.register
aten = torch.ops.aten


@register(aten.div)
def true_divide(x: Tensor, other: Any) -> Tensor:
    """x / y, ≤ 0.51 ULP and so exact where it can be, as x·(1/y) and what that product is off by; by a number, with the
    number's inverse in two parts. ≤ 1.5 ULP where x or the result is within 2⁴⁰ of the smallest or largest float."""
    dtype = float_dtype(x, other)
    if dtype.is_complex:
        return decline("only real numbers")
    inner = working_dtype(dtype)
    numerator = cast(x, inner) if is_tensor(x) else constant(other, x, inner)
    # What is rounded to a half type at the end is exact there without a correction.
    exact = dtype not in HALVES
    if is_tensor(other):
        return cast(_quotient(numerator, cast(other, inner), exact), dtype)
    return cast(_quotient_by_number(numerator, other, exact), dtype)


def _quotient_by_number(x: Tensor, number: Any, exact: bool) -> Tensor:
    if isinstance(number, (torch.SymInt, torch.SymFloat)):
        return _quotient(x, constant(x, number), exact)
    divisor = nearest_float(number, x.dtype)
    if divisor == 0:
        return x * math.copysign(math.inf, divisor)
    if not math.isfinite(divisor):
        return x * (1 / divisor)
    if not 2.0**-120 < abs(divisor) < 2.0**120:
        return _quotient(x, constant(x, divisor), exact)
    return times_exact(x, 1 / Fraction(divisor)) if exact else x * (1 / divisor)


def _quotient(x: Tensor, y: Tensor, exact: bool) -> Tensor:
    # Where |y| is beyond 2^±(shift + 2), x times the scale overflows only if x/y does.
    shift = 45 if y.dtype == torch.float32 else 382
    size = y.detach() * y.detach()
    larger = torch.where(2.0 ** (2 * shift + 4) < size, constant(y, 2.0**-shift), 1.0)
    scale = torch.where(size < 2.0 ** (-2 * shift - 4), constant(y, 2.0**shift), larger)
    x, y = x * scale, y * scale
    # Scaled twice, for the gradient has the inverse's square, and 0 must not meet an infinite one, nor a subnormal x
    # one that is next to 0.
    inverse = torch.reciprocal(y * scale) * scale
    rough = x * inverse
    if not exact:
        return rough
    numerator, first = x.detach(), rough.detach()
    upper = upper_half(first)
    high, low = split(y.detach())
    # Long division: the first half of the digits leaves a rest, exactly, that gives the second half.
    rest = (numerator - upper * high) - upper * low
    return corrected(rough, rest * inverse.detach() - (first - upper), numerator)


@register(aten.reciprocal)
@float_math
def reciprocal(x: Tensor) -> Tensor:
    """1 / x, for targets that divide. Exactly the op."""
    return torch.div(constant(x, 1.0), x)


# Remainders


@register(aten.fmod)
def fmod(x: Any, other: Any) -> Tensor:
    """x − trunc(x / y)·y on floats of 32 bits and less, exactly: as the remainder of integers, m·2ᵈ mod n."""
    return _remainder_of_floats(x, other, _integer_remainder, torch.float32)


@register(aten.fmod)
def fmod_of_large(x: Any, other: Any) -> Tensor:
    """x − trunc(x / y)·y on floats, exactly: by long division in floats, twelve bits of the quotient at a time (26 in
    float64). For targets without integers, and for float64."""
    return _remainder_of_floats(x, other, _rest_of_long_division, None)


@register(aten.remainder)
def remainder(x: Any, other: Any) -> Tensor:
    """fmod, plus y where the result has not the sign of y; on floats."""
    operands = _float_operands(x, other)
    if isinstance(operands, Declined):
        return operands
    dtype, x, y = operands
    rest = cast(torch.fmod(cast(x, dtype), cast(y, dtype)), x.dtype)
    other_side = torch.logical_and(rest != 0, (rest < 0) != (y < 0))
    return cast(torch.where(other_side, rest + y, rest), dtype)


def _float_operands(x: Any, y: Any) -> Any:
    dtype = promoted_in_any_order(x, y)
    if not dtype.is_floating_point:
        return decline("only floats")
    inner, like = working_dtype(dtype), x if is_tensor(x) else y
    return dtype, *(cast(v, inner) if is_tensor(v) else constant(like, v, inner) for v in (x, y))


def _remainder_of_floats(x: Any, y: Any, way: Any, only: torch.dtype | None) -> Tensor:
    """x mod y by `way`, which gives |x| mod |y| where |x| ≥ |y| > 0 and both are finite."""
    operands = _float_operands(x, y)
    if isinstance(operands, Declined):
        return operands
    dtype, x, y = operands
    if only not in (None, x.dtype):
        return decline("only floats of 32 bits and less")
    point, modulus = x.detach(), y.detach()
    a, b = torch.abs(point), torch.abs(modulus)
    nothing = a < b
    rest = way(a, b)
    signed = torch.where(nothing, point, torch.where(point < 0, -rest, rest))
    value = torch.where(torch.logical_or(modulus == 0, a == math.inf), math.nan, signed)
    # trunc |x / y|, for the gradient; what carries it is subtracted as +0, so that a zero keeps its sign.
    lift = torch.where(b < 2.0**-62, constant(b, 2.0**64), 1.0)  # the inverse of a subnormal number is infinite
    count = torch.trunc((a - rest) * lift * torch.reciprocal(b * lift) + 0.5)
    count = torch.where(nothing, 0.0, torch.clamp(count, max=torch.finfo(x.dtype).max))
    toward = torch.where((point < 0) != (modulus < 0), modulus - y, y - modulus)
    toward = torch.where(nothing, 0.0, toward)  # NaN of an infinite y
    return cast(value - (point - x) - count * toward, dtype)


def _integer_remainder(a: Tensor, b: Tensor) -> Tensor:
    """|x| mod |y| of float32, by 64-bit integers: m·2ᵈ mod n, where a = m·2ᵈ⁺ᵉ and b = n·2ᵉ."""
    a_exponent, dividend = _parts(a)
    b_exponent, modulus = _parts(b)
    one = constant(modulus, 1)
    modulus = torch.maximum(modulus, one)
    shift = torch.maximum(a_exponent - b_exponent, one * 0)
    rest = torch.fmod(torch.bitwise_left_shift(dividend, torch.bitwise_and(shift, 31)), modulus)
    power = torch.fmod(constant(modulus, 2**32), modulus)
    for bit in (32, 64, 128):
        factor = torch.where(torch.bitwise_and(shift, bit) != 0, power, 1)
        rest = torch.fmod(rest * factor, modulus)
        if bit < 128:
            power = torch.fmod(power * power, modulus)
    return rest.to(torch.float32) * torch.exp2((b_exponent - 150).to(torch.float32))


def _parts(magnitude: Tensor) -> tuple[Tensor, Tensor]:
    """The biased exponent of a float32 that is not negative, 1 for a subnormal one, and its significand, an integer."""
    bits = magnitude.view(torch.int32).to(torch.int64)
    exponent = torch.maximum(torch.bitwise_right_shift(bits, 23), constant(bits, 1))
    return exponent, bits - torch.bitwise_left_shift(exponent - 1, 23)


# Bits of the quotient that a step of a long division yields, and the steps that are taken from one power of two on: so
# few that what is divided may begin that much smaller. Three times that many suffice for all quotients.
_STEPS = {torch.float32: (12, 8), torch.float64: (26, 28)}


def _rest_of_long_division(a: Tensor, b: Tensor) -> Tensor:
    """|x| mod |y| as that of m·2ᵈ by n, where a = m·2ᵈ⁺ᵉ and b = n·2ᵉ. What is added up are multiples of the last bit
    of n, or of a few of m, and so small that nothing is rounded."""
    bits, steps = _STEPS[a.dtype]
    rest, exponent = mantissa_and_exponent(a)
    n, lowest = mantissa_and_exponent(b)
    high, low = split(-n)
    inverse = torch.reciprocal(n) * 2.0**bits
    ahead = exponent - lowest
    most = (steps - 1) * bits  # of a number that may exceed n
    for _ in range(3):
        shift = torch.clamp(ahead, max=float(most))
        ahead, most = ahead - shift, steps * bits
        rest = rest * torch.exp2(shift - steps * bits)
        for _ in range(steps):
            # The nearest multiple, not the one below: what remains has a sign, and half a digit less.
            quotient = nearest(rest * inverse)
            rest = rest * 2.0**bits + quotient * high + quotient * low
    half = nearest(lowest * 0.5)
    return torch.where(rest < 0, rest + n, rest) * torch.exp2(half) * torch.exp2(lowest - half)
