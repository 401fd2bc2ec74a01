"""Writing by index: for each place the sources that point at it are reduced; it keeps its value if there are none.

A comparison of the index with 0, 1, … says which sources point where. Of several that overwrite one place the last one
wins, as on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.index.indexing import (
    REMAINDERS,
    Counted,
    Only,
    alone,
    from_start,
    has_mask,
    located,
    where_chosen,
)
from decomp_rules.reduce.reduction import known_empty
from decomp_rules.support.operands import (
    cast,
    constant,
    is_scalar,
    ramp,
    same_size,
    view_or_copy,
    wide,
    wrap,
)
from decomp_rules.support.sizes import surely_at_least

RULES = Rules(level="exact")
register = RULES.register


@register(aten.scatter)
def scatter_value(x: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """value where some index points, x elsewhere."""
    if known_empty(index):
        return x.clone()
    x1, index1, dim = _lines(x, dim, index)
    hit = _grown(torch.any(_pointing(x1, dim, index1), dim), x1, dim)
    return torch.where(hit, constant(x, value), x1).view(x.shape)


@register(aten.scatter)
def scatter_src(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """The last source that points at a place, x where none does."""
    return scattered(x, dim, index, src, alone)


def scattered(x: Tensor, dim: int, index: Tensor, src: Tensor, only: Only) -> Tensor:
    """scatter, with `only` to take the last source of a place."""
    if known_empty(index):
        return x.clone()
    x1, index1, dim = _lines(x, dim, index)
    src = _cut(src.reshape(-1) if src.dim() == 0 else src, index1).unsqueeze(dim + 1)
    last, hit = _last(_pointing(x1, dim, index1), dim)
    value = only(where_chosen(last), src, dim)
    return torch.where(_grown(hit, x1, dim), _grown(value, x1, dim), x1).view(x.shape)


@register(aten.scatter_add)
def scatter_add(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """x + Σ of the sources that point at each place."""
    return _scatter_sum(x, dim, index, src)


def _scatter_sum(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    if known_empty(index):
        return x.clone()
    x1, index1, dim = _lines(x, dim, index)
    src = _cut(src.reshape(-1) if src.dim() == 0 else src, index1).unsqueeze(dim + 1)
    pointing = _pointing(x1, dim, index1)
    if x.dtype == torch.bool:
        return (x1 | _grown(torch.any(pointing & src, dim), x1, dim)).view(x.shape)
    less = torch.sum(torch.where(pointing, torch.neg(src), 0), dim=[dim], dtype=x.dtype)
    return (x1 - _grown(less, x1, dim)).view(x.shape)  # so that −0 stays where nothing is added


@register(aten.scatter)
def scatter_reduce_named(x: Tensor, dim: int, index: Tensor, reduce: str, src: Any = None, value: Any = None) -> Tensor:
    """scatter_reduce, "add" and "multiply" being sum and prod."""
    names = {"add": "sum", "multiply": "prod"}
    if src is None:
        src = torch.full(index.shape, value, dtype=x.dtype, device=x.device)
    return torch.scatter_reduce(x, dim, index, src, names[reduce])


@register(aten.scatter_reduce)
def scatter_reduce(x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool = True) -> Tensor:
    """The sum, product, mean, maximum or minimum of the sources that point at a place, and of x there if included."""
    if known_empty(index):
        return x.clone()
    if reduce == "sum" and include_self:
        return _scatter_sum(x, dim, index, src)
    x1, index1, dim = _lines(x, dim, index)
    src = _cut(src.reshape(-1) if src.dim() == 0 else src, index1).unsqueeze(dim + 1)
    pointing = _pointing(x1, dim, index1)
    reduced = _reduced(reduce, _cut(x1, index1, dim), src, pointing, dim, include_self)
    if isinstance(reduced, str):
        return decline(reduced)
    hit = _grown(torch.any(pointing, dim), x1, dim)
    return torch.where(hit, _grown(reduced, x1, dim), x1).view(x.shape)


@register(aten.scatter_reduce, needs=("scatter_reduce", "scatter"), forward_only=True)
def scatter_reduce_over_identities(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool = True
) -> Tensor:
    """For targets that reduce with x: where x is not to be included it is first overwritten by the neutral element. A
    mean is a sum, divided by the number of its terms."""
    if include_self and reduce != "mean" or x.dtype == torch.bool:
        return decline("the reduction with x of numbers is the op itself")
    if x.is_complex():
        return decline("only real inputs")
    if known_empty(index):
        return x.clone()
    total = wide(x) if reduce == "mean" else x
    if not include_self:
        neutral = torch.full(index.shape, _identity_element(reduce, x.dtype), dtype=total.dtype, device=x.device)
        total = torch.scatter(total, dim, index, neutral)
    if reduce != "mean":
        return torch.scatter_reduce(total, dim, index, src, reduce)
    total = torch.scatter_reduce(total, dim, index, cast(src, total.dtype), "sum")
    first = torch.full(x.shape, int(include_self), dtype=total.dtype, device=x.device)
    ones = torch.ones(index.shape, dtype=total.dtype, device=x.device)
    count = torch.clamp(torch.scatter_reduce(first, dim, index, ones, "sum"), min=1)
    return cast(total / count if x.is_floating_point() else torch.div(total, count, rounding_mode="floor"), x.dtype)


def _reduced(reduce: str, x: Tensor, src: Tensor, pointing: Tensor, dim: int, include_self: bool) -> Tensor | str:
    """The reduction over `dim` of the sources where they point, x being one of them if it is included; or a reason."""
    if x.dtype == torch.bool:
        reduce = {"sum": "amax", "prod": "amin"}.get(reduce, reduce)
    identity = _identity_element(reduce, x.dtype)
    if identity is None:
        return f"no reduction {reduce!r} of {x.dtype}"
    chosen = torch.where(pointing, src, identity)
    if include_self:
        chosen = torch.cat([x.unsqueeze(dim), chosen], dim)
    if reduce in ("sum", "mean"):
        total = torch.sum(wide(chosen), dim=[dim], dtype=wide(chosen).dtype)
        if reduce == "sum":
            return cast(total, x.dtype)
        count = torch.sum(pointing, dim=[dim], dtype=torch.int64) + int(include_self)
        count = cast(torch.clamp(count, min=1), total.dtype)
        whole = not (x.is_floating_point() or x.is_complex())
        return cast(torch.div(total, count, rounding_mode="floor") if whole else total / count, x.dtype)
    if reduce == "prod":
        return torch.prod(chosen, dim, dtype=x.dtype)
    return torch.amax(chosen, dim) if reduce == "amax" else torch.amin(chosen, dim)


def _identity_element(reduce: str, dtype: torch.dtype) -> Any:
    """The neutral element of a reduction."""
    if reduce in ("sum", "mean", "prod"):
        return None if dtype == torch.bool else int(reduce == "prod")
    if dtype.is_floating_point:
        return float("-inf" if reduce == "amax" else "inf")
    if dtype == torch.bool:
        return reduce == "amin"
    limits = torch.iinfo(dtype)
    return limits.min if reduce == "amax" else limits.max


def _lines(x: Tensor, dim: int, index: Tensor) -> tuple[Tensor, Tensor, int]:
    """x and index with a dimension at least, and `dim` counted from the start."""
    x = x if x.dim() else x.view(1)
    return x, index if index.dim() else index.reshape(-1), wrap(dim, x.dim())


def _pointing(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Whether the source at `dim` points at the place at `dim` + 1."""
    return torch.eq(index.unsqueeze(dim + 1), ramp(x, x.shape[dim], dim + 1, x.dim() + 1, index.dtype))


def _last(pointing: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The last along `dim` that points at each place, and whether one does."""
    number = ramp(pointing, pointing.shape[dim], dim, pointing.dim()) + 1
    last = torch.amax(torch.where(pointing, number, 0), [dim], keepdim=True)
    return pointing & torch.eq(number, last), torch.ne(last, 0).squeeze(dim)


def _cut(src: Tensor, index: Tensor, but: int | None = None) -> Tensor:
    """The part of src that the index covers, all of it along the dimension `but`."""
    for d in range(src.dim()):
        if d != but and not same_size(src.shape[d], index.shape[d]):
            src = src.narrow(d, 0, index.shape[d])
    return src


def _grown(part: Tensor, x: Tensor, dim: int) -> Tensor:
    """`part` padded at its ends to the shape of x, where the index covered less."""
    missing = [0 if same_size(whole, size) else whole - size for whole, size in zip(x.shape, part.shape)]
    if not any(type(size) is not int or size for size in missing):
        return part
    return torch.constant_pad_nd(part, [pad for size in reversed(missing) for pad in (0, size)])


@register(aten.index_put, aten._unsafe_index_put)
def index_put_masked(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    """x[mask] = value, one value for all or for all of a row: where the mask holds."""
    if indices[0] is None or len(indices) > 1 or indices[0].dtype not in (torch.bool, torch.uint8):
        return decline("the index is not one mask")
    mask = indices[0]
    rest = x.dim() - mask.dim()
    if values.dim() > rest and not (type(values.shape[0]) is int and values.shape[0] == 1 and values.dim() == rest + 1):
        return decline("which value goes where is data: the index is a mask")
    row = values.reshape(values.shape[1:]) if values.dim() > rest else values
    mask = cast(mask, torch.bool)
    known = all(map(same_size, mask.shape, x.shape))
    # In sizes of x, else: torch.export (2.13) does not tell that those of the mask are the same.
    mask = mask if rest == 0 and known else view_or_copy(mask, [*x.shape[: mask.dim()], *[1] * rest])
    value = cast(row, x.dtype)
    return torch.where(mask, x + value if accumulate else value, x)


@register(aten._unsafe_index_put, needs=("index_put",))
def unsafe_index_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    """index_put, which checks its indices as well. Exactly the op."""
    return aten.index_put(x, indices, values, accumulate)


@register(aten.index_put, needs=("index_put",))
def index_put_of_rows(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    """index_put along the first dimension alone, of x with the indexed dimensions in front and as one. Exactly the
    op."""
    if len(indices) == 1 and indices[0] is not None and indices[0].dim() == 1:
        return decline("the index is one vector along the first dimension")
    if has_mask(indices):
        return decline("which value goes where is data: an index is a mask")
    rows = _in_rows(x, indices, values, torch.remainder)
    return rows.back(aten.index_put(rows.flat, [rows.number], rows.source, accumulate))


@register(aten.index_put, aten._unsafe_index_put)
def index_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    """Sources and places in one dimension each: the sum of the sources that point at a place, or the last of them."""
    return put_in_rows(x, indices, values, accumulate, torch.remainder, alone)


@register(aten.index_put, aten._unsafe_index_put, unless=REMAINDERS)
def index_put_by_sign(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    """The same, for targets without remainders."""
    return put_in_rows(x, indices, values, accumulate, from_start, alone)


def put_in_rows(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool, counted: Counted, only: Only
) -> Tensor:
    """index_put, with `only` to take the last source of a place."""
    if has_mask(indices):
        return decline("which value goes where is data: an index is a mask")
    rows = _in_rows(x, indices, values, counted)
    return rows.back(_written(rows.flat, rows.number, rows.source, accumulate, only))


@dataclass(frozen=True)
class _Rows:
    """An index_put along one dimension."""

    flat: Tensor
    """The indexed dimensions of x as one, in front of the others."""
    number: Tensor
    """Which of its rows each source goes to; one dimension."""
    source: Tensor
    shape: list[Any]
    """Of x with the indexed dimensions in front."""
    dims: list[int]
    """The indexed dimensions."""

    def back(self, flat: Tensor) -> Tensor:
        """Rows in the shape of x."""
        return torch.movedim(view_or_copy(flat, self.shape), list(range(len(self.dims))), self.dims)


def _in_rows(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, counted: Counted) -> _Rows:
    spot = located(x.shape, indices, counted)
    front = list(range(len(spot.dims)))
    rows = torch.movedim(x, spot.dims, front)
    rest = list(rows.shape[len(front) :])
    flat = view_or_copy(rows, [spot.places, *rest])
    count = spot.number.dim()
    outer = [size for d, size in enumerate(x.shape) if d not in spot.dims]
    target = outer[: spot.first] + list(spot.number.shape) + outer[spot.first :]
    source = cast(values, x.dtype).expand(target)
    source = torch.movedim(source, list(range(spot.first, spot.first + count)), list(range(count))) if count else source
    source = source.reshape([spot.number.numel(), *rest])
    return _Rows(flat, spot.number.reshape(-1), source, list(rows.shape), list(spot.dims))


def _written(x: Tensor, index: Tensor, src: Tensor, accumulate: bool, only: Only) -> Tensor:
    """Rows of x, with rows of src added or put at the places of a 1-d index."""
    if known_empty(index):
        return x.clone()
    rank = src.dim() + 1
    pointing = torch.eq(index.reshape([-1] + [1] * (rank - 1)), ramp(x, x.shape[0], 1, rank))
    if not accumulate:
        last, hit = _last(pointing, 0)
        return torch.where(hit, only(where_chosen(last), src.unsqueeze(1), 0), x)
    if x.dtype == torch.bool:
        return x | torch.any(pointing & src.unsqueeze(1), 0)
    return x - torch.sum(torch.where(pointing, torch.neg(src).unsqueeze(1), 0), dim=[0], dtype=x.dtype)  # as above


@register(aten.index_add)
def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, alpha: Any = 1) -> Tensor:
    """index_put along one dimension, α · source added, α in the dtype of x."""
    if not (x.is_floating_point() or x.is_complex()):
        alpha = bool(alpha) if x.dtype == torch.bool else int(alpha)
    source = source if alpha == 1 else source * alpha
    return _put_along(x, dim, index, source, True)


@register(aten.index_copy)
def index_copy(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """index_put along one dimension."""
    return _put_along(x, dim, index, source, False)


@register(aten.index_fill)
def index_fill(x: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """index_put along one dimension of one value."""
    value = constant(x, value) if is_scalar(value) else cast(value, x.dtype)
    line = x if x.dim() else x.view(1)
    dim = wrap(dim, line.dim())
    index = from_start(index, line.shape[dim])
    hit = torch.any(torch.eq(index.reshape(-1, 1), ramp(x, line.shape[dim], dtype=index.dtype)), 0)
    return torch.where(view_or_copy(hit, [-1 if d == dim else 1 for d in range(line.dim())]), value, line).view(x.shape)


def _put_along(x: Tensor, dim: int, index: Tensor, source: Tensor, accumulate: bool) -> Tensor:
    if x.dim() == 0:
        return aten.index_put.default(x.view(1), [index.reshape(-1)], source.reshape(-1), accumulate).view([])
    dim = wrap(dim, x.dim())
    return aten.index_put.default(x, [None] * dim + [index.reshape(-1)], source, accumulate)


@register(aten.put)
def put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """index_put of all elements in a row."""
    flat = aten.index_put.default(x.reshape(-1), [index.reshape(-1)], source.reshape(-1), accumulate)
    return flat.view(x.shape)


@register(aten.masked_scatter)
def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """The sources one after the other where the mask holds: the k-th true place takes source k."""
    shape = torch.broadcast_shapes(x.shape, mask.shape)
    mask, source = mask.expand(shape), source.reshape(-1)
    # Of no sources none is taken, but one has to be there to be read.
    source = source if surely_at_least(source.shape[0], 1) else torch.constant_pad_nd(source, [0, 1])
    number = torch.cumsum(mask.reshape(-1).to(torch.int64), 0) + -1
    number = torch.clamp(number, min=0, max=source.shape[0] - 1)
    return torch.where(mask, torch.index_select(source, 0, number).view(shape), x)
