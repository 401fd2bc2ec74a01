"""The strides of views of fake tensors (torch 2.13, `_reshape_view_helper` in torch/_refs/__init__.py): in dimensions
of size one they differ from those of kernels, and programs are captured with them."""

from __future__ import annotations

from collections.abc import Sequence
import math

import torch

from decomp.metadata.strides import strides_in_order


def view_in_shape(meta: torch.Tensor, shape: Sequence[int]) -> torch.Tensor | None:
    """A tensor viewed in a shape, which may contain -1, with the strides of a fake tensor; None if impossible."""
    numel = meta.numel()
    if -1 in shape:
        # The product has the −1 as a factor.
        known = -math.prod(shape)
        if known <= 0 or numel % known:
            return None
        shape = [numel // known if size == -1 else size for size in shape]
    if math.prod(shape) != numel:
        return None
    strides = _strides(list(meta.shape), list(meta.stride()), list(shape), meta.is_contiguous())
    return None if strides is None else meta.as_strided(shape, strides, meta.storage_offset())


def reshaped(meta: torch.Tensor, shape: Sequence[int]) -> torch.Tensor | None:
    """The same, of a copy if the strides do not allow a view."""
    try:
        meta.view(list(shape))
    except RuntimeError:
        meta = meta.clone(memory_format=torch.contiguous_format)
    return view_in_shape(meta, shape)


def flattened(meta: torch.Tensor, start: int = 0, end: int = -1) -> torch.Tensor | None:
    """A tensor with dimensions `start` to `end` merged."""
    if meta.dim() == 0:
        return reshaped(meta, [1])
    start, end = start % meta.dim(), end % meta.dim()
    if start == end:
        return meta
    sizes = list(meta.shape)
    return reshaped(meta, [*sizes[:start], math.prod(sizes[start : end + 1]), *sizes[end + 1 :]])


# `implicit` is an argument of the op that changes no result.
def expanded(meta: torch.Tensor, shape: Sequence[int], implicit: bool = False) -> torch.Tensor:
    """An expanded tensor with the strides of a fake tensor (`_broadcast_in_dim_meta` in torch/_prims/__init__.py)."""
    result = meta.expand(list(shape))
    new = result.dim() - meta.dim()
    # New dimensions come before all others, so one of size one counts on from the outermost dimension of the operand.
    front = meta.stride(0) * meta.shape[0] if meta.dim() else 1
    strides = [front if size == 1 else 0 for size in result.shape[:new]]
    for size, wide, stride in zip(meta.shape, result.shape[new:], meta.stride()):
        strides.append(stride if size == wide else 0)
    return meta.as_strided(result.shape, strides, meta.storage_offset())


def _strides(sizes: list[int], strides: list[int], shape: list[int], contiguous: bool) -> list[int] | None:
    if 0 in shape:
        return list(strides_in_order(tuple(shape)))
    if not sizes or not shape:
        return [1] * len(shape)
    # Special cases of `_reshape_view_helper`, which differ from its general algorithm in dimensions of size one.
    if contiguous and len(shape) == 1 and len(sizes) > 1:
        return [1]
    if contiguous and len(shape) == 2 and len(sizes) == 1:
        return [shape[1], 1]
    return _split_and_merged(sizes, strides, shape)


def _split_and_merged(sizes: list[int], strides: list[int], shape: list[int]) -> list[int] | None:
    """From left to right, dimensions are merged until their size is a multiple of the wanted one, then split."""
    for at, length in enumerate(shape):
        if at >= len(sizes):
            # The wanted shape ends in dimensions of size one, for which nothing is left to split.
            sizes.append(1)
            strides.append(strides[-1])
            continue
        if length == sizes[at]:
            continue
        merged, end = sizes[at], at
        while merged % length:
            end += 1
            merged *= sizes[end]
        if end != at:
            stride = _merged_stride(sizes[at : end + 1], strides[at : end + 1])
            if stride is None:
                return None
            sizes[at : end + 1], strides[at : end + 1] = [merged], [stride]
        if merged != length:
            inner = merged // length
            sizes[at : at + 1], strides[at : at + 1] = [length, inner], [strides[at] * inner, strides[at]]
    return strides[: len(shape)] if all(size == 1 for size in sizes[len(shape) :]) else None


def _merged_stride(sizes: list[int], strides: list[int]) -> int | None:
    """The stride of adjacent dimensions merged to one; None if there are gaps between them."""
    for i in range(len(sizes) - 1):
        if sizes[i] != 1 and sizes[i + 1] != 1 and strides[i] != strides[i + 1] * sizes[i + 1]:
            return None
    return min([strides[-1], *[stride for size, stride in zip(sizes[:-1], strides) if size != 1]])
