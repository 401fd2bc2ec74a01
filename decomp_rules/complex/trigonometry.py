"""Trigonometric and hyperbolic functions of complex numbers and their inverses, by real functions of the two parts.

The addition theorems serve the functions, and W. Kahan, *Branch Cuts for Complex Elementary Functions* (1987), their
inverses: his forms do not cancel anywhere, and take the side of a cut from the sign of a zero. Errors are relative to
the modulus of the result, in units of the last place of float32.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.complex.functions import Parts, by_parts, hyperbolic, infinite, modulus, product, zero_for_nan
from decomp_rules.complex.numbers import parts
from decomp_rules.support.operands import constant

RULES = Rules(level="exact")
register = RULES.register

# Beyond it 1 − |tanh| is less than half a unit in the last place, in either precision.
FLAT = {torch.float32: 12.0, torch.float64: 22.0}
# Beyond it atanh z is 1/z ± iπ/2 to the last digit.
FAR = {torch.float32: 2.0**30, torch.float64: 2.0**60}


@register(aten.sin)
@by_parts
def sin(re: Tensor, im: Tensor) -> Parts:
    """sin a·cosh b + i·cos a·sinh b. ≤ 4 ULP."""
    second, first = _sinh(im, re)
    return first, second


@register(aten.sinc)
def sinc(x: Tensor) -> Tensor:
    """sin πz / πz, 1 of 0."""
    if not x.is_complex():
        return decline("only complex numbers")
    turned = torch.where(x == 0, 1.0, x * math.pi)
    return torch.where(x == 0, 1.0, torch.sin(turned) / turned)


@register(aten.cos)
@by_parts
def cos(re: Tensor, im: Tensor) -> Parts:
    """cos a·cosh b − i·sin a·sinh b. ≤ 4 ULP."""
    return _cosh(-im, re)


@register(aten.sinh)
@by_parts
def sinh(re: Tensor, im: Tensor) -> Parts:
    """sinh a·cos b + i·cosh a·sin b; infinities as in C99. ≤ 4 ULP."""
    return _sinh(re, im)


@register(aten.cosh)
@by_parts
def cosh(re: Tensor, im: Tensor) -> Parts:
    """cosh a·cos b + i·sinh a·sin b; infinities as in C99. ≤ 4 ULP."""
    return _cosh(re, im)


def _sinh(re: Tensor, im: Tensor) -> Parts:
    sinh, cosh, factor = hyperbolic(re)
    return infinite(re, product(sinh, torch.cos(im)) * factor), product(cosh, torch.sin(im)) * factor


def _cosh(re: Tensor, im: Tensor) -> Parts:
    sinh, cosh, factor = hyperbolic(re)
    wave = torch.sin(im)
    wave = zero_for_nan(re, wave)
    return infinite(re, cosh * torch.cos(im) * factor), product(sinh, wave) * factor


@register(aten.tanh)
@by_parts
def tanh(re: Tensor, im: Tensor) -> Parts:
    """(s·√(1 + s²) + i·sin b·cos b) / (cos² b + s²) with s = sinh a; infinities as in C99. ≤ 6 ULP."""
    return _tanh(re, im)


@register(aten.tan)
@by_parts
def tan(re: Tensor, im: Tensor) -> Parts:
    """−i·tanh iz. ≤ 6 ULP."""
    first, second = _tanh(-im, re)
    return second, -first


def _tanh(re: Tensor, im: Tensor) -> Parts:
    edge = FLAT[re.dtype]
    size = torch.abs(re)
    far = size > edge
    # At infinity only the sign of b counts, and on the axis a is 0 for any b.
    turn = torch.where((size == math.inf) & (im * 0 != 0), torch.copysign(constant(im, 0), im), im)
    s, wave, c = torch.sinh(torch.clamp(re, -edge, edge)), torch.sin(turn), torch.cos(turn)
    inverse = torch.reciprocal(c * c + s * s)
    level = torch.where(far, torch.sign(re) + 0 * wave, s * torch.sqrt(1 + s * s) * inverse)
    decay = torch.where(far, 4 * torch.exp(-2 * size), inverse)
    return zero_for_nan(re, level), zero_for_nan(wave, wave * c * decay)


# Inverses


@register(aten.asin)
@by_parts
def asin(re: Tensor, im: Tensor) -> Parts:
    """atan(a / Re pq) + i·asinh(Im p̄q) with p = √(1 − z), q = √(1 + z). ≤ 4 ULP."""
    return _asin(re, im)


@register(aten.asinh)
@by_parts
def asinh(re: Tensor, im: Tensor) -> Parts:
    """i·asin(−iz). ≤ 4 ULP."""
    first, second = _asin(im, -re)
    return -second, first


@register(aten.acos)
@by_parts
def acos(re: Tensor, im: Tensor) -> Parts:
    """2·atan(Re p / Re q) + i·asinh(Im q̄p) with p = √(1 − z), q = √(1 + z). ≤ 4 ULP."""
    far, a, b = _near(re, im)
    (pr, pi), (qr, qi) = _root(1 - a, -b), _root(1 + a, b)
    turn = torch.where(far, torch.atan2(torch.abs(im), re), 2 * torch.atan2(pr, qr))
    rise = torch.where(far, torch.copysign(_far_log(re, im), -im), torch.asinh(qr * pi - qi * pr))
    return torch.where((re == 0) & (turn != turn), math.pi / 2, turn), rise


@register(aten.acosh)
@by_parts
def acosh(re: Tensor, im: Tensor) -> Parts:
    """asinh(Re p̄q) + 2i·atan(Im p / Re q) with p = √(z − 1), q = √(z + 1). ≤ 4 ULP."""
    far, a, b = _near(re, im)
    (pr, pi), (qr, qi) = _root(a - 1, b), _root(a + 1, b)
    rise = torch.where(far, _far_log(re, im), torch.asinh(pr * qr + pi * qi))
    turn = torch.where(far, torch.atan2(im, re), 2 * torch.atan2(pi, qr))
    lost = (re == 0) & (turn != turn)
    return rise, torch.where(lost, torch.copysign(constant(im, math.pi / 2), im), turn)


@register(aten.atanh)
@by_parts
def atanh(re: Tensor, im: Tensor) -> Parts:
    """±log1p(4|a| / ((1 − |a|)² + b²)) / 4 + i·atan2(2b, 1 − a² − b²) / 2; far out 1/z ± iπ/2, next to the poles
    (ln 2 − ln |b|) / 2. ≤ 4 ULP."""
    return _atanh(re, im)


@register(aten.atan)
@by_parts
def atan(re: Tensor, im: Tensor) -> Parts:
    """−i·atanh iz. ≤ 4 ULP."""
    first, second = _atanh(-im, re)
    return second, -first


def _asin(re: Tensor, im: Tensor) -> Parts:
    far, a, b = _near(re, im)
    (pr, pi), (qr, qi) = _root(1 - a, -b), _root(1 + a, b)
    turn = torch.where(far, torch.atan2(re, torch.abs(im)), torch.atan2(a, pr * qr - pi * qi))
    rise = torch.where(far, torch.copysign(_far_log(re, im), im), torch.asinh(pr * qi - pi * qr))
    return zero_for_nan(re, turn), rise


def _near(re: Tensor, im: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Whether z is so large that asin z is ∓i·ln 2iz to the last digit; its parts where it is not, else 0."""
    far = (torch.abs(re) > FAR[re.dtype]) | (torch.abs(im) > FAR[re.dtype])
    return far, torch.where(far, 0.0, re), torch.where(far, 0.0, im)


def _far_log(re: Tensor, im: Tensor) -> Tensor:
    """ln 2|z|, which does not overflow."""
    return torch.log(modulus(re * 0.25, im * 0.25)) + math.log(8)


def _root(re: Tensor, im: Tensor) -> Parts:
    """√(a + ib), on the side of the cut that the sign of b says, be it that of a zero."""
    below = torch.signbit(im)
    first, second = parts(torch.sqrt(torch.complex(re, torch.where(below, -im, im))))
    return first, torch.where(below, -second, second)


def _atanh(re: Tensor, im: Tensor) -> Parts:
    far, a, b = _near(re, im)
    a, half_pi = torch.abs(a), torch.copysign(constant(im, math.pi / 2), im)
    pole = (a == 1) & (torch.abs(b) < 1 / FAR[re.dtype])
    away = torch.where(pole, 1.0, b)
    near = torch.log1p(4 * a / ((1 - a) * (1 - a) + away * away)) * 0.25
    near = torch.where(pole, (math.log(2) - torch.log(torch.abs(torch.where(pole, b, 1.0)))) * 0.5, near)
    turn = torch.atan2(2 * b, (1 - a) * (1 + a) - b * b) * 0.5
    inverse, _ = parts(torch.reciprocal(torch.complex(torch.where(far, re, 1.0), im)))
    endless = (torch.abs(re) == math.inf) | (torch.abs(im) == math.inf)
    level = torch.where(far, torch.where(endless, 0.0, torch.abs(inverse)), near)
    unknown = (im != im) | ((re != re) & ~endless)
    turn = torch.where(far, torch.where(unknown, math.nan, half_pi), turn)
    # Where a is 0 the slope is 1 / (1 + b²), which |a| has not.
    start = zero_for_nan(re, re * torch.where(far, 0.0, torch.reciprocal(1 + b * b)))
    return torch.where(re == 0, start, torch.copysign(level, re)), turn
