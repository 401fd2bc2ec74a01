"""Reductions by index and by segment, and the places of nonzero elements where their number is given."""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.support.operands import cast, constant, ramp, wide, wrap

RULES = Rules(level="exact")
register = RULES.register


@register(aten.index_reduce)
def index_reduce(x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool = True) -> Tensor:
    """scatter_reduce with the same index for all of a slice. Exactly the op."""
    if not x.dim():
        line = index_reduce(x.view(1), 0, index.reshape(-1), source.reshape(-1), reduce, include_self)
        return line.view([])
    dim = wrap(dim, x.dim())
    along = index.reshape(-1).view([-1 if d == dim else 1 for d in range(x.dim())])
    return torch.scatter_reduce(x, dim, along.expand(source.shape), source, reduce, include_self=include_self)


@register(aten.segment_reduce)
def segment_reduce(
    data: Tensor,
    reduce: str,
    lengths: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Any = None,
) -> Tensor:
    """The reduction of each run of elements along one dimension, others masked; where runs end is data. As the op."""
    if reduce not in _NEUTRAL:
        return decline(f"no reduction {reduce!r}")
    if offsets is None:
        if lengths is None:
            return decline("neither lengths nor offsets are given")
        ends = torch.cumsum(lengths, -1)
        starts = ends - lengths
    else:
        count = offsets.shape[-1] - 1
        starts, ends = offsets.narrow(-1, 0, count), offsets.narrow(-1, 1, count)
    axis = wrap(axis, data.dim())
    number = ramp(data, data.shape[axis], axis + 1, axis + 2, starts.dtype)
    inside = torch.ge(number, starts.unsqueeze(-1)) & torch.lt(number, ends.unsqueeze(-1))
    inside = inside.reshape([*inside.shape, *[1] * (data.dim() - axis - 1)])
    chosen = torch.where(inside, wide(data).unsqueeze(axis), constant(wide(data), _NEUTRAL[reduce]))
    sizes = torch.sum(inside, dim=[axis + 1], dtype=torch.int64)
    return cast(_reduced(reduce, chosen, axis + 1, cast(sizes, chosen.dtype), initial), data.dtype)


_NEUTRAL = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}


def _reduced(reduce: str, chosen: Tensor, dim: int, sizes: Tensor, initial: Any) -> Tensor:
    """The reduction over `dim` and an initial value, which takes no part of the gradient."""
    if reduce in ("sum", "mean"):
        total = torch.sum(chosen, dim=[dim])
        total = total if initial is None else total + initial
        if reduce == "sum":
            return total
        if initial is None:
            return total / sizes
        return total / torch.where(torch.eq(sizes, 0), constant(sizes, 1), sizes)
    if reduce == "prod":
        product = torch.prod(chosen, dim)
        return product if initial is None else product * initial
    extreme = torch.amax(chosen, [dim]) if reduce == "max" else torch.amin(chosen, [dim])
    if initial is None:
        return extreme
    bound = constant(extreme, initial)
    return torch.where(torch.lt(extreme, bound) if reduce == "max" else torch.lt(bound, extreme), bound, extreme)


@register(aten.nonzero_static)
def nonzero_static(x: Tensor, size: Any, fill_value: int = -1) -> Tensor:
    """The indices of the first `size` elements that are not zero, in rows; `fill_value` where there are fewer."""
    flat = torch.ne(x.reshape(-1), 0) if x.dtype != torch.bool else x.reshape(-1)
    if not x.dim():
        return torch.full([size, 0], fill_value, dtype=torch.int64, device=x.device)
    if 0 in [length for length in x.shape if isinstance(length, int)]:
        return torch.full([size, x.dim()], fill_value, dtype=torch.int64, device=x.device)
    rank = torch.cumsum(flat.to(torch.int64), 0) - 1
    here = torch.eq(rank, ramp(x, size, 0, 2)) & flat
    place = torch.sum(torch.where(here, ramp(x, flat.shape[0], 1, 2), 0), dim=[1], dtype=torch.int64)
    columns = torch.stack(_coordinates(place, x.shape), 1)
    return torch.where(torch.any(here, 1, keepdim=True), columns, constant(columns, fill_value))


def _coordinates(place: Tensor, shape: Sequence[Any]) -> list[Tensor]:
    """The index of a row-major place in each dimension."""
    found = []
    for length in reversed(shape[1:]):
        found.append(torch.remainder(place, length))
        place = torch.div(place, length, rounding_mode="floor")
    return [place, *reversed(found)]
