"""Reading and writing by row-major number, for targets whose only gather is `take` and whose only scatters are `put`
and `scatter`: an index along some dimensions becomes the number Σ index · stride of each element in all of the tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.index.indexing import from_start, has_mask
from decomp_rules.support.operands import cast, same_size, wrap

RULES = Rules(level="exact")
register = RULES.register


@register(aten.index_select, needs=("take",))
def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """x at the numbers of the places along `dim`, for all coordinates before and after."""
    if x.dim() == 0:
        return x.clone()
    dim = wrap(dim, x.dim())
    return torch.take(x, numbers(x, [None] * dim + [index.reshape(-1)], dim, signed=False))


@register(aten.index, aten._unsafe_index, needs=("take",))
def index_tensor(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """x at the numbers of the indexed places; where indexed dimensions are apart, those of the index come first."""
    if has_mask(indices):
        return decline("the size of the result is data: an index is a mask")
    dims = [d for d, index in enumerate(indices) if index is not None]
    together = dims == list(range(dims[0], dims[0] + len(dims)))
    return torch.take(x, numbers(x, indices, dims[0] if together else 0))


@register(aten.gather, needs=("take",))
def gather(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """x at the numbers that the index gives with the other coordinates of its own element."""
    if x.dim() != index.dim() or x.dim() == 0:  # with other dimensions than x has an index is empty
        return torch.take(x, cast(index, torch.int64))
    return torch.take(x, _numbers_along(x, wrap(dim, x.dim()), index))


def _numbers_along(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """The number in x of each element of `index`, which replaces the coordinate along `dim`."""
    strides, rank = _strides(x.shape), x.dim()
    number = _times(cast(index, torch.int64), strides[dim])
    free = [d for d in range(rank) if d != dim and not (type(index.shape[d]) is int and index.shape[d] == 1)]
    for run in _runs(free, x.shape, index.shape):
        number = number + _ramp(x, [index.shape[d] for d in run], strides[run[-1]], run, rank)
    return number


def _runs(dims: Sequence[int], outer: Sequence[Any], inner: Sequence[Any]) -> list[list[int]]:
    """Neighbouring dimensions that are contiguous in the outer shape, so that one ramp counts them all."""
    runs: list[list[int]] = []
    for d in dims:
        dense = runs and runs[-1][-1] == d - 1 and same_size(outer[d], inner[d])
        runs[-1].append(d) if dense else runs.append([d])
    return runs


def _ramp(like: Tensor, sizes: Sequence[Any], stride: Any, places: Sequence[int], rank: int) -> Tensor:
    """0, stride, 2 · stride, … in row-major order over dimensions of `sizes` that stand at `places` of `rank`."""
    step = stride or 1 if type(stride) is int else 1  # of an empty tensor any
    line = torch.arange(0, math.prod(sizes) * step, step, dtype=torch.int64, device=like.device)
    if type(stride) is not int:  # a length that is a quotient of symbols would not be known to be what it is
        line = line * stride
    shape: list[Any] = [1] * rank
    for place, size in zip(places, sizes):
        shape[place] = size
    return line if rank == 1 else line.view(shape)


def _strides(shape: Sequence[Any]) -> list[Any]:
    """How far apart in row-major order two neighbours along each dimension are."""
    return [math.prod(shape[d + 1 :]) for d in range(len(shape))]


def _times(x: Tensor, factor: Any) -> Tensor:
    return x if type(factor) is int and factor == 1 else x * factor


def numbers(x: Tensor, indices: Sequence[Tensor | None], first: int, signed: bool = True) -> Tensor:
    """The row-major number in x of each element of x[indices], the dimensions of the index standing at `first`; an
    index may count from the end where it is signed."""
    strides = _strides(x.shape)
    number: Any = None
    for d, index in enumerate(indices):
        if index is not None:
            index = cast(index, torch.int64)
            # A negative number counts from the end of all of x: for the first dimension that is already right.
            place = _times(index if d == 0 or not signed else from_start(index, x.shape[d]), strides[d])
            number = place if number is None else number + place
    free = [d for d in range(x.dim()) if d >= len(indices) or indices[d] is None]
    before, count = len([d for d in free if d < first]), number.dim()
    after = len(free) - before
    if free:
        number = number.view([1] * before + list(number.shape) + [1] * after)
    for run in _runs(free, x.shape, x.shape):
        places = [i if i < before else i + count for i in (free.index(d) for d in run)]
        number = number + _ramp(x, [x.shape[d] for d in run], strides[run[-1]], places, count + len(free))
    return number


@register(aten.scatter, needs=("scatter",))
def scatter_value(x: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """scatter of a tensor full of the value."""
    return torch.scatter(x, dim, index, torch.full(index.shape, value, dtype=x.dtype, device=x.device))


@register(aten.index_put, aten._unsafe_index_put, needs=("put",))
def index_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    """put at the numbers of the indexed places."""
    if accumulate:
        return decline("what is put at one place does not add up")
    if has_mask(indices):
        return decline("which value goes where is data: an index is a mask")
    dims = [d for d, index in enumerate(indices) if index is not None]
    together = dims == list(range(dims[0], dims[0] + len(dims)))
    number = numbers(x, indices, dims[0] if together else 0)
    return torch.put(x, number, cast(values, x.dtype).expand(number.shape), False)
