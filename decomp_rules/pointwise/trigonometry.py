"""Trigonometric and hyperbolic functions and their inverses.

A target has sin, which is accurate for every float; the others come from it by identities that keep relative accuracy
wherever they are used, never by moving the argument, which rounds it. Coefficients are minimax fits made with 50
digits. Errors are in ULP against float64, over all float32.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from decomp import Rules
from decomp.ops import aten
from decomp_rules.pointwise.exponential import finite_root, minus_within
from decomp_rules.support.floating import (
    LOG2_E,
    float_math,
    own_float_math,
    polynomial,
    split,
    upper_half,
    with_value,
)
from decomp_rules.support.operands import constant

RULES = Rules(level="exact")
register = RULES.register

# fmt: off
# As many coefficients a line as fit.
# (tanh x − x) / x³ in powers of x², for |x| ≤ 0.55.
_TANH = {
    torch.float32: (
        -0.333333163108819369, 0.1333253718772237, -0.0538465318191448031, 0.0210454735723331362,
        -0.0062340675078318873,
    ),
    torch.float64: (
        -0.333333333333333318, 0.13333333333333002, -0.0539682539679977677, 0.0218694885262084426,
        -0.00886323530325279122, 0.00359212474132896669, -0.00145580233438653948, 0.000589813613540653694,
        -0.000238143465929706018, 0.0000938049417857793946, -0.0000327524581408290111, 7.3263222765275607e-6,
    ),
}
# x³ / (x − tanh x) in powers of x², for |x| ≤ 0.8.
_TANH_QUOTIENT = {
    torch.float32: (3.00000012049940821, 1.19999809706205917, -0.00570500763632522681, 0.000236102756664281541),
    torch.float64: (
        3.0, 1.19999999999993118, -0.00571428571306683593, 0.000253968243554331316, -0.0000122036201759384901,
        5.98630930373059756e-7, -2.93480672605935334e-8, 1.27337187916025866e-9,
    ),
}
# (atanh x − x) / x³ in powers of x², for |x| ≤ 0.43.
_ATANH = {
    torch.float32: (
        0.333333330926443161, 0.200000911020887967, 0.142801406043166458, 0.1123480416332362, 0.0787379158192623005,
        0.129343705741441467,
    ),
    torch.float64: (
        0.33333333333333333333, 0.20000000000000000034, 0.14285714285714270363, 0.11111111111113867398,
        0.090909090906494015964, 0.07692307707085475711, 0.066666661155812971687, 0.058823671085976761047,
        0.052628987192434064986, 0.047653408821308933132, 0.043145721435211864839, 0.042340380366018700791,
        0.025261600634431499591, 0.075288790730952020217, -0.057982679443065467794, 0.13646828570083031669,
    ),
}
# (atan x − x) / x³ in powers of x², for |x| ≤ 0.67, and (asin x − x) / x³, for |x| ≤ 0.6.
_ATAN = {
    torch.float32: (
        -0.333333320055390305, 0.199998997187411268, -0.142831166262161481, 0.110782386677868044,
        -0.0885636535782390871, 0.0668188204261407463, -0.0395356712614421227, 0.0125723737348806962,
    ),
    torch.float64: (
        -0.333333333333333333, 0.199999999999999955, -0.142857142857137051, 0.11111111111072718,
        -0.0909090908937881092, 0.0769230765194169529, -0.06666665918725991, 0.0588234280453557695,
        -0.0526305451630251282, 0.0476109523578598685, -0.0434288929779025194, 0.0397632884843692161,
        -0.0361393380128822898, 0.0317815351746268665, -0.0257986432236763517, 0.0180025871070268979,
        -0.00979200094098100807, 0.00358514719827681117, -0.000648623575596982896,
    ),
}
_ASIN = {
    torch.float32: (
        0.166666653107426035, 0.0750011717505443324, 0.0446083494713241848, 0.0308695780184449804,
        0.0186120596054956387, 0.0338336033089841596, -0.025873272882166725, 0.0568939818461151355,
    ),
    torch.float64: (
        0.166666666666666667, 0.0749999999999997073, 0.0446428571429025551, 0.0303819444408496268,
        0.0223721592620009878, 0.0173527590510694715, 0.0139649617468335036, 0.0115499152458100232,
        0.00978412745288308524, 0.00818575749322536469, 0.00874224405118836422, -0.00127772031297628326,
        0.0379826246484614018, -0.0980329500936778547, 0.253844088260861498, -0.436938604916035765,
        0.547933525146071783, -0.419311068739512529, 0.164527507187458625,
    ),
}
# fmt: on

# (sinh x − x) / x³ and (cosh x − 1) / x² in powers of x²: as many terms as count for |x| ≤ 1/2.
_TERMS = {torch.float32: 4, torch.float64: 8}
_SINH = {dtype: tuple(1 / math.factorial(2 * k + 3) for k in range(n)) for dtype, n in _TERMS.items()}
_COSH = {dtype: tuple(1 / math.factorial(2 * k + 2) for k in range(n)) for dtype, n in _TERMS.items()}
# From where to where e^|x| / 2 is e^(|x| − c) times e^c / 2, which overflows no sooner than it should; c; and e^c / 2,
# which is all but a float.
_NEAR_OVERFLOW = {
    torch.float32: (80.0, 89.41599, 45.4375, 2.7053628736963346e19),
    torch.float64: (700.0, 710.475860073944, 461.6875, 1.611772041512646e200),
}
# Beyond, e to this times e^c / 2 is infinite, and so are its gradients; an infinite exponential would make the second
# 0·∞. It is a little more than a multiple of ln 2: the terms of a polynomial in what is left have one sign, not ∞ − ∞.
_BEYOND_OVERFLOW = {torch.float32: 50.1, torch.float64: 300.3}

# π/2 minus its float.
_QUARTER_TURN_REST = {torch.float32: -4.371139000186241e-08, torch.float64: 6.123233995736766e-17}

# What shifts a float32 from 2¹²⁷ up, which cannot be doubled, exactly: all are multiples of 2¹⁰⁴, and so is this one,
# which is an odd number of quarter turns but for the angle that follows.
_QUARTER = float(6219472 * 2**104)
_QUARTER_REST = 2.3124749758691979741e-8
# What brings a float32 from 2¹²⁶ up below, exactly: half turns but for the angle that follows.
_HALF_TURNS = float(4930272 * 2**104)
_HALF_TURNS_REST = 8.0636219845019651e-6


@register(aten.cos)
@float_math
def cos(x: Tensor) -> Tensor:
    """±√(1 − sin²x) where |sin x| < √3/2, else (sin 2x / 2) / |sin x|, with |sin x| from sin 2x as well, which has all
    digits also next to 0. ≤ 1.9 ULP for every float. The gradient is that of 1 − 2·sin²(x/2)."""
    half = torch.sin(x * 0.5)
    smooth = 1 - 2 * half * half
    return with_value(smooth, _Angle(x.detach(), smooth.detach()).cosine)


@register(aten.cos, level="standard", forward_only=True)
@float_math
def cos_of_double_angle(x: Tensor) -> Tensor:
    """sin 2x / (2·sin x), 1 where 1 / sin x or 2x overflows, and NaN where x − x is. ≤ 2.6 ULP for |x| < 2¹²⁷."""
    quotient = torch.sin(x + x) * torch.reciprocal(torch.sin(x)) * 0.5
    return torch.where(quotient < 2.0, quotient, (x - x) + 1.0)


@register(aten.cos, level="standard")
@float_math
def cos_of_double_angle_trained(x: Tensor) -> Tensor:
    """The same; the gradients are those of (c − x)·sin((x + c) / 2) at c = x: −sin x and −cos x."""
    centre = x.detach()
    zero = centre - x  # or NaN
    sine = torch.sin(centre + zero * -0.5)
    quotient = (torch.sin(centre + centre) * torch.reciprocal(sine) * 0.5).detach()
    return torch.where(quotient < 2.0, quotient, 1.0) + zero * sine


@register(aten.cos, level="fast")
@own_float_math
def cos_of_quarter_turn(x: Tensor) -> Tensor:
    """sin(x + π/2), off by 10⁻⁷ · (1 + |x|)."""
    return torch.sin(x + math.pi / 2)


@register(aten.tan, level="standard")
@float_math
def tan_by_cos(x: Tensor) -> Tensor:
    """sin x / cos x, plus what is negligible beside the cosine of any number, but not beside one that was rounded to 0.
    ≤ 3.8 ULP."""
    rest = 2.0**-60 if x.dtype == torch.float32 else 2.0**-200
    return torch.sin(x) * torch.reciprocal(torch.cos(x) + rest)


@register(aten.tan)
@float_math
def tan(x: Tensor) -> Tensor:
    """sin x / cos x; |sin x| from 1/2 to 0.885 as sin 2x / (1 + cos 2x) or its like, below as s + s·(1/√(1 − s²) − 1),
    above as sin²x / (sin 2x / 2). ≤ 2 ULP; where 4x overflows, of x less nearly whole half turns."""
    if x.dtype != torch.float32:
        return _tan(x)
    size = torch.abs(x.detach())
    huge = 2.0**126 <= size
    count = torch.where(huge, torch.trunc(size * (1 / _HALF_TURNS) + 0.5), 0.0)
    count = torch.where(x < 0, -count, count)
    value = _tan(x - count * _HALF_TURNS)
    rest = count * _HALF_TURNS_REST
    moved = value + rest * (1 + value * value) * torch.reciprocal(1 - value * rest)
    return torch.where(huge, moved, value)


def _tan(x: Tensor) -> Tensor:
    half = torch.sin(x * 0.5)
    smooth = 1 - 2 * half * half
    angle = _Angle(x.detach(), smooth.detach())
    quotient = torch.sin(x) * torch.reciprocal(with_value(smooth, angle.cosine))
    magnitude = angle.tangent()
    return with_value(quotient, torch.where(x.detach() < 0, -magnitude, magnitude))


class _Angle:
    """The sine and cosine of the angle |x|, and half the sine of its double. `rough` has the sign of
    the cosine. Nothing has a gradient."""

    def __init__(self, x: Tensor, rough: Tensor) -> None:
        self.magnitude = torch.where(x < 0, -x, x)
        self.sine = torch.sin(self.magnitude)
        self.negative = self.sine < 0
        self.size = torch.where(self.negative, -self.sine, self.sine)
        rest = 1 - self.size
        self.root = torch.sqrt((rest + rest) - rest * rest)  # of 1 − sin²x
        self.opposite = rough < 0
        self.halved = 0.5 * torch.sin(self._doubled())
        signed = torch.where(self.negative, -self.halved, self.halved)
        # cos²x = (sin 2x / 2)² / (1 − cos²x), twice.
        square = self.halved * self.halved
        self.square = square * torch.reciprocal(1 - square * torch.reciprocal(self.size * self.size))
        steep = signed + signed * _inverse_root_minus_one(self.square, torch.sqrt(1 - self.square))
        if x.dtype == torch.float32:
            far = self.halved + self.halved + self.sine * _QUARTER_REST
            steep = torch.where(self._is_huge(), far, steep)
        flat = torch.where(self.opposite, -self.root, self.root)
        self.cosine = torch.where(self.size < 0.866, flat, steep)

    def _is_huge(self) -> Tensor:
        return 2.0**127 <= self.magnitude

    def _doubled(self) -> Tensor:
        """2x; of a float32 that cannot be doubled, x less an odd number of quarter turns."""
        doubled = self.magnitude + self.magnitude
        if doubled.dtype != torch.float32:
            return doubled
        return torch.where(self._is_huge(), self.magnitude - _QUARTER, doubled)

    def tangent(self) -> Tensor:
        """tan |x|, to nearly 30 bits in the parts of the quotient."""
        low = self.sine + self.sine * _inverse_root_minus_one(self.size * self.size, self.root)
        numerator, numerator_rest, denominator, denominator_rest = self._parts()
        inverse = torch.reciprocal(denominator)
        upper = upper_half(numerator * inverse)
        high, lower = split(denominator)
        rest = (numerator - upper * high) - upper * lower + (numerator_rest - upper * denominator_rest)
        return torch.where(self.size < 0.5, torch.where(self.opposite, -low, low), upper + rest * inverse)

    def _parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The numerator and the denominator of the tangent of an angle with |sin x| ≥ 1/2, and what they lack."""
        sine = self.halved + self.halved
        size = torch.where(sine < 0, -sine, sine)
        halved = 0.5 * torch.sin(self.magnitude * 4)
        halved = torch.where(sine < 0, -halved, halved)
        inverse = torch.reciprocal(size)
        ratio = halved * inverse
        cosine = halved + halved * (ratio * ratio * inverse * torch.reciprocal(1 + size))
        negative = cosine < 0
        shorter = torch.where(negative, -cosine, cosine)
        total = 1 + shorter
        lost = shorter - (total - 1)
        square = 1 - self.square
        # Of an infinite 4x the cosine is NaN.
        middle = torch.logical_and(self.size < 0.885, cosine == cosine)
        top = 2.0**127 if size.dtype == torch.float32 else 2.0**1023
        steep = torch.logical_and(0.885 <= self.size, self.magnitude < top)
        zero = constant(sine, 0.0)
        return (
            torch.where(middle, torch.where(negative, total, sine), torch.where(steep, square, self.sine)),
            torch.where(
                middle, torch.where(negative, lost, zero), torch.where(steep, (1 - square) - self.square, zero)
            ),
            torch.where(middle, torch.where(negative, sine, total), torch.where(steep, self.halved, self.cosine)),
            torch.where(torch.logical_and(middle, torch.logical_not(negative)), lost, zero),
        )


def _inverse_root_minus_one(square: Tensor, root: Tensor) -> Tensor:
    """1 / √(1 − square) − 1, where `root` is the root."""
    return square * torch.reciprocal(root + root * root)


@register(aten.tanh)
@float_math
def tanh(x: Tensor) -> Tensor:
    """x times a polynomial in x² up to 0.55, ±(1 − 2e / (1 + e)) with e = e^−2|x| beyond. ≤ 1.9 ULP."""
    negative = x < 0
    magnitude = torch.where(negative, -x, x)
    inner = torch.where(magnitude < 0.55, x, 0.0)
    square = inner * inner
    middle = inner * (1 + square * polynomial(square, _TANH[x.dtype]))
    e = torch.exp(magnitude * -2)
    rest = (e + e) * torch.reciprocal(1 + e)
    outer = torch.where(negative, rest - 1, 1 - rest)
    return torch.where(magnitude < 0.55, middle, outer)


@register(aten.tanh, level="standard")
@float_math
def tanh_of_quotients(x: Tensor) -> Tensor:
    """x − x³ / p(x²) up to 0.65, as x − tanh x is nearly x³ / (3 + 6/5·x²); beyond 2 / (1 + e⁻²ˣ) − 1, to which errors
    of the exponential add little. ≤ 3.1 ULP, the gradients to 10⁻⁶."""
    return _tanh(minus_within(x, 20.0))


@register(aten.tanh, level="standard")
@float_math
def tanh_of_pairs(x: Tensor) -> Tensor:
    """The same for targets without maximum."""
    return _tanh(minus_within(x, 20.0, few_ops=True))


def _tanh(z: Tensor) -> Tensor:
    square = z * z
    near = z * (square * torch.reciprocal(polynomial(square, _TANH_QUOTIENT[z.dtype])) - 1)
    far = torch.reciprocal(1 + torch.exp2(z * (2 * LOG2_E))) * 2 - 1
    return torch.where(square < 0.65**2, near, far)


@register(aten.tanh, level="fast")
@own_float_math
def tanh_by_binary(x: Tensor) -> Tensor:
    """2 / (1 + e⁻²ˣ) − 1: ≤ 64 ULP for |x| ≥ 0.05, below to 2·10⁻⁷ in float32. The exponential is a square, so that the
    gradient is no NaN above −88."""
    root = torch.exp2(finite_root(x, -8.0) * -LOG2_E)
    return torch.reciprocal(1 + root * root) * 2 - 1


@register(aten.sinh)
@float_math
def sinh(x: Tensor) -> Tensor:
    """x times its series in x² up to 1/2, beyond ±(t + t / (1 + t)) / 2 with t = e^|x| − 1. ≤ 2 ULP."""
    near = _within_half(x)
    inner = torch.where(near, x, 0.0)
    exponent, half = _scaled(torch.where(x < 0, -x, x))
    t = torch.expm1(exponent)
    # Long before t is infinite, and the quotient NaN, the quotient is 1.
    bounded = torch.where(t < 2.0**60, t, 2.0**60)
    outer = _with_sign_of(x, half * t + 0.5 * (bounded * torch.reciprocal(1 + bounded)))
    square = inner * inner
    return torch.where(near, inner + inner * (square * polynomial(square, _SINH[x.dtype])), outer)


@register(aten.cosh)
@float_math
def cosh(x: Tensor) -> Tensor:
    """(e^|x| + e^−|x|) / 2, up to 1/2 by the series in x², whose gradient keeps its digits. ≤ 2 ULP."""
    near = _within_half(x)
    inner = torch.where(near, x, 0.0)
    exponent, half = _scaled(torch.where(x < 0, -x, x))
    e = torch.exp(exponent)
    square = inner * inner
    series = 1 + square * polynomial(square, _COSH[x.dtype])
    # Long before e is infinite, and the gradient of its reciprocal NaN, the reciprocal counts for nothing.
    bounded = torch.where(e < 2.0**60, e, 2.0**60)
    return torch.where(near, series, e * half + 0.5 * torch.reciprocal(bounded))


def _scaled(magnitude: Tensor) -> tuple[Tensor, Tensor]:
    """y and h of e^|x| / 2 = h·e^y: |x| and 1/2, but where e^|x| may overflow before its half does. Exact."""
    start, end, shift, half = _NEAR_OVERFLOW[magnitude.dtype]
    large = start < magnitude
    exponent = magnitude - torch.where(large, shift, 0.0)
    beyond = torch.logical_and(end <= magnitude, magnitude < math.inf)
    exponent = torch.where(beyond, (magnitude - magnitude.detach()) + _BEYOND_OVERFLOW[magnitude.dtype], exponent)
    return exponent, torch.where(large, constant(magnitude, half), 0.5)


def _within_half(x: Tensor) -> Tensor:
    return torch.logical_and(x < 0.5, x > -0.5)


# Inverses


@register(aten.atan)
@float_math
def atan(x: Tensor) -> Tensor:
    """A polynomial up to 2/3; around 1, π/4 + atan((|x| − 1) / (|x| + 1)), and beyond, π/2 − atan(1/|x|). ≤ 2 ULP."""
    magnitude = torch.where(x < 0, -x, x)
    small, large = magnitude < 0.66, magnitude > 1.55
    numerator = torch.where(small, magnitude, torch.where(large, -1.0, magnitude - 1))
    denominator = torch.where(small, 1.0, torch.where(large, magnitude, magnitude + 1))
    t = numerator * torch.reciprocal(denominator)
    square = t * t
    angle = t + t * (square * polynomial(square, _ATAN[x.dtype]))
    offset = torch.where(large, math.pi / 2, constant(x, math.pi / 4))
    return _with_sign_of(x, torch.where(small, angle, offset + angle))


@register(aten.atan2)
@float_math
def atan2(x: Tensor, other: Tensor) -> Tensor:
    """The angle of the point (other, x): atan of the smaller coordinate over the larger, from the axis next to it; at
    the origin and at infinity, where the signs of the coordinates count, as IEEE 754 has it. ≤ 2 ULP."""
    y, x = x, other
    # The sign of a zero is that of its reciprocal.
    left = torch.logical_or(x < 0, torch.reciprocal(x.detach()) < 0)
    below = torch.logical_or(y < 0, torch.reciprocal(y.detach()) < 0)
    steep = torch.abs(x) < torch.abs(y)
    larger, smaller = torch.where(steep, y, x), torch.where(steep, x, y)
    # The square of the inverse of what is tiny would overflow in the gradient.
    size, far = larger.detach() * larger.detach(), 2.0**100 if x.dtype == torch.float32 else 2.0**600
    lift = torch.where(size < torch.finfo(x.dtype).tiny, constant(x, far), 1.0)
    # Two infinities are on a diagonal, where the quotient is ±1; at the origin it is 0 without a gradient.
    quotient = torch.where(larger == 0, smaller.detach(), smaller) * lift
    quotient = quotient / (torch.where(larger == 0, 1.0, larger) * lift)
    one = constant(x, 1.0)
    diagonal = torch.where(left == below, one, -one)
    quotient = torch.where(torch.logical_and(quotient != quotient, larger == larger), diagonal, quotient)
    quotient = torch.where(y == y, quotient, y + x)
    angle = torch.atan(quotient)
    quarter = torch.where(below, -math.pi / 2 * one, math.pi / 2)
    turn = torch.where(left, torch.where(below, -math.pi * one, math.pi), 0.0)
    origin = torch.logical_and(x == 0, y == 0)
    flat = torch.where(origin, torch.where(below, -0.0 * one, 0.0), angle)
    return torch.where(steep, quarter - angle, torch.where(left, turn + flat, flat))


@register(aten.asin)
@float_math
def asin(x: Tensor) -> Tensor:
    """A polynomial up to 0.6, beyond π/2 − 2·asin √((1 − |x|) / 2). ≤ 1.7 ULP."""
    magnitude = torch.where(x < 0, -x, x)
    small, angle = _asin_or_rest(magnitude)
    return _with_sign_of(x, torch.where(small, angle, (math.pi / 2 - 2 * angle) + _QUARTER_TURN_REST[x.dtype]))


@register(aten.acos)
@float_math
def acos(x: Tensor) -> Tensor:
    """π/2 − asin x up to 0.6, beyond 2·asin √((1 − |x|) / 2), from π where x is negative. ≤ 2 ULP."""
    negative = x < 0
    small, angle = _asin_or_rest(torch.where(negative, -x, x))
    middle = torch.where(negative, math.pi / 2 + angle, math.pi / 2 - angle)
    outer = torch.where(negative, math.pi - 2 * angle, 2 * angle)
    return torch.where(small, middle, outer)


def _asin_or_rest(magnitude: Tensor) -> tuple[Tensor, Tensor]:
    """Whether 0 ≤ x < 0.6, and asin x there, asin √((1 − x) / 2) elsewhere."""
    small = magnitude < 0.6
    halved = torch.where(small, 0.25, (1 - magnitude) * 0.5)
    t = torch.where(small, magnitude, torch.sqrt(halved))
    square = t * t
    return small, t + t * (square * polynomial(square, _ASIN[magnitude.dtype]))


@register(aten.asinh)
@float_math
def asinh(x: Tensor) -> Tensor:
    """±log1p(a + a² / (1 + √(a² + 1))) with a = |x|, for large a log a + log 2. ≤ 3.5 ULP."""
    a = torch.where(x < 0, -x, x)
    large = a > 1e4 if x.dtype == torch.float32 else a > 1e8
    inner = torch.where(large, 1.0, a)
    square = inner * inner
    near = torch.log1p(inner + square * torch.reciprocal(1 + torch.sqrt(square + 1)))
    return _with_sign_of(x, torch.where(large, torch.log(torch.where(large, a, 1.0)) + math.log(2), near))


@register(aten.acosh)
@float_math
def acosh(x: Tensor) -> Tensor:
    """log1p(t + √t·√(t + 2)) with t = x − 1, for large x log x + log 2. ≤ 3 ULP."""
    large = x > 1e4 if x.dtype == torch.float32 else x > 1e8
    t = torch.where(large, 1.0, x - 1)
    near = torch.log1p(t + torch.sqrt(t) * torch.sqrt(t + 2))
    return torch.where(large, torch.log(torch.where(large, x, 1.0)) + math.log(2), near)


@register(aten.atanh)
@float_math
def atanh(x: Tensor) -> Tensor:
    """x times a polynomial in x² up to 0.42, (log1p(x) − log1p(−x)) / 2 beyond: both have the same sign. ≤ 1.9 ULP."""
    near = torch.logical_and(x < 0.42, x > -0.42)
    inner = torch.where(near, x, 0.0)
    square = inner * inner
    middle = inner + inner * (square * polynomial(square, _ATANH[x.dtype]))
    return torch.where(near, middle, 0.5 * (torch.log1p(x) - torch.log1p(-x)))


def _with_sign_of(x: Tensor, magnitude: Tensor) -> Tensor:
    """An odd function from what it is of |x|; −0 stays, as x itself is next to it there."""
    return torch.where(x != 0, torch.where(x < 0, -magnitude, magnitude), x)
