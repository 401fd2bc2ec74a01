"""eˣ where it neither overflows nor counts below the normal numbers, from the bits of one power of two: compiled, it
takes as long as one exponential, and less than an exponential with its argument reduction. Errors are in ULP against
float64.
"""

from __future__ import annotations

from collections.abc import Sequence
import math

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.pointwise.exponential import LN_2_PARTS, at_least
from decomp_rules.support.floating import LOG2_E, float_math, polynomial

RULES = Rules(level="exact")

NEEDS = ("maximum", "bitwise_and", "bitwise_left_shift", "view.dtype")
"""Without which the bits are not worth it."""
LOWEST = -88.0
"""From here on down the power is 0."""
# Minimax for |r| ≤ ½ ln 2, its two derivatives included: to 3·10⁻⁸, 2·10⁻⁷ and 3·10⁻⁶.
_EXP = (
    1.0,
    1.0,
    0.4999996285299476,
    0.16666184684326063,
    0.041670765503073796,
    0.008391782804984925,
    0.0013800583153984003,
)
SHORT_EXP = (
    1.0,
    0.9999997063129097,
    0.49999147840708974,
    0.16667638128571446,
    0.04189815965848772,
    0.008290272029147207,
)
"""To 10⁻⁷, without the derivatives."""
LONG_EXP = tuple(1 / math.factorial(i) for i in range(10))
"""The series, which is good to 10⁻¹¹: far longer than it takes."""
_SHIFT = 1.5 * 2.0**23 + 127
"""Adding a number that large shifts out the fraction bits, and leaves a biased exponent in the last bits."""


def power_and_factor(
    x: Tensor, sign: float = 1.0, trained: bool = False, coefficients: Sequence[float] = _EXP
) -> tuple[Tensor, Tensor]:
    """A power of two p, without a gradient, and f next to 1 so that eˣ is f·p, or f / p where `sign` is −1, for float32
    between ±88. Where something is `trained`, f has its derivatives from itself, which takes far fewer calls than those
    of the polynomial: half of it times 1 + t², where t is 1 and has the slope 1."""
    high, low = LN_2_PARTS[torch.float32]
    held = x.detach()
    pushed = held * (sign * LOG2_E) + _SHIFT
    # Cut off first: in compiled code a signed integer that overflows has no value.
    power = torch.bitwise_left_shift(torch.bitwise_and(pushed.view(torch.int32), 255), 23).view(torch.float32)
    n = pushed - _SHIFT
    rest = ((held if trained else x) + n * (-sign * high)) + n * (-sign * low)
    if not trained:
        return power, polynomial(rest, coefficients)
    half = polynomial(rest, [0.5 * c for c in coefficients])
    return power, with_own_derivatives(half, x - held)


def with_own_derivatives(half: Tensor, zero: Tensor) -> Tensor:
    """Twice `half`, as e to the power of `zero` times that: its first two derivatives are what it is itself."""
    t = zero + 1
    return t * t * half + half


@RULES.register(aten.sigmoid, level="standard", needs=NEEDS, forward_only=True)
@float_math
def sigmoid_of_power(x: Tensor) -> Tensor:
    """p / (p + f) with e⁻ˣ = f / p, p a power of two. ≤ 2.5 ULP."""
    return _logistic(x)


@RULES.register(aten.sigmoid, level="standard", needs=NEEDS)
@float_math
def sigmoid_of_power_trained(x: Tensor) -> Tensor:
    """The same with gradients: they have all digits down to where they are 0."""
    return _logistic(x, trained=True)


def _logistic(x: Tensor, trained: bool = False) -> Tensor:
    if x.dtype != torch.float32:
        return decline("the polynomial is for float32")
    # Above 40 it is 1.
    if trained:
        # Selections have a cheaper gradient than maxima, which divide it by two where there is a tie. Both are by a
        # number on the right: a comparison of two tensors PyTorch (2.13) takes for a reduction, and keeps its result.
        turned = -x
        bounded = torch.where(turned < -40.0, -40.0, torch.where(x < LOWEST, -LOWEST, turned))
    else:
        bounded = at_least(-at_least(x, LOWEST), -40.0)
    power, factor = power_and_factor(bounded, -1.0, trained)
    return power * torch.reciprocal(power + factor)
