"""Reductions and predicates of complex numbers: moments, norms of differences, logarithms of sums, and whether a number
is finite, real, or equal to another.

A moment of complex numbers is that of their real parts and of their imaginary parts, taken together as pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.complex.numbers import CHOICE, imaginary_part, parts, real_part
from decomp_rules.reduce.reduction import Dims, degrees, reduced_dims, root
from decomp_rules.support.floating import is_tensor, promoted_in_any_order
from decomp_rules.support.operands import cast, constant

RULES = Rules(level="exact")
register = RULES.register

MEAN, SUM = 1, 2


@register(aten.var)
def var(
    x: Tensor, dim: Dims = None, unbiased: bool = True, correction: float | None = None, keepdim: bool = False
) -> Tensor:
    """var Re z + var Im z."""
    if not x.is_complex():
        return decline("only complex numbers")
    pairs, dims = _pairs(x, dim)
    spread = torch.var(pairs, dims, correction=degrees(unbiased, correction), keepdim=keepdim)
    return torch.sum(spread, [-1])


@register(aten.std)
def std(
    x: Tensor, dim: Dims = None, unbiased: bool = True, correction: float | None = None, keepdim: bool = False
) -> Tensor:
    """√var, with no gradient where it is 0."""
    return root(var(x, dim, unbiased, correction, keepdim)) if x.is_complex() else decline("only complex numbers")


@register(aten.var_mean)
def var_mean(
    x: Tensor, dim: Dims = None, unbiased: bool = True, correction: float | None = None, keepdim: bool = False
) -> Any:
    """var and mean."""
    if not x.is_complex():
        return decline("only complex numbers")
    return var(x, dim, unbiased, correction, keepdim), torch.mean(x, reduced_dims(x, dim), keepdim)


@register(aten.std_mean)
def std_mean(
    x: Tensor, dim: Dims = None, unbiased: bool = True, correction: float | None = None, keepdim: bool = False
) -> Any:
    """std and mean."""
    if not x.is_complex():
        return decline("only complex numbers")
    return std(x, dim, unbiased, correction, keepdim), torch.mean(x, reduced_dims(x, dim), keepdim)


def _pairs(x: Tensor, dim: Dims) -> tuple[Tensor, tuple[int, ...]]:
    """The pairs of parts, and the dimensions of x to reduce; of a single number, of one in a line."""
    x = x if x.dim() else x.unsqueeze(0)
    return torch.view_as_real(x), reduced_dims(x, dim)


@register(aten.logsumexp)
def logsumexp(x: Tensor, dim: Dims, keepdim: bool = False) -> Tensor:
    """r = m + log Σ exp(z − m) with m = max Re z, or 0 where that is infinite; the gradient is that of Σ exp(z − r)."""
    if not x.is_complex():
        return decline("only complex numbers")
    dims = reduced_dims(x, dim)
    point = x.detach()
    largest = torch.amax(torch.real(point), dims, keepdim=True)
    shift = torch.where(torch.abs(largest) == math.inf, 0.0, largest)
    value = torch.log(torch.sum(torch.exp(point - shift), dims, keepdim=True)) + shift
    shares = torch.sum(torch.exp(x - value), dims, keepdim=True)
    slope = shares - shares.detach()
    result = value + torch.where(slope != slope, 0.0, slope)
    return result if keepdim else result.squeeze(dims)


@register(aten.logaddexp)
def logaddexp(x: Tensor, other: Tensor) -> Tensor:
    """z + log1p(e^(w − z)), where Re w ≤ Re z; of two equal infinities, the second. Where an infinite
    or missing imaginary part belongs to what is e^1000 times smaller, that adds nothing, while the kernel has NaN."""
    dtype = promoted_in_any_order(x, other)
    if not dtype.is_complex:
        return decline("only complex numbers")
    x, other = cast(x, dtype), cast(other, dtype)
    first, second = torch.real(x), torch.real(other)
    swap = first < second
    larger, smaller = torch.where(swap, other, x), torch.where(swap, x, other)
    # So far below, and of −∞ above all, it adds nothing: e^−1000 is 0.
    below = torch.real(smaller) - torch.real(larger) < -1000
    total = larger + torch.log1p(torch.exp(torch.where(below, -1000.0, smaller - larger)))
    return torch.where((torch.abs(first) == math.inf) & (first == second), other, total)


@register(aten.l1_loss)
def l1_loss(x: Tensor, target: Tensor, reduction: int = MEAN) -> Tensor:
    """|z − w|, averaged, added up or neither."""
    if not promoted_in_any_order(x, target).is_complex:
        return decline("only complex numbers")
    gaps = torch.abs(x - target)
    return torch.mean(gaps) if reduction == MEAN else torch.sum(gaps) if reduction == SUM else gaps


@register(aten.rms_norm)
def rms_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """z / √(mean z² + ε)·w, with the square and not the modulus, as the op has it."""
    if not x.is_complex():
        return decline("only complex numbers")
    dims = tuple(range(x.dim() - len(normalized_shape), x.dim()))
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    out = x * torch.rsqrt(torch.mean(x * x, dims, keepdim=True) + eps)
    return out if weight is None else out * weight


# Questions


@register(aten.isreal, needs=CHOICE)
def isreal(x: Tensor) -> Tensor:
    """Im z = 0. Exact."""
    return imaginary_part(x) == 0 if x.is_complex() else torch.ones_like(x, dtype=torch.bool)


@register(aten.isreal)
def isreal_by_sine(x: Tensor) -> Tensor:
    """`isreal` for targets that lose Im z where Re z is not finite: there the sine has an imaginary part of 0 where z
    has, of ±∞ where z has, and else of NaN, and a number with an infinite imaginary part an infinite root."""
    if not x.is_complex():
        return torch.ones_like(x, dtype=torch.bool)
    sine = torch.sin(x)
    ends = (sine + constant(x, complex(0.0, end)) for end in (math.inf, -math.inf))
    above, below = (real_part(torch.sqrt(end)) == math.inf for end in ends)
    return torch.where(torch.isfinite(real_part(x)), imaginary_part(x) == 0, above & below)


@register(aten.isfinite)
def isfinite(x: Tensor) -> Tensor:
    """Both parts are. Exact."""
    if not x.is_complex():
        return decline("only complex numbers")
    re, im = parts(x)
    return torch.isfinite(re) & torch.isfinite(im)


@register(aten.isinf, needs=CHOICE)
def isinf(x: Tensor) -> Tensor:
    """Either part is. Exact."""
    if not x.is_complex():
        return decline("only complex numbers")
    re, im = parts(x)
    return torch.isinf(re) | torch.isinf(im)


@register(aten.isinf)
def isinf_by_root(x: Tensor) -> Tensor:
    """Re z is, or Re √z, as it is where Im z is. Exact."""
    if not x.is_complex():
        return decline("only complex numbers")
    return torch.isinf(real_part(x)) | torch.isinf(real_part(torch.sqrt(x)))


@register(aten.isnan)
def isnan(x: Tensor) -> Tensor:
    """Both a + b and a − b are, the real parts of z·(1 ∓ i): in no product is a 0. Exact."""
    if not x.is_complex():
        return decline("only complex numbers")
    return torch.isnan(real_part(x * (1 - 1j))) & torch.isnan(real_part(x * (1 + 1j)))


@register(aten.nan_to_num)
def nan_to_num(x: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """Both parts without NaN and infinities."""
    if not x.is_complex():
        return decline("only complex numbers")
    return torch.view_as_complex(torch.nan_to_num(torch.view_as_real(x), nan, posinf, neginf))


@register(aten.ne)
def ne(x: Any, other: Any) -> Tensor:
    """Either part differs. Exact."""
    dtype = promoted_in_any_order(x, other)
    if not dtype.is_complex:
        return decline("only complex numbers")
    (a, b), (c, d) = (_parts_of(value, dtype) for value in (x, other))
    return torch.ne(a, c) | torch.ne(b, d)


@register(aten.eq)
def eq(x: Any, other: Any) -> Tensor:
    """Neither part differs. Exact."""
    if not promoted_in_any_order(x, other).is_complex:
        return decline("only complex numbers")
    return torch.logical_not(torch.ne(x, other) if is_tensor(x) else torch.ne(other, x))


def _parts_of(value: Any, dtype: torch.dtype) -> tuple[Any, Any]:
    """The parts of a tensor or a number; of a real one, without asking for the second."""
    if not is_tensor(value):
        return value.real, value.imag
    return parts(value) if value.is_complex() else (cast(value, dtype.to_real()), 0.0)


# Lines and samples


@register(aten.linspace)
def linspace(start: Any, end: Any, steps: int, dtype: torch.dtype | None = None, device: Any = None) -> Tensor:
    """a + k·(b − a) / (n − 1) up to the middle, b − (n − 1 − k)·(b − a) / (n − 1) beyond: exact at both ends."""
    dtype = dtype or _line_dtype(start, end)
    if not dtype.is_complex:
        return decline("only complex numbers")
    if not isinstance(steps, int):
        return decline("the number of steps is not known")
    count = torch.arange(steps, dtype=dtype.to_real(), device=_device(start, end, device))
    first, last = (cast(end_, dtype) if is_tensor(end_) else constant(count, end_, dtype) for end_ in (start, end))
    if steps < 2:
        return (first + count).clone()
    step = (last - first) * (1 / (steps - 1))
    return torch.where(count < steps // 2, first + step * count, last - step * (steps - 1 - count))


@register(aten.logspace)
def logspace(
    start: Any, end: Any, steps: int, base: float = 10.0, dtype: torch.dtype | None = None, device: Any = None
) -> Tensor:
    """bˡ of a line of exponents l."""
    dtype = dtype or _line_dtype(start, end)
    if not dtype.is_complex:
        return decline("only complex numbers")
    return torch.pow(base, linspace(start, end, steps, dtype, device))


def _line_dtype(start: Any, end: Any) -> torch.dtype:
    return promoted_in_any_order(start, end)


def _device(start: Any, end: Any, device: Any) -> Any:
    given = next((bound.device for bound in (start, end) if is_tensor(bound)), None)
    return device if given is None else given


@register(aten.randn)
def randn(size: Sequence[int], dtype: torch.dtype | None = None, device: Any = None) -> Tensor:
    """Both parts normal, with half the variance each."""
    if dtype is None or not dtype.is_complex:
        return decline("only complex numbers")
    return torch.view_as_complex(torch.randn([*size, 2], dtype=dtype.to_real(), device=device) * math.sqrt(0.5))


@register(aten.chalf)
def chalf(x: Tensor) -> Tensor:
    """z in complex32."""
    return x.to(torch.complex32)
