"""The largest and the least along a dimension, and where they are, at the level standard: the value is a reduction of
its own, which an index costs nothing that nobody reads. NaN is the largest and the least. Elements that tie share the
gradient, as in amax and amin."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.creation.factories import TABLED
from decomp_rules.support.operands import wrap

RULES = Rules(level="standard")
register = RULES.register


@register(aten.max)
def max_dim_by_amax(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """amax and argmax. Exact."""
    if not x.dim() or x.dtype == torch.bool:
        return decline("a number has no dimension, and conditions no argmax")
    return torch.amax(x, [dim], keepdim), torch.argmax(x, dim, keepdim)


@register(aten.min)
def min_dim_by_amin(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """amin and argmin. Exact."""
    if not x.dim() or x.dtype == torch.bool:
        return decline("a number has no dimension, and conditions no argmin")
    return torch.amin(x, [dim], keepdim), torch.argmin(x, dim, keepdim)


@register(aten.argmax)
def argmax_by_negative(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """−max −i over the places i of what no element exceeds, or of NaN: the first of them. Exact."""
    return _place(x, x, dim, keepdim)


@register(aten.argmin)
def argmin_by_negative(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """argmax in reversed order: of −x, or of ¬x if it is not a float. Exact."""
    return _place(x, torch.neg(x) if x.is_floating_point() else torch.bitwise_not(x), dim, keepdim)


def _place(x: Tensor, key: Tensor, dim: int | None, keepdim: bool) -> Tensor:
    if dim is None and x.dim() > 1:
        found = _place(x.reshape(-1), key.reshape(-1), 0, keepdim=False)
        return found.view([1] * x.dim()) if keepdim else found
    if not x.dim() or type(x.shape[dim or 0]) is not int or not 0 < x.shape[dim or 0] <= TABLED:
        return decline(f"no dimension of a known size up to {TABLED:,}")
    dim = wrap(dim or 0, x.dim())
    key = key.to(torch.int32) if x.dtype == torch.bool else key
    most = torch.amax(key, [dim], keepdim=True)
    less = torch.lt(torch.ne(key, key), torch.ne(key, most)) if x.is_floating_point() else torch.lt(key, most)
    length = x.shape[dim]
    places: Any = [-i for i in range(length)]
    for _ in range(x.dim() - dim - 1):
        places = [[place] for place in places]
    table = torch.tensor(places, dtype=torch.int64, device=x.device)
    return torch.neg(torch.amax(torch.where(less, -length, table), [dim], keepdim))
