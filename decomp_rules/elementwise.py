"""Elementary functions of one element: exponentials, logarithms, powers, quotients, rounding. (Trigonometry is in
`trigonometry`.)

The floor is what every target has: exp2, log2, sin, sqrt, reciprocal, trunc, plus and times. The textbook identities
lose digits there, so each rule first brings its argument into a range where the identity is harmless, exactly (Cody and
Waite, *Software Manual for the Elementary Functions*, 1980), or carries what was rounded away along. Coefficients are
minimax fits made with 50 digits (Lawson weights on Chebyshev nodes). Errors are in ULP against float64, over all
float32, on a CPU whose exp2, log2 and sin are within 0.85.
"""

from __future__ import annotations

from fractions import Fraction
import math
import struct
from typing import Any

import torch
from torch import Tensor

from decomp import Declined, Rules, decline
from decomp_rules.floating import float_math, is_tensor, masked_half, polynomial, times_exact
from decomp_rules.operands import HALVES, cast, constant, promoted

RULES = Rules()
register = RULES.register
aten = torch.ops.aten

LOG2_E = 1 / math.log(2)
# 50 digits of them are exact enough for both dtypes.
LN_2 = Fraction("0.69314718055994530941723212145817656807550013436026")
LOG2_E_EXACT = 1 / LN_2
LOG10_2 = Fraction("0.30102999566398119521373889472449302676818988146211")

# For each dtype: the exponents of the smallest and the largest power of two, ln 2 in two parts of which the first has
# so few bits that times an exponent it is exact, and the coefficients of (eʳ − 1 − r) / r² for −0.35 ≤ r ≤ 0.695.
_EXPONENTS = {torch.float32: (-150.0, 127.0), torch.float64: (-1075.0, 1023.0)}
_LN_2_PARTS = {
    torch.float32: (0.693145751953125, 1.428606820309417232e-6),
    torch.float64: (6.93147180369123816490e-01, 1.90821492927058770002e-10),
}
_EXPM1 = {
    torch.float32: (
        0.49999999929806722, 0.166666654597147586, 0.041666711279213279, 0.00833359278199616548,
        0.00138808768992139694, 0.000197435931839947064, 0.0000290374718397426373,
    ),
    torch.float64: (
        0.5, 0.166666666666666667, 0.0416666666666667135, 0.00833333333333329062, 0.0013888888888871295,
        0.000198412698415590009, 0.0000248015873278159929, 2.75573185861238235e-6, 2.75573047319277585e-7,
        2.5052664450074933e-8, 2.08762114649203823e-9, 1.59008692840634276e-10, 1.35352493329202544e-11,
    ),
}  # fmt: skip


# Exponentials


@register(aten.exp)
@float_math
def exp(x: Tensor) -> Tensor:
    """eˣ = 2ⁿ·2^(r·log₂e), where n is the integer next to x·log₂e and r = x − n·ln 2 keeps all digits. ≤ 1.4 ULP."""
    n, r = _halving(x, *_EXPONENTS[x.dtype])
    return torch.exp2(n) * torch.exp2(r * LOG2_E)


@register(aten.exp2)
@float_math
def exp2(x: Tensor) -> Tensor:
    """2ˣ = e^(x·ln 2), for targets without exp2; what the product rounds away enters as e^δ ≈ 1 + δ. ≤ 2 ULP."""
    high = 0.693359375  # ln 2 to 9 bits: times the upper half of x it is exact
    product = x * float(LN_2)
    whole = torch.trunc(x.detach())
    lost = (whole * high - product.detach()) + (x.detach() - whole) * high + x.detach() * float(LN_2 - Fraction(high))
    lost = torch.where(torch.abs(lost) < 1, lost, 0.0)
    result = torch.exp(product)
    return result + torch.where(result < math.inf, result * lost, 0.0)


@register(aten.expm1)
@float_math
def expm1(x: Tensor) -> Tensor:
    """eˣ − 1 = 2ⁿ·(eʳ − 1) + (2ⁿ − 1), with a polynomial for eʳ − 1; signs are turned so that −0 stays. ≤ 1.6 ULP."""
    x = torch.clamp(x, min=-40.0)
    n, r = _halving(x, -60.0, _EXPONENTS[x.dtype][1])
    power = torch.exp2(n)
    negative = -r - r * r * polynomial(r, _EXPM1[x.dtype])
    return -(power * negative - (power - 1))


def _halving(x: Tensor, lowest: float, highest: float) -> tuple[Tensor, Tensor]:
    """The integer n next to x / ln 2, within bounds and detached, and r = x − n·ln 2, good to the last bit."""
    high, low = _LN_2_PARTS[x.dtype]
    n = torch.clamp(x.detach() * LOG2_E, lowest, highest)
    n = torch.trunc(n + (0.5 - lowest)) + lowest
    return n, (x - n * high) - n * low


# Logarithms


@register(aten.log)
@float_math
def log(x: Tensor) -> Tensor:
    """ln x = log₂x · ln 2. ≤ 1.5 ULP."""
    return torch.log2(x) * float(LN_2)


@register(aten.log2)
@float_math
def log2(x: Tensor) -> Tensor:
    """log₂x = ln x · log₂e, the constant in two parts, for targets with ln alone. ≤ 1.7 ULP."""
    return times_exact(torch.log(x), LOG2_E_EXACT)


@register(aten.log10)
@float_math
def log10(x: Tensor) -> Tensor:
    """log₁₀x = log₂x · log₁₀2, the constant in two parts. ≤ 1.4 ULP."""
    return times_exact(torch.log2(x), LOG10_2)


@register(aten.log1p)
@float_math
def log1p(x: Tensor) -> Tensor:
    """ln u + c/u, where u is 1 + x rounded and c what the rounding took; signs are turned so that −0 stays. ≤ 2 ULP."""
    u = 1 + x
    sum_ = u.detach()
    # Below −3/4 nothing is rounded away; above 2²⁴ it no longer matters, and ∞ − ∞ must not come in.
    lost = torch.where(sum_ < 2.0**60, x.detach() - (sum_ - 1), 0.0) * torch.reciprocal(torch.clamp(sum_, min=0.25))
    return -(-torch.log(u) - lost)


@register(aten.logaddexp)
@float_math
def logaddexp(x: Tensor, other: Tensor) -> Tensor:
    """ln(eˣ + eʸ) = max(x, y) + log1p(e^−|x−y|); of equal infinities, that infinity. ≤ 2 ULP."""
    larger, gap = _larger_and_gap(x, other)
    return larger + torch.log1p(torch.exp(gap))


@register(aten.logaddexp2)
@float_math
def logaddexp2(x: Tensor, other: Tensor) -> Tensor:
    """log₂(2ˣ + 2ʸ) = max(x, y) + log1p(2^−|x−y|)·log₂e. ≤ 3 ULP."""
    larger, gap = _larger_and_gap(x, other)
    return larger + torch.log1p(torch.exp2(gap)) * LOG2_E


def _larger_and_gap(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    swap = x < y
    larger, smaller = torch.where(swap, y, x), torch.where(swap, x, y)
    gap = smaller - larger
    return larger, torch.where(torch.logical_and(x == y, gap != gap), 0.0, gap)


@register(aten.xlogy)
def xlogy(x: Any, other: Any) -> Tensor:
    """x·ln y, 0 where x is 0 unless y is NaN."""
    return _x_times(x, other, torch.log, 0.0)


@register(aten.special_xlog1py)
def xlog1py(x: Any, other: Any) -> Tensor:
    """x·ln(1 + y), 0 where x is 0 unless y is NaN."""
    return _x_times(x, other, torch.log1p, -1.0)


def _x_times(x: Any, y: Any, function: Any, pole: float) -> Tensor:
    outer = float_dtype(x, y)
    if outer.is_complex:
        return decline("only real numbers")
    like = x if is_tensor(x) else y
    x, y = (
        cast(value, working_dtype(outer)) if is_tensor(value) else constant(like, value, working_dtype(outer))
        for value in (x, y)
    )
    # Where x is 0 and the logarithm no number, ln 1 stands in for it: neither 0·∞ nor its gradient comes up.
    infinite = torch.logical_or(y <= pole, y == math.inf)
    stand_in = torch.where(torch.logical_and(x == 0, infinite), 1.0 + pole, y)
    return cast(x * function(stand_in), outer)


# Powers


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
    if _promoted(x, exponent).is_complex:
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


# Quotients


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
    divisor = as_float32(number) if x.dtype == torch.float32 else float(number)
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


# Rounding


@register(aten.trunc)
def trunc(x: Tensor) -> Tensor:
    """x − fmod(x, 1), for targets with fmod. Exact."""
    if not x.is_floating_point():
        return x.clone()
    point = x.detach()
    rest = torch.fmod(point, 1.0)
    # Of an infinite x the rest is NaN; the product with 0 has the sign of x.
    whole = torch.where(rest == rest, point - rest, point)
    return torch.where(whole == 0, point * 0.0, whole)


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
    dtype = _promoted(x, y)
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


def float_dtype(*operands: Any) -> torch.dtype:
    """The dtype of a true function of these tensors and numbers: what they promote to, integers to the default."""
    dtype = _promoted(*operands)
    return dtype if dtype.is_floating_point or dtype.is_complex else torch.get_default_dtype()


def _promoted(*operands: Any) -> torch.dtype:
    """What tensors and numbers in any order promote to."""
    return promoted(*sorted(operands, key=is_tensor, reverse=True))


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in: float32 for half types."""
    return torch.float32 if dtype in HALVES else dtype


def as_float32(number: Any) -> float:
    """A number rounded to float32, as PyTorch does before it divides a float32 by it."""
    try:
        return float(struct.unpack("f", struct.pack("f", float(number)))[0])
    except OverflowError:
        return math.copysign(math.inf, float(number))
