"""Padding with a constant, by reflection, by replication of the edge and around the circle, and their gradients.

Everything but a constant is put together from slices, one dimension after the other, the last first. A negative pad
cuts off after the positive ones have been added, so that the original input is reflected; but circular padding wraps
around the input after the cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.creation.factories import TABLED
from decomp_rules.spatial.windows import every, fit
from decomp_rules.support.operands import cast, constant, ramp, wide

RULES = Rules(level="exact")
register = RULES.register


@register(aten.pad)
def pad(x: Tensor, pad: Sequence[Any], mode: str = "constant", value: float | None = None) -> Tensor:
    """The kernel of the mode: `pad` holds two numbers a dimension, the last dimension first."""
    if mode == "constant":
        return torch.constant_pad_nd(x, pad, 0 if value is None else value)
    if mode == "circular":
        return aten._pad_circular(x, pad)
    kernels = {
        "reflect": (aten.reflection_pad1d, aten.reflection_pad2d, aten.reflection_pad3d),
        "replicate": (aten.replication_pad1d, aten.replication_pad2d, aten.replication_pad3d),
    }
    return kernels[mode][len(pad) // 2 - 1](x, pad)


@register(aten._pad_enum)
def pad_enum(x: Tensor, pad: Sequence[Any], mode: int, value: float | None = None) -> Tensor:
    """`pad` with its mode as a number."""
    return aten.pad(x, pad, ("reflect", "replicate", "circular", "constant")[mode], value)


@register(aten.constant_pad_nd)
def constant_pad_nd(x: Tensor, pad: Sequence[Any], value: float = 0) -> Tensor:
    """Cut where pads are negative, pad with zeros where positive, and choose `value` there by a mask padded alike."""
    for back, (before, after) in enumerate(_pairs(pad), 1):
        x = fit(x, x.dim() - back, min(before, 0), min(after, 0))
    grown = [max(n, 0) for n in pad]
    if not any(n > 0 for n in grown):
        return x.clone()
    padded = torch.constant_pad_nd(x, grown, 0)
    if value == 0:
        return padded
    sides = [1] * (x.dim() - len(pad) // 2) + list(x.shape[x.dim() - len(pad) // 2 :])
    inside = torch.full(sides, True, dtype=torch.bool, device=x.device)
    return torch.where(torch.constant_pad_nd(inside, grown, 0), padded, constant(x, value))


@register(aten.constant_pad_nd, level="standard")
def constant_pad_by_table(x: Tensor, pad: Sequence[Any], value: float = 0) -> Tensor:
    """Padded with zeros, and `value` where a table says that the input does not reach, in one dimension. Exact."""
    padded = [d for d, pair in enumerate(_pairs(pad)) if any(type(n) is not int or n for n in pair)]
    if len(padded) != 1 or value == 0:
        return decline("not one dimension, or zeros")
    back, (before, after) = padded[0], _pairs(pad)[padded[0]]
    length = x.shape[x.dim() - 1 - back]
    if not all(type(n) is int and 0 <= n <= TABLED for n in (before, after, length)):
        return decline("not of known sizes")
    table: Any = [True] * before + [False] * length + [True] * after
    for _ in range(back):
        table = [[outside] for outside in table]
    outside = torch.tensor(table, dtype=torch.bool, device=x.device)
    return torch.where(outside, constant(x, value), torch.constant_pad_nd(x, pad, 0))


@register(aten.constant_pad_nd)
def constant_pad_by_cat(x: Tensor, pad: Sequence[Any], value: float = 0) -> Tensor:
    """Where nothing pads: the input between constants, one dimension after the other."""
    for back, (before, after) in enumerate(_pairs(pad), 1):
        dim = x.dim() - back
        x = fit(x, dim, min(before, 0), min(after, 0))
        parts = [
            torch.full([*x.shape[:dim], n, *x.shape[dim + 1 :]], value, dtype=x.dtype, device=x.device)
            if n > 0
            else None
            for n in (before, after)
        ]
        present = [part for part in (parts[0], x, parts[1]) if part is not None]
        x = torch.cat(present, dim) if len(present) > 1 else x
    return x.clone()


def _pairs(pad: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Before and after, of the last dimension first."""
    return [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)]


def _reflected(x: Tensor, dim: int, before: int, after: int) -> list[Tensor]:
    """The padding before and after x along `dim`: the neighbours of each edge, mirrored."""
    n = x.shape[dim]
    return [every(x, dim, 1, before).flip(dim), every(x, dim, n - 1 - after, after).flip(dim)]


def _replicated(x: Tensor, dim: int, before: int, after: int) -> list[Tensor]:
    """The padding before and after x along `dim`: its first and last element, repeated."""
    n = x.shape[dim]
    return [
        every(x, dim, start, 1).expand([*x.shape[:dim], count, *x.shape[dim + 1 :]])
        for start, count in ((0, before), (n - 1, after))
    ]


def _wrapped(x: Tensor, dim: int, before: int, after: int) -> list[Tensor]:
    """The padding before and after x along `dim`: its other end."""
    if type(x.shape[dim]) is not int:  # whether a slice is contiguous would be a guard on the size
        places = ramp(x, before) + (x.shape[dim] - before), ramp(x, after)
        return [torch.index_select(x, dim, place) for place in places]
    return [every(x, dim, x.shape[dim] - before, before), every(x, dim, 0, after)]


Edges = Callable[[Tensor, int, int, int], list[Tensor]]


def _extended(x: Tensor, pad: Sequence[Any], edges: Edges) -> Tensor:
    """`x` with the edges that `edges` makes of it, one dimension after the other, the last first."""
    source = x
    for back, (before, after) in enumerate(_pairs(pad), 1):
        dim, grow = x.dim() - back, (max(before, 0), max(after, 0))
        if any(grow):
            first, last = edges(x, dim, *grow)
            x = torch.cat([part for part, n in ((first, grow[0]), (x, 1), (last, grow[1])) if n], dim)
        x = fit(x, dim, min(before, 0), min(after, 0))
    return x.clone() if x is source else x


@register(aten.reflection_pad1d, aten.reflection_pad2d, aten.reflection_pad3d)
def reflection_pad(x: Tensor, padding: Sequence[Any]) -> Tensor:
    """y[i] = x[|i|] before the first element, and mirrored in the last after it. Exact."""
    return _extended(x, padding, _reflected)


@register(aten.replication_pad1d, aten.replication_pad2d, aten.replication_pad3d)
def replication_pad(x: Tensor, padding: Sequence[Any]) -> Tensor:
    """y[i] = x[clamp(i, 0, n − 1)]. Exact."""
    return _extended(x, padding, _replicated)


@register(aten._pad_circular)
def circular_pad(x: Tensor, pad: Sequence[Any]) -> Tensor:
    """y[i] = x[i mod n]. Exact."""
    for back, (before, after) in enumerate(_pairs(pad), 1):
        x = fit(x, x.dim() - back, min(before, 0), min(after, 0))
    if any(n > size for pair, size in zip(_pairs(pad), reversed(x.shape)) for n in pair):
        return decline("the circle would have to be closed more than once")
    return _extended(x, [max(n, 0) for n in pad], _wrapped)


def _folded(grad: Tensor, x: Tensor, padding: Sequence[Any], mirror: bool) -> Tensor:
    """The adjoint of `_extended`: gradients of the padding are added to the elements that were copied there."""
    total = wide(grad)
    for back, (before, after) in enumerate(_pairs(padding), 1):
        dim, n = x.dim() - back, x.shape[-back]
        total = fit(total, dim, max(-before, 0), max(-after, 0))
        before, after = max(before, 0), max(after, 0)
        first, inner, last = (
            every(total, dim, start, count) for start, count in ((0, before), (before, n), (before + n, after))
        )
        if before:
            inner = inner + (
                _among_zeros(first.flip(dim), dim, 1, n - 1 - before)
                if mirror
                else _among_zeros(first.sum(dim, keepdim=True), dim, 0, n - 1)
            )
        if after:
            inner = inner + (
                _among_zeros(last.flip(dim), dim, n - 1 - after, 1)
                if mirror
                else _among_zeros(last.sum(dim, keepdim=True), dim, n - 1, 0)
            )
        total = inner
    return cast(total, grad.dtype)


def _among_zeros(x: Tensor, dim: int, before: Any, after: Any) -> Tensor:
    """x with as many zeros before and after it along `dim`; the number is known not to be negative."""
    return torch.constant_pad_nd(x, [0, 0] * (x.dim() - 1 - dim) + [before, after])


@register(aten.reflection_pad1d_backward, aten.reflection_pad2d_backward, aten.reflection_pad3d_backward)
def reflection_pad_backward(grad_output: Tensor, x: Tensor, padding: Sequence[Any]) -> Tensor:
    """dx[i] = Σ of dy where y shows x[i]."""
    return _folded(grad_output, x, padding, mirror=True)


@register(aten.replication_pad1d_backward, aten.replication_pad2d_backward, aten.replication_pad3d_backward)
def replication_pad_backward(grad_output: Tensor, x: Tensor, padding: Sequence[Any]) -> Tensor:
    """dx[i] = Σ of dy where y shows x[i]."""
    return _folded(grad_output, x, padding, mirror=False)
