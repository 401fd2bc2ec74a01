"""Movement: ops that neither change nor combine values, down to view, permute, expand, slice, pad, flip and stack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import math
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.support.operands import same_size, view_or_copy, wrap

RULES = Rules(level="exact")
register = RULES.register


@register(aten.reshape)
def reshape(x: Tensor, shape: Sequence[Any]) -> Tensor:
    """The same elements in row-major order in another shape, in which one −1 is inferred."""
    return view_or_copy(x, _inferred(x, shape))


@register(aten._unsafe_view, aten._reshape_alias, aten._reshape_copy, aten.view_copy)
def unsafe_view(x: Tensor, size: Sequence[Any], stride: Any = None) -> Tensor:
    """reshape."""
    return view_or_copy(x, _inferred(x, size))


def _inferred(x: Tensor, shape: Sequence[Any]) -> list[Any]:
    shape = list(shape)
    unknown = [i for i, size in enumerate(shape) if type(size) is int and size == -1]
    if unknown:
        known = math.prod(size for i, size in enumerate(shape) if i != unknown[0])
        shape[unknown[0]] = x.numel() // known
    return shape


@register(aten.view_as, aten.reshape_as)
def view_as(x: Tensor, other: Tensor) -> Tensor:
    """x in the shape of other."""
    return view_or_copy(x, other.shape)


@register(aten.flatten)
def flatten(x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """The dimensions from start to end as one."""
    if x.dim() == 0:
        return x.view(1)
    first, last = wrap(start_dim, x.dim()), wrap(end_dim, x.dim())
    if first == last:
        return x
    shape = list(x.shape)
    return view_or_copy(x, shape[:first] + [math.prod(shape[first : last + 1])] + shape[last + 1 :])


@register(aten.ravel)
def ravel(x: Tensor) -> Tensor:
    """All elements in row-major order."""
    return view_or_copy(x, [x.numel()])


@register(aten.unflatten)
def unflatten(x: Tensor, dim: int, sizes: Sequence[Any]) -> Tensor:
    """One dimension as several."""
    dim = wrap(dim, x.dim())
    shape, sizes = list(x.shape), list(sizes)
    if -1 in [size for size in sizes if type(size) is int]:
        sizes[sizes.index(-1)] = shape[dim] // math.prod(size for size in sizes if size != -1)
    return view_or_copy(x, shape[:dim] + sizes + shape[dim + 1 :])


@register(aten.unsqueeze, aten.unsqueeze_copy)
def unsqueeze(x: Tensor, dim: int) -> Tensor:
    """A view with a dimension of size one at `dim`."""
    shape = list(x.shape)
    shape.insert(wrap(dim, x.dim() + 1), 1)
    return x.view(shape)


@register(aten.squeeze, aten.squeeze_copy)
def squeeze(x: Tensor, dim: Any = None) -> Tensor:
    """A view without the dimensions of size one, of all or of those given."""
    rank = x.dim()
    dims = range(rank) if dim is None else [dim] if isinstance(dim, int) else dim
    asked = {wrap(d, rank) for d in dims}
    kept = [size for i, size in enumerate(x.shape) if i not in asked or size != 1]
    return x if len(kept) == rank else x.view(kept)


@register(aten.transpose, aten.transpose_copy)
def transpose(x: Tensor, first: int, second: int) -> Tensor:
    """permute, two dimensions exchanged."""
    order = list(range(x.dim()))
    if order:
        order[first], order[second] = order[second], order[first]
    return x.permute(order)


@register(aten.t, aten.t_copy, aten.numpy_T)
def t(x: Tensor) -> Tensor:
    """permute, all dimensions reversed."""
    return x.permute(list(range(x.dim()))[::-1])


@register(aten.mT)
def matrix_transpose(x: Tensor) -> Tensor:
    """permute, the last two dimensions exchanged. A tensor without dimensions is its own transpose."""
    return torch.transpose(x, -2, -1) if x.dim() else x


@register(aten.adjoint, aten.mH)
def adjoint(x: Tensor) -> Tensor:
    """The conjugate of the transpose, which of a real matrix is its transpose."""
    return decline("only real inputs") if x.is_complex() else matrix_transpose(x)


@register(aten.matrix_H)
def matrix_h(x: Tensor) -> Tensor:
    """The conjugate of the transpose, which of a real matrix is its transpose."""
    return decline("only real inputs") if x.is_complex() else t(x)


@register(aten.movedim)
def movedim(x: Tensor, source: Any, destination: Any) -> Tensor:
    """permute, the sources put at the destinations and the rest kept in order."""
    rank = x.dim()
    sources = [wrap(d, rank) for d in ([source] if isinstance(source, int) else source)]
    targets = [wrap(d, rank) for d in ([destination] if isinstance(destination, int) else destination)]
    if not rank:
        return x
    placed = dict(zip(targets, sources))
    rest = iter(d for d in range(rank) if d not in sources)
    return x.permute([placed[d] if d in placed else next(rest) for d in range(rank)])


@register(aten.permute_copy)
def permute_copy(x: Tensor, dims: Sequence[int]) -> Tensor:
    """permute."""
    return x.permute(dims)


@register(aten.expand_as)
def expand_as(x: Tensor, other: Tensor) -> Tensor:
    """expand to the shape of other."""
    return x.expand(other.shape)


@register(aten.broadcast_to, aten.expand_copy)
def broadcast_to(x: Tensor, size: Sequence[Any]) -> Tensor:
    """expand."""
    return x.expand(size)


@register(aten.broadcast_tensors)
def broadcast_tensors(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Each tensor expanded to the shape of all, or itself if it has that shape: a view made under `no_grad` would get
    no gradient."""
    shape = torch.broadcast_shapes(*(x.shape for x in tensors))
    fits = (x.dim() == len(shape) and all(map(same_size, x.shape, shape)) for x in tensors)
    return tuple(x if fit else x.expand(shape) for x, fit in zip(tensors, fits))


@register(aten.meshgrid)
def meshgrid(tensors: Sequence[Tensor], indexing: str = "ij") -> tuple[Tensor, ...]:
    """Each tensor along a dimension of its own, expanded along those of the others; "xy" exchanges the first two."""
    lines = [x.reshape(-1) for x in tensors]
    rank, swap = len(lines), indexing == "xy" and len(lines) > 1
    places = [1, 0, *range(2, rank)] if swap else list(range(rank))
    shape: list[Any] = [1] * rank
    for line, place in zip(lines, places):
        shape[place] = line.shape[0]
    return tuple(
        line.view([-1 if d == place else 1 for d in range(rank)]).expand(shape) for line, place in zip(lines, places)
    )


@register(aten.atleast_1d)
def atleast_1d(x: Any) -> Any:
    """Each tensor with one dimension or more."""
    return _each(lambda each: each if each.dim() else each.view(1), x)


@register(aten.atleast_2d)
def atleast_2d(x: Any) -> Any:
    """Each tensor with two dimensions or more, a row if it had one."""
    return _each(lambda each: each if each.dim() > 1 else each.view(1, -1), x)


@register(aten.atleast_3d)
def atleast_3d(x: Any) -> Any:
    """Each tensor with three dimensions or more: (1, n, 1) of a line, (n, m, 1) of a matrix."""
    return _each(_three_dimensional, x)


def _three_dimensional(x: Tensor) -> Tensor:
    if x.dim() > 2:
        return x
    return x.unsqueeze(-1) if x.dim() == 2 else x.view(1, -1, 1)


def _each(function: Callable[[Tensor], Tensor], tensors: Any) -> Any:
    return tuple(map(function, tensors)) if isinstance(tensors, (list, tuple)) else function(tensors)


@register(aten.repeat)
def repeat(x: Tensor, repeats: Sequence[Any]) -> Tensor:
    """The whole tensor repeated: a dimension before each is added, expanded and merged."""
    fresh = len(repeats) - x.dim()
    sizes = [1] * fresh + list(x.shape)
    apart = [part for size in sizes for part in (1, size)]
    spread = [part for count, size in zip(repeats, sizes) for part in (count, size)]
    merged = [count * size for count, size in zip(repeats, sizes)]
    return view_or_copy(x, apart).expand(spread).reshape(merged)


@register(aten.tile)
def tile(x: Tensor, dims: Sequence[Any]) -> Tensor:
    """repeat, with ones for the leading dimensions that are not given."""
    return x.repeat([1] * (x.dim() - len(dims)) + list(dims))


@register(aten.repeat_interleave)
def repeat_interleave(x: Tensor, repeats: Any, dim: int | None = None, output_size: Any = None) -> Tensor:
    """Each element repeated `repeats` times: a dimension after it is added, expanded and merged."""
    if not isinstance(repeats, (int, torch.SymInt)):
        return decline("the number of repeats is data")
    if dim is None:
        x, dim = x.reshape(-1), 0
    shape = list(x.shape)
    dim = wrap(dim, x.dim())
    spread = shape[: dim + 1] + [repeats] + shape[dim + 1 :]
    merged = shape[:dim] + [shape[dim] * repeats] + shape[dim + 1 :]
    return x.unsqueeze(dim + 1).expand(spread).reshape(merged)


@register(aten.roll)
def roll(x: Tensor, shifts: Any, dims: Any = ()) -> Tensor:
    """Each dimension cut in two, the end put first."""
    shifts = [shifts] if isinstance(shifts, int) else list(shifts)
    dims = [dims] if isinstance(dims, int) else list(dims)
    if not dims:
        return _rolled(x.reshape(-1), shifts[0], 0).view(x.shape)
    for shift, dim in zip(shifts, dims):
        x = _rolled(x, shift, dim)
    return x


def _rolled(x: Tensor, shift: Any, dim: int) -> Tensor:
    length = x.shape[dim]
    if type(length) is int and length == 0:
        return x
    # A shift by one needs no remainder, which could not be shown to be smaller than a dynamic length.
    cut = {1: length - 1, -1: 1}[shift] if type(shift) is int and shift in (1, -1) else -shift % length
    if type(cut) is int and cut == 0:
        return x
    return torch.cat([x.narrow(dim, cut, length - cut), x.narrow(dim, 0, cut)], dim)


@register(aten.fliplr)
def fliplr(x: Tensor) -> Tensor:
    """flip of the second dimension."""
    return torch.flip(x, [1])


@register(aten.flipud)
def flipud(x: Tensor) -> Tensor:
    """flip of the first dimension."""
    return torch.flip(x, [0])


@register(aten.rot90)
def rot90(x: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """k quarter turns from the first towards the second dimension."""
    first, second = dims
    if k % 4 == 0:
        return x.clone()
    if k % 4 == 2:
        return torch.flip(x, [first, second])
    return torch.transpose(torch.flip(x, [second if k % 4 == 1 else first]), first, second)


@register(aten.pixel_shuffle)
def pixel_shuffle(x: Tensor, upscale_factor: int) -> Tensor:
    """(…, C·r², H, W) to (…, C, H·r, W·r)."""
    r = upscale_factor
    *batch, channels, height, width = x.shape
    rank = len(batch)
    apart = x.reshape([*batch, channels // (r * r), r, r, height, width])
    order = [*range(rank), rank, rank + 3, rank + 1, rank + 4, rank + 2]
    return apart.permute(order).reshape([*batch, channels // (r * r), height * r, width * r])


@register(aten.pixel_unshuffle)
def pixel_unshuffle(x: Tensor, downscale_factor: int) -> Tensor:
    """(…, C, H·r, W·r) to (…, C·r², H, W)."""
    r = downscale_factor
    *batch, channels, height, width = x.shape
    rank = len(batch)
    apart = x.reshape([*batch, channels, height // r, r, width // r, r])
    order = [*range(rank), rank, rank + 2, rank + 4, rank + 1, rank + 3]
    return apart.permute(order).reshape([*batch, channels * r * r, height // r, width // r])


@register(aten.channel_shuffle, aten.native_channel_shuffle)
def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    """(N, g · C, …): channel c of each group, group by group, becomes the c-th run of g channels."""
    batch, channels, *rest = x.shape
    return x.reshape([batch, groups, channels // groups, *rest]).transpose(1, 2).reshape(x.shape)
