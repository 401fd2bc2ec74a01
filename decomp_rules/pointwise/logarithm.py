"""Logarithms, of sums of exponentials too, and their products.

Each is log₂ times a constant in two parts, or carries what was rounded away along. Errors are in ULP against float64,
over all float32, on a CPU whose log2 is within 0.65.
"""

from __future__ import annotations

from fractions import Fraction
import math
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.support.floating import (
    LN_2,
    LOG2_E,
    float_dtype,
    float_math,
    is_tensor,
    times_exact,
    with_value,
    working_dtype,
)
from decomp_rules.support.operands import cast, constant

RULES = Rules(level="exact")
register = RULES.register


LOG2_E_EXACT = 1 / LN_2
LOG10_2 = Fraction("0.30102999566398119521373889472449302676818988146211")


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


@register(aten.log2, level="standard")
@float_math
def log2_of_log(x: Tensor) -> Tensor:
    """log₂x = ln x · log₂e, for targets with ln alone. ≤ 2.5 ULP."""
    return torch.log(x) * LOG2_E


@register(aten.log10, level="standard")
@float_math
def log10_of_log2(x: Tensor) -> Tensor:
    """log₁₀x = log₂x · log₁₀2. ≤ 2.5 ULP."""
    return torch.log2(x) * float(LOG10_2)


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


@register(aten.log1p, level="standard")
@float_math
def log1p_of_parts(x: Tensor) -> Tensor:
    """ln u + c/u, where u is 1 + x rounded and c what the rounding took. ≤ 2 ULP."""
    u = 1 + x
    logarithm = torch.log2(u) * float(LN_2)
    # At −1 nothing was lost, and 0·∞ must not come in; far out it no longer matters, and ∞ − ∞ must not.
    lost = ((x - (u - 1)) * torch.reciprocal(u + 2.0**-60)).detach()
    return torch.where(u < 2.0**60, logarithm + lost, logarithm)


def log_of_one_and(e: Tensor, sign: float = 1.0) -> Tensor:
    """±ln(1 + e) for 0 ≤ e ≤ 1, where the rounding error of 1 + e can be added directly. ≤ 2 ULP."""
    u = 1 + e
    return torch.log2(u) * (sign * float(LN_2)) + (e - (u - 1) if sign > 0 else (u - 1) - e)


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


@register(aten.xlogy, needs=("log",))
def xlogy(x: Any, other: Any) -> Tensor:
    """x·ln y, 0 where x is 0 unless y is NaN."""
    return _x_times(x, other, torch.log, 0.0)


@register(aten.xlogy)
def xlogy_by_binary_logarithm(x: Any, other: Any) -> Tensor:
    """The same, for targets without ln, where the gradient of a y next to 0 would be lost on the way."""
    return _x_times(x, other, _log_next_to_zero, 0.0)


def _log_next_to_zero(x: Tensor) -> Tensor:
    """ln x, next to 0 with the slopes of √r − 1/√r, where r is x over itself: those of log₂x have a factor of ln 2 too
    much, which a subnormal number cannot carry."""
    lifted = x * (2.0**100 if x.dtype == torch.float32 else 2.0**900)
    point = lifted.detach()
    square = point * point
    near = torch.logical_and(0 < square, square < 1)
    root = torch.sqrt(torch.where(near, lifted, 1.0) * torch.reciprocal(torch.where(near, point, 1.0)))
    return with_value(root - torch.reciprocal(root), torch.log(torch.where(near, x.detach(), x)))


@register(aten.special_xlog1py)
def xlog1py(x: Any, other: Any) -> Tensor:
    """x·ln(1 + y), 0 where x is 0 unless y is NaN; for tiny y x·y, also where y is subnormal. ≤ 2.5 ULP."""
    return _x_times(x, other, _log1p, -1.0)


def _log1p(x: Tensor) -> Tensor:
    result = torch.log1p(x)
    return torch.where(torch.abs(x) < 0.5 * torch.finfo(x.dtype).eps, with_value(result, x.detach()), result)


def _x_times(x: Any, y: Any, function: Any, pole: float) -> Tensor:
    outer = float_dtype(x, y)
    if outer.is_complex:
        return decline("only real numbers")
    like = x if is_tensor(x) else y
    x, y = (
        cast(value, working_dtype(outer)) if is_tensor(value) else constant(like, value, working_dtype(outer))
        for value in (x, y)
    )
    zero = x == 0
    blocked, end = torch.logical_and(zero, y <= pole), torch.logical_and(zero, y == math.inf)
    # Where x is 0 and the logarithm no number, 0 stands in for it: 0·∞ comes up in the gradient of y alone, which is
    # NaN at the pole in the op too. The gradient of x at y = ∞ is infinite, though the number there must be finite.
    factor = torch.where(end, torch.finfo(y.dtype).max, torch.where(blocked, 0.0, function(y)))
    product = torch.where(end, x * 4.0, x) * factor
    return cast(torch.where(zero, with_value(product, 0.0), product), outer)
