"""Sums, differences, integer quotients, signs, bounds and bits: arithmetic that is exact, or rounds as PyTorch rounds.

Everything is reduced to add, mul, maximum, where and bitwise operations. Half types are widened to float32 where
PyTorch's own kernel computes in float32 and rounds once.
"""

from __future__ import annotations

from collections.abc import Callable
import operator
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten, changes
from decomp_rules.complex.numbers import added, beside, parts
from decomp_rules.support.operands import (
    HALVES,
    WIDE_INTEGERS,
    cast,
    constant,
    is_scalar,
    plain,
    promoted,
    same_size,
    wide,
    with_zero_gradient_to,
)

RULES = Rules(level="exact")
register = RULES.register


@register(aten.add)
def add(x: Tensor, other: Any, alpha: Any = 1) -> Tensor:
    """x + α · other; half types rounded once."""
    if is_scalar(other):
        return torch.add(x, other * alpha)
    dtype = promoted(x, other)
    return cast(torch.add(x, _scaled(other, alpha, dtype)), dtype)


@register(aten.sub, needs=("bitwise_xor",))
def sub_of_complement(x: Tensor, other: Tensor, alpha: Any = 1) -> Tensor:
    """¬(¬x + α · other) of integers, which overflows only where the difference does."""
    dtype = promoted(x, other)
    if is_scalar(x) or is_scalar(other) or dtype not in WIDE_INTEGERS:
        return decline("only tensors of integers of 32 or 64 bits")
    return torch.bitwise_not(torch.bitwise_not(cast(x, dtype)) + _scaled(cast(other, dtype), alpha, dtype))


@register(aten.sub)
def sub(x: Tensor, other: Any, alpha: Any = 1) -> Tensor:
    """x + (−α) · other; exact negation where α is 1. Of wide integers with y = α · other it is x + (−y − 1) + 1 where y
    is negative, as the least has no opposite."""
    if is_scalar(other):
        return torch.add(x, other * -alpha)
    dtype = promoted(x, other)
    if dtype not in WIDE_INTEGERS:
        return cast(torch.add(x, _scaled(other, -alpha, dtype, is_second=True)), dtype)
    y = _scaled(cast(other, dtype), alpha, dtype)
    below = cast(y < 0, dtype)
    return x + (y + below) * -1 + below


@register(aten.rsub)
def rsub(x: Tensor, other: Any, alpha: Any = 1) -> Tensor:
    """−α · x + other; of wide integers, whose least has no opposite, other − α · x, and ¬(α · x − other − 1) from a
    negative number."""
    dtype = promoted(x, other)
    if dtype not in WIDE_INTEGERS or plain(other) and other >= 0:
        return cast(torch.add(_scaled(x, -alpha, dtype), other), dtype)
    x = _scaled(cast(x, dtype), alpha, dtype)
    return torch.bitwise_not(x + (-1 - other)) if is_scalar(other) else torch.sub(other, x)


def _scaled(x: Tensor, factor: Any, dtype: torch.dtype, is_second: bool = False) -> Tensor:
    """factor · x, in `dtype` (−1 times a uint8 wraps) or in float32 where a half type would be rounded twice; the parts
    of a complex number apart, lest 0 meets an infinite one. As the second of a sum it is multiplied by 1 + 0i there:
    beside an infinite part what is no number is left out, or nothing would stay."""
    if factor == 1:
        return x
    if x.is_complex() and not isinstance(factor, complex):
        re, im = parts(cast(x, dtype))
        return torch.complex(re * factor, (beside(re, im) if is_second else im) * factor)
    exact = factor == -1
    return cast(x, torch.float32 if dtype in HALVES and not exact else dtype) * factor


@register(aten.neg)
def neg(x: Tensor) -> Tensor:
    """−1 · x, exact; −0 of 0."""
    return _scaled(x, -1, x.dtype)


@register(aten.positive)
def positive(x: Tensor) -> Tensor:
    """x."""
    return x


@register(aten.addcmul)
def addcmul(x: Tensor, tensor1: Tensor, tensor2: Tensor, value: Any = 1) -> Tensor:
    """x + value · tensor1 · tensor2; half types rounded once, of integers the value is cut off to an integer. A product
    that overflows is infinite, where PyTorch's kernel fuses it with the sum."""
    dtype = promoted(x, tensor1, tensor2)
    value = value if dtype.is_floating_point or dtype.is_complex else int(value)
    tensor1, tensor2 = wide(cast(tensor1, dtype)), wide(cast(tensor2, dtype))  # integers would wrap around
    scaled = tensor1 if value == 1 else tensor1 * value
    if dtype.is_complex:
        return added(cast(x, dtype), cast(scaled * tensor2, dtype))
    return cast(wide(x) + scaled * tensor2, dtype)


@register(aten.addcdiv)
def addcdiv(x: Tensor, tensor1: Tensor, tensor2: Tensor, value: Any = 1) -> Tensor:
    """x + value · tensor1 / tensor2; half types rounded once."""
    dtype = promoted(x, tensor1, tensor2)
    tensor1, tensor2 = wide(cast(tensor1, dtype)), wide(cast(tensor2, dtype))
    quotient = (tensor1 if value == 1 else tensor1 * value) / tensor2
    if dtype.is_complex:
        return added(cast(x, dtype), cast(quotient, dtype))
    return cast(wide(x) + quotient, dtype)


@register(aten.lerp)
def lerp(x: Tensor, end: Tensor, weight: Any) -> Tensor:
    """x + w · (end − x) for w < 1/2, else end + (w − 1) · (end − x): exact at both ends, and the smaller product."""
    if x.is_complex():
        return decline("only real numbers")
    first, last = wide(x), wide(end)
    step = last - first
    if is_scalar(weight):
        return cast(first + step * weight if weight < 0.5 else last + step * (weight - 1), x.dtype)
    weight = wide(weight)
    near = weight < 0.5
    return cast(torch.where(near, first, last) + step * torch.where(near, weight, weight - 1), x.dtype)


@register(aten.div)
def div_rounded(x: Tensor, other: Any, rounding_mode: str | None) -> Tensor:
    """trunc(x / other) or floor(x / other), floats as C and Python have it; the gradient is zero."""
    if rounding_mode is None:
        return torch.true_divide(x, other)
    dtype = promoted(x, other)
    if not dtype.is_floating_point:
        return decline("integer division has no simpler form")
    x = constant(other, x, dtype) if is_scalar(x) else x
    a = cast(x.detach(), torch.float32 if dtype in HALVES else dtype)
    if rounding_mode == "trunc":
        if is_scalar(other) or other.dim() == 0:  # PyTorch's kernel divides half types by one number in float32
            quotient = torch.true_divide(a, other if is_scalar(other) else cast(other.detach(), a.dtype))
        else:
            quotient = torch.true_divide(x.detach(), other.detach())
        return with_zero_gradient_to(cast(torch.trunc(quotient), dtype), x)
    b = constant(a, other) if is_scalar(other) else cast(other.detach(), a.dtype)
    return with_zero_gradient_to(cast(_floor_quotient(a, b), dtype), x)


def _floor_quotient(a: Tensor, b: Tensor) -> Tensor:
    """⌊a / b⌋ from the exact remainder, as Python's `//`, as rounding a / b may reach an integer."""
    remainder = torch.fmod(a, b)
    borrow = torch.ne(remainder, 0) & torch.ne(b < 0, remainder < 0)
    quotient = (a - remainder) / b - borrow.to(a.dtype)
    whole = torch.floor(quotient)
    whole = whole + (0.5 < quotient - whole).to(a.dtype)
    # The remainder of a finite number by a tiny one may be NaN in PyTorch's vectorised kernels (2.13), as reported in
    # https://github.com/pytorch/pytorch/issues/193753. Where a / b is infinite, the kernel returns that.
    ratio = a / b
    whole = torch.where(torch.eq(whole, 0), ratio * 0, whole)
    return torch.where(torch.eq(b, 0) | (torch.isinf(ratio) & torch.isfinite(a)), ratio, whole)


@register(aten.floor_divide)
def floor_divide(x: Tensor, other: Any) -> Tensor:
    """⌊x / other⌋."""
    return torch.div(x, other, rounding_mode="floor")


@register(aten.abs, level="standard", needs=("maximum",))
def absolute_by_maximum(x: Tensor) -> Tensor:
    """max(x, −x): the tie at zero gives the gradient 0. Exact."""
    if x.is_complex() or x.dtype in (torch.uint8, torch.bool):
        return decline("only numbers with a sign")
    return torch.maximum(x, torch.neg(x))


@register(aten.abs, level="standard")
def absolute_by_sign(x: Tensor) -> Tensor:
    """x · sign x, whose gradient is the sign. Exact."""
    if not x.is_floating_point():
        return decline("only floats")
    return x * _sign(x)


def _sign(x: Tensor) -> Tensor:
    """1, 0 or −1 in the dtype of x, 0 of NaN; without a gradient."""
    if x.dtype != torch.get_default_dtype():
        return _unit(x)
    return torch.gt(x, 0) + torch.lt(x, 0) * -1.0


@register(aten.sign, aten.sgn, level="standard")
def sign_by_comparison(x: Tensor) -> Tensor:
    """[x > 0] − [x < 0], 0 of NaN; the gradient is zero."""
    return with_zero_gradient_to(_sign(x), x) if x.is_floating_point() else decline("only floats")


@register(aten.abs, needs=("maximum",))
def absolute_of_larger(x: Tensor) -> Tensor:
    """max(x, −x) + 0: the tie at zero gives the gradient 0, the sum turns −0 into 0. Exact."""
    if x.is_complex():
        return decline("only real inputs")
    if x.dtype in (torch.uint8, torch.bool):
        return x.clone()
    magnitude = torch.maximum(x, torch.neg(x))
    return magnitude + 0.0 if x.is_floating_point() else magnitude


@register(aten.abs)
def absolute(x: Tensor) -> Tensor:
    """x · sign x, whose gradient is the sign, + 0 so that −0 becomes 0. Exact."""
    if x.is_complex():
        return decline("only real inputs")
    if x.dtype in (torch.uint8, torch.bool):
        return x.clone()
    magnitude = x * _unit(x)
    return magnitude + 0.0 if x.is_floating_point() else magnitude


def _unit(x: Tensor) -> Tensor:
    """1, 0 or −1 in the dtype of x, 0 of NaN; without a gradient."""
    positive = cast(torch.gt(x, 0), x.dtype)
    return positive if x.dtype == torch.uint8 else positive - cast(torch.lt(x, 0), x.dtype)


@register(aten.sign, aten.sgn)
def sign(x: Tensor) -> Tensor:
    """[x > 0] − [x < 0], 0 of NaN; the gradient is zero."""
    if x.is_complex():
        return decline("only real inputs")
    if x.dtype == torch.bool:
        return x.clone()
    return with_zero_gradient_to(_unit(x), x) if x.is_floating_point() else _unit(x)


@register(aten.signbit)
def signbit(x: Tensor) -> Tensor:
    """Whether the sign bit is set, that of −0 and NaN included: the sign of the bits read as an integer."""
    if x.is_floating_point():
        bits = {8: torch.int64, 4: torch.int32, 2: torch.int16}[x.element_size()]
        return torch.lt(x.view(bits), 0)
    return decline("only floats")


@register(aten.signbit)
def signbit_by_reciprocal(x: Tensor) -> Tensor:
    """x < 0, or 1/x is, as that of −0 is −∞; false of NaN."""
    if x.is_complex():
        return decline("only real inputs")
    if not x.is_floating_point():
        return torch.zeros_like(x, dtype=torch.bool) if x.dtype in (torch.bool, torch.uint8) else torch.lt(x, 0)
    return torch.lt(x, 0) | torch.lt(torch.reciprocal(x), 0)


@register(aten.copysign)
def copysign(x: Tensor, other: Any) -> Tensor:
    """|x| with the sign of other; the gradient flips where the sign does, is 0 at 0, and NaN at NaN and infinity."""
    dtype = promoted(x, other)
    dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
    x = cast(x, dtype)
    other = constant(x, other) if is_scalar(other) else cast(other, dtype)
    magnitude = torch.where(x == x, torch.abs(x), x * x)
    return torch.where(torch.signbit(other), torch.neg(magnitude), magnitude)


@register(aten.minimum)
def minimum(x: Tensor, other: Tensor) -> Tensor:
    """−max(−x, −other); of integers ¬max(¬x, ¬other), which cannot overflow. Exact."""
    dtype = promoted(x, other)
    flip = torch.neg if dtype.is_floating_point else torch.bitwise_not
    return flip(torch.maximum(flip(cast(x, dtype)), flip(cast(other, dtype))))


@register(aten.maximum, level="standard", needs=("amax",))
def maximum_of_stack(x: Tensor, other: Tensor) -> Tensor:
    """amax of both, laid one on the other; a tie shares the gradient. Exact."""
    dtype = promoted(x, other)
    both = [cast(x, dtype), cast(other, dtype)]
    if not (x.dim() == other.dim() and all(map(same_size, x.shape, other.shape))):
        both = list(torch.broadcast_tensors(*both))
    return torch.amax(torch.stack(both), [0])


@register(aten.max)
def max_other(x: Tensor, other: Tensor) -> Tensor:
    """maximum(x, other)."""
    return torch.maximum(x, other)


@register(aten.min)
def min_other(x: Tensor, other: Tensor) -> Tensor:
    """minimum(x, other)."""
    return torch.minimum(x, other)


@register(aten.fmax, level="standard", when=not changes.ties_share_gradients)
def fmax_unless_less(x: Tensor, other: Tensor) -> Tensor:
    """other where x < other or x is NaN, else x; a tie sends its gradient to x. Exact."""
    dtype = promoted(x, other)
    return torch.where(torch.lt(x, other) | torch.isnan(x), cast(other, dtype), cast(x, dtype))


@register(aten.fmin, level="standard", when=not changes.ties_share_gradients)
def fmin_unless_greater(x: Tensor, other: Tensor) -> Tensor:
    """other where x > other or x is NaN, else x; a tie sends its gradient to x. Exact."""
    dtype = promoted(x, other)
    return torch.where(torch.gt(x, other) | torch.isnan(x), cast(other, dtype), cast(x, dtype))


@register(aten.clamp, level="standard", when=not changes.ties_share_gradients)
def clamp_to_bounds(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """x, but `min` below it and then `max` above it, NaN of a NaN bound; at a bound the gradient goes to x. Exact."""
    dtype = promoted(*(operand for operand in (x, min, max) if operand is not None))
    if not dtype.is_floating_point:
        return decline("only floats")
    if min is not None and max is not None and not (is_scalar(min) or is_scalar(max)):
        return decline("where two tensors of bounds meet, neither has a gradient")
    x = cast(x, dtype)
    for bound, beyond in ((min, torch.lt), (max, torch.gt)):
        if bound is None:
            continue
        if is_scalar(bound):
            if bound != bound:
                return decline("a bound is NaN")
            # One constant, where a target compares with a number on the right alone.
            limit = bound if beyond is torch.lt else constant(x, bound)
            x = torch.where(beyond(x, limit), limit, x)
        else:
            bound = cast(bound, dtype)
            outside = beyond(x, bound)
            x = torch.where(outside | torch.isnan(bound), bound, x)
    return x


@register(aten.nan_to_num, level="standard")
def nan_to_num_in_bounds(
    x: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """Finite values as they are; NaN and the infinities replaced, by 0 and the largest values unless told. Exact."""
    if not x.is_floating_point():
        return decline("only floats")
    limits = torch.finfo(x.dtype)
    largest = constant(x, limits.max)
    kept = torch.where(torch.isnan(x), 0.0 if nan is None else nan, x)
    kept = torch.where(torch.lt(largest, x), largest if posinf is None else constant(x, posinf), kept)
    return torch.where(torch.lt(x, limits.min), limits.min if neginf is None else neginf, kept)


@register(aten.fmax, when=not changes.ties_share_gradients)
def fmax(x: Tensor, other: Tensor) -> Tensor:
    """x where x ≥ other or other is NaN, else other; a tie sends its gradient to x."""
    dtype = promoted(x, other)
    return torch.where(torch.ge(x, other) | torch.isnan(other), cast(x, dtype), cast(other, dtype))


@register(aten.fmin, when=not changes.ties_share_gradients)
def fmin(x: Tensor, other: Tensor) -> Tensor:
    """x where x ≤ other or other is NaN, else other; a tie sends its gradient to x."""
    dtype = promoted(x, other)
    return torch.where(torch.le(x, other) | torch.isnan(other), cast(x, dtype), cast(other, dtype))


@register(aten.clamp, when=not changes.ties_share_gradients)
def clamp(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """x, but `min` below it and then `max` above it, NaN of a NaN bound; at a bound the gradient still goes to x; NaN
    has none."""
    dtype = promoted(*(operand for operand in (x, min, max) if operand is not None))
    x = cast(x, dtype)
    if not (min is None or is_scalar(min) or max is None or is_scalar(max)):
        return _between(x, cast(min, dtype), cast(max, dtype))
    if dtype.is_floating_point:
        x = torch.where(x == x, x, x.detach())
    if min is not None:
        x = _bounded(x, min, operator.lt)
    if max is not None:
        x = _bounded(x, max, operator.gt)
    return x


def _between(x: Tensor, least: Tensor, most: Tensor) -> Tensor:
    """The same for bounds that are data. PyTorch gives the lower bound no gradient where both are equal, and the upper
    one its own even where x or the lower bound is NaN."""
    if not x.is_floating_point():
        return _bounded(_bounded(x, least, operator.lt), most, operator.gt)
    lower = torch.where(least < most, least, least.detach())
    bounded = _bounded(_bounded(x, lower, operator.lt), most, operator.gt)
    missing = x.detach() + least.detach() + torch.where((most < x) | (most < least), most, 0.0)
    return torch.where((x == x) & (least == least), bounded, missing)


def _bounded(x: Tensor, bound: Any, beyond: Callable[[Any, Any], Tensor]) -> Tensor:
    """The bound where x is beyond it or the bound is NaN: asked of the data if it is data, of the number if it is one.
    A bound that is NaN has no gradient."""
    if is_scalar(bound):
        outside = beyond(x, bound)
        return torch.where(outside if bound == bound else torch.ones_like(outside), bound, x)
    bound = cast(bound, x.dtype)
    result = torch.where(beyond(x, bound), bound, x)
    return torch.where(bound == bound, result, bound.detach()) if x.is_floating_point() else result


@register(aten.clamp_min)
def clamp_min(x: Tensor, min: Any) -> Tensor:
    """clamp(x, min)."""
    return torch.clamp(x, min=min)


@register(aten.clamp_max)
def clamp_max(x: Tensor, max: Any) -> Tensor:
    """clamp(x, max=max)."""
    return torch.clamp(x, max=max)


@register(aten.nan_to_num)
def nan_to_num(x: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """Finite values as they are; NaN and the infinities replaced, by 0 and the largest values unless told."""
    if not x.is_floating_point():
        return x.clone() if not x.is_complex() else decline("only real inputs")
    limits = torch.finfo(x.dtype)
    top = limits.max if posinf is None else posinf
    bottom = limits.min if neginf is None else neginf
    kept = torch.where(torch.isnan(x), 0.0 if nan is None else nan, x)
    kept = torch.where(torch.eq(x, float("inf")), top, kept)
    return torch.where(torch.eq(x, float("-inf")), bottom, kept)


@register(aten.heaviside)
def heaviside(x: Tensor, values: Tensor) -> Tensor:
    """0 below zero and at NaN, `values` at zero, 1 above."""
    return torch.where(torch.eq(x, 0), values, torch.gt(x, 0).to(x.dtype))


@register(aten.diff)
def diff(x: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None) -> Tensor:
    """xᵢ₊₁ − xᵢ along `dim`, n times; of booleans xᵢ₊₁ ≠ xᵢ."""
    parts = [part for part in (prepend, x, append) if part is not None and n > 0]
    if len(parts) > 1:
        x = torch.cat(parts, dim)
    for _ in range(n):
        length = x.shape[dim]
        if type(length) is int and length == 0:
            break
        after, before = torch.narrow(x, dim, 1, length - 1), torch.narrow(x, dim, 0, length - 1)
        x = torch.ne(after, before) if x.dtype == torch.bool else after - before
    return x
