"""Counts by bin. The bins' edges are data or evenly spaced in the range of the data; an element is compared with all of
them, so that it falls where the op's own search of the edges puts it, rounded edges included."""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.support.operands import cast, constant, ramp

RULES = Rules(level="exact")
register = RULES.register


@register(aten.histogram)
def histogram(
    x: Tensor,
    bins: int = 100,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> tuple[Tensor, Tensor]:
    """The weight in each of the even bins of a range, that of the data if none is given. Exactly the op."""
    if not isinstance(bins, int):
        return decline("the bins are data")
    flat = x.reshape(-1)
    edges = _even_edges(flat, bins, range)
    return _counted([flat], [edges], weight, density), edges


@register(aten.histogram)
def histogram_of_edges(
    x: Tensor, bins: Tensor, weight: Tensor | None = None, density: bool = False
) -> tuple[Tensor, Tensor]:
    """The weight between each two edges; the last bin holds its right edge. Exactly the op."""
    if isinstance(bins, int):
        return decline("the bins are even")
    edges = bins.clone()
    return _counted([x.reshape(-1)], [edges], weight, density), edges


@register(aten.histogramdd)
def histogramdd(
    x: Tensor, bins: Any, range: Sequence[float] | None = None, weight: Tensor | None = None, density: bool = False
) -> tuple[Tensor, list[Tensor]]:
    """The weight in each cell of a grid over the last dimension. Exactly the op."""
    columns = [x.select(-1, d).reshape(-1) for d in _range(x.shape[-1])]
    sizes = [bins] * len(columns) if isinstance(bins, int) else list(bins)
    edges = [
        (
            _even_edges(column, size, None if range is None else range[2 * d : 2 * d + 2])
            if isinstance(size, int)
            else size.clone()
        )
        for d, (column, size) in enumerate(zip(columns, sizes))
    ]
    return _counted(columns, edges, weight, density), edges


_range = range
"""The builtin, which an argument of the op hides."""


def _even_edges(x: Tensor, bins: int, limits: Sequence[float] | None) -> Tensor:
    """bins + 1 edges from the lower to the upper limit, or from the least to the greatest element; half a unit to both
    sides where these are one."""
    if limits is not None:
        low, high = (limits[0], limits[1]) if limits[0] != limits[1] else (limits[0] - 0.5, limits[1] + 0.5)
        return torch.linspace(low, high, bins + 1, dtype=x.dtype, device=x.device)
    if isinstance(x.shape[0], int) and x.shape[0] == 0:
        return torch.linspace(0, 1, bins + 1, dtype=x.dtype, device=x.device)
    data = x.detach()
    low, high = torch.amin(data, [0]), torch.amax(data, [0])
    spread = torch.where(torch.eq(low, high), constant(x, 0.5), constant(x, 0.0))
    return torch.linspace(low - spread, high + spread, bins + 1, dtype=x.dtype, device=x.device)


def _counted(columns: Sequence[Tensor], edges: Sequence[Tensor], weight: Tensor | None, density: bool) -> Tensor:
    """The weight in each cell; divided by all of it and by the cell's volume for a density."""
    sizes = [edge.shape[0] - 1 for edge in edges]
    hits = _hits(columns, edges, sizes)
    like = columns[0]
    if weight is None:
        counts = cast(torch.sum(hits, dim=[0], dtype=torch.int64), like.dtype)
    else:
        weight = cast(weight, like.dtype).reshape(-1, 1)
        counts = torch.sum(torch.where(hits, weight, constant(weight, 0)), dim=[0])
    counts = counts.reshape(sizes)
    if not density:
        return counts
    counts = counts / torch.sum(counts)
    for d, edge in enumerate(edges):
        widths = edge.narrow(0, 1, sizes[d]) - edge.narrow(0, 0, sizes[d])
        counts = counts / widths.view([-1 if k == d else 1 for k in range(len(sizes))])
    return counts


def _hits(columns: Sequence[Tensor], edges: Sequence[Tensor], sizes: Sequence[Any]) -> Tensor:
    """Whether an element, of one row each, is in a cell, the cells in row-major order."""
    if len(columns) == 1:
        return _between(columns[0], edges[0], sizes[0])
    number, inside = None, None
    for column, edge, size in zip(columns, edges, sizes):
        hit = _between(column, edge, size)
        place = torch.sum(torch.where(hit, ramp(column, size), 0), dim=[1], keepdim=True, dtype=torch.int64)
        within = torch.any(hit, 1, keepdim=True)
        number = place if number is None else number * size + place
        inside = within if inside is None else inside & within
    return torch.eq(number, ramp(columns[0], math.prod(sizes))) & inside


def _between(column: Tensor, edge: Tensor, size: Any) -> Tensor:
    """Whether an element is at or after a left edge and before the right one, which is in the last bin."""
    column = column.detach().unsqueeze(1)
    left, right = edge.narrow(0, 0, size), edge.narrow(0, 1, size)
    last = torch.eq(ramp(edge, size), size - 1) & torch.eq(column, right)
    return torch.ge(column, left) & (torch.lt(column, right) | last)
