"""Selection through memory, for targets that read by number (`take`) but cannot choose between two values.

A blend c·a + (1 − c)·b is exact on integers alone: with floats, 0 · ∞ and 0 · NaN leak from the side that is not
chosen, into the gradient too. So both sides are laid into one buffer, and the condition becomes the number of the place
to read.
Parts join a buffer by being padded with −0, which added to anything changes nothing, neither −0 nor NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.pointwise import comparison
from decomp_rules.support.operands import WIDE_INTEGERS, cast, constant, is_scalar, plain, promoted, same_size, wrap

RULES = Rules(level="exact")
register = RULES.register


@register(aten.where, needs=("take",))
def where_of_integers(condition: Tensor, x: Any, other: Any) -> Tensor:
    """c · x + ¬c · other of integers, which cannot overflow."""
    condition, dtype = cast(condition, torch.bool), _common(x, other)
    if dtype not in WIDE_INTEGERS or is_scalar(x) and is_scalar(other) and not _far_apart(x, other, dtype):
        return decline("only integers of 32 or 64 bits whose difference may overflow")
    chosen = condition * _tensor(condition, x, dtype)
    if type(other) is int and other == 0:
        return chosen
    return chosen + torch.logical_not(condition) * _tensor(condition, other, dtype)


@register(aten.where, needs=("take",))
def where_whole(condition: Tensor, x: Any, other: Any) -> Tensor:
    """other + c · (x − other) of integers, which wraps back exactly; c ∧ x ∨ ¬c ∧ other of booleans."""
    condition, dtype = cast(condition, torch.bool), _common(x, other)
    if dtype.is_floating_point or dtype.is_complex:
        return decline("a blend of floats is not exact")
    if dtype == torch.bool:
        x, other = (_tensor(condition, side, dtype) for side in (x, other))
        return (condition & x) | (torch.logical_not(condition) & other)
    if is_scalar(x) and is_scalar(other):
        return cast(condition, dtype) * (x - other) + other
    if is_scalar(other):
        difference = cast(x, dtype) if type(other) is int and other == 0 else cast(x, dtype) + -other
        return condition * difference + other
    other = cast(other, dtype)
    return condition * ((x if is_scalar(x) else cast(x, dtype)) - other) + other


@register(aten.where, needs=("take",))
def where(condition: Tensor, x: Any, other: Any) -> Tensor:
    """The element of x or of other, by its number in a buffer that holds both."""
    condition, dtype = cast(condition, torch.bool), _common(x, other)
    if is_scalar(x) and is_scalar(other):
        pair = torch.tensor([other, x], dtype=dtype, device=condition.device)
        return torch.take(pair, condition.to(torch.int64))
    x, other = (side if is_scalar(side) else cast(side, dtype) for side in (x, other))
    if is_scalar(other) or not is_scalar(x) and _single(other, x):
        return _read(x, other, condition)
    if is_scalar(x) or _single(x, other):
        return _read(other, x, torch.logical_not(condition))
    both = _joined([x.reshape(-1), other.reshape(-1)], 0)
    first, second = _numbered(x, 0), _numbered(other, x.numel())
    alike = len(x.shape) == len(other.shape) and all(map(same_size, x.shape, other.shape))
    number = condition * (-x.numel() if alike else first - second) + second
    return torch.take(both, number)


def _far_apart(x: Any, other: Any, dtype: torch.dtype) -> bool:
    """Whether the difference of two numbers is beyond the dtype."""
    return plain(x) and plain(other) and abs(x - other) > torch.iinfo(dtype).max


def _common(x: Any, other: Any) -> torch.dtype:
    return promoted(x, other) if not (is_scalar(x) and is_scalar(other)) else torch.result_type(x, other)


def _tensor(like: Tensor, value: Any, dtype: torch.dtype) -> Tensor:
    return constant(like, value, dtype) if is_scalar(value) else cast(value, dtype)


def _single(x: Tensor, other: Tensor) -> bool:
    """Whether x is one element that adds no dimension to the result."""
    return x.dim() <= other.dim() and all(type(size) is int and size == 1 for size in x.shape)


def _read(x: Tensor, value: Any, chosen: Tensor) -> Tensor:
    """x where it is chosen, else the one value, which precedes it in the buffer."""
    if is_scalar(value):
        buffer = torch.constant_pad_nd(x.reshape(-1), [1, 0], value)
    else:
        buffer = _joined([value.reshape(-1), x.reshape(-1)], 0)
    return torch.take(buffer, chosen * _numbered(x, 1))


def _numbered(x: Tensor, first: Any) -> Tensor:
    """The numbers of the elements of x in row-major order, from `first` on; in the shape of x."""
    number = torch.arange(first, first + x.numel(), 1, dtype=torch.int64, device=x.device)
    return number if x.dim() == 1 else number.view(x.shape)


@register(aten.masked_fill, needs=("take",))
def masked_fill(x: Tensor, mask: Tensor, value: Any) -> Tensor:
    """where of the opposite mask, in the dtype of x."""
    value = value if is_scalar(value) else cast(value, x.dtype)
    if is_scalar(value) and x.dtype == torch.bool:
        value = bool(value)
    if is_scalar(value) and not x.is_floating_point() and not x.is_complex():
        value = int(value) if x.dtype != torch.bool else value
    return torch.where(mask, value, x)


register(aten.masked_fill, name="masked_fill")(comparison.masked_fill)  # for targets that reach where in another way


@register(aten.cat, needs=("take",))
def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """The sum of the parts, each padded to the whole with −0. Exact."""
    parts = [x for x in tensors if not (x.dim() == 1 and type(x.shape[0]) is int and x.shape[0] == 0)] or [tensors[0]]
    dtype = tensors[0].dtype
    for x in tensors:
        dtype = torch.promote_types(dtype, x.dtype)
    dim = wrap(dim, parts[0].dim())
    parts = [x for x in parts if not (type(x.shape[dim]) is int and x.shape[dim] == 0)] or parts[:1]
    parts = [cast(x, dtype) for x in parts]
    return _joined(parts, dim) if len(parts) > 1 else parts[0].clone()


def _joined(parts: Sequence[Tensor], dim: int) -> Tensor:
    """Parts of one dtype one after the other, by a sum of each padded to the whole."""
    if parts[0].is_complex():
        return _written(parts, dim)
    total, start, whole = sum(x.shape[dim] for x in parts), 0, None
    padding = -0.0 if parts[0].is_floating_point() else 0
    for x in parts:
        end = start + x.shape[dim]
        padded = torch.constant_pad_nd(x, [0, 0] * (x.dim() - dim - 1) + [start, total - end], padding)
        whole, start = padded if whole is None else whole + padded, end
    assert whole is not None
    return whole


def _written(parts: Sequence[Tensor], dim: int) -> Tensor:
    """The same by writing: a sum of complex numbers multiplies one by alpha, of which infinities come out as NaN."""
    total, end = sum(x.shape[dim] for x in parts), parts[0].shape[dim]
    whole = torch.constant_pad_nd(parts[0], [0, 0] * (parts[0].dim() - dim - 1) + [0, total - end])
    for x in parts[1:]:
        start, end = end, end + x.shape[dim]
        places = torch.arange(start, end, 1, dtype=torch.int64, device=x.device)
        # torch.index_put takes no None.
        whole = aten.index_put.default(whole, [None] * dim + [places], x)
    return whole


@register(aten.flip)
def flip(x: Tensor, dims: Sequence[int]) -> Tensor:
    """index_select of the places counted down."""
    for dim in {wrap(d, x.dim()) for d in dims} if x.dim() else ():
        places = torch.arange(x.shape[dim] - 1, -1, -1, dtype=torch.int64, device=x.device)
        x = torch.index_select(x, dim, places)
    return x if dims and x.dim() else x.clone()


@register(aten.maximum, needs=("amax",))
def maximum(x: Tensor, other: Tensor) -> Tensor:
    """amax of both, laid one on the other; a tie shares the gradient. NaN is their sum, as both have the gradient of
    the result then, and amax has none; that is 24 of 32 nodes. Exact."""
    dtype = promoted(x, other)
    x, other = torch.broadcast_tensors(cast(x, dtype), cast(other, dtype))
    both = torch.stack([x, other])
    largest = torch.amax(both, [0])
    if not dtype.is_floating_point:
        return largest
    missing = torch.isnan(largest.detach())
    return torch.where(missing, x + other, torch.amax(torch.where(missing, 0.0, both), [0]))
