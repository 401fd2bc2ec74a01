"""Floating point arithmetic from plain ops: the dtype to compute in, exact splits, products with exact constants,
polynomials.

The rules for elementary functions use these. Pass detached tensors to terms that only correct rounding, so that the
gradient is that of the exact formula.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
import functools
import math
import struct
from typing import Any

import torch
from torch import Tensor
from torch.fx import Proxy

from decomp import decline
from decomp_rules.support.operands import HALVES, cast, promoted

LOG2_E = 1 / math.log(2)
# 50 digits of it are exact enough for both dtypes.
LN_2 = Fraction("0.69314718055994530941723212145817656807550013436026")

# The bits of half a significand, the factor that splits one there, and the integer that masks its lower half.
_HALF = {torch.float32: 12, torch.float64: 26}
_SPLITTER = {torch.float32: 2.0**12 + 1, torch.float64: 2.0**27 + 1}
# A power of two and what the square of a number times it exceeds where all that products of halves leave over is exact:
# the number exceeds 2⁻⁷⁶, in float64 2⁻⁵⁵⁰.
_SOUND = {torch.float32: (2.0**40, 2.0**-72), torch.float64: (2.0**330, 2.0**-440)}


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


def own_float_math(rule: Callable[..., Any]) -> Callable[..., Any]:
    """`rule` on real floats as they are, half types too; integers are converted first."""

    @functools.wraps(rule)
    def in_own_dtype(*args: Any, **kwargs: Any) -> Any:
        outer = promoted(*(value for value in (*args, *kwargs.values()) if is_tensor(value)))
        if outer.is_complex:
            return decline("only real numbers")
        outer = outer if outer.is_floating_point else torch.get_default_dtype()
        own = [cast(value, outer) if is_tensor(value) else value for value in args]
        return rule(*own, **{name: cast(value, outer) if is_tensor(value) else value for name, value in kwargs.items()})

    return in_own_dtype


def float_dtype(*operands: Any) -> torch.dtype:
    """The dtype of a true function of these tensors and numbers: what they promote to, integers to the default."""
    dtype = promoted_in_any_order(*operands)
    return dtype if dtype.is_floating_point or dtype.is_complex else torch.get_default_dtype()


def promoted_in_any_order(*operands: Any) -> torch.dtype:
    """The dtype that tensors and numbers promote to, in any order."""
    return promoted(*sorted(operands, key=is_tensor, reverse=True))


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in: float32 for half types."""
    return torch.float32 if dtype in HALVES else dtype


def is_tensor(value: Any) -> bool:
    """Whether a rule's argument is a tensor, or a proxy of one while the rule is recorded."""
    return isinstance(value, (Tensor, Proxy))


def polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """c0 + c1·x + c2·x² + …, by Horner's rule."""
    *lower, value = coefficients
    result: Any = value
    for coefficient in reversed(lower):
        result = result * x + coefficient
    return result


def upper_half(x: Tensor) -> Tensor:
    """`x` rounded to half its digits: the rest is exact, and so is a product of two halves. NaN where 2¹²·x overflows
    (float64: 2²⁷·x). G. W. Veltkamp; T. J. Dekker, Numer. Math. 18 (1971)."""
    scaled = x * _SPLITTER[x.dtype]
    return scaled + (x - scaled)


def split(x: Tensor) -> tuple[Tensor, Tensor]:
    """`x` in two halves of its digits; both NaN where `upper_half` is."""
    high = upper_half(x)
    return high, x - high


def square_error(x: Tensor, square: Tensor) -> Tensor:
    """x² − square, exactly, where `square` is the rounded x·x."""
    high, low = split(x)
    return ((high * high - square) + (high + high) * low) + low * low


def product_error(x: tuple[Tensor, Tensor], y: tuple[Tensor, Tensor], product: Tensor) -> Tensor:
    """x·y − product, exactly, where `product` is the rounded one and the factors are split."""
    (x_high, x_low), (y_high, y_low) = x, y
    return ((x_high * y_high - product) + x_high * y_low + x_low * y_high) + x_low * y_low


def corrected(rough: Tensor, error: Tensor, source: Tensor) -> Tensor:
    """rough + error, but `rough` where `source` is so small that the parts of the error were rounded, or where they
    overflowed. A zero keeps its sign if error is not of the other one."""
    scale, threshold = _SOUND[rough.dtype]
    scaled = source * scale
    # An error that is infinite or NaN makes the comparison false.
    return rough + torch.where(error * 0 + threshold < scaled * scaled, error, -0.0)


def nearest_float(number: Any, dtype: torch.dtype) -> float:
    """A number rounded to float32 where that is the dtype, as PyTorch does before it divides a float32 by it."""
    if dtype != torch.float32:
        return float(number)
    try:
        return float(struct.unpack("f", struct.pack("f", float(number)))[0])
    except OverflowError:
        return math.copysign(math.inf, float(number))


def nearest(x: Tensor) -> Tensor:
    """The whole number nearest to `x`, the even one of two, for |x| < 2²² (float64: 2⁵¹): adding a large number shifts
    out the fraction bits."""
    shift = 1.5 / torch.finfo(x.dtype).eps
    return (x + shift) - shift


def with_value(smooth: Tensor, value: Tensor | float) -> Tensor:
    """`smooth` with its value replaced by `value`, which is detached: the gradients are those of `smooth`, which is
    finite. +0 is subtracted, so that −0 stays −0."""
    return value - (smooth.detach() - smooth)


def times_exact(x: Tensor, factor: Fraction) -> Tensor:
    """x·factor for a factor that has no float, ≤ 0.51 ULP: upper halves multiply exactly, the rest is small.
    At most 1 ULP where the result is next to 0 or next to overflow."""
    exponent = math.frexp(float(factor))[1]
    scale = Fraction(2) ** (_HALF[x.dtype] - exponent)
    high = Fraction(int(factor * scale)) / scale
    product = x * float(factor)
    if high == factor:
        return product
    point, rounded = x.detach(), product.detach()
    upper, lower = split(point)
    error = (upper * float(high) - rounded) + lower * float(high) + point * float(factor - high)
    return corrected(product, error, rounded)
