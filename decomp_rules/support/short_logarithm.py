"""Binary logarithms to 29 bits in two float32, and products with them, in few calls: for powers within 4 ULP.

A result next to overflow has an exponent of 2⁷, so that the exponent needs five bits more than a float has. A number is
m·2ⁿ, and m next to one of 385 numbers c; log₂c and log₂e/c come from tables, in two parts each, the first so short that
what is done with it is exact (P. T. P. Tang, ACM TOMS 16, 1990). The first twelve bits of the target's own log₂x are
taken from the sum before it is rounded; products of twelve bits are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, localcontext
import functools
import math

import torch
from torch import Tensor

_STEPS = 256
"""Entries of the tables for a doubling of m, which is from 1/2 to 2."""
_END = 2 * _STEPS + 8
_SHIFT = 1.5 * 2.0**23
"""Added to a float32, shifts out its fraction bits."""
_SLOPE_BITS, _PLACE_BITS = 9, 14
"""Of the first parts of log₂e/c, altogether, and of log₂c, after the point."""
_LESS = 2.0**-10
"""By this part the first part of a logarithm is too small: then no product of first parts is beyond the whole one, so
that its power overflows only where the result does, and the rest of the exponent is of its sign."""
_HALF = 2.0**12
"""One more of it splits a float32 in halves of twelve bits."""


@dataclass(frozen=True)
class ShortLogarithm:
    """log₂x in two parts."""

    own: Tensor
    """What the target has for it; ±∞ and NaN where x is 0, infinite, negative or NaN."""
    high: Tensor
    """Twelve bits of it."""
    minus_low: Tensor
    """What is left, with the sign turned."""
    right: Tensor
    """Where this is so: x is a positive normal number."""


def short_logarithm(x: Tensor) -> ShortLogarithm:
    """log₂x of a float32, right to 2⁻²⁹ of itself where x is a positive normal number. Without gradient."""
    own = torch.log2(x)
    # 1 − n, for an n that is less in size than the exponent of any number, so that neither power of two is subnormal.
    turned = (own * -0.996 + _SHIFT) - (_SHIFT - 1)
    place = x * torch.exp2(turned) * (_STEPS / 2)
    nearest = (place + _SHIFT) - _SHIFT
    gap = place - nearest
    right = torch.lt(place, _END)
    index = torch.where(right, nearest, 0.0).to(torch.int64)  # of NaN and infinity there is no integer
    slope, slope_rest, whole, whole_rest = (torch.take(_column(x, values), index) for values in zip(*_table()))
    first, second = gap * slope, gap * slope_rest
    z = first + second
    low = z * z * (z * _CUBE + _SQUARE) + second + whole_rest
    high = own * (_HALF + 1 - _LESS) + own * -_HALF
    return ShortLogarithm(own, high, ((turned + whole) + high) + first + low, right)


def times(logarithm: ShortLogarithm, y: Tensor) -> tuple[Tensor, Tensor]:
    """y·log₂x in two parts of one sign, the second less than 2⁻⁸ of the first, which is exact: the product of their
    powers of two is xʸ ≤ 2.7 ULP, infinite where that overflows and 0 where it vanishes. The second is infinite or NaN
    where y is infinite, or next to it."""
    turned = y * -(1 + 1 / _HALF) + y  # twelve bits of −y / 2¹²
    high, minus_high = turned * -_HALF, turned * _HALF
    return high * logarithm.high, (y + minus_high) * logarithm.own + minus_high * logarithm.minus_low


def times_number(logarithm: ShortLogarithm, y: float) -> tuple[Tensor, Tensor]:
    """The same for a number that is a float32, of any size."""
    high = _leading(y)
    rest = logarithm.minus_low * -y
    return logarithm.high * high, rest if high == y else logarithm.high * (y - high) + rest


def power_of_number(x: float, y: Tensor) -> Tensor:
    """xʸ for a positive number ≤ 2.7 ULP. The first bits of y come from what is y, but little beyond 2³², where the
    result is 0 or infinite: what is left of ∞ is ∞ then."""
    with localcontext() as context:
        context.prec = 40
        exact = Decimal(x).ln() / Decimal(2).ln()
        high = _leading(float(exact))
        low = float(exact - Decimal(high))
    point = y.detach()
    bounded = torch.reciprocal(torch.reciprocal(point) + point * 2.0**-90)
    first = bounded * (_HALF + 1 - _LESS) + bounded * -_HALF
    return torch.exp2(first * high) * torch.exp2((y - first) * float(exact) + first * low)


def _leading(number: float) -> float:
    """Its first twelve bits."""
    fraction, exponent = math.frexp(number)
    return math.ldexp(round(fraction * _HALF), exponent - 12)


def _column(like: Tensor, values: tuple[float, ...]) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)


# −log₂(1 + u) = z + z²·(a + b·z) for z = −u·log₂e and |u| ≤ 1/512; a is more than ½ ln 2, by what makes the error of
# z⁴ the same at three places.
_CUBE = math.log(2) ** 2 / 3
_SQUARE = math.log(2) / 2 + 0.75 * math.log(2) ** 3 / 4 * (0.5 / _STEPS / math.log(2)) ** 2


@functools.cache
def _table() -> tuple[tuple[float, float, float, float], ...]:
    """For each c: minus log₂e/c in two parts, and minus what log₂(2c) is in two parts."""
    with localcontext() as context:
        context.prec = 40
        return tuple(_row(Decimal(max(place, _STEPS // 4))) for place in range(_END))


def _row(place: Decimal) -> tuple[float, float, float, float]:
    two = Decimal(2).ln()
    slope, logarithm = 1 / (place * two), (place / _STEPS).ln() / two
    unit = 2.0 ** (math.frexp(float(slope))[1] - _SLOPE_BITS)
    slope_high = round(float(slope) / unit) * unit
    high = round(float(logarithm) * 2.0**_PLACE_BITS) / 2.0**_PLACE_BITS
    return -slope_high, float(Decimal(slope_high) - slope), -(1 + high), float(Decimal(high) - logarithm)
