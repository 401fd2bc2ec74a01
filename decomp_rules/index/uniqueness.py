"""Selection by data, for targets with `nonzero` and boolean indices: results have data-dependent sizes, all
intermediate tensors known ones. Equal elements are found side by side, once they are in order."""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.index.data_dependent import MASKS
from decomp_rules.support.operands import constant, ramp, wrap

RULES = Rules(level="exact")
register = RULES.register


# Seen on torch 2.13: `torch.unique_consecutive(x, dim=-1)` on fake tensors has all dimensions twice but the last, as
# `_unique` in torch/_subclasses/fake_impls.py continues with `shape[dim + 1:]`, which is the whole shape for -1.
WRONG_RANK = "PyTorch itself takes the result of a negative dimension to have another rank"
UNKNOWN_COUNT = "how many elements there are is not known"
RULES.limit(aten.unique_consecutive, reason=WRONG_RANK, when=lambda call: (call.arguments.get("dim") or 0) < 0)


@register(aten.argwhere, needs=(aten.nonzero,))
def argwhere(x: Tensor) -> Tensor:
    """nonzero. Exactly the op."""
    return torch.nonzero(x)


@register(aten.nonzero_numpy, needs=(aten.nonzero,))
def nonzero_numpy(x: Tensor) -> tuple[Tensor, ...]:
    """The columns of nonzero, of a number as of a line of one. Exactly the op."""
    line = x if x.dim() else x.reshape(1)
    if 0 in [size for size in x.shape if isinstance(size, int)]:
        return tuple(torch.full((0,), 0, dtype=torch.int64, device=x.device) for _ in range(x.dim()))
    places = torch.nonzero(line)
    return tuple(places.select(1, d) for d in range(line.dim()))


@register(aten.masked_select, needs=(aten.nonzero,))
def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    """x[mask], each expanded to the shape of both. Exactly the op."""
    shape = torch.broadcast_shapes(x.shape, mask.shape)
    return aten.index.Tensor(x.expand(shape), [mask.expand(shape)])


@register(aten.index, needs=(aten.nonzero,))
def index_of_masks(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """The places where a mask holds, by nonzero, instead of it, along its dimensions as one. Exactly the op."""
    masks = [index for index in indices if index is not None and index.dtype in MASKS]
    if not masks:
        return decline("no index is a mask")
    if not all(mask.dim() for mask in masks):
        return decline("a mask is a number, which adds a dimension")
    places = list[Tensor | None]()
    for index in indices:
        if index is not None and index.dtype in MASKS:
            x = x.flatten(len(places), len(places) + index.dim() - 1)
            index = torch.nonzero(index.reshape(-1)).select(1, 0)
        places.append(index)
    return aten.index.Tensor(x, places)


@register(aten._unique2, needs=(aten.nonzero,))
def unique(
    x: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Of the elements in order, those that differ from the one before. Exactly the op; NaN all differ."""
    if _is_empty(x):
        return _empty_result(x.reshape(-1), x.shape if return_inverse else (0,))
    values, order = torch.sort(x.reshape(-1))
    first = _first_of_equals(values)
    if first is None:
        return decline(UNKNOWN_COUNT)
    inverse, counts = _described(first, order, return_inverse, return_counts)
    return aten.index.Tensor(values, [first]), inverse.reshape(x.shape) if return_inverse else inverse, counts


@register(aten._unique, needs=(aten.nonzero,))
def unique_and_inverse(x: Tensor, sorted: bool = True, return_inverse: bool = False) -> tuple[Tensor, Tensor]:
    """Of the elements in order, those that differ from the one before. Exactly the op."""
    return aten._unique2.default(x, sorted, return_inverse, False)[:2]


@register(aten.unique_consecutive, needs=(aten.nonzero,))
def unique_consecutive(
    x: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The elements, or the slices, that differ from the one before. Exactly the op."""
    if dim is not None and dim < 0:
        return decline(WRONG_RANK)
    if dim is not None:
        return unique_dim_consecutive(x, dim, return_inverse, return_counts)
    if _is_empty(x):
        return _empty_result(x.reshape(-1), x.shape if return_inverse else (0,))
    values = x.reshape(-1)
    first = _first_of_equals(values)
    if first is None:
        return decline(UNKNOWN_COUNT)
    inverse, counts = _described(first, None, return_inverse, return_counts)
    return aten.index.Tensor(values, [first]), inverse.reshape(x.shape) if return_inverse else inverse, counts


@register(aten.unique_dim_consecutive, needs=(aten.nonzero,))
def unique_dim_consecutive(
    x: Tensor, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """The slices that differ from the one before. Exactly the op."""
    if _is_empty(x):
        return _empty_result(x, (0,))
    slices = torch.movedim(x, dim, 0)
    first = _first_of_equals(slices)
    if first is None:
        return decline(UNKNOWN_COUNT)
    inverse, counts = _described(first, None, True, True)
    return torch.movedim(aten.index.Tensor(slices, [first]), 0, dim), inverse, counts


@register(aten.unique_dim, needs=(aten.nonzero,))
def unique_dim(
    x: Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Of the slices in lexicographic order, found by comparing all pairs, those that differ from the one before."""
    if _is_empty(x):
        return _empty_result(x, (0,))
    slices = torch.movedim(x, wrap(dim, x.dim()), 0)
    if not isinstance(slices.shape[0], int):
        return decline(UNKNOWN_COUNT)
    order = _lexicographic(slices.reshape(slices.shape[0], -1))
    slices = torch.index_select(slices, 0, order)
    first = _first_of_equals(slices)
    inverse, counts = _described(first, order, True, True)
    return torch.movedim(aten.index.Tensor(slices, [first]), 0, dim), inverse, counts


def _is_empty(x: Tensor) -> bool:
    return any(isinstance(size, int) and size == 0 for size in x.shape)


def _empty_result(values: Tensor, places: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """The results for no elements, where those that tell the place of each are of the shape `places`."""
    inverse, counts = (torch.full(shape, 0, dtype=torch.int64, device=values.device) for shape in (places, (0,)))
    return values.clone(), inverse, counts


def _first_of_equals(x: Tensor) -> Any:
    """Whether a slice differs from the one before, as the first one does; None if their number is unknown."""
    count = x.shape[0]
    if not isinstance(count, int):
        return None
    differs = torch.ne(x.narrow(0, 1, count - 1), x.narrow(0, 0, count - 1))
    if x.dim() > 1:
        differs = torch.any(differs.reshape([count - 1, math.prod(x.shape[1:])]), 1)
    return torch.cat([torch.full((1,), True, dtype=torch.bool, device=x.device), differs], 0)


def _described(first: Tensor, order: Any, return_inverse: bool, return_counts: bool) -> tuple[Tensor, Tensor]:
    """The index of each element's result, and the count of each result; empty if not requested."""
    empty = torch.full((0,), 0, dtype=torch.int64, device=first.device)
    if not return_inverse and not return_counts:
        return empty, empty
    group = torch.cumsum(first.to(torch.int64), 0) - 1
    inverse = group if order is None else torch.scatter(torch.zeros_like(group), 0, order, group)
    if not return_counts:
        return inverse, empty
    counts = torch.scatter_add(torch.zeros_like(group), 0, group, torch.ones_like(group))
    there = torch.gt(counts, 0)
    return inverse if return_inverse else empty, aten.index.Tensor(counts, [there])


def _lexicographic(rows: Tensor) -> Tensor:
    """The order of rows: how many are less, by the first place where they differ, or equal and to the left."""
    count = rows.shape[0]
    each, other = rows.unsqueeze(1), rows.unsqueeze(0)
    differs = torch.ne(each, other)
    before = torch.cumsum(differs.to(torch.int64), 2) - differs.to(torch.int64)
    decided = differs & torch.eq(before, 0)
    less = torch.any(torch.lt(other, each) & decided, 2)
    alike = torch.logical_not(torch.any(differs, 2))
    number = ramp(rows, count)
    rank = torch.sum(less | (alike & torch.lt(number, number.unsqueeze(1))), dim=[1], dtype=torch.int64)
    return torch.scatter(constant(number, 0).expand(count).clone(), 0, rank, number)
