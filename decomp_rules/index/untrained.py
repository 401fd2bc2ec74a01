"""Reading, writing and sorting by index for programs that are not trained: one element of a line is its maximum, with
−∞ in place of all others. At elements of −∞ and NaN the gradient is another than the op's."""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.index.indexing import Choose, from_start, gathered, selected
from decomp_rules.index.scattering import put_in_rows, scattered
from decomp_rules.index.sorting import of_rank_below

RULES = Rules(level="exact")
_OTHERS = "not floats along a dimension of a known size"


def _largest(choose: Choose, x: Tensor, dim: int) -> Tensor:
    return torch.amax(choose(x, -math.inf), [dim])


def _has_maximum(x: Tensor, sizes: Sequence[Any]) -> bool:
    """Whether x is of floats that can be compared, and the sizes are known not to be 0."""
    is_compared = x.is_floating_point() and x.dtype.itemsize > 1
    return is_compared and all(type(size) is int and size > 0 for size in sizes)


def _line(x: Tensor, dim: int) -> Sequence[Any]:
    return x.shape[dim : dim + 1 or None]


@RULES.register(aten.index_select, forward_only=True)
def index_select_by_maximum(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """maxⱼ {xⱼ: index = j} along `dim`."""
    return selected(x, dim, index, _largest) if _has_maximum(x, _line(x, dim)) else decline(_OTHERS)


@RULES.register(aten.gather, forward_only=True)
def gather_by_maximum(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """maxⱼ {xⱼ: index = j} along `dim`, element by element of the other dimensions."""
    return gathered(x, dim, index, _largest) if _has_maximum(x, _line(x, dim)) else decline(_OTHERS)


@RULES.register(aten.scatter, forward_only=True)
def scatter_by_maximum(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """The last source that points at a place, x where none does."""
    return scattered(x, dim, index, src, _largest) if _has_maximum(src, _line(index, dim)) else decline(_OTHERS)


@RULES.register(aten.index_put, aten._unsafe_index_put, forward_only=True)
def index_put_by_maximum(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    """The last source that points at a place, x where none does."""
    if accumulate:
        return decline("the sources are added")
    if not _has_maximum(x, [size for index in indices if index is not None for size in index.shape]):
        return decline(_OTHERS)
    return put_in_rows(x, indices, values, accumulate, from_start, _largest)


@RULES.register(aten.sort, forward_only=True)
def sort_by_maximum(
    x: Tensor, dim: int = -1, descending: bool = False, stable: bool | None = False
) -> tuple[Tensor, Tensor]:
    """Each element at its rank."""
    return of_rank_below(None, x, dim, descending, _largest) if _has_maximum(x, _line(x, dim)) else decline(_OTHERS)


@RULES.register(aten.topk, forward_only=True)
def topk_by_maximum(
    x: Tensor, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    """The elements of rank below k."""
    return of_rank_below(k, x, dim, largest, _largest) if _has_maximum(x, _line(x, dim)) else decline(_OTHERS)
