"""Quotients of floats and their remainders."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
import functools
import math
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp.results import Declined
from decomp_rules.support.double_float import mantissa_and_exponent
from decomp_rules.support.floating import (
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
from decomp_rules.support.operands import HALVES, cast, constant

RULES = Rules(level="exact")
register = RULES.register


@register(aten.div)
def true_divide(x: Tensor, other: Any) -> Tensor:
    """x / y, ≤ 0.51 ULP and so exact where it can be, as x·(1/y) and what that product is off by; by a number, with the
    number's inverse in two parts. ≤ 1.5 ULP where x or the result is within 2⁴⁰ of the smallest or largest float."""
    dtype = float_dtype(x, other)
    if dtype.is_complex:
        return decline("only real numbers")
    inner = working_dtype(dtype)
    numerator = cast(x, inner) if is_tensor(x) else constant(other, x, inner)
    # A result rounded to a half type at the end needs no correction to be exact.
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
    if not exact:
        return _quotient_through_one(x, y)
    # Where |y| is beyond 2^(down + 2) or below 2^−(up + 2), x times the scale overflows only if x/y does.
    down, up = (60, 45) if y.dtype == torch.float32 else (508, 382)
    size = y.detach() * y.detach()
    larger = torch.where(2.0 ** (2 * down + 4) < size, constant(y, 2.0**-down), 1.0)
    scale = torch.where(size < 2.0 ** (-2 * up - 4), constant(y, 2.0**up), larger)
    x, y = x * scale, y * scale
    # Scaled twice, for the gradient has the inverse's square, and 0 must not meet an infinite one, nor a subnormal x
    # one that is next to 0.
    inverse = torch.reciprocal(y * scale) * scale
    rough = x * inverse
    numerator, first = x.detach(), rough.detach()
    upper = upper_half(first)
    high, low = split(y.detach())
    # Long division: the first half of the digits leaves a rest, exactly, that gives the second half.
    rest = (numerator - upper * high) - upper * low
    return corrected(rough, rest * inverse.detach() - (first - upper), numerator)


@register(aten.div, level="standard", forward_only=True)
def divide_scaled(x: Tensor, other: Any) -> Tensor:
    """x·s·(1 / (y·s)) with s = 2⁶³, 1 or 2⁻⁶² between 1 and 1/|y|, so that the inverse is a normal number, and what x·s
    loses is lost in the quotient too. ≤ 1.5 ULP. By a number, x·(1/y)."""
    return _by_inverse(x, other, _scaled_quotient)


@register(aten.div, level="fast")
def divide_scaled_once(x: Tensor, other: Any) -> Tensor:
    """The same, also for programs that are trained: gradients for 2⁻⁶³ ≤ |y| ≤ 2⁶², second ones while 2·x is finite."""
    return _by_inverse(x, other, _scaled_quotient)


@register(aten.div, level="standard")
def divide_scaled_trained(x: Tensor, other: Any) -> Tensor:
    """The same times 1 / (y·r), where r is the inverse, which is a constant to the gradient: what r lacks cancels, and
    1/y² is never formed. ≤ 2.2 ULP, gradients ≤ 5 where PyTorch's are finite and y is not 0."""
    return _by_inverse(x, other, _quotient_through_one)


def _by_inverse(x: Any, other: Any, quotient: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """x / y in the dtype to compute in, by `quotient` if y is a tensor whose inverse may be out of range."""
    dtype = float_dtype(x, other)
    if dtype.is_complex:
        return decline("only real numbers")
    inner = working_dtype(dtype)
    numerator = cast(x, inner) if is_tensor(x) else constant(other, x, inner)
    if not is_tensor(other):
        return cast(_times_inverse(numerator, other), dtype)
    divisor = cast(other, inner)
    if dtype == torch.float16:  # the inverse is within the range of float32
        return cast(numerator * torch.reciprocal(divisor), dtype)
    return cast(quotient(numerator, divisor), dtype)


def _times_inverse(x: Tensor, number: Any) -> Tensor:
    if isinstance(number, (torch.SymInt, torch.SymFloat)):
        return x * torch.reciprocal(constant(x, number))
    divisor = nearest_float(number, x.dtype)
    if divisor == 0 or divisor != divisor:
        return x * (math.copysign(math.inf, divisor) if divisor == 0 else divisor)
    limits = torch.finfo(x.dtype)
    if limits.tiny <= abs(1 / divisor) <= limits.max or math.isinf(divisor):
        return x * (1 / divisor)
    scale = 2.0**-64 if abs(divisor) > 1 else 2.0**64
    return x * scale * (1 / (divisor * scale))


def _scaled_quotient(x: Tensor, y: Tensor) -> Tensor:
    scale = _scale_of_divisor(y)
    return (x * scale) * torch.reciprocal(y * scale)


def _quotient_through_one(x: Tensor, y: Tensor) -> Tensor:
    scale = _scale_of_divisor(y.detach())
    scaled = y * scale
    inverse = torch.reciprocal(scaled.detach())
    one = scaled * inverse
    # Of 0 and of infinity the product with the inverse is NaN.
    return ((x * scale) * inverse) * torch.reciprocal(torch.where(one < 2.0, one, 1.0))


def _scale_of_divisor(y: Tensor) -> Tensor:
    """A power of two by which the inverse of y, unless that is 0, is a normal number also where y is not."""
    down, up = (62, 63) if y.dtype == torch.float32 else (510, 511)
    square = y * y
    small, ordinary = torch.lt(square, 2.0 ** (-2 * up)), torch.lt(square, 2.0 ** (2 * down))
    if y.dtype != torch.float32:  # the product of a condition and a number is of the default dtype
        small, ordinary = cast(small, y.dtype), cast(ordinary, y.dtype)
    return small * 2.0**up + ordinary + 2.0**-down


@register(aten.reciprocal)
@float_math
def reciprocal(x: Tensor) -> Tensor:
    """1 / x, for targets that divide. Exactly the op."""
    return torch.div(constant(x, 1.0), x)


# Remainders


@register(aten.fmod)
def fmod(x: Any, other: Any) -> Tensor:
    """x − trunc(x / y)·y on floats, exactly: as the remainder of integers, m·2ᵈ mod n."""
    return _remainder_of_floats(x, other, _integer_remainder)


@register(aten.fmod)
def fmod_of_large(x: Any, other: Any) -> Tensor:
    """x − trunc(x / y)·y on floats, exactly, for targets without integers: by long division in floats, twelve bits of
    the quotient at a time (26 in float64)."""
    return _remainder_of_floats(x, other, _rest_of_long_division)


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


def _remainder_of_floats(x: Any, y: Any, way: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """x mod y by `way`, which gives |x| mod |y| where |x| ≥ |y| > 0 and both are finite."""
    operands = _float_operands(x, y)
    if isinstance(operands, Declined):
        return operands
    dtype, x, y = operands
    point, modulus = x.detach(), y.detach()
    a, b = torch.abs(point), torch.abs(modulus)
    is_smaller = a < b
    rest = way(a, b)
    signed = torch.where(is_smaller, point, torch.where(point < 0, -rest, rest))
    value = torch.where(torch.logical_or(modulus == 0, a == math.inf), math.nan, signed)
    # trunc |x / y|, for the gradient; what carries it is subtracted as +0, so that a zero keeps its sign.
    lift = torch.where(b < 2.0**-62, constant(b, 2.0**64), 1.0)  # the inverse of a subnormal number is infinite
    count = torch.trunc((a - rest) * lift * torch.reciprocal(b * lift) + 0.5)
    count = torch.where(is_smaller, 0.0, torch.clamp(count, max=torch.finfo(x.dtype).max))
    toward = torch.where((point < 0) != (modulus < 0), modulus - y, y - modulus)
    toward = torch.where(is_smaller, 0.0, toward)  # NaN of an infinite y
    return cast(value - (point - x) - count * toward, dtype)


# The integer that a float is read as, the digits of its significand after the point, and the bits of its exponent.
_BITS = {torch.float32: (torch.int32, 23, 8), torch.float64: (torch.int64, 52, 11)}


def _integer_remainder(a: Tensor, b: Tensor) -> Tensor:
    """|x| mod |y| by 64-bit integers: m·2ᵈ mod n, where a = m·2ᵈ⁺ᵉ and b = n·2ᵉ, by the bits of d."""
    a_exponent, dividend = _parts(a)
    b_exponent, modulus = _parts(b)
    one = constant(modulus, 1)
    modulus = torch.maximum(modulus, one)
    shift = torch.maximum(a_exponent - b_exponent, one * 0)
    within_32 = torch.bitwise_and(shift, 31)
    if a.dtype == torch.float32:
        times = functools.partial(_product_of_halves, modulus)
        rest = torch.fmod(torch.bitwise_left_shift(dividend, within_32), modulus)
    else:
        inverse = torch.reciprocal(modulus.to(torch.float64))
        times = functools.partial(_product, modulus, inverse, _halves(modulus * -1))
        rest = times(dividend, torch.fmod(torch.bitwise_left_shift(one, within_32), modulus))
    power = torch.fmod(constant(modulus, 2**32), modulus)
    _, digits, bits = _BITS[a.dtype]
    for bit in range(5, bits):
        rest = times(rest, torch.where(torch.bitwise_and(shift, 2**bit) != 0, power, 1))
        if bit < bits - 1:
            power = times(power, power)
    rest = rest if a.dtype == torch.float32 else torch.where(rest < 0, rest + modulus, rest)
    return rest.to(a.dtype) * torch.exp2((b_exponent - (2 ** (bits - 1) - 1 + digits)).to(a.dtype))


def _product_of_halves(modulus: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return torch.fmod(x * y, modulus)


def _product(modulus: Tensor, inverse: Tensor, negative: tuple[Tensor, Tensor], x: Tensor, y: Tensor) -> Tensor:
    """x·y mod n, or that less n, for |x| < 2⁵³ and |y| < n < 2⁵³, with the halves of −n: x·y less n times the quotient
    in float64, which is off by less than 8. As what is left is below 2⁵⁶, it is computed modulo 2⁶⁰."""
    quotient = (x.to(torch.float64) * y.to(torch.float64) * inverse).to(torch.int64)
    (x_high, x_low), (y_high, y_low), (q_high, q_low) = _halves(x), _halves(y), _halves(quotient)
    n_high, n_low = negative
    cross = x_high * y_low + x_low * y_high + q_high * n_low + q_low * n_high
    lowest = x_low * y_low + q_low * n_low
    left = lowest + torch.bitwise_and(cross, 2**30 - 1) * 2**30
    return torch.fmod(torch.bitwise_and(left + 2**59, 2**60 - 1) - 2**59, modulus)


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """x as high · 2³⁰ + low with 0 ≤ low < 2³⁰."""
    return torch.bitwise_right_shift(x, 30), torch.bitwise_and(x, 2**30 - 1)


def _parts(magnitude: Tensor) -> tuple[Tensor, Tensor]:
    """The biased exponent of a float that is not negative, 1 for a subnormal one, and its significand, an integer."""
    integer, digits, _ = _BITS[magnitude.dtype]
    # NaN may have its sign bit set.
    bits = torch.bitwise_and(cast(magnitude.view(integer), torch.int64), torch.iinfo(integer).max)
    exponent = torch.maximum(torch.bitwise_right_shift(bits, digits), constant(bits, 1))
    return exponent, bits - torch.bitwise_left_shift(exponent - 1, digits)


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
