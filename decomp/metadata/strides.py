"""Comparison of strides, and the order of dimensions in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import functools
from typing import Any

import torch

from decomp.metadata.symbolic_sizes import expression, is_data, size_hint, surely


def same_strides(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of the same shape have equal strides in all dimensions longer than one. Tensors that are not
    strided or have a data-dependent size agree with all; empty ones with each other."""
    if a.layout is not torch.strided or b.layout is not torch.strided or any(map(is_data, b.shape)):
        return True
    if _is_empty(a) or _is_empty(b):
        return _is_empty(a) and _is_empty(b)
    return _strides(a) == _strides(b)


def same_layout(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of the same shape look the same to kernels: equal strides, except in dimensions of size one,
    and the same memory format, which depends on these too."""
    if not same_strides(a, b):
        return False
    if a.layout is not torch.strided or a.dim() not in (4, 5) or _exprs(a.stride()) == _exprs(b.stride()):
        return True
    return is_channels_last(a) == is_channels_last(b)


def has_strides(value: torch.Tensor, strides: Sequence[int]) -> bool:
    """Whether a tensor of known sizes looks the same to kernels as one of its shape with `strides`, in the sense of
    `same_layout`."""
    if value.dim() != len(strides):
        return False
    sizes, own = value.shape, value.stride()
    if own == tuple(strides) or 0 in sizes:
        return True
    if any([size != 1 and one != other for size, one, other in zip(sizes, own, strides)]):
        return False
    return value.dim() not in (4, 5) or _is_channels_last(sizes, own) == _is_channels_last(sizes, strides)


def dense_order(value: torch.Tensor) -> list[int] | None:
    """Dimensions from the slowest to the fastest, if the tensor is dense without overlap; else None."""
    hints = [size_hint(stride) for stride in value.stride()]
    if None in hints:
        return list(range(value.dim())) if is_surely_contiguous(value) else None
    dims = [d for d in range(value.dim()) if not _is_one(value.shape[d])]
    # Sort by the strides of the example, then verify symbolically that each stride is the product of the sizes inside
    # it.
    ordered = sorted(dims, key=lambda d: (hints[d], -d), reverse=True)
    span: Any = 1
    for d in reversed(ordered):
        if expression(value.stride(d)) != expression(span):
            return None
        span = span * value.shape[d]
    ones = [d for d in range(value.dim()) if d not in dims]
    # Dimensions of size one may have any place; a tensor that is contiguous without them is in plain order.
    return ones + ordered if ordered != sorted(ordered) else list(range(value.dim()))


def is_surely_contiguous(value: torch.Tensor) -> bool:
    """Whether a tensor is contiguous at all sizes: for dynamic sizes, asking PyTorch would add a guard, or fail for
    data-dependent ones."""
    if all(type(size) is int for size in (*value.shape, *value.stride())):
        return bool(value.is_contiguous())
    expected: Any = 1
    for size, stride in reversed(list(zip(value.shape, value.stride()))):
        if surely(size == 1):
            continue
        if not surely(stride == expected):
            return False
        expected = expected * size
    return True


def is_in_order(value: torch.Tensor) -> bool:
    """Whether a tensor is contiguous as far as is known, ignoring dimensions of size one."""
    if value.layout is not torch.strided or any(map(is_data, value.shape)):
        return True
    return dense_order(value) == list(range(value.dim()))


@functools.lru_cache(maxsize=4096)
def strides_in_order(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The default strides of a shape of numbers."""
    return contiguous_strides(shape)


def contiguous_strides(shape: Sequence[Any]) -> tuple[Any, ...]:
    """The default strides of a shape, whose sizes may be open: a dimension without elements counts as one of one."""
    strides, step = list[Any](), 1
    for size in reversed(shape):
        strides.append(step)
        step = step * (max(size, 1) if type(size) is int else size)
    return tuple(reversed(strides))


def inverse(order: list[int]) -> list[int]:
    """The inverse permutation of `order`."""
    return [order.index(dim) for dim in range(len(order))]


def _is_empty(value: torch.Tensor) -> bool:
    return any([type(size) is int and size == 0 for size in value.shape])


def _strides(value: torch.Tensor) -> list[Any]:
    """The strides that matter: those of dimensions longer than one."""
    return [None if _is_one(size) else expression(stride) for size, stride in zip(value.shape, value.stride())]


def is_channels_last(value: torch.Tensor) -> bool:
    """The test that kernels apply to images and volumes, including strides of dimensions of size one
    (`is_channels_last_strides` in c10/core/MemoryFormat.h)."""
    sizes, strides = [size_hint(size) for size in value.shape], [size_hint(stride) for stride in value.stride()]
    return None not in sizes and None not in strides and _is_channels_last(sizes, strides)


def _is_channels_last(sizes: Sequence[int | None], strides: Sequence[int | None]) -> bool:
    if strides[1] == 0:
        return False
    least = 0
    for d in (1, *range(len(sizes) - 1, 1, -1), 0):
        size, stride = sizes[d] or 0, strides[d] or 0
        # The last condition is c10's own: [N, 1, 1, 1] has these strides in both formats, and counts as contiguous.
        if size == 0 or stride < least or d == 0 and least == strides[1]:
            return False
        least = stride * size
    return True


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1


def _exprs(values: Iterable[Any]) -> list[Any]:
    return [expression(value) for value in values]
