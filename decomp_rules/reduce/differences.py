"""Calculus on samples: integrals by the trapezoidal rule and slopes by differences of second order, evenly spaced or
between given places. Formulas: B. Fornberg, Math. Comp. 51 (1988) 699–706, for three points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.support.operands import cast, is_scalar, wide, wrap

RULES = Rules(level="exact")
register = RULES.register


@register(aten.trapezoid, aten.trapz)
def trapezoid_even(y: Tensor, dx: Any = 1, dim: int = -1) -> Tensor:
    """h · (Σy − (y₀ + yₙ) / 2). As the op."""
    dim = wrap(dim, y.dim())
    if _is_empty(y, dim):
        return _zeros_without(y, dim)
    total = torch.sum(wide(y), [dim], dtype=_sum_dtype(y))
    ends = wide(y.select(dim, 0)) + wide(y.select(dim, y.shape[dim] - 1))
    return cast((total - ends * 0.5) * dx, _result_dtype(y))


@register(aten.trapezoid, aten.trapz)
def trapezoid(y: Tensor, x: Tensor, dim: int = -1) -> Tensor:
    """Σ (xᵢ₊₁ − xᵢ) (yᵢ + yᵢ₊₁) / 2. As the op."""
    dim = wrap(dim, y.dim())
    if _is_empty(y, dim):
        return _zeros_without(y, dim)
    areas = _double_areas(y, x, dim)
    return cast(torch.sum(areas, [dim + areas.dim() - y.dim()], dtype=_sum_dtype(areas)) / 2, _result_dtype(y, x))


@register(aten.cumulative_trapezoid)
def cumulative_trapezoid_even(y: Tensor, dx: Any = 1, dim: int = -1) -> Tensor:
    """Running sums of h · (yᵢ + yᵢ₊₁) / 2. As the op."""
    dim = wrap(dim, y.dim())
    before, after = _neighbours(wide(y), dim)
    return cast(torch.cumsum((before + after) * (dx / 2), dim), _result_dtype(y))


@register(aten.cumulative_trapezoid)
def cumulative_trapezoid(y: Tensor, x: Tensor, dim: int = -1) -> Tensor:
    """Running sums of (xᵢ₊₁ − xᵢ) (yᵢ + yᵢ₊₁) / 2. As the op."""
    dim = wrap(dim, y.dim())
    areas = _double_areas(y, x, dim)
    return cast(torch.cumsum(areas / 2, dim + areas.dim() - y.dim()), _result_dtype(y, x))


def _double_areas(y: Tensor, x: Tensor, dim: int) -> Tensor:
    """(xᵢ₊₁ − xᵢ) (yᵢ + yᵢ₊₁); places in one line stand along `dim`."""
    if x.dim() == 1 and y.dim() > 1:
        x = x.view([-1 if d == dim else 1 for d in range(y.dim())])
    low, high = _neighbours(wide(x), dim + x.dim() - y.dim())
    before, after = _neighbours(wide(y), dim)
    return (high - low) * (before + after)


def _neighbours(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """All elements but the last, and all but the first."""
    count = x.shape[dim] - 1
    count = max(count, 0) if isinstance(count, int) else count
    return x.narrow(dim, 0, count), x.narrow(dim, x.shape[dim] - count, count)


def _is_empty(x: Tensor, dim: int) -> bool:
    return isinstance(x.shape[dim], int) and x.shape[dim] == 0


def _zeros_without(x: Tensor, dim: int) -> Tensor:
    shape = [size for d, size in enumerate(x.shape) if d != dim]
    return torch.full(shape, 0, dtype=x.dtype, device=x.device)


def _sum_dtype(x: Tensor) -> torch.dtype | None:
    return wide(x).dtype if x.is_floating_point() else None


def _result_dtype(*operands: Tensor) -> torch.dtype:
    """The dtype that they promote to; the default dtype if that is an integer."""
    dtype = operands[0].dtype
    for operand in operands[1:]:
        dtype = torch.promote_types(dtype, operand.dtype)
    return dtype if dtype.is_floating_point or dtype.is_complex else torch.get_default_dtype()


@register(aten.gradient)
def gradient(x: Tensor, spacing: Any = None, dim: Any = None, edge_order: int = 1) -> tuple[Tensor, ...]:
    """Slopes along each dimension: (yᵢ₊₁ − yᵢ₋₁) / 2h inside, or the three-point formula between uneven places; at the
    ends of first or second order. As the op."""
    dims = list(range(x.dim())) if dim is None else [dim] if isinstance(dim, int) else list(dim)
    steps = list(spacing) if isinstance(spacing, (list, tuple)) else [1 if spacing is None else spacing] * len(dims)
    if len(steps) != len(dims):
        return decline("there are not as many spacings as dimensions")
    return tuple(_slope(x, wrap(d, x.dim()), step, edge_order) for d, step in zip(dims, steps))


def _slope(x: Tensor, dim: int, step: Any, edge_order: int) -> Tensor:
    """The slope along one dimension, `step` apart or at the places that it holds."""
    even = is_scalar(step)
    dtype = _result_dtype(x) if even else _result_dtype(x, step)
    gaps, x = step if even else _gaps(wide(step), dim, x.dim()), wide(x)
    parts = [_first_edge(x, gaps, dim, edge_order), *_inside(x, gaps, dim), _last_edge(x, gaps, dim, edge_order)]
    return torch.cat([cast(part, dtype) for part in parts], dim)


def _gaps(places: Tensor, dim: int, rank: int) -> Tensor:
    gaps = torch.narrow(places, 0, 1, places.shape[0] - 1) - torch.narrow(places, 0, 0, places.shape[0] - 1)
    return gaps.view([-1 if d == dim else 1 for d in range(rank)])


def _inside(y: Tensor, gaps: Any, dim: int) -> list[Tensor]:
    """The slopes at all places but the first and the last, if there are such."""
    count = y.shape[dim] - 2
    if isinstance(count, int) and count == 0:
        return []
    before, here, after = (y.narrow(dim, start, count) for start in (0, 1, 2))
    if is_scalar(gaps):
        return [(after - before) / (2 * gaps)]
    left, right = gaps.narrow(dim, 0, count), gaps.narrow(dim, 1, count)
    return [_weighted((before, here, after), _central(left, right))]


def _central(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weights of the slope in the middle of three places."""
    both = left + right
    return -right / (left * both), (right - left) / (left * right), left / (right * both)


def _first_edge(y: Tensor, gaps: Any, dim: int, order: int) -> Tensor:
    first, second = y.narrow(dim, 0, 1), y.narrow(dim, 1, 1)
    if order == 1:
        return (second - first) / (gaps if is_scalar(gaps) else gaps.narrow(dim, 0, 1))
    third = y.narrow(dim, 2, 1)
    if is_scalar(gaps):
        return _weighted((first, second, third), (-1.5 / gaps, 2 / gaps, -0.5 / gaps))
    left, right = gaps.narrow(dim, 0, 1), gaps.narrow(dim, 1, 1)
    return _weighted((first, second, third), _one_sided(left, right))


def _last_edge(y: Tensor, gaps: Any, dim: int, order: int) -> Tensor:
    size = y.shape[dim]
    last, second = y.narrow(dim, size - 1, 1), y.narrow(dim, size - 2, 1)
    if order == 1:
        return (last - second) / (gaps if is_scalar(gaps) else gaps.narrow(dim, size - 2, 1))
    third = y.narrow(dim, size - 3, 1)
    if is_scalar(gaps):
        return _weighted((third, second, last), (0.5 / gaps, -2 / gaps, 1.5 / gaps))
    left, right = gaps.narrow(dim, size - 3, 1), gaps.narrow(dim, size - 2, 1)
    weights = [-weight for weight in _one_sided(right, left)]
    return _weighted((third, second, last), weights[::-1])


def _one_sided(near: Tensor, far: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weights of the slope at the first of three places."""
    both = near + far
    return -(near + both) / (near * both), both / (near * far), -near / (far * both)


def _weighted(values: Sequence[Tensor], weights: Sequence[Any]) -> Tensor:
    products = [value * weight for value, weight in zip(values, weights)]
    return products[0] + products[1] + products[2]
