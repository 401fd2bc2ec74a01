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
from decomp_rules.complex_functions import Parts, by_parts, product
from decomp_rules.complex_numbers import parts

RULES = Rules()
register = RULES.register
aten = torch.ops.aten

# Beyond it 1 − |tanh| is less than half a unit in the last place, in either precision.
FLAT = {torch.float32: 12.0, torch.float64: 22.0}
# Beyond it atanh z is 1/z ± iπ/2 to the last digit.
FAR = {torch.float32: 2.0**30, torch.float64: 2.0**60}


@register(aten.sin)
@by_parts
def sin(re: Tensor, im: Tensor) -> Parts:
    """sin a·cosh b + i·cos a·sinh b. ≤ 4 ULP."""
    return product(torch.cosh(im), torch.sin(re), re), product(torch.sinh(im), torch.cos(re), im)


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
    return torch.cos(re) * torch.cosh(im), -product(torch.sinh(im), torch.sin(re), re, im)


@register(aten.sinh)
@by_parts
def sinh(re: Tensor, im: Tensor) -> Parts:
    """sinh a·cos b + i·cosh a·sin b. ≤ 4 ULP."""
    return product(torch.sinh(re), torch.cos(im), re), product(torch.cosh(re), torch.sin(im), im)


@register(aten.cosh)
@by_parts
def cosh(re: Tensor, im: Tensor) -> Parts:
    """cosh a·cos b + i·sinh a·sin b. ≤ 4 ULP."""
    return torch.cosh(re) * torch.cos(im), product(torch.sinh(re), torch.sin(im), re, im)


@register(aten.tanh)
@by_parts
def tanh(re: Tensor, im: Tensor) -> Parts:
    """(s·√(1 + s²) + i·sin b·cos b) / (cos² b + s²) with s = sinh a. ≤ 6 ULP."""
    return _tanh(re, im)


@register(aten.tan)
@by_parts
def tan(re: Tensor, im: Tensor) -> Parts:
    """−i·tanh iz. ≤ 6 ULP."""
    first, second = _tanh(-im, re)
    return second, -first


def _tanh(re: Tensor, im: Tensor) -> Parts:
    edge = FLAT[re.dtype]
    far = torch.abs(re) > edge
    s, c = torch.sinh(torch.clamp(re, -edge, edge)), torch.cos(im)
    inverse = torch.reciprocal(c * c + s * s)
    level = torch.where(far, torch.sign(re), s * torch.sqrt(1 + s * s) * inverse)
    decay = torch.where(far, 4 * torch.exp(-2 * torch.abs(re)), inverse)
    return level, torch.sin(im) * c * decay


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
    (pr, pi), (qr, qi) = _root(1 - re, -im), _root(1 + re, im)
    return 2 * torch.atan2(pr, qr), torch.asinh(qr * pi - qi * pr)


@register(aten.acosh)
@by_parts
def acosh(re: Tensor, im: Tensor) -> Parts:
    """asinh(Re p̄q) + 2i·atan(Im p / Re q) with p = √(z − 1), q = √(z + 1). ≤ 4 ULP."""
    (pr, pi), (qr, qi) = _root(re - 1, im), _root(re + 1, im)
    return torch.asinh(pr * qr + pi * qi), 2 * torch.atan2(pi, qr)


@register(aten.atanh)
@by_parts
def atanh(re: Tensor, im: Tensor) -> Parts:
    """±log1p(4|a| / ((1 − |a|)² + b²)) / 4 + i·atan2(2b, 1 − a² − b²) / 2; far out 1/z ± iπ/2. ≤ 4 ULP."""
    return _atanh(re, im)


@register(aten.atan)
@by_parts
def atan(re: Tensor, im: Tensor) -> Parts:
    """−i·atanh iz. ≤ 4 ULP."""
    first, second = _atanh(-im, re)
    return second, -first


def _asin(re: Tensor, im: Tensor) -> Parts:
    (pr, pi), (qr, qi) = _root(1 - re, -im), _root(1 + re, im)
    across = pr * qr - pi * qi
    # Of an infinite a it is 0·∞: then only whether b is infinite counts.
    across = torch.where(across != across, torch.abs(im), across)
    return torch.atan2(re, across), torch.asinh(pr * qi - pi * qr)


def _root(re: Tensor, im: Tensor) -> Parts:
    """√(a + ib), on the side of the cut that the sign of b says, be it that of a zero."""
    below = torch.signbit(im)
    first, second = parts(torch.sqrt(torch.complex(re, torch.where(below, -im, im))))
    return first, torch.where(below, -second, second)


def _atanh(re: Tensor, im: Tensor) -> Parts:
    far = (torch.abs(re) > FAR[re.dtype]) | (torch.abs(im) > FAR[re.dtype])
    a, b = torch.where(far, 0.0, torch.abs(re)), torch.where(far, 0.0, im)
    near = torch.log1p(4 * a / ((1 - a) * (1 - a) + b * b)) * 0.25
    turn = torch.atan2(2 * b, (1 - a) * (1 + a) - b * b) * 0.5
    inverse, _ = parts(torch.reciprocal(torch.complex(torch.where(far, re, 1.0), im)))
    level = torch.where(far, torch.where(torch.abs(im) == math.inf, 0.0, inverse), torch.copysign(near, re))
    return level, torch.where(far, torch.copysign(torch.full_like(im, math.pi / 2), im), turn)
