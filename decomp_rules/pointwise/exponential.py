"""Exponentials: eˣ, 2ˣ and eˣ − 1.

The argument is first brought into a range where the textbook identity is harmless, exactly (Cody and Waite, *Software
Manual for the Elementary Functions*, 1980). Coefficients are minimax fits made with 50 digits (Lawson weights on
Chebyshev nodes). Errors are in ULP against float64, over all float32, on a CPU whose exp2 is within 0.81.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
import math

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.support.floating import (
    LN_2,
    LOG2_E,
    float_dtype,
    float_math,
    nearest,
    own_float_math,
    polynomial,
)
from decomp_rules.support.operands import cast, constant

RULES = Rules(level="exact")
register = RULES.register


# For each dtype: the exponents of the smallest and the largest power of two, ln 2 in two parts of which the first has
# so few bits that times an exponent it is exact, and the coefficients of (eʳ − 1 − r) / r² for −0.35 ≤ r ≤ 0.695.
_EXPONENTS = {torch.float32: (-150.0, 127.0), torch.float64: (-1075.0, 1023.0)}
LN_2_PARTS = {
    torch.float32: (0.693145751953125, 1.428606820309417232e-6),
    torch.float64: (6.93147180369123816490e-01, 1.90821492927058770002e-10),
}
# fmt: off
# As many coefficients a line as fit.
EXPM1 = {
    torch.float32: (
        0.49999999929806722, 0.166666654597147586, 0.041666711279213279, 0.00833359278199616548,
        0.00138808768992139694, 0.000197435931839947064, 0.0000290374718397426373,
    ),
    torch.float64: (
        0.5, 0.166666666666666667, 0.0416666666666667135, 0.00833333333333329062, 0.0013888888888871295,
        0.000198412698415590009, 0.0000248015873278159929, 2.75573185861238235e-6, 2.75573047319277585e-7,
        2.5052664450074933e-8, 2.08762114649203823e-9, 1.59008692840634276e-10, 1.35352493329202544e-11,
    ),
}


# The coefficients of (eʳ − 1 − r) / r² for |r| ≤ ln 2.
_EXPM1_BOTH_SIDES = {
    torch.float32: (
        0.500000002658019447, 0.166666721686848316, 0.0416666213709287847, 0.00833262999912893394,
        0.00138904235328030164, 0.000200955180570026702, 0.000024781131487164748,
    ),
    torch.float64: (
        0.5, 0.166666666666666591, 0.0416666666666668202, 0.00833333333333641342, 0.00138888888888626633,
        0.000198412698370861014, 0.0000248015873198123653, 2.7557321832398812e-6, 2.75573134520076681e-7,
        2.50512873791740593e-8, 2.08774970860882955e-9, 1.61859647971713878e-10, 1.14688038448836147e-11,
    ),
}
# Two short numbers h and g = h / ln 2, to 2⁻³³ and 2⁻⁶⁸ of it, from the continued fraction of ln 2: times a whole
# number of up to 9 and 19 bits both are exact.
STEPS = {torch.float32: (25469 / 2**16, 36744 / 2**16), torch.float64: (6847196937 / 2**34, 9878417065 / 2**34)}
# Up to this the power of two next to eˣ is finite, and above e⁻ˣ is subnormal.
_EXPM1_END = {torch.float32: 88.2, torch.float64: 709.3}
# From here on down eˣ is 0; and with so small an exponent, 2ⁿᵍ·eʳ for every rest r that has no digits.
NOTHING = {torch.float32: -110.0, torch.float64: -760.0}
_NO_POWER = -4096.0


# The coefficients of 2·eʳ for |r| ≤ ½ ln 2, fitted so that its second derivative is right too; the integer of the same
# width, the digits after the point and the exponent of 1.
_EXP = {
    torch.float32: (
        2.0, 2.0, 1.000000072275984216, 0.333333229547037864, 0.0833314801955873184, 0.01666757907432194668,
        0.00279441529268808388, 0.000395132746059222164,
    ),
    torch.float64: (
        2.0, 2.0, 1.0, 0.333333333333333344, 0.0833333333333336346, 0.016666666666666156, 0.00277777777776598188,
        0.000396825396836364302, 0.0000496031748287343002, 5.511463729754268e-6, 5.51144125087804118e-7,
        5.01047725729744014e-8, 4.18676182868199642e-9, 3.2043914641878807e-10,
    ),
}
# fmt: on
_LAYOUT = {torch.float32: (torch.int32, 23, 127), torch.float64: (torch.int64, 52, 1023)}


@register(aten.exp, needs=("maximum", "bitwise_and", "view.dtype"))
@float_math
def exp_by_bits(x: Tensor) -> Tensor:
    """eˣ = 2ⁿ⁻¹·2eʳ with a polynomial in r = x − n·ln 2, and 2ⁿ⁻¹ as two powers that are put together from their bits:
    compiled, it costs a little more than one exp, where two exp2 cost twice as much. ≤ 1.2 ULP, the gradient 3.7."""
    integer, digits, bias = _LAYOUT[x.dtype]
    high, low = LN_2_PARTS[x.dtype]
    # From here on down both powers are 0, as are result and gradient; to get there by underflow would be slow.
    x = torch.maximum(x, constant(x, (1 - 2 * bias) * float(LN_2)))
    # Adding a large number shifts out the fraction bits: 1 − n, less twice the bias, is left in the last bits. As the
    # bits of positive floats are in their order, n is bounded there; from there on r grows, and 2ⁿ·eʳ is infinite. One
    # further, 2ⁿ alone would be, and the gradient ∞ − ∞ where r is negative.
    shift = 1.5 * 2.0**digits - 2 * bias + 1
    least = ((bias + digits) << digits) + (1 << digits - 1) - 3 * bias
    pushed = (x * -LOG2_E + shift).view(integer)
    pushed = torch.maximum(pushed, constant(pushed, least))
    turned = pushed.view(x.dtype) - shift
    # Half of the exponent is rounded down in the one power, and up in the other. All but the last bits are cut off, for
    # the product not to overflow: in compiled code a signed integer that does has no value.
    step, exponents = 1 << digits - 1, (2 * bias + 1) << digits
    halves = torch.bitwise_and(pushed, 4 * bias + 3) * -step
    down, up = (torch.bitwise_and(half, exponents).view(x.dtype) for half in (halves, halves + step))
    r = (x + turned * high) + turned * low
    return polynomial(r, _EXP[x.dtype]) * down * up


@register(aten.exp)
@float_math
def exp(x: Tensor) -> Tensor:
    """eˣ = 2ⁿ·2^(r·log₂e), where n is the integer next to x·log₂e and r = x − n·ln 2 keeps all digits. ≤ 1.4 ULP."""
    n, r = _halving(x, *_EXPONENTS[x.dtype])
    return torch.exp2(n) * torch.exp2(r * LOG2_E)


@register(aten.exp, level="standard")
@float_math
def exp_of_parts(x: Tensor) -> Tensor:
    """eˣ = 2ⁿᵍ·2^(r·log₂e), n the whole part of x/h and r = x − n·h. ≤ 2.6 ULP, the gradients too."""
    power, rest = steps_and_rest(x)
    # Where the first is 0 or infinite by far, r has no digits or is NaN: x itself has the same sign.
    rest = torch.where(power * power < _NO_POWER**2, rest, x)
    return torch.exp2(rest * LOG2_E) * torch.exp2(power)


@register(aten.exp, level="standard")
@float_math
def exp_of_bounded_parts(x: Tensor) -> Tensor:
    """The same with an n that never is large, for targets without trunc and where. ≤ 2.9 ULP."""
    return exp_up_to(x, few_ops=True)


@register(aten.exp, level="fast")
@own_float_math
def exp_by_binary(x: Tensor) -> Tensor:
    """eˣ = 2^(x·log₂e): ≤ 64 ULP for |x| ≤ 40."""
    return torch.exp2(x * LOG2_E)


def exp_up_to(x: Tensor, sign: float = 1.0, few_ops: bool = False) -> Tensor:
    """e^(±x) to the digits of `exp_of_parts`, one call cheaper, where ±x is known to be at most 80."""
    if few_ops:
        power, rest = steps_and_rest(x, sign, _saturated)
    elif sign > 0:
        power, rest = steps_and_rest(at_least(x, NOTHING[x.dtype]))
    else:
        power, rest = steps_and_rest(x, sign)
        rest = torch.where(power < _NO_POWER, x, rest)
    return torch.exp2(rest * (sign * LOG2_E)) * torch.exp2(power)


def steps_and_rest(
    x: Tensor, sign: float = 1.0, whole: Callable[[Tensor], Tensor] = torch.trunc
) -> tuple[Tensor, Tensor]:
    """The exponent n·g, without a gradient, and the rest x ∓ n·h, good to the last bit where 2ⁿᵍ is normal, so that
    e^(±x) is 2ⁿᵍ·e^(±rest); n is the whole part of ±x / h."""
    h, g = STEPS[x.dtype]
    n = whole(x * (sign / h))
    return n * g, x + n * (-sign * h)


def shifted(x: Tensor) -> Tensor:
    """A whole number between x − 3/2 and x − 1/2, without a gradient, for |x| < 2²²: adding a large number shifts out
    the fraction bits."""
    shift = 1.5 / torch.finfo(x.dtype).eps
    return (x.detach() + shift) - (shift + 1)


def _saturated(x: Tensor) -> Tensor:
    """`shifted`, of 1 / (1/x + ε·x): x where it counts, less than 2¹⁵ everywhere, and 0 at 0 and at ±∞."""
    x = x.detach()
    return shifted(torch.reciprocal(torch.reciprocal(x) + x * 2.0**-30))


def minus_within(x: Tensor, bound: float, few_ops: bool = False) -> Tensor:
    """−x, kept between ±bound, without a gradient beyond."""
    if few_ops:
        return at_least(-at_least(x, -bound, few_ops), -bound, few_ops)
    least = constant(x, -bound)  # for both ends
    return torch.maximum(-torch.maximum(x, least), least)


def at_least(x: Tensor, bound: float, few_ops: bool = False) -> Tensor:
    """max(x, bound), in few ops as the largest of a pair; NaN stays. Without a gradient below the bound, and at it with
    half of one."""
    if few_ops:
        return torch.amax(torch.constant_pad_nd(x.unsqueeze(-1), [0, 1], bound), [-1])
    return torch.maximum(x, constant(x, bound))


def finite_root(x: Tensor, least: float) -> Tensor:
    """`x`, in float16 not below `least`: otherwise an exponential would not be finite there."""
    return at_least(x, least) if x.dtype == torch.float16 else x


@register(aten.exp2, needs=("pow",))
def exp2_as_power(x: Tensor) -> Tensor:
    """2ˣ by the power of two tensors, which is exact for whole x. ≤ 0.8 ULP."""
    dtype = float_dtype(x)
    return decline("only real numbers") if dtype.is_complex else torch.pow(constant(x, 2.0, dtype), cast(x, dtype))


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
    x = torch.where(x < -40.0, -40.0, x)  # a clamp has no gradient at NaN
    n, r = _halving(x, -60.0, _EXPONENTS[x.dtype][1])
    power = torch.exp2(n)
    negative = -r - r * r * polynomial(r, EXPM1[x.dtype])
    return -(power * negative - (power - 1))


@register(aten.expm1, level="standard")
@float_math
def expm1_of_parts(x: Tensor) -> Tensor:
    """eˣ − 1 by `expm1_of_minus`. ≤ 2 ULP, the gradients to 10⁻⁵."""
    return _expm1_of_parts(x)


@register(aten.expm1, level="standard")
@float_math
def expm1_of_rounded_parts(x: Tensor) -> Tensor:
    """The same for targets without trunc and maximum. ≤ 2 ULP, the gradients to 10⁻⁵."""
    return _expm1_of_parts(x, few_ops=True)


def _expm1_of_parts(x: Tensor, few_ops: bool = False) -> Tensor:
    end = _EXPM1_END[x.dtype]
    turned = -at_least(x, -end, few_ops)
    # Above, only the power is bounded: the rest grows on, so that result and gradients overflow where they should.
    return expm1_of_minus(turned, at_least(turned, -end, few_ops), few_ops)


def expm1_of_minus(x: Tensor, bounded: Tensor | None = None, few_ops: bool = False) -> Tensor:
    """e⁻ˣ − 1 = 2ᵏ·(eʳ − 1) + (2ᵏ − 1) with a polynomial for eʳ − 1: with k towards 0 all parts have one sign, so that
    no digits are lost, next to 0 neither. `bounded`: x, but where 2ᵏ would be infinite."""
    bounded = x if bounded is None else bounded
    high, low = LN_2_PARTS[x.dtype]
    k = nearest(bounded.detach() * -LOG2_E) if few_ops else torch.trunc(bounded * -LOG2_E)
    rest = (x + k * high) + k * low
    turned = [-c if i % 2 else c for i, c in enumerate(_EXPM1_BOTH_SIDES[x.dtype])]
    power = torch.exp2(k)
    return power * (rest * (rest * polynomial(rest, turned) - 1)) + (power - 1)


def _halving(x: Tensor, lowest: float, highest: float) -> tuple[Tensor, Tensor]:
    """The integer n next to x / ln 2, within bounds and detached, and r = x − n·ln 2, good to the last bit."""
    high, low = LN_2_PARTS[x.dtype]
    n = nearest(torch.clamp(x.detach() * LOG2_E, lowest, highest))
    return n, (x + n * -high) + n * -low
