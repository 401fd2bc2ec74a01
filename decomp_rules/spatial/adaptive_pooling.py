"""Adaptive pooling: the size of the output is given, and window i goes from ⌊i·n/m⌋ to ⌈(i + 1)·n/m⌉.

Where m divides n the windows are a view of the input (global pooling above all); elsewhere each is a slice of its own.
If a size is symbolic, windows are not known: each output element then masks the whole dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from decomp import Rules
from decomp.ops import aten
from decomp_rules.spatial.pooling import Window, _maxima, _maxima_along, _places, lowest
from decomp_rules.spatial.windows import every, fit, ntuple, opmath
from decomp_rules.support.operands import along, cast, same_size

RULES = Rules(level="exact")
register = RULES.register


def _sizes(x: Tensor, output_size: Any, dims: int) -> list[Any]:
    """The size of the output in the last `dims` dimensions; None keeps that of the input."""
    return [n if m is None else m for m, n in zip(ntuple(output_size, dims), x.shape[-dims:])]


def _bounds(m: int, n: int) -> list[tuple[int, int]]:
    """Start and length of each window."""
    return [(i * n // m, -(-(i + 1) * n // m) - i * n // m) for i in range(m)]


def _known(*sizes: Any) -> bool:
    """Whether none of these sizes is a symbol."""
    return all(type(size) is int for size in sizes)


def _windows(m: Any, n: Any, dim: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Which elements of dimension `dim` of `like` are in which window, and how many, where sizes are symbols: bool with
    the windows in `dim` and the elements behind it, and int64."""
    rank = like.dim()
    step = torch.arange(m, dtype=torch.int64, device=like.device) * n
    start = torch.div(step, m, rounding_mode="floor")
    end = torch.div(step + (n + m - 1), m, rounding_mode="floor")
    place = along(torch.arange(n, dtype=torch.int64, device=like.device), dim + 1, rank + 1)
    inside = (place >= along(start, dim, rank + 1)) & (place < along(end, dim, rank + 1))
    return inside, along(end - start, dim, rank)


@register(aten.adaptive_avg_pool2d)
def adaptive_avg_pool2d(x: Tensor, output_size: Any) -> Tensor:
    """The mean of the image if the output has one element, else the kernel."""
    sizes = _sizes(x, output_size, 2)
    return x.mean([-2, -1], keepdim=True) if sizes == [1, 1] else aten._adaptive_avg_pool2d(x, sizes)


@register(aten.adaptive_avg_pool3d)
def adaptive_avg_pool3d(x: Tensor, output_size: Any) -> Tensor:
    """The mean of the volume if the output has one element, else the kernel."""
    sizes = _sizes(x, output_size, 3)
    return x.mean([-3, -2, -1], keepdim=True) if sizes == [1, 1, 1] else aten._adaptive_avg_pool3d(x, sizes)


def _average_nd(dims: int) -> Callable[..., Tensor]:
    """The rule of the kernel for `dims` dimensions."""

    def rule(x: Tensor, output_size: Any) -> Tensor:
        """The mean over each window, along one dimension after the other. Half precision computes in float32."""
        out = cast(x, opmath(x.dtype))
        for back, m in enumerate(reversed(_sizes(x, output_size, dims)), 1):
            out = _mean_along(out, out.dim() - back, m)
        return x.clone() if out is x else cast(out, x.dtype)

    rule.__name__ = f"adaptive_avg_pool{dims}d"
    return rule


def _average_backward_nd(dims: int) -> Callable[..., Tensor]:
    """The rule of the kernel's gradient for `dims` dimensions."""

    def rule(grad_output: Tensor, x: Tensor) -> Tensor:
        """dx = Σ over the windows that hold x of dy / their size."""
        grad = cast(grad_output, opmath(grad_output.dtype))
        for back in range(1, dims + 1):
            grad = _spread_mean_along(grad, grad.dim() - back, x.shape[-back])
        return grad.clone() if grad is grad_output else cast(grad, grad_output.dtype)

    rule.__name__ = f"adaptive_avg_pool{dims}d_backward"
    return rule


for _dims, _forward in ((1, aten.adaptive_avg_pool1d), (2, aten._adaptive_avg_pool2d), (3, aten._adaptive_avg_pool3d)):
    register(_forward)(_average_nd(_dims))
for _dims, _backward in ((2, aten._adaptive_avg_pool2d_backward), (3, aten._adaptive_avg_pool3d_backward)):
    register(_backward)(_average_backward_nd(_dims))


def _mean_along(x: Tensor, dim: int, m: Any) -> Tensor:
    n = x.shape[dim]
    if same_size(n, m):
        return x
    if type(m) is int and m == 1:
        return x.mean(dim, keepdim=True)
    if not _known(m, n):
        inside, length = _windows(m, n, dim, x)
        return torch.sum(torch.where(inside, x.unsqueeze(dim), 0.0), [dim + 1]) / cast(length, x.dtype)
    if n % m == 0:
        return x.reshape(list(x.shape[:dim]) + [m, n // m] + list(x.shape[dim + 1 :])).mean(dim + 1)
    return torch.cat([every(x, dim, start, length).mean(dim, keepdim=True) for start, length in _bounds(m, n)], dim)


def _spread_mean_along(grad: Tensor, dim: int, n: Any) -> Tensor:
    """The adjoint of `_mean_along`."""
    m, lead, rest = grad.shape[dim], list(grad.shape[:dim]), list(grad.shape[dim + 1 :])
    if same_size(n, m):
        return grad
    if not _known(m, n):
        inside, length = _windows(m, n, dim, grad)
        share = grad / cast(length, grad.dtype)
        return torch.sum(torch.where(inside, share.unsqueeze(dim + 1), 0.0), [dim])
    if n % m == 0:
        k = n // m
        return (grad / k).unsqueeze(dim + 1).expand(lead + [m, k] + rest).flatten(dim, dim + 1)
    total = None
    for i, (start, length) in enumerate(_bounds(m, n)):
        term = (every(grad, dim, i, 1) / length).expand(lead + [length] + rest)
        term = fit(term, dim, start, n - start - length)
        total = term if total is None else total + term
    assert total is not None
    return total


def _max_nd(dims: int) -> Callable[..., tuple[Tensor, Tensor]]:
    """The rule of adaptive_max_pool1d, 2d or 3d."""

    def rule(x: Tensor, output_size: Any) -> tuple[Tensor, Tensor]:
        """The maximum of each window and its index in the last dimensions, the first of equal ones. Exact."""
        sizes = _sizes(x, output_size, dims)
        if not _known(*sizes, *x.shape[-dims:]):
            return _maxima_somewhere(x, sizes)
        if all(n % m == 0 for m, n in zip(sizes, x.shape[-dims:])):
            return _maxima(x, [Window(n // m, n // m, 0, 1, n, m) for m, n in zip(sizes, x.shape[-dims:])])
        values, index, inner = x, None, 1
        for back, m in enumerate(reversed(sizes), 1):
            n = x.shape[-back]
            place = _places(x, index, back, n, inner)
            found = [
                _maxima_along(
                    every(values, values.dim() - back, start, length),
                    every(place, place.dim() - back, start, length),
                    back,
                    Window(length, 1, 0, 1, length, 1),
                )
                for start, length in _bounds(m, n)
            ]
            values = torch.cat([value for value, _ in found], -back)
            index = torch.cat([place.expand(value.shape) for value, place in found], -back)
            inner = inner * n
        assert index is not None
        return values, index

    rule.__name__ = f"adaptive_max_pool{dims}d"
    return rule


for _dims, _max in ((1, aten.adaptive_max_pool1d), (2, aten.adaptive_max_pool2d), (3, aten.adaptive_max_pool3d)):
    register(_max)(_max_nd(_dims))


def _maxima_somewhere(x: Tensor, sizes: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """The same where sizes are symbols: the first place of the maximum, or the last of NaN, and what is there."""
    values, index, inner, least = x, None, 1, lowest(x.dtype)
    for back, m in enumerate(reversed(sizes), 1):
        n, dim = x.shape[-back], x.dim() - back
        place = _places(x, index, back, n, inner).expand(values.shape).unsqueeze(dim)
        inside, _ = _windows(m, n, dim, x)
        seen = torch.where(inside, values.unsqueeze(dim), least)
        best = torch.amax(seen.detach(), [dim + 1], True)
        hit = inside & (seen == best)
        first = torch.amin(torch.where(hit, place, torch.iinfo(torch.int64).max), [dim + 1], True)
        last = torch.amax(torch.where(seen != seen, place, -1), [dim + 1], True)
        found = torch.where(best != best, last, first)
        # The gradient goes to one place: it is the only one that is not the lowest.
        values = torch.amax(torch.where(inside & (place == found), seen, least), [dim + 1])
        index, inner = found.squeeze(dim + 1), inner * n
    assert index is not None
    return values, index


@register(aten.adaptive_max_pool2d_backward)
def adaptive_max_pool2d_backward(grad_output: Tensor, x: Tensor, indices: Tensor) -> Tensor:
    """dx[indices[i]] += dy[i]."""
    return _scatter(grad_output, x, indices, 2)


@register(aten.adaptive_max_pool3d_backward)
def adaptive_max_pool3d_backward(grad_output: Tensor, x: Tensor, indices: Tensor) -> Tensor:
    """dx[indices[i]] += dy[i]."""
    return _scatter(grad_output, x, indices, 3)


def _scatter(grad: Tensor, x: Tensor, indices: Tensor, dims: int) -> Tensor:
    compute = opmath(grad.dtype)
    zeros = torch.zeros_like(x, dtype=compute).flatten(-dims)
    out = zeros.scatter_add(-1, indices.flatten(-dims), cast(grad, compute).flatten(-dims))
    return cast(out.reshape(x.shape), grad.dtype)
