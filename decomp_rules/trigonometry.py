"""Trigonometric and hyperbolic functions and their inverses.

A target has sin, which is accurate for every float; the others come from it by identities that keep relative accuracy
wherever they are used, never by moving the argument, which rounds it. Coefficients are minimax fits made with 50
digits. Errors are in ULP against float64, over all float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from decomp import Rules
from decomp_rules.floating import float_math, polynomial

RULES = Rules()
register = RULES.register
aten = torch.ops.aten

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
}  # fmt: skip


@register(aten.cos)
@float_math
def cos(x: Tensor) -> Tensor:
    """1 − 2·sin²(x/2) from 1/2 up, 2·(sin x / (2·sin(x/2)))² − 1 from −0.7 down, and between them sin 2x / (2·sin x),
    which has all digits also next to 0. ≤ 2.4 ULP up to 1.7e38, beyond 1e-7 absolute. The gradient is that of the
    first form, −2·sin(x/2)·cos(x/2), everywhere."""
    half = torch.sin(x * 0.5)
    upper = 1 - 2 * half * half
    point = x.detach()
    sine = torch.sin(point)
    middle = torch.sin(point + point) * torch.reciprocal(sine + sine)
    half_cosine = sine * torch.reciprocal(half.detach() * 2)
    lower = 2 * half_cosine * half_cosine - 1
    # Where 2x overflows or sin x is 0, the quotient is NaN and both comparisons are false.
    value = torch.where(middle < 0.5, torch.where(middle < -0.7, lower, middle), upper.detach())
    return value + (upper - upper.detach())


@register(aten.tan)
@float_math
def tan(x: Tensor) -> Tensor:
    """sin x / cos x. ≤ 4 ULP."""
    return torch.sin(x) * torch.reciprocal(torch.cos(x))


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
