"""Sliding windows out of slices: what convolution and pooling share.

A window of size `k` that moves by `s` over a dimension is `k` strided slices of it, one for each position inside the
window (`every`); the adjoint of such a slice puts its elements back, `s` apart, among zeros (`spread`). Everything here
is a few shape operations for each position of the window, whatever the sizes of the tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def ntuple(value: Any, n: int) -> tuple[Any, ...]:
    """`value` as `n` numbers: an `int[n]` argument of ATen may be one number, or a list of one."""
    values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    return values * n if len(values) == 1 else values


def opmath(dtype: torch.dtype) -> torch.dtype:
    """The dtype that PyTorch's kernels compute in: float32 for the half-precision floats, else `dtype` itself."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def every(x: Tensor, dim: int, start: Any, count: Any, step: int = 1) -> Tensor:
    """`count` elements of dimension `dim` (not negative), from `start`, `step` apart."""
    if isinstance(start, int) and start == 0 and step == 1 and isinstance(count, int) and count == x.shape[dim]:
        return x
    if step == 1 or isinstance(count, int):
        return torch.ops.aten.slice(x, dim, start, start + (count - 1) * step + 1, step)
    lead, rest = list(x.shape[:dim]), list(x.shape[dim + 1:])  # in shapes that add no guard on a dynamic size
    run = fit(x, dim, 0, step - 1).narrow(dim, start, count * step)
    return run.reshape([*lead, count, step, *rest]).select(dim + 1, 0)


def fit(x: Tensor, dim: int, before: Any, after: Any, value: float = 0) -> Tensor:
    """`x` with `before` and `after` elements of `value` added to dimension `dim`; negative ones are cut off."""
    dim = dim % x.dim()
    if before < 0 or after < 0:
        kept = x.shape[dim] + min(before, 0) + min(after, 0)
        x = every(x, dim, max(-before, 0), kept)
    if before > 0 or after > 0:
        x = torch.constant_pad_nd(x, [0, 0] * (x.dim() - 1 - dim) + [max(before, 0), max(after, 0)], value)
    return x


def padded(x: Tensor, pads: Sequence[tuple[Any, Any]]) -> Tensor:
    """`x` (N, C, *S) with zeros before and after each of S; negative numbers cut off."""
    if all(before >= 0 and after >= 0 for before, after in pads):
        if all(before == 0 and after == 0 for before, after in pads):
            return x
        return torch.constant_pad_nd(x, [n for pair in reversed(pads) for n in pair], 0)
    for i, (before, after) in enumerate(pads):
        x = fit(x, 2 + i, before, after)
    return x


def cut(x: Tensor, dim: int, length: Any, spare: int) -> Tensor:
    """The first `length` elements of dimension `dim`, with zeros after its end; at most `spare` of them are needed."""
    if isinstance(length, int) and isinstance(x.shape[dim], int):
        return fit(x, dim, 0, length - x.shape[dim])
    return fit(x, dim, 0, spare).narrow(dim, 0, length)


def spread(x: Tensor, dim: int, start: Any, step: int, size: Any, spare: int | None = None) -> Tensor:
    """The adjoint of `every`: zeros of `size` in dimension `dim`, and the elements of `x` in it. `spare`: for a dynamic
    size, how many zeros at most there are after the last step."""
    count = x.shape[dim]
    if step > 1:
        shape = list(x.shape)
        gaps = fit(x.unsqueeze(dim + 1), dim + 1, 0, step - 1)
        x = gaps.reshape(shape[:dim] + [count * step] + shape[dim + 1:])
    if spare is not None and not (isinstance(size, int) and isinstance(count, int)):
        return cut(fit(x, dim, start, 0), dim, size, max(spare, 0))
    return fit(x, dim, start, size - start - count * step)


def blocks(x: Tensor, dims: int, counts: Sequence[Any], steps: Sequence[int], kernel: Sequence[int]) -> Tensor:
    """The last `dims` dimensions of `x` cut into windows that do not overlap (`kernel` ≤ `steps`, dilation 1).

    (*, *S) becomes (*, counts[0], kernel[0], counts[1], kernel[1], …).
    """
    lead = x.dim() - dims
    split = list(x.shape[:lead])
    for i in range(dims):
        if steps[i] > 1:
            x = cut(x, lead + i, counts[i] * steps[i], steps[i] - kernel[i])
        split += [counts[i], steps[i]]
    x = x.reshape(split)
    for i in range(dims):
        x = every(x, lead + 2 * i + 1, 0, kernel[i])
    return x


def disjoint(kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> bool:
    """Whether windows of this shape never overlap, so that they are a view of the input and not slices of it."""
    return all(k <= s and (k == 1 or d == 1) for k, s, d in zip(kernel, stride, dilation))
