"""Floating point arithmetic from plain ops: the dtype to compute in, exact splits, products with exact constants,
polynomials.

The rules for elementary functions stand on these. Everything that only repairs rounding is detached, so that the
gradient is that of the exact formula; everything else is differentiable as it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
import functools
import math
from typing import Any

import torch
from torch import Tensor
from torch.fx import Proxy

from decomp import decline
from decomp_rules.operands import HALVES, cast, promoted

LOG2_E = 1 / math.log(2)
# 50 digits of it are exact enough for both dtypes.
LN_2 = Fraction("0.69314718055994530941723212145817656807550013436026")

# The bits of half a significand, the factor that splits one there, and the integer that masks its lower half.
_HALF = {torch.float32: 12, torch.float64: 26}
_SPLITTER = {torch.float32: 2.0**12 + 1, torch.float64: 2.0**27 + 1}
_MASK = {torch.float32: (torch.int32, -0x1000), torch.float64: (torch.int64, -0x8000000)}


def float_math(rule: Callable[..., Any]) -> Callable[..., Any]:
    """`rule` on real floats: integers are converted first, half types are computed in float32 and rounded once."""

    @functools.wraps(rule)
    def in_working_dtype(*args: Any, **kwargs: Any) -> Any:
        tensors = [value for value in (*args, *kwargs.values()) if is_tensor(value)]
        outer = promoted(*tensors)
        if outer.is_complex:
            return decline("only real numbers")
        outer = outer if outer.is_floating_point else torch.get_default_dtype()
        inner = torch.float32 if outer in HALVES else outer

        def working(value: Any) -> Any:
            return cast(value, inner) if is_tensor(value) else value

        result = rule(*map(working, args), **{name: working(value) for name, value in kwargs.items()})
        return cast(result, outer) if is_tensor(result) else result

    return in_working_dtype


def float_dtype(*operands: Any) -> torch.dtype:
    """The dtype of a true function of these tensors and numbers: what they promote to, integers to the default."""
    dtype = promoted_in_any_order(*operands)
    return dtype if dtype.is_floating_point or dtype.is_complex else torch.get_default_dtype()


def promoted_in_any_order(*operands: Any) -> torch.dtype:
    """What tensors and numbers in any order promote to."""
    return promoted(*sorted(operands, key=is_tensor, reverse=True))


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in: float32 for half types."""
    return torch.float32 if dtype in HALVES else dtype


def is_tensor(value: Any) -> bool:
    """Whether a rule's argument is a tensor, or stands for one while the rule is recorded."""
    return isinstance(value, (Tensor, Proxy))


def polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """c0 + c1·x + c2·x² + …, by Horner's rule."""
    *lower, value = coefficients
    result: Any = value
    for coefficient in reversed(lower):
        result = result * x + coefficient
    return result


def upper_half(x: Tensor) -> Tensor:
    """`x` rounded to half its digits, detached: the rest is exact, and so is a product of two halves. NaN where
    2¹²·x overflows (float64: 2²⁷·x). G. W. Veltkamp; T. J. Dekker, Numer. Math. 18 (1971)."""
    x = x.detach()
    scaled = x * _SPLITTER[x.dtype]
    return scaled - (scaled - x)


def masked_half(x: Tensor) -> Tensor:
    """`x` with the lower half of its digits cut off, detached; for all floats, on targets that reinterpret bits."""
    integer, mask = _MASK[x.dtype]
    return torch.bitwise_and(x.detach().view(integer), mask).view(x.dtype)


def square_error(x: Tensor, square: Tensor) -> Tensor:
    """x² − square, exactly, where `square` is the rounded x·x; detached."""
    x, square = x.detach(), square.detach()
    high = upper_half(x)
    low = x - high
    return ((high * high - square) + (high + high) * low) + low * low


def times_exact(x: Tensor, factor: Fraction) -> Tensor:
    """x·factor for a factor that has no float, ≤ 0.51 ULP: the upper halves multiply exactly, the rest is small."""
    exponent = math.frexp(float(factor))[1]
    scale = Fraction(2) ** (_HALF[x.dtype] - exponent)
    high = Fraction(int(factor * scale)) / scale
    if high == factor:
        return x * float(factor)
    upper = upper_half(x)
    product = upper * float(high) + ((x - upper) * float(high) + x * float(factor - high))
    # Of an infinite x, and of the largest, the halves are NaN.
    return torch.where(product != product, x * float(factor), product)


def signed_like(x: Tensor, magnitude: Any) -> Tensor:
    """`magnitude` with the opposite sign where x < 0."""
    return torch.where(x < 0, -magnitude, magnitude)
