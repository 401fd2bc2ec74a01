"""Running sums and products, as sums and products over a triangle: the elements at or before each place. A short line
takes one step; a long one is cut into blocks, to which a running sum of the blocks' totals is added.

PyTorch's CPU kernel adds float32 in float64 and half types in float32, and so do the rules of the level standard: their
one rounding is the last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.support.operands import HALVES, cast, wrap

RULES = Rules(level="standard")
register = RULES.register

BLOCK = 64
LARGEST = 1 << 16
"""The maximum number of elements to reduce over triangles; other rules, such as doubling, take larger tensors."""

Reduce = Callable[[Tensor, int], Tensor]


@register(aten.cumsum)
def cumsum_over_triangle(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Σ xⱼ over j ≤ i. ≤ 0.51 ULP; float64 as its sum over the line."""
    result = _result(x, dtype)
    return _along(cast(x, _wider(result)), dim, result, _sum, 0)


@register(aten.cumsum, level="fast")
def cumsum_as_it_is(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Σ xⱼ over j ≤ i in the dtype of x. Off by log₂ n ULP of the largest sum of absolute values."""
    result = _result(x, dtype)
    return _along(cast(x, result), dim, result, _sum, 0)


@register(aten.cumsum)
def cumsum_by_doubling(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Add the elements 1, 2, 4, … places before. ≤ 0.51 ULP; float64 ≤ log₂ n roundings."""
    result = _result(x, dtype)
    total = cast(x, _wider(result))
    if not x.dim() or type(x.shape[dim]) is not int or result.is_complex:
        return decline("the length is not known")
    dim, shift = wrap(dim, x.dim()), 1
    while shift < x.shape[dim]:
        before = total.narrow(dim, 0, x.shape[dim] - shift)
        total = total + torch.constant_pad_nd(before, [0, 0] * (x.dim() - dim - 1) + [shift, 0], 0)
        shift *= 2
    return cast(total, result)


@register(aten.cumprod)
def cumprod_over_triangle(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Π xⱼ over j ≤ i. ≤ 0.51 ULP; float64 ≤ n roundings."""
    result = _result(x, dtype)
    return _along(cast(x, _wider(result)), dim, result, torch.prod, 1)


def _result(x: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    return dtype or (x.dtype if x.is_floating_point() or x.is_complex() else torch.int64)


def _wider(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which PyTorch's kernel accumulates."""
    return torch.float32 if dtype in HALVES else torch.float64 if dtype == torch.float32 else dtype


def _sum(x: Tensor, dim: int) -> Tensor:
    return torch.sum(x, [dim], dtype=x.dtype)


def _along(x: Tensor, dim: int, result: torch.dtype, reduce: Reduce, identity: int) -> Tensor:
    """The running reduction along a dimension, in the dtype of the result."""
    if x.is_complex() or not x.dim() or not all(type(size) is int for size in x.shape):
        return decline("a number, a complex one, or a length that is not known")
    if x.shape[dim] > BLOCK**2 or x.numel() > LARGEST or x.numel() == 0:
        return decline(f"more than {BLOCK**2:,} in a line, {LARGEST:,} in all, or nothing")
    last = x.dim() - 1
    line = torch.movedim(x, dim, last) if wrap(dim, x.dim()) != last else x
    found = _in_blocks(line, reduce, identity) if x.shape[dim] > BLOCK else _over_triangle(line, reduce, identity)
    return cast(torch.movedim(found, last, dim) if line is not x else found, result)


def _in_blocks(x: Tensor, reduce: Reduce, identity: int) -> Tensor:
    length, count = x.shape[-1], -(-x.shape[-1] // BLOCK)
    if length % BLOCK:
        x = torch.constant_pad_nd(x, [0, count * BLOCK - length], 0)
    inside = _over_triangle(x.reshape([*x.shape[:-1], count, BLOCK]), reduce, identity)
    before = _over_triangle(inside.narrow(-1, BLOCK - 1, 1).squeeze(-1), reduce, identity, itself=False)
    whole = before.unsqueeze(-1) + inside if identity == 0 else before.unsqueeze(-1) * inside
    whole = whole.view(x.shape)
    return whole.narrow(-1, 0, length) if length % BLOCK else whole


def _over_triangle(x: Tensor, reduce: Reduce, identity: int, itself: bool = True) -> Tensor:
    """The reduction of the elements at or before each place of the last dimension, or only before it."""
    length = x.shape[-1]
    rows: Any = [[j < i + itself for j in range(length)] for i in range(length)]
    upto = torch.tensor(rows, dtype=torch.bool, device=x.device)
    return reduce(torch.where(upto, x.unsqueeze(-2), identity), x.dim())
