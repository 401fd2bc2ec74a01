"""Special functions: the normal distribution, entropy, sinc, degrees."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from decomp import Rules
from decomp.ops import aten
from decomp_rules.support.floating import float_math, polynomial

RULES = Rules(level="exact")
register = RULES.register


@register(aten.special_ndtr)
@float_math
def ndtr(x: Tensor) -> Tensor:
    """The normal distribution's Φ(x) = erfc(−x/√2) / 2. As PyTorch's, off by the rounding of x/√2 far down."""
    return 0.5 * torch.erfc(x * -math.sqrt(0.5))


@register(aten.special_entr)
@float_math
def entr(x: Tensor) -> Tensor:
    """−x·ln x, 0 at 0, −∞ below. The gradient is that of −x·ln x: ∞ at 0, NaN below."""
    zero = x == 0
    number = torch.where(zero, 1.0, x)
    product = -number * torch.log(torch.where(x == math.inf, math.inf, number))  # whose gradient is −∞ at ∞
    at_zero = torch.sqrt(torch.where(zero, x + 0.0, 1.0))
    return torch.where(zero, at_zero, torch.where(x < 0, -math.inf, product))


# sin y / y in powers of y², enough of them for |y| ≤ π/4.
_SINC = {
    dtype: tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(n))
    for dtype, n in (
        (torch.float32, 6),
        (torch.float64, 10),
    )
}


@register(aten.sinc)
@float_math
def sinc(x: Tensor) -> Tensor:
    """sin(πx) / (πx), up to 1/4 by its series, so that the gradient is accurate near 0, where that of the quotient
    loses all digits. As PyTorch's, off by the rounding of πx."""
    near = torch.abs(x) <= 0.25
    inner = torch.where(near, x, 0.0) * math.pi
    outer = torch.where(near, 1.0, x) * math.pi
    return torch.where(near, polynomial(inner * inner, _SINC[x.dtype]), torch.sin(outer) / outer)


@register(aten.deg2rad)
@float_math
def deg2rad(x: Tensor) -> Tensor:
    """x·π/180. ≤ 1 ULP of the op."""
    return x * (math.pi / 180)


@register(aten.rad2deg)
@float_math
def rad2deg(x: Tensor) -> Tensor:
    """x·180/π. ≤ 1 ULP of the op."""
    return x * (180 / math.pi)
