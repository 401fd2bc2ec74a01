"""The error function and its complement.

Near 0 a polynomial in x², elsewhere the Gaussian e^−x² times a polynomial in t = 1 / (1 + x/2), fitted to e^x²·erfc(x)
with 50 digits (Lawson weights on Chebyshev nodes). Errors are in ULP against float64, over all float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from decomp import Rules
from decomp_rules.floating import LOG2_E, float_math, polynomial, square_error

RULES = Rules()
register = RULES.register
aten = torch.ops.aten


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
}  # fmt: skip
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
}  # fmt: skip
# c, and erfc(x)·e^x² / t in powers of t = 1 / (1 + c·x), from x = 0.8 to where erfc has no float any more.
_ERFC = {
    torch.float32: (0.5, (
        0.28209163227142225207, 0.28218189533947341793, 0.24581324538916461589, 0.18287740348700784148,
        0.058812438374690508271, 0.049050526887717887296, -0.10133144817600114805, -0.11299017007841382452,
        0.16985836042823973764, -0.056468667688720392068,
    )),
    torch.float64: (0.375, (
        0.21157109383043265831, 0.21157109382881783842, 0.19669500133637843467, 0.16694281587372999764,
        0.12545245718556539285, 0.078500083981930920876, 0.034390423508952512298, 0.0013360410101118411896,
        -0.016142691584221404011, -0.013134297804951351876, -0.023291094045939992856, 0.075214492368556001882,
        -0.22636077473911143045, 0.65048011684753271407, -1.4223440959611892312, 2.4905147083016136588,
        -3.47649068149895268, 3.7117170779346067106, -2.9211999324941190222, 1.6357407058603001953,
        -0.61782329702899064372, 0.14158202023261645639, -0.014921269324067077272,
    )),
}  # fmt: skip


@register(aten.erf)
@float_math
def erf(x: Tensor) -> Tensor:
    """2/√π·∫₀ˣ e^−t² dt: x times a polynomial in x² up to 1, ±(1 − e^−x²·polynomial) beyond. ≤ 1.6 ULP."""
    negative = x < 0
    magnitude = torch.where(negative, -x, x)
    near = magnitude < 1
    inner = torch.where(near, x, 0.0)
    middle = inner + inner * polynomial(inner * inner, _ERF[x.dtype])
    # What is taken from 1 is small enough that the rounded exponent does no harm.
    rest = 1 - torch.exp2(magnitude * magnitude * -LOG2_E) * _scaled_erfc(magnitude, *_ERF_TAIL[x.dtype])
    return torch.where(near, middle, torch.where(negative, -rest, rest))


@register(aten.erfc)
@float_math
def erfc(x: Tensor) -> Tensor:
    """1 − erf(x), beyond 1 as e^−x² times a polynomial, with x² to twice the digits. ≤ 5.3 ULP."""
    magnitude = torch.where(x < 0, -x, x)
    square = magnitude * magnitude
    lost = square_error(magnitude.detach(), square.detach())
    # e^−lost ≈ 1 − lost; of an infinite x it is NaN, and e^−x² is 0.
    gauss = torch.exp(-square)
    tail = (gauss - gauss * torch.where(torch.abs(lost) < 1, lost, 0.0)) * _scaled_erfc(magnitude, *_ERFC[x.dtype])
    inner = torch.where(magnitude < 1, x, 0.0)
    return torch.where(magnitude < 1, _erfc_around_zero(inner), torch.where(x < 0, 2 - tail, tail))


def _erfc_around_zero(x: Tensor) -> Tensor:
    rest = x * polynomial(x * x, _ERF[x.dtype])
    # Above 1/2 the difference is half and less: what is close to it is taken off first.
    return torch.where(x < 0.5, 1 - (x + rest), (1 - x) - rest)


def _scaled_erfc(x: Tensor, slope: float, coefficients: tuple[float, ...]) -> Tensor:
    """e^x²·erfc(x) for x where the coefficients hold; elsewhere no more than a number."""
    t = torch.reciprocal(1 + slope * x)
    return t * polynomial(t, coefficients)
