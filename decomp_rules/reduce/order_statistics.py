"""Statistics that are elements, or between two of them: medians, modes, quantiles. A target that sorts takes them from
the sorted line; elsewhere a mode is found by comparing all pairs. NaN is greater than everything, as in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
import math
import struct
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten, changes
from decomp_rules.support.operands import cast, constant, is_scalar, ramp, wrap

RULES = Rules(level="exact")
register = RULES.register


@register(aten.median, needs=(aten.sort,))
def median_of_sorted(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The sorted element at ⌊(n − 1) / 2⌋, or the first NaN. Exactly the op, but for which of equal ones."""
    if not x.dim() or _length(x, dim) == 0:
        return decline("there is nothing to sort")
    values, indices = torch.sort(x, dim=dim)
    middle = (x.shape[dim] - 1) // 2
    if not x.is_floating_point():
        return _kept(values.narrow(dim, middle, 1), indices.narrow(dim, middle, 1), dim, keepdim)
    wrong = torch.sum(torch.ne(x, x), dim=[wrap(dim, x.dim())], keepdim=True, dtype=torch.int64)
    place = torch.where(torch.gt(wrong, 0), x.shape[dim] - wrong, middle)
    return _kept(torch.gather(values, dim, place), torch.gather(indices, dim, place), dim, keepdim)


@register(aten.nanmedian)
def nanmedian_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The median of the sorted elements before the first NaN. Exactly the op, but for which of equal ones."""
    if not x.is_floating_point() or not x.dim():
        return torch.median(x, dim, keepdim)
    values, indices = torch.sort(x, dim=dim)
    place = _middle_of_numbers(x, wrap(dim, x.dim()))
    return _kept(torch.gather(values, dim, place), torch.gather(indices, dim, place), dim, keepdim)


@register(aten.nanmedian)
def nanmedian(x: Tensor) -> Tensor:
    """The median of all numbers, NaN if there is none; equal elements share the gradient."""
    return _of_all(x, torch.nanmedian)


@register(aten.median)
def median(x: Tensor) -> Tensor:
    """The median of all elements, NaN if there is none or one is NaN; equal elements share the gradient."""
    return _of_all(x, torch.median)


def _of_all(x: Tensor, middle: Any) -> Tensor:
    """The median as the largest of the elements that do not exceed it, which is how equal ones come to share; if it is
    NaN, those that are share."""
    if x.dim() and 0 in [size for size in x.shape if isinstance(size, int)]:
        return torch.full((), math.nan, dtype=x.dtype, device=x.device)
    flat = x.reshape(-1)
    value = middle(flat.detach(), 0)[0]
    if not x.is_floating_point():
        return value
    largest = torch.amax(torch.where(torch.le(flat, value), flat, constant(x, -math.inf)), [0])
    lost = torch.ne(flat, flat) & torch.ne(value, value)
    count = torch.clamp(torch.sum(lost, dtype=torch.int64), min=1)
    return torch.where(torch.eq(value, value), largest, torch.sum(torch.where(lost, flat, 0)) / cast(count, x.dtype))


def _middle_of_numbers(x: Tensor, dim: int) -> Tensor:
    """⌊(k − 1) / 2⌋ for k numbers that are not NaN, or for all elements if none is, with the dimension kept."""
    count = torch.sum(torch.eq(x, x), dim=[dim], keepdim=True, dtype=torch.int64)
    count = torch.where(torch.eq(count, 0), x.shape[dim], count)
    return torch.div(count - 1, 2, rounding_mode="floor")


@register(aten.mode)
def mode(x: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The least of the most frequent values, where it stands last. Each NaN differs from all others, and comes before
    all numbers. Exactly the op, but that where there are NaN it depends on the order which value that finds."""
    if not x.dim():
        return x.clone(), constant(x, 0, torch.int64)
    dim = wrap(dim, x.dim())
    data = x.detach()
    count = torch.sum(torch.eq(data.unsqueeze(dim + 1), data.unsqueeze(dim)), dim=[dim + 1], dtype=torch.int64)
    number = ramp(x, x.shape[dim], dim, x.dim())
    count = torch.clamp(count, min=1) if x.is_floating_point() else count
    common = torch.eq(count, torch.amax(count, [dim], keepdim=True))
    least = torch.amin(torch.where(common, data, constant(data, _top(x.dtype))), [dim], keepdim=True)
    index = torch.amax(torch.where(common & torch.eq(data, least), number, -1), [dim], keepdim=True)
    if x.is_floating_point():
        unordered = torch.amin(torch.where(torch.ne(data, data), number, x.shape[dim]), [dim], keepdim=True)
        index = torch.where(torch.ne(least, least), unordered, index)
    return _kept(torch.gather(x, dim, index), index, dim, keepdim)


def _top(dtype: torch.dtype) -> Any:
    """The greatest value of a dtype."""
    return math.inf if dtype.is_floating_point else True if dtype == torch.bool else torch.iinfo(dtype).max


@register(aten.quantile, when=not changes.quantile_places_in_float64)
def quantile_at_number(
    x: Tensor, q: float, dim: int | None = None, keepdim: bool = False, interpolation: str = "linear"
) -> Tensor:
    """Between the sorted elements around q · (n − 1), whose places are known; NaN if there is one. Exactly the op."""
    return _at_number(x, q, dim, keepdim, interpolation, _product)


@register(aten.quantile, when=changes.quantile_places_in_float64)
def quantile_at_wide_number(
    x: Tensor, q: float, dim: int | None = None, keepdim: bool = False, interpolation: str = "linear"
) -> Tensor:
    """The same with q · (n − 1) computed in float64 of a q of the input's dtype. Exactly the op."""
    return _at_number(x, q, dim, keepdim, interpolation, lambda q, count, dtype: _product(q, 1, dtype) * count)


def _at_number(
    x: Tensor,
    q: float,
    dim: int | None,
    keepdim: bool,
    interpolation: str,
    rank_of: Callable[[float, int, torch.dtype], float],
) -> Tensor:
    line, at = (x.reshape(-1), 0) if dim is None else (x, wrap(dim, x.dim()))
    if not is_scalar(q) or not line.dim() or type(line.shape[at]) is not int:
        return decline("the place is data")
    rank = rank_of(q, line.shape[at] - 1, x.dtype)
    values = torch.sort(line, dim=at)[0]
    below = values.narrow(at, _places(rank, interpolation)[0], 1)
    result = below
    if interpolation in ("linear", "midpoint"):
        above = values.narrow(at, math.ceil(rank), 1)
        result = torch.lerp(below, above, 0.5 if interpolation == "midpoint" else rank - math.floor(rank))
    last = values.narrow(at, line.shape[at] - 1, 1)
    return _shaped(torch.where(torch.ne(last, last), last, result), x, dim, keepdim)


def _places(rank: float, interpolation: str) -> tuple[int, int]:
    """The places of the elements below and above; twice the one that is chosen where only one is."""
    chosen = {"lower": math.floor, "higher": math.ceil, "nearest": round}.get(interpolation)
    return (math.floor(rank), math.ceil(rank)) if chosen is None else (chosen(rank), chosen(rank))


def _product(q: float, count: int, dtype: torch.dtype) -> float:
    """q · count as `dtype` rounds it: float32 is the only one that is narrower than a Python number."""
    rounded = _float32 if dtype == torch.float32 else float
    return rounded(rounded(q) * rounded(count))


def _float32(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]


@register(aten.quantile, when=not changes.quantile_places_in_float64)
def quantile(x: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, interpolation: str = "linear") -> Tensor:
    """Between the sorted elements around q · (n − 1); NaN if there is one. Exactly the op."""
    return _quantile(x, q, dim, keepdim, interpolation, x.dtype)


@register(aten.quantile, when=changes.quantile_places_in_float64)
def wide_quantile(
    x: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, interpolation: str = "linear"
) -> Tensor:
    """The same with q · (n − 1) computed in float64. Exactly the op."""
    return _quantile(x, q, dim, keepdim, interpolation, torch.float64)


@register(aten.nanquantile, when=not changes.quantile_places_in_float64)
def nanquantile(
    x: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, interpolation: str = "linear"
) -> Tensor:
    """Between the sorted numbers around q · (k − 1), k of which are not NaN; NaN if there are none. Exactly the op."""
    return _nanquantile(x, q, dim, keepdim, interpolation, x.dtype)


@register(aten.nanquantile, when=changes.quantile_places_in_float64)
def wide_nanquantile(
    x: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, interpolation: str = "linear"
) -> Tensor:
    """The same with q · (k − 1) computed in float64. Exactly the op."""
    return _nanquantile(x, q, dim, keepdim, interpolation, torch.float64)


def _quantile(x: Tensor, q: Any, dim: int | None, keepdim: bool, interpolation: str, places_in: torch.dtype) -> Tensor:
    line = torch.movedim(x, dim, -1) if dim is not None and x.dim() else x.reshape(-1)
    values = torch.sort(line, dim=-1)[0]
    q = constant(x, q) if is_scalar(q) else q
    rank = cast(q.reshape(-1), places_in) * (line.shape[-1] - 1)
    below, above = _around(rank, interpolation)
    result = torch.index_select(values, -1, below)
    if above is not None:
        weight = _weight(rank, below, interpolation, x.dtype)
        result = torch.lerp(result, torch.index_select(values, -1, above), weight)
    last = values.narrow(-1, line.shape[-1] - 1, 1)
    return _listed(torch.where(torch.ne(last, last), last, result), q, x, dim, keepdim)


def _nanquantile(
    x: Tensor, q: Any, dim: int | None, keepdim: bool, interpolation: str, places_in: torch.dtype
) -> Tensor:
    line = torch.movedim(x, dim, -1) if dim is not None and x.dim() else x.reshape(-1)
    values = torch.sort(line, dim=-1)[0]
    q = constant(x, q) if is_scalar(q) else q
    count = torch.sum(torch.eq(line, line), dim=[line.dim() - 1], keepdim=True, dtype=torch.int64)
    rank = cast(q.reshape(-1), places_in) * cast(count - 1, places_in)
    rank = torch.where(rank < 0, 0.0, rank)  # no numbers: no slope either
    below, above = _around(rank, interpolation)
    result = torch.gather(values, -1, below)
    if above is not None:
        weight = _weight(rank, below, interpolation, x.dtype)
        result = torch.lerp(result, torch.gather(values, -1, above), weight)
    return _listed(result, q, x, dim, keepdim)


def _weight(rank: Tensor, below: Tensor, interpolation: str, dtype: torch.dtype) -> Tensor:
    """How far a place is from the element below it."""
    return cast(rank - below, dtype) if interpolation == "linear" else torch.full_like(rank, 0.5, dtype=dtype)


def _around(rank: Tensor, interpolation: str) -> tuple[Tensor, Tensor | None]:
    """The indices of the elements around a quantile; only one if it is an element itself."""
    chosen = {"lower": torch.floor, "higher": torch.ceil, "nearest": torch.round}.get(interpolation)
    if chosen is not None:
        return cast(chosen(rank.detach()), torch.int64), None
    return cast(rank.detach(), torch.int64), cast(torch.ceil(rank.detach()), torch.int64)


def _listed(result: Tensor, q: Tensor, x: Tensor, dim: int | None, keepdim: bool) -> Tensor:
    """Quantiles in the last dimension, put first; without that dimension where `q` is one number."""
    first = torch.movedim(result, -1, 0)
    rest = [1] * x.dim() if dim is None else [1 if d == wrap(dim, x.dim()) else n for d, n in enumerate(x.shape)]
    shape = [n for d, n in enumerate(rest) if keepdim or (dim is not None and x.dim() and d != wrap(dim, x.dim()))]
    return first.reshape([*q.shape, *shape])


def _shaped(result: Tensor, x: Tensor, dim: int | None, keepdim: bool) -> Tensor:
    """One quantile, with its dimension kept or not."""
    if dim is None:
        return result.reshape([1] * x.dim() if keepdim else [])
    return result if keepdim else result.squeeze(dim)


def _kept(value: Tensor, index: Tensor, dim: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    return (value, index) if keepdim else (value.squeeze(dim), index.squeeze(dim))


def _length(x: Tensor, dim: int) -> Any:
    return x.shape[wrap(dim, x.dim())]
