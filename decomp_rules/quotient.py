"""Quotients of floats and their remainders."""

from __future__ import annotations

from fractions import Fraction
import math
import struct
from typing import Any

import torch
from torch import Tensor

from decomp import Declined, Rules, decline
from decomp_rules.floating import (
    float_dtype,
    float_math,
    is_tensor,
    masked_half,
    promoted_in_any_order,
    times_exact,
    working_dtype,
)
from decomp_rules.operands import cast, constant

RULES = Rules()
register = RULES.register
aten = torch.ops.aten


@register(aten.div)
def true_divide(x: Tensor, other: Any) -> Tensor:
    """x / y by a number: x times 1/y in two parts, ≤ 0.51 ULP, so that exact quotients stay exact.
    By a tensor: x·(1/y), both scaled where y is so large or small that 1/y has no float, ≤ 1.5 ULP."""
    dtype = float_dtype(x, other)
    if dtype.is_complex:
        return decline("only real numbers")
    inner = working_dtype(dtype)
    numerator = cast(x, inner) if is_tensor(x) else constant(other, x, inner)
    if is_tensor(other):
        return cast(_quotient(numerator, cast(other, inner)), dtype)
    return cast(_quotient_by_number(numerator, other), dtype)


def _quotient_by_number(x: Tensor, number: Any) -> Tensor:
    if isinstance(number, (torch.SymInt, torch.SymFloat)):
        return _quotient(x, constant(x, number))
    divisor = _as_float32(number) if x.dtype == torch.float32 else float(number)
    if divisor == 0:
        return x * math.copysign(math.inf, divisor)
    if not math.isfinite(divisor):
        return x * (1 / divisor)
    if not 2.0**-120 < abs(divisor) < 2.0**120:
        return _quotient(x, constant(x, divisor))
    return times_exact(x, 1 / Fraction(divisor))


def _quotient(x: Tensor, y: Tensor) -> Tensor:
    # Where |y| is beyond 2^±(shift + 2), x times the scale overflows only if x/y does.
    shift = 60 if y.dtype == torch.float32 else 508
    size = y.detach() * y.detach()
    larger = torch.where(2.0 ** (2 * shift + 4) < size, constant(y, 2.0**-shift), 1.0)
    scale = torch.where(size < 2.0 ** (-2 * shift - 4), constant(y, 2.0**shift), larger)
    return (x * scale) * torch.reciprocal(y * scale)


@register(aten.reciprocal)
@float_math
def reciprocal(x: Tensor) -> Tensor:
    """1 / x, for targets that divide. Exactly the op."""
    return torch.div(constant(x, 1.0), x)


@register(aten.fmod)
def fmod(x: Tensor, other: Any) -> Tensor:
    """x − trunc(x / y)·y on floats, with the product to twice the digits: exact for |x / y| < 2²³ (2⁵² in float64)."""
    operands = _float_operands(x, other)
    return operands if isinstance(operands, Declined) else cast(_fmod(*operands[1:]), operands[0])


@register(aten.remainder)
def remainder(x: Tensor, other: Any) -> Tensor:
    """fmod, plus y where the result has not the sign of y; on floats."""
    operands = _float_operands(x, other)
    if isinstance(operands, Declined):
        return operands
    dtype, x, y = operands
    rest = _fmod(x, y)
    other_side = torch.logical_and(rest != 0, (rest < 0) != (y < 0))
    return cast(torch.where(other_side, rest + y, rest), dtype)


def _float_operands(x: Any, y: Any) -> Any:
    dtype = promoted_in_any_order(x, y)
    if not dtype.is_floating_point:
        return decline("only floats")
    inner, like = working_dtype(dtype), x if is_tensor(x) else y
    return dtype, *(cast(v, inner) if is_tensor(v) else constant(like, v, inner) for v in (x, y))


def _fmod(x: Tensor, y: Tensor) -> Tensor:
    a, b = torch.abs(x.detach()), torch.abs(y.detach())
    quotient = torch.trunc(a / b)
    nothing = quotient == 0
    b_or_zero = torch.where(nothing, 0.0, b)
    high, b_high = masked_half(quotient), masked_half(b_or_zero)
    low, b_low = quotient - high, b_or_zero - b_high
    rest = a - high * b_high - high * b_low - low * b_high - low * b_low
    # The rounded quotient may be one too large or too small.
    rest = torch.where(rest < 0, rest + b, rest)
    rest = torch.where(rest < b, rest, rest - b)
    rest = torch.where(nothing, x.detach(), torch.where(x < 0, -rest, rest))
    slope = torch.where((x < 0) != (y < 0), -quotient, quotient)
    return rest + (x - x.detach()) - slope * torch.where(nothing, 0.0, y - y.detach())


def _as_float32(number: Any) -> float:
    """A number rounded to float32, as PyTorch does before it divides a float32 by it."""
    try:
        return float(struct.unpack("f", struct.pack("f", float(number)))[0])
    except OverflowError:
        return math.copysign(math.inf, float(number))
