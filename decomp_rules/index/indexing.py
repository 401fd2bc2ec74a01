"""Reading by index. Every op comes down to index_select or gather, and those to a comparison of the index with 0, 1, …

Elements that are not chosen are replaced by zero before the sum, not multiplied by it, so that NaN and ∞ elsewhere do
not leak. Sums of one value and zeros are exact, except that −0 would become 0: it is summed as the next negative
number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
import math
import operator
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.reduce.reduction import known_empty
from decomp_rules.support.operands import cast, constant, is_scalar, promoted, ramp, same_size, view_or_copy, wrap

RULES = Rules(level="exact")
register = RULES.register
REMAINDERS = ("remainder", "fmod")
"""Of a target that has one of them, a place that is counted from the end is the remainder by the length."""
Counted = Callable[[Tensor, Any], Tensor]
"""An index and a length to the index that counts from the start."""
Choose = Callable[[Tensor, Any], Tensor]
"""Elements as they are where they are chosen, and the other value where not."""
Only = Callable[[Choose, Tensor, int], Tensor]
"""The one element along a dimension that is chosen; at most one of a line is."""


@register(aten.index_select)
def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Σⱼ [index = j] xⱼ along `dim`."""
    return selected(x, dim, index, alone)


def selected(x: Tensor, dim: int, index: Tensor, only: Only) -> Tensor:
    """index_select, with `only` to take one element of a line."""
    if x.dim() == 0:
        return x.clone()
    dim, rank = wrap(dim, x.dim()), x.dim() + 1
    place: list[Any] = [1] * rank
    place[dim] = -1
    return only(_unless(_passed(index.reshape(place), x, dim, rank)), x.unsqueeze(dim), dim + 1)


def _passed(index: Tensor, x: Tensor, dim: int, rank: int) -> Tensor:
    """Whether the index is not 0, 1, … along the dimension behind `dim`: for each place of x there, if it is not meant.
    In int32, which is compared with half the work of int64, where the length is known to allow it."""
    length = x.shape[dim]
    if index.dtype == torch.int64 and type(length) is int and length <= torch.iinfo(torch.int32).max:
        index = index.to(torch.int32)
    return torch.ne(index, ramp(x, length, dim + 1, rank, index.dtype))


def _unless(passed: Tensor) -> Choose:
    return lambda x, other: torch.where(passed, other, x)


def where_chosen(chosen: Tensor) -> Choose:
    """The elements for which `chosen` holds."""
    return lambda x, other: torch.where(chosen, x, other)


def alone(choose: Choose, x: Tensor, dim: int) -> Tensor:
    """The one element along `dim` that is chosen, or zero if none is: the sum with zeros in place of all others. Exact,
    but that −2⁻¹⁴⁹ of float32 and −2⁻¹⁰⁷⁴ of float64 come out as −0."""
    if x.dtype == torch.bool:
        return torch.any(choose(x, False), dim)
    if x.dtype not in _BITS:
        return torch.sum(choose(x, 0), dim=[dim], dtype=x.dtype)
    marked = _with_negative_zeros_as_tiny(x)
    return _with_tiny_as_negative_zeros(torch.sum(choose(marked, 0), dim=[dim], dtype=marked.dtype), x)


_BITS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}


def _with_negative_zeros_as_tiny(x: Tensor) -> Tensor:
    """x, and the negative number next to zero for −0, which adding to zeros would lose; half types in float32, which do
    not have that number. The gradient passes unchanged."""
    zero = torch.lt(x.view(_BITS[x.dtype]), torch.iinfo(_BITS[x.dtype]).min + 1)
    dtype = torch.promote_types(x.dtype, torch.float32)
    return torch.where(zero, constant(x, _tiny(dtype), dtype), 0.0) + x


def _with_tiny_as_negative_zeros(marked: Tensor, x: Tensor) -> Tensor:
    """The opposite, in the dtype of x: −((t or −0) − marked), as t − t = 0 and −0 − 0 = −0. A cast rounds t to −0."""
    if marked.dtype != x.dtype:
        return marked.to(x.dtype)
    tiny = _tiny(x.dtype)
    return torch.neg(cast(torch.eq(marked, tiny), x.dtype) * tiny - marked)


def _tiny(dtype: torch.dtype) -> float:
    return -torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps


@register(aten.gather, needs=("gather",))
def gather_of_equal_sizes(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """gather by an index as large as x but along `dim`: padded by 0, and what is read there is cut off. Exactly the
    op."""
    if x.dim() == 0 or x.dim() != index.dim() or known_empty(index):
        return decline("no dimensions, or nothing to gather")
    dim = wrap(dim, x.dim())
    smaller = [d for d in range(x.dim()) if d != dim and not same_size(x.shape[d], index.shape[d])]
    if not smaller:
        return decline("index and operand are as large")
    missing = [x.shape[d] - index.shape[d] if d in smaller else 0 for d in range(x.dim())]
    found = torch.gather(x, dim, torch.constant_pad_nd(index, [pad for n in reversed(missing) for pad in (0, n)]))
    for d in smaller:
        found = found.narrow(d, 0, index.shape[d])
    return found


@register(aten.gather)
def gather(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Σⱼ [index = j] xⱼ along `dim`, element by element of the other dimensions."""
    return gathered(x, dim, index, alone)


def gathered(x: Tensor, dim: int, index: Tensor, only: Only) -> Tensor:
    """gather, with `only` to take one element of a line."""
    if x.dim() == 0 or index.dim() == 0:
        shape = index.shape
        return torch.index_select(x.reshape(-1), 0, index.reshape(-1)).view(shape)
    if known_empty(index):  # of which the other dimensions may be anything
        return x.reshape(-1).narrow(0, 0, 0).view(index.shape)
    dim = wrap(dim, x.dim())
    for d in range(x.dim()):
        if d != dim and not same_size(x.shape[d], index.shape[d]):
            x = x.narrow(d, 0, index.shape[d])
    return only(_unless(_passed(index.unsqueeze(dim + 1), x, dim, x.dim() + 1)), x.unsqueeze(dim), dim + 1)


@register(aten.take_along_dim)
def take_along_dim(x: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """gather, with the other dimensions broadcast; of all elements in a row without `dim`."""
    return _taken_along(x, indices, dim, torch.remainder)


@register(aten.take_along_dim, unless=REMAINDERS)
def take_along_dim_by_sign(x: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """The same, for targets without remainders."""
    return _taken_along(x, indices, dim, from_start)


def _taken_along(x: Tensor, indices: Tensor, dim: int | None, counted: Counted) -> Tensor:
    if dim is None:
        x, indices, dim = x.reshape(-1), indices.reshape(-1), 0
    dim = wrap(dim, x.dim())
    indices = counted(indices, x.shape[dim])
    shape = torch.broadcast_shapes(_without(x.shape, dim), _without(indices.shape, dim))
    of_x, of_index = list(shape), list(shape)
    of_x[dim], of_index[dim] = x.shape[dim], indices.shape[dim]
    return torch.gather(x.expand(of_x), dim, indices.expand(of_index))


def _without(shape: Sequence[Any], dim: int) -> list[Any]:
    return [1 if d == dim else size for d, size in enumerate(shape)]


@register(aten.take)
def take(x: Tensor, index: Tensor) -> Tensor:
    """Elements of x in a row, the index counted from the end where it is negative."""
    return aten.index.Tensor(x.reshape(-1), [index])


@register(aten.index, aten._unsafe_index)
def index_tensor(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """index_select along all indexed dimensions as one, by the row-major number of the indexed place."""
    return _indexed(x, indices, torch.remainder)


@register(aten.index, aten._unsafe_index, unless=REMAINDERS)
def index_tensor_by_sign(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """The same, for targets without remainders."""
    return _indexed(x, indices, from_start)


def _indexed(x: Tensor, indices: Sequence[Tensor | None], counted: Counted) -> Tensor:
    if has_mask(indices):
        return decline("the size of the result is data: an index is a mask")
    spot = located(x.shape, indices, counted)
    rows = torch.movedim(x, spot.dims, list(range(len(spot.dims))))
    rest = list(rows.shape[len(spot.dims) :])
    rows = view_or_copy(rows, [spot.places, *rest])
    chosen = torch.index_select(rows, 0, spot.number.reshape(-1))
    chosen = view_or_copy(chosen, [*spot.number.shape, *rest])
    count = spot.number.dim()
    return torch.movedim(chosen, list(range(count)), list(range(spot.first, spot.first + count))) if count else chosen


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a list of index tensors points."""

    dims: list[int]
    """The dimensions that are indexed."""
    places: Any
    """How many places they have in all."""
    number: Tensor
    """The row-major number of each place pointed at, int64."""
    first: int
    """Where the dimensions of the index stand in the result: where those indexed stood, or first if they are apart."""


def has_mask(indices: Sequence[Tensor | None]) -> bool:
    """Whether an index is a mask, so that how many places it points at is data."""
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


def from_start(index: Tensor, length: Any) -> Tensor:
    """An index of a dimension of this length, counted from the end where it is negative, counted from the start."""
    return index + (index < 0) * length


def located(shape: Sequence[Any], indices: Sequence[Tensor | None], counted: Counted) -> Spot:
    """The row-major number Σ index · stride of each indexed place; indexed dimensions that are apart come out first."""
    dims = [d for d, index in enumerate(indices) if index is not None]
    number = None
    for d in dims:
        index = counted(cast(indices[d], torch.int64), shape[d])
        number = index if number is None else number * shape[d] + index
    assert number is not None
    together = dims == list(range(dims[0], dims[0] + len(dims)))
    return Spot(dims, math.prod(shape[d] for d in dims), number, dims[0] if together else 0)


@register(aten._unsafe_masked_index)
def unsafe_masked_index(x: Tensor, mask: Tensor, indices: Sequence[Tensor | None], fill: Any) -> Tensor:
    """x[indices] where the mask holds, `fill` elsewhere; there the index may be anything."""
    found = aten.index.Tensor(x, _clamped(x, indices))
    return torch.where(mask, found, constant(x, fill))


@register(aten._unsafe_masked_index_put_accumulate)
def unsafe_masked_index_put_accumulate(
    x: Tensor, mask: Tensor, indices: Sequence[Tensor | None], values: Tensor
) -> Tensor:
    """x with the values added at the indices where the mask holds."""
    kept = torch.where(mask, values, constant(values, 0))
    return aten.index_put.default(x, _clamped(x, indices), kept, True)


def _clamped(x: Tensor, indices: Sequence[Tensor | None]) -> list[Tensor | None]:
    return [
        None if index is None else torch.clamp(index, min=-x.shape[d], max=x.shape[d] - 1)
        for d, index in enumerate(indices)
    ]


@register(aten.embedding)
def embedding(
    weight: Tensor, indices: Tensor, padding_idx: Any = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Tensor:
    """index_select of rows; the row of padding_idx gets no gradient."""
    if sparse or scale_grad_by_freq:
        return decline("its gradient is sparse, or scaled by counts")
    shape = [*indices.shape, *weight.shape[1:]]
    rows = torch.index_select(weight, 0, indices.reshape(-1)).view(shape)
    if padding_idx < 0:
        return rows
    return torch.where(torch.eq(indices, padding_idx).unsqueeze(-1), rows.detach(), rows)


@register(aten.embedding, level="standard", unless=("index_select", "gather", "take", "index"))
def embedding_by_sum(
    weight: Tensor, indices: Tensor, padding_idx: Any = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Tensor:
    """Σᵥ of row v where v is the index and of 0 elsewhere; a zero loses its sign."""
    if sparse or scale_grad_by_freq:
        return decline("its gradient is sparse, or scaled by counts")
    if not weight.is_floating_point():
        return decline("sums of integers are wider than these")
    numbers = ramp(weight, weight.shape[0], 0, 2, indices.dtype)
    if padding_idx >= 0:
        weight = torch.where(torch.ne(numbers, padding_idx), weight, weight.detach())
    others = torch.ne(indices.reshape([*indices.shape, 1, 1]), numbers)
    return torch.sum(torch.where(others, constant(weight, 0), weight), [-2])


@register(aten.embedding_dense_backward)
def embedding_dense_backward(
    grad_output: Tensor, indices: Tensor, num_weights: Any, padding_idx: Any, scale_grad_by_freq: bool
) -> Tensor:
    """Σₙ [indexₙ = v] gradₙ for each row v but that of padding_idx, over the count of v if it is scaled so."""
    flat = indices.reshape(-1, 1)
    grad = grad_output.reshape(-1, grad_output.shape[-1])
    rows = ramp(grad, num_weights, 1, 2, indices.dtype)
    chosen = torch.eq(flat, rows)
    if padding_idx >= 0:
        chosen = chosen & torch.ne(rows, padding_idx)
    total = torch.sum(torch.where(chosen.unsqueeze(-1), grad.unsqueeze(1), 0), dim=[0])
    if not scale_grad_by_freq:
        return total
    count = torch.clamp(torch.sum(chosen, dim=[0], dtype=torch.int64), min=1)
    return total / cast(count, grad.dtype).unsqueeze(-1)


@register(aten.one_hot)
def one_hot(x: Tensor, num_classes: int = -1) -> Tensor:
    """[x = c] for each class c, in int64."""
    if num_classes < 0:
        return decline("the number of classes is data")
    return torch.eq(x.unsqueeze(-1), ramp(x, num_classes)).to(torch.int64)


@register(aten.bucketize)
def bucketize(x: Any, boundaries: Tensor, out_int32: bool = False, right: bool = False) -> Tensor:
    """searchsorted of one line."""
    return torch.searchsorted(boundaries, x, out_int32=out_int32, right=right)


@register(aten.searchsorted)
def searchsorted(
    sorted_sequence: Tensor,
    x: Any,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """How many of the sequence are before x, that is not ≥ x, or on the right not > x: by binary search, as in the op,
    so that results agree for unsorted lines and NaN as well."""
    if is_scalar(x):
        x = constant(sorted_sequence, x, promoted(sorted_sequence, x))
    right = right or side == "right"
    if sorter is not None:
        sorted_sequence = torch.gather(sorted_sequence, -1, sorter)
    length = sorted_sequence.shape[-1]
    if type(length) is not int or length > 2**22:
        return _count_before(sorted_sequence, x, out_int32, right)
    low = torch.full(x.shape, 0, dtype=torch.int64, device=x.device)
    high = low + length
    line = torch.constant_pad_nd(sorted_sequence, [0, 1])  # so that there is an element where nothing is left to search
    for _ in range(length.bit_length()):
        middle = ((low + high).to(torch.float32) * 0.5).to(torch.int64)
        found = _looked_up(line, middle)
        passed = torch.logical_not(torch.gt(found, x) if right else torch.ge(found, x)) & torch.lt(low, high)
        low, high = torch.where(passed, middle + 1, low), torch.where(passed, high, middle)
    return cast(low, torch.int32 if out_int32 else torch.int64)


def _looked_up(sequence: Tensor, index: Tensor) -> Tensor:
    """The elements of a line, or of each row, at the places of an index."""
    if sequence.dim() == 1:
        return torch.index_select(sequence, 0, index.reshape(-1)).view(index.shape)
    return torch.gather(sequence, -1, index)


def _count_before(sequence: Tensor, x: Tensor, out_int32: bool, right: bool) -> Tensor:
    """The same where the length is no number, or very large: a comparison with each."""
    rows, x = sequence if sequence.dim() == 1 else sequence.unsqueeze(-2), x.unsqueeze(-1)
    beyond = torch.logical_not(torch.lt(x, rows) if right else torch.ge(rows, x))
    return torch.sum(beyond, dim=[-1], dtype=torch.int32 if out_int32 else torch.int64)


@register(aten.histc)
def histc(x: Tensor, bins: int = 100, min: Any = 0, max: Any = 0) -> Tensor:
    """How many fall in each of the equal bins of [min, max], or of the data's range if that is empty."""
    flat = x.reshape(-1)
    low, high = constant(x, min), constant(x, max)
    if min == max:
        low, high = torch.amin(flat), torch.amax(flat)
        alike = torch.eq(low, high)
        low, high = torch.where(alike, low - 1, low), torch.where(alike, high + 1, high)
    place = torch.clamp(torch.trunc((flat - low) * bins / (high - low)), max=bins - 1)
    inside = torch.ge(flat, low) & torch.le(flat, high)
    hits = torch.eq(place.unsqueeze(-1), ramp(x, bins, dtype=x.dtype)) & inside.unsqueeze(-1)
    return torch.sum(hits, dim=[0], dtype=x.dtype)


@register(operator.getitem)
def getitem(x: Tensor, index: Any) -> Tensor:
    """x[index], part by part: numbers select, slices slice, None adds a dimension, and the tensors index together."""
    parts = list(index) if isinstance(index, tuple) else [index]
    ahead = sum(_dims_taken(part) for part in parts)
    dim, entries = 0, []
    for part in parts:
        ahead -= _dims_taken(part)
        passed = x.dim() - dim - ahead if part is Ellipsis else 1
        if is_scalar(part) and not isinstance(part, bool):
            x = torch.select(x, dim, part)
            continue
        if part is None:
            x = torch.unsqueeze(x, dim)
        elif isinstance(part, bool):
            x = torch.unsqueeze(x, dim)
            part = torch.full((int(part),), 0, dtype=torch.int64, device=x.device)
        elif isinstance(part, (list, range)):
            part = torch.tensor(list(part), device=x.device)
        elif isinstance(part, slice):
            x = _sliced(x, dim, part)
        elif part is not Ellipsis and part.dim() == 0:
            if part.dtype == torch.bool:
                return decline("the size of the result is data: an index is a mask")
            x = aten.index.Tensor(x, [None] * dim + [part])
            continue
        data = not (part is None or part is Ellipsis or isinstance(part, slice))
        entries += [part] if data else [None] * passed
        dim += part.dim() if data and part.dtype == torch.bool else passed
    return aten.index.Tensor(x, entries) if any(entry is not None for entry in entries) else x


def _dims_taken(part: Any) -> int:
    """How many dimensions of the tensor one part of an index uses up."""
    if part is None or part is Ellipsis or isinstance(part, bool):
        return 0
    if is_scalar(part) or isinstance(part, (slice, list, range)):
        return 1
    return part.dim() if part.dtype == torch.bool else 1


def _sliced(x: Tensor, dim: int, part: slice) -> Tensor:
    if part.start is None and part.stop is None and part.step is None:
        return x
    return aten.slice.Tensor(x, dim, part.start, part.stop, 1 if part.step is None else part.step)
