"""Reading by index at the level standard: the sum of the chosen element and zeros. −0 comes out as 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.creation.factories import TABLED
from decomp_rules.reduce.reduction import known_empty
from decomp_rules.support.operands import same_size, wrap

RULES = Rules(level="standard")
register = RULES.register


@register(aten.index_select)
def index_select_of_sum(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Σⱼ [index = j] xⱼ along `dim`. Exact."""
    if not _can_be_summed(x, dim):
        return decline("no numbers along a dimension of a known size")
    dim = wrap(dim, x.dim())
    place: list[Any] = [1] * (x.dim() + 1)
    place[dim] = -1
    return _chosen(index.reshape(place), x, dim)


@register(aten.gather)
def gather_of_sum(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Σⱼ [index = j] xⱼ along `dim`, element by element of the other dimensions. Exact."""
    if not _can_be_summed(x, dim) or x.dim() != index.dim() or known_empty(index):
        return decline("no numbers along a dimension of a known size")
    dim = wrap(dim, x.dim())
    for d in range(x.dim()):
        if d != dim and not same_size(x.shape[d], index.shape[d]):
            x = x.narrow(d, 0, index.shape[d])
    return _chosen(index.unsqueeze(dim + 1), x, dim)


@register(aten.index, aten._unsafe_index)
def index_of_one(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """index_select along the one dimension that is indexed. Exact."""
    dims = [d for d, index in enumerate(indices) if index is not None]
    index = indices[dims[0]] if len(dims) == 1 else None
    if index is None or index.dtype in (torch.bool, torch.uint8):
        return decline("not one index of places")
    dim = dims[0]
    places = torch.remainder(index, x.shape[dim]).reshape(-1)
    return torch.index_select(x, dim, places).reshape([*x.shape[:dim], *index.shape, *x.shape[dim + 1 :]])


def _can_be_summed(x: Tensor, dim: int) -> bool:
    if not x.dim() or x.dtype == torch.bool or x.is_complex():
        return False
    return type(x.shape[dim]) is int and 0 < x.shape[dim] <= TABLED


def _chosen(index: Tensor, x: Tensor, dim: int) -> Tensor:
    """The elements of x along `dim` that an index with a further dimension behind it names."""
    table: Any = list(range(x.shape[dim]))
    for _ in range(x.dim() - dim - 1):
        table = [[place] for place in table]
    other = torch.ne(index, torch.tensor(table, dtype=torch.int64, device=x.device))
    return torch.sum(torch.where(other, 0, x.unsqueeze(dim)), dim=[dim + 1], dtype=x.dtype)
