"""Sampling an image or a volume at places that a grid gives: `grid_sampler`, its gradient, and affine grids.

Along each dimension a place has taps (one for nearest, two for linear, four for cubic interpolation), each with the
index of its element, whether that lies inside, its weight, and the slope of the weight. A value is the sum over all
choices of one tap a dimension; its gradients are the same sum with the roles changed. Of an element outside an image
the kernels take 0 with its weight, which may be NaN; one outside a volume they leave out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
import functools
import itertools
import operator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.support.operands import cast, wide

RULES = Rules(level="exact")
register = RULES.register

BILINEAR, NEAREST, BICUBIC = range(3)
ZEROS, BORDER, REFLECTION = range(3)


@dataclass(frozen=True, slots=True)
class Tap:
    """One element along one dimension for every place of the grid: tensors of (N, places)."""

    index: Tensor
    inside: Tensor
    weight: Tensor
    slope: Tensor
    """The derivative of the weight by the place."""


@register(F.grid_sample)
def grid_sample(
    input: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool | None = None
) -> Tensor:
    """`grid_sampler`, with names for numbers."""
    return torch.grid_sampler(
        input,
        grid,
        ("bilinear", "nearest", "bicubic").index(mode),
        ("zeros", "border", "reflection").index(padding_mode),
        bool(align_corners),
    )


@register(aten.grid_sampler)
def grid_sampler(x: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Tensor:
    """The kernel for images or for volumes."""
    kernel = aten.grid_sampler_2d if x.dim() == 4 else aten.grid_sampler_3d
    return kernel(x, grid, interpolation_mode, padding_mode, align_corners)


@register(aten.grid_sampler_2d, aten.grid_sampler_3d)
def grid_sampler_nd(x: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Tensor:
    """y[p] = Σ over the taps of weight · x[index]; x (N, C, *S), grid (N, *P, dims) → (N, C, *P)."""
    if interpolation_mode == BICUBIC and x.dim() == 5:
        return decline("bicubic sampling is for images")
    taps, _ = _taps(grid, x.shape[2:], interpolation_mode, padding_mode, align_corners)
    flat, total = wide(x).flatten(2), None
    for choice in itertools.product(*taps):
        weight = _product(tap.weight for tap in choice).unsqueeze(1)
        term = _weighted(flat, choice, x.shape[2:], weight)
        total = term if total is None else total + term
    assert total is not None
    return cast(total.reshape([*x.shape[:2], *grid.shape[1:-1]]), x.dtype)


@register(aten.grid_sampler_2d_backward, aten.grid_sampler_3d_backward)
def grid_sampler_backward(
    grad_output: Tensor,
    x: Tensor,
    grid: Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None]:
    """dx[index] += weight · dy; dgrid = Σ over the taps of slope · Σ over channels of x[index] · dy."""
    if not isinstance(grid.shape[-1], int):
        return decline("the number of coordinates of a place is not known")
    sizes, dims = x.shape[2:], x.dim() - 2
    taps, factors = _taps(grid, sizes, interpolation_mode, padding_mode, align_corners)
    grad, flat = wide(grad_output).flatten(2), wide(x).flatten(2)
    grad_x, parts = torch.zeros_like(flat), []
    for choice in itertools.product(*taps):
        if output_mask[0]:
            part = grad * _product(tap.weight for tap in choice).unsqueeze(1)
            part = torch.where(_inside(choice).unsqueeze(1), part, torch.zeros_like(part))
            index = _flat_index(choice, sizes).unsqueeze(1).expand(grad.shape)
            grad_x = grad_x.scatter_add(-1, index, part)
        if output_mask[1]:
            changes = [_product(t.slope if j == i else t.weight for j, t in enumerate(choice)) for i in range(dims)]
            parts.append(_changed(flat, choice, sizes, grad, changes))
    grad_grid = None
    if output_mask[1]:
        slopes = [functools.reduce(operator.add, of_one) for of_one in zip(*parts)]
        slopes = [(slope * grad).sum(1) for slope in slopes] if dims == 2 else slopes
        columns = torch.stack([slope * factor for slope, factor in zip(reversed(slopes), reversed(factors))], -1)
        grad_grid = cast(columns.reshape(grid.shape), grid.dtype)
    return cast(grad_x.reshape(x.shape), x.dtype) if output_mask[0] else None, grad_grid


def _changed(
    flat: Tensor, choice: Sequence[Tap], sizes: Sequence[Any], grad: Tensor, changes: Sequence[Tensor]
) -> list[Tensor]:
    """The contribution of one element to the gradient of each place through its weight; for an image by channel, and
    multiplied by dy at the end, as in the kernels."""
    if len(sizes) == 2:
        return [_weighted(flat, choice, sizes, change.unsqueeze(1)) for change in changes]
    share, inside = _weighted(flat, choice, sizes, grad).sum(1), _inside(choice)
    return [torch.where(inside, share * change, torch.zeros_like(share)) for change in changes]


def _taps(
    grid: Tensor, sizes: Sequence[Any], interpolation: int, padding: int, align_corners: bool
) -> tuple[list[list[Tap]], list[Tensor]]:
    """The taps along each dimension of the image, and the derivative of the place in it by the grid."""
    wider = wide(grid).flatten(1, -2)
    taps, factors = [], []
    for i, size in enumerate(sizes):
        scale = (size - 1) / 2 if align_corners else size / 2
        place = (wider.select(-1, len(sizes) - 1 - i) + 1) * scale - (0 if align_corners else 0.5)
        factor = torch.full_like(place, scale)
        if interpolation != BICUBIC:
            place, slope = _kept_inside(place, size, padding, align_corners, len(sizes))
            factor = factor * slope
        make = (_linear_taps, _nearest_taps, _cubic_taps)[interpolation]
        taps.append(make(place, lambda at, size=size: _kept_inside(at, size, padding, align_corners)[0], size))
        factors.append(factor)
    return taps, factors


def _kept_inside(place: Tensor, size: Any, padding: int, align_corners: bool, dims: int = 2) -> tuple[Tensor, Tensor]:
    """The place that replaces one outside, and its derivative: 0 where the edge does, −1 in a mirror. For NaN the
    first element of an image, and the last of a volume."""
    one, zero = torch.ones_like(place), torch.zeros_like(place)
    if padding == ZEROS:
        return place, one
    slope = one
    if padding == REFLECTION:
        place, slope = _mirrored(place, size, align_corners)
    within = (place > 0) & (place < size - 1)
    if dims == 2:
        kept = torch.where(place > 0, torch.where(place < size - 1, place, size - 1), zero)
    else:
        kept = torch.where(place < size - 1, torch.where(place > 0, place, zero), size - 1)
    return kept, torch.where(within, slope, zero)


def _mirrored(place: Tensor, size: Any, align_corners: bool) -> tuple[Tensor, Tensor]:
    """The place folded between the outer elements (`align_corners`) or the outer edges, and its derivative."""
    one = torch.ones_like(place)
    low, span = (0.0, size - 1) if align_corners else (-0.5, size)
    if align_corners and size == 1:
        return place * 0, one * 0
    turn = (place - low) - torch.floor((place - low) / (2 * span)) * (2 * span)
    back = turn > span
    return torch.where(back, 2 * span - turn, turn) + low, torch.where(back, -one, one)


Keep = Callable[[Tensor], Tensor]


def _tap(at: Tensor, size: Any, weight: Tensor, slope: Tensor) -> Tap:
    index = torch.where(at > 0, at.clamp(max=size - 1), torch.zeros_like(at))  # 0 for NaN
    return Tap(cast(index, torch.int64), (at >= 0) & (at <= size - 1), weight, slope)


def _linear_taps(place: Tensor, keep: Keep, size: Any) -> list[Tap]:
    """1 − t and t."""
    low, one = torch.floor(place), torch.ones_like(place)
    t = place - low
    return [_tap(low, size, 1 - t, -one), _tap(low + 1, size, t, one)]


def _nearest_taps(place: Tensor, keep: Keep, size: Any) -> list[Tap]:
    """One tap, at the nearest even element where two are as near."""
    return [_tap(torch.round(place), size, torch.ones_like(place), torch.zeros_like(place))]


def _cubic_taps(place: Tensor, keep: Keep, size: Any) -> list[Tap]:
    """Cubic convolution with a = −¾; padding applies to each of the four elements."""
    a, low = -0.75, torch.floor(place)
    t = place - low
    taps = []
    for k in (-1, 0, 1, 2):
        s = t - k if k < 1 else k - t
        sign = 1 if k < 1 else -1
        if k in (0, 1):
            weight, slope = ((a + 2) * s - (a + 3)) * s * s + 1, (3 * (a + 2) * s - 2 * (a + 3)) * s
        else:
            weight, slope = ((a * s - 5 * a) * s + 8 * a) * s - 4 * a, (3 * a * s - 10 * a) * s + 8 * a
        taps.append(_tap(keep(low + k), size, weight, slope * sign))
    return taps


def _product(factors: Iterator[Tensor]) -> Tensor:
    return functools.reduce(operator.mul, factors)


def _inside(choice: Sequence[Tap]) -> Tensor:
    inside = choice[0].inside
    for tap in choice[1:]:
        inside = inside & tap.inside
    return inside


def _flat_index(choice: Sequence[Tap], sizes: Sequence[Any]) -> Tensor:
    """The index in the flattened image: (N, places)."""
    index = choice[0].index
    for tap, size in zip(choice[1:], sizes[1:]):
        index = index * size + tap.index
    return index


def _weighted(flat: Tensor, choice: Sequence[Tap], sizes: Sequence[Any], weight: Tensor) -> Tensor:
    """x at the taps, zero outside, times a weight: (N, C, places)."""
    index = _flat_index(choice, sizes).unsqueeze(1)
    value = flat.gather(-1, index.expand(flat.shape[0], flat.shape[1], index.shape[2]))
    inside = _inside(choice).unsqueeze(1)
    if len(sizes) == 2:
        return torch.where(inside, value, torch.zeros_like(value)) * weight
    value = value * weight
    return torch.where(inside, value, torch.zeros_like(value))


@register(aten.affine_grid_generator)
def affine_grid_generator(theta: Tensor, size: Sequence[Any], align_corners: bool) -> Tensor:
    """The places θ · (x, y[, z], 1) of a regular grid from −1 to 1: (N, *S, dims)."""
    if theta.dtype == torch.uint8:
        return decline("there are negative places")
    base = _base_grid(theta, size, align_corners)
    out = torch.bmm(base.expand([size[0], *base.shape]), theta.transpose(1, 2))
    return out.reshape([size[0], *size[2:], len(size) - 2])


@register(aten.affine_grid_generator_backward)
def affine_grid_generator_backward(grad: Tensor, size: Sequence[Any], align_corners: bool) -> Tensor:
    """dθ = Σ over the places of dy ⊗ (x, y[, z], 1)."""
    if grad.dtype == torch.uint8:
        return decline("there are negative places")
    base = _base_grid(grad, size, align_corners)
    return torch.bmm(grad.flatten(1, -2).transpose(1, 2), base.expand([size[0], *base.shape]))


def _base_grid(like: Tensor, size: Sequence[Any], align_corners: bool) -> Tensor:
    """(x, y[, z], 1) of each place: (places, dims + 1)."""
    sides, dims = list(size[2:]), len(size) - 2
    columns = []
    for i in reversed(range(dims)):
        n = sides[i]
        steps = torch.arange(
            n, dtype=torch.float64 if like.dtype == torch.float64 else torch.float32, device=like.device
        )
        line = steps * (2 / (n - 1) if n > 1 else 0) - (1 if n > 1 else 0) if align_corners else (2 * steps + 1) / n - 1
        columns.append(line.reshape([-1 if j == i else 1 for j in range(dims)]).expand(sides).flatten())
    columns.append(torch.ones_like(columns[0]))
    return cast(torch.stack(columns, -1), like.dtype)
