"""Sliding windows built from slices, shared by convolution and pooling.

A window of size `k` that moves by `s` over a dimension is `k` strided slices of it, one for each position inside the
window (`every`); the adjoint of such a slice puts its elements back, `s` apart, among zeros (`spread`). Everything here
is a few shape operations for each position of the window, regardless of the sizes of the tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any

import torch
from torch import Tensor

from decomp.ops import aten

AT_ONCE = 2**26
"""Elements that may be in memory together where a target does not fuse what makes them with their sum."""


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
        return aten.slice(x, dim, start, start + (count - 1) * step + 1, step)
    lead, rest = list(x.shape[:dim]), list(x.shape[dim + 1 :])  # in shapes that add no guard on a dynamic size
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
        x = gaps.reshape(shape[:dim] + [count * step] + shape[dim + 1 :])
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


def overlapping(
    x: Tensor,
    lead: Sequence[Any],
    places: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """All windows over the last dimensions of `x`, of static sizes, at once: (*, *S) becomes (*lead, kernel[0],
    places[0], kernel[1], places[1], …), in the same number of calls for any kernel.

    A dimension is repeated until there is a row for each position of the kernel, and cut into rows that are longer by
    `dilation` than it, or than a multiple of it: so each begins `dilation` elements further on than the one before.
    """
    dims = len(kernel)
    for i, (k, n, s) in enumerate(zip(kernel, places, stride)):
        x = cut(x, x.dim() - dims + i, n * s, s - 1) if k == 1 else x
    sizes = list(x.shape[x.dim() - dims :])
    rows = _rows(sizes, places, kernel, stride, dilation)
    copies = [-(-k * row // size) for k, row, size in zip(kernel, rows, sizes)]
    start = len(lead)
    if any(n > 1 for n in copies):
        x = x.reshape([*lead, *_interleaved([1] * dims, sizes)]).expand([*lead, *_interleaved(copies, sizes)])
    x = x.reshape([*lead, *[n * size for n, size in zip(copies, sizes)]])
    for i in range(dims):
        x = every(x, start + i, 0, kernel[i] * rows[i])
    x = x.reshape([*lead, *_interleaved(kernel, rows)])
    for i in range(dims):
        x = every(x, start + 2 * i + 1, 0, places[i] * stride[i])
    if all(step == 1 for step in stride):
        return x
    x = x.reshape([*lead, *_interleaved(kernel, places, stride)])
    for i in range(dims):
        x = every(x, start + 3 * i + 2, 0, 1)
    return x.reshape([*lead, *_interleaved(kernel, places)])


def elements_of_overlapping(
    sizes: Sequence[int], places: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> int:
    """How many elements the largest tensor on the way to the windows of one channel has."""
    rows = _rows(sizes, places, kernel, stride, dilation)
    return math.prod(k * row for k, row in zip(kernel, rows))


def _rows(
    sizes: Sequence[int], places: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> list[int]:
    """The length of the rows of each dimension."""
    return [
        size if k == 1 else size * max(1, -(-(n * s - d) // size)) + d
        for size, n, k, s, d in zip(sizes, places, kernel, stride, dilation)
    ]


def _interleaved(*sizes: Sequence[int]) -> list[int]:
    return [size for together in zip(*sizes) for size in together]


def disjoint(kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> bool:
    """Whether windows of this shape never overlap, so that they are a view of the input and not slices of it."""
    return all(k <= s and (k == 1 or d == 1) for k, s, d in zip(kernel, stride, dilation))
