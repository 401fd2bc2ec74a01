"""The error function and its complement.

Near 0 a polynomial in x², elsewhere the Gaussian e^−x² times a polynomial in t = 1 / (1 + x/2), fitted to e^x²·erfc(x)
with 50 digits (Lawson weights on Chebyshev nodes). Errors are in ULP against float64, over all float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.pointwise.exponential import EXPM1, LN_2_PARTS
from decomp_rules.support.floating import (
    LOG2_E,
    float_math,
    nearest,
    nearest_float,
    polynomial,
    product_error,
    split,
    square_error,
)
from decomp_rules.support.operands import constant

RULES = Rules(level="exact")
register = RULES.register


# fmt: off
# As many coefficients a line as fit.
# erf(x) / x − 1 in powers of x², for |x| ≤ 1.
_ERF = {
    torch.float32: (
        0.128379165908006969, -0.376126270988149739, 0.112835997765701305, -0.0268544285963949368,
        0.00518950605812025206, -0.000802059205740839682, 0.0000788831877117951577,
    ),
    torch.float64: (
        0.128379167095512574, -0.376126389031837524, 0.112837916709551204, -0.026866170645129866,
        0.00522397762542358687, -0.000854832702195446847, 0.000120553329037463489, -0.0000149256475926048075,
        1.64620459434787632e-6, -1.63646490522298743e-7, 1.47924651014692686e-8, -1.21649419203400873e-9,
        8.7103738899504075e-11, -4.23299083697965103e-12,
    ),
}
# c, and erfc(x)·e^x² / t in powers of t = 1 / (1 + c·x), so that from 1 on erf has all digits.
_ERF_TAIL = {
    torch.float32: (0.5, (
        0.27549629256067336328, 0.34224077592528224168, 0.029441164878407912881, 0.55614868296505131746,
        -0.2032654360601038525,
    )),
    torch.float64: (0.375, (
        0.21158114576501180345, 0.21132845827842552232, 0.19940386045836155918, 0.14842263252810762984,
        0.21193873348289279579, -0.21258112109222436469, 0.7596081363351914061, -1.3486611644559761334,
        1.8504202086660405168, -1.8863599482727004371, 1.2836431936877457027, -0.54863052292140038998,
        0.13440423710449466262, -0.014517845748917316948,
    )),
}
# c, erfc(x)·e^x² / t in powers of t = 1 / (1 + c·x), from x = 0.8 to where erfc has no float any more, and 1 + t·p'/p
# of that polynomial p, to a hundredth.
_ERFC = {
    torch.float32: (1.0, (
        0.56419153182117790635, 0.56407284417075328801, 0.28504032501936942309, -0.32350347845506831883,
        -0.34549223745204542065, -2.1498907993442490739, 8.7795045841149145701, -12.965809652023576951,
        9.3106050289650571464, -2.7440734852857772323,
    ), (0.98674, 1.23833, -1.30998)),
    torch.float64: (0.375, (
        0.21157109383043265831, 0.21157109382881783842, 0.19669500133637843467, 0.16694281587372999764,
        0.12545245718556539285, 0.078500083981930920876, 0.034390423508952512298, 0.0013360410101118411896,
        -0.016142691584221404011, -0.013134297804951351876, -0.023291094045939992856, 0.075214492368556001882,
        -0.22636077473911143045, 0.65048011684753271407, -1.4223440959611892312, 2.4905147083016136588,
        -3.47649068149895268, 3.7117170779346067106, -2.9211999324941190222, 1.6357407058603001953,
        -0.61782329702899064372, 0.14158202023261645639, -0.014921269324067077272,
    ), (1.02081, 0.73684, 1.82072, -0.45884)),
}
# fmt: on


# Where erfc is 0 next.
_ERFC_END = {torch.float32: 10.2, torch.float64: 27.4}


@register(aten.erf)
@float_math
def erf(x: Tensor) -> Tensor:
    """2/√π·∫₀ˣ e^−t² dt: x times a polynomial in x² up to 1, ±(1 − e^−x²·polynomial) beyond. ≤ 1.4 ULP."""
    negative = x < 0
    magnitude = _bounded(torch.where(negative, -x, x))
    near = magnitude < 1
    inner = torch.where(near, x, 0.0)
    middle = inner + inner * polynomial(inner * inner, _ERF[x.dtype])
    # The number subtracted from 1 is so small that the rounding of the exponent does not matter.
    slope, coefficients = _ERF_TAIL[x.dtype]
    t = torch.reciprocal(1 + slope * magnitude)
    rest = 1 - torch.exp2(magnitude * magnitude * -LOG2_E) * (t * polynomial(t, coefficients))
    return torch.where(near, middle, torch.where(negative, -rest, rest))


# erf(x) / x in powers of x², for |x| ≤ 1.02; c, and −erfc(x)·e^x² / t in powers of t = 1 / (x + c), for x ≥ 0.9.
_ERF_SHORT = (
    1.128379111152905,
    -0.3761226242272913,
    0.1127961415241234,
    -0.02669394393007086,
    0.004896024117499565,
    -0.0005538845845299578,
)
_ERF_TAIL_SHORT = (0.55, (-0.5535737874724066, -0.4109195683249634, 0.4716283441277702, -0.1503652385414655))


@register(aten.erf, level="standard")
@float_math
def erf_of_parts(x: Tensor) -> Tensor:
    """x times a polynomial in x² up to 0.95, ±(1 − e^−x²·polynomial) beyond. ≤ 3 ULP, the gradients to 5·10⁻⁵."""
    if x.dtype == torch.float64:
        return decline("these polynomials are for float32")
    magnitude, square = torch.maximum(x, -x), x * x
    near = square < 0.95**2
    gauss = torch.exp2(square * -LOG2_E)
    middle = x * polynomial(torch.where(near, square, gauss), _ERF_SHORT)  # gauss, as it is never large
    offset, coefficients = _ERF_TAIL_SHORT
    t = torch.reciprocal(magnitude + offset)
    rest = 1 + gauss * (t * polynomial(t, coefficients))
    return torch.where(near, middle, torch.where(x < 0, -rest, rest))


@register(aten.erfc)
@float_math
def erfc(x: Tensor) -> Tensor:
    """1 − erf(x), from 0.8 as e^−x² times a polynomial, both corrected for their rounding errors. ≤ 1.9 ULP."""
    magnitude = torch.where(x < 0, -x, x)
    near = magnitude < 0.8
    inner = torch.where(near, x, 0.0)
    tail = _erfc_far_out(_bounded(magnitude))
    return torch.where(near, _erfc_around_zero(inner), torch.where(x < 0, 2 - tail, tail))


def _bounded(x: Tensor) -> Tensor:
    """`x`, but not beyond where erfc is 0; there it passes no gradient, which would be 0·∞."""
    return torch.where(x > _ERFC_END[x.dtype], _ERFC_END[x.dtype], x)


def _erfc_around_zero(x: Tensor) -> Tensor:
    rest = x * polynomial(x * x, _ERF[x.dtype])
    # Above 1/2 the difference is half and less: what is close to it is taken off first.
    return torch.where(x < 0.5, 1 - (x + rest), (1 - x) - rest)


def _erfc_far_out(x: Tensor) -> Tensor:
    """2ⁿ·(F + F·w) with F = e^x²·erfc(x) and 2ⁿ·(1 + w) = e^−x²; small parts are added to each other first."""
    power, w, w_lost = _gauss(x)
    slope, (c0, c1, *rest), condition = _ERFC[x.dtype]
    product = slope * x
    denominator = 1 + product
    t = torch.reciprocal(denominator)
    t_halves, denominator_halves = split(t), split(denominator)
    # The error of t, relative to t; that of e^x²·erfc(x) is `condition` times as large.
    t_lost = -product_error(t_halves, denominator_halves, constant(x, 1.0)) - t * (product - (denominator - 1))
    share = t * polynomial(t, (c1, *rest))
    p = c0 + share
    p_lost = (share - (p - nearest_float(c0, x.dtype))) + (_lost(c0, x.dtype) + t * _lost(c1, x.dtype))
    scaled = t * p
    scaled_lost = product_error(t_halves, split(p), scaled) + t * p_lost
    lost = scaled * (t_lost * polynomial(t, condition) + w_lost) + (1 + w) * scaled_lost
    return power * (scaled + (scaled * w + lost))


def _gauss(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """2ⁿ, w and what w lacks, of e^−x² = 2ⁿ·(1 + w)."""
    square = x * x
    n = nearest(square.detach() * -LOG2_E)
    high, low = LN_2_PARTS[x.dtype]
    reduced = -square - n * high
    lost = n * low + square_error(x, square)
    r = reduced - lost
    curve = r * r * polynomial(r, EXPM1[x.dtype])
    w = r + curve
    return torch.exp2(n), w, (curve - (w - r)) + ((reduced - r) - lost)


def _lost(number: float, dtype: torch.dtype) -> float:
    """The rounding error of a number when cast to `dtype`."""
    return number - nearest_float(number, dtype)
