"""Fractional max pooling (B. Graham, 2014): windows whose places are drawn, from samples that are given.

The positions of the windows are data, for each image and channel, so the elements of all windows are gathered, and the
first of the greatest, or the last NaN, is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import math
from typing import Any

import torch
from torch import Tensor

from decomp import Rules
from decomp.ops import aten
from decomp_rules.spatial.windows import ntuple, opmath
from decomp_rules.support.operands import cast

RULES = Rules(level="exact")
register = RULES.register


def _forward(dims: int) -> Callable[..., tuple[Tensor, Tensor]]:
    """The rule of fractional_max_pool2d or 3d."""

    def rule(x: Tensor, kernel_size: Any, output_size: Any, random_samples: Tensor) -> tuple[Tensor, Tensor]:
        """The maximum of each window and its index in the last dimensions. Exact."""
        batched = x if x.dim() == dims + 2 else x.unsqueeze(0)
        sides = list(batched.shape[2:])
        samples = random_samples.flip(2) if dims == 2 else random_samples  # of an image the width's comes first
        samples = samples[: batched.shape[0], : batched.shape[1]]  # there may be more than are needed
        index = element_index(samples, sides, ntuple(kernel_size, dims), ntuple(output_size, dims))
        index = index.expand([*batched.shape[:2], *index.shape[2:]])
        values = torch.gather(batched.flatten(2), 2, index.flatten(2)).reshape(index.shape)
        best, found = greatest(values, index)
        return (best, found) if x.dim() == dims + 2 else (best.squeeze(0), found.squeeze(0))

    rule.__name__ = f"fractional_max_pool{dims}d"
    return rule


def _backward(dims: int) -> Callable[..., Tensor]:
    """The rule of fractional_max_pool2d_backward or 3d."""

    def rule(grad_output: Tensor, x: Tensor, kernel_size: Any, output_size: Any, indices: Tensor) -> Tensor:
        """dx[indices[i]] += dy[i]."""
        zeros = torch.zeros_like(x, dtype=opmath(x.dtype)).flatten(-dims)
        grad = cast(grad_output, zeros.dtype).flatten(-dims)
        return cast(zeros.scatter_add(-1, indices.flatten(-dims), grad).reshape(x.shape), x.dtype)

    rule.__name__ = f"fractional_max_pool{dims}d_backward"
    return rule


for _dims, _ops in (
    (2, (aten.fractional_max_pool2d, aten.fractional_max_pool2d_backward)),
    (3, (aten.fractional_max_pool3d, aten.fractional_max_pool3d_backward)),
):
    register(_ops[0])(_forward(_dims))
    register(_ops[1])(_backward(_dims))


def element_index(samples: Tensor, sides: Sequence[Any], kernel: Sequence[int], wanted: Sequence[int]) -> Tensor:
    """The index of each element of each window in the flattened image: (N, C, *wanted, elements of the window)."""
    dims, index = len(sides), None
    for i, (side, size, count) in enumerate(zip(sides, kernel, wanted)):
        place = starts(samples.select(2, i), side, size, count).unsqueeze(-1) + torch.arange(
            size, device=samples.device
        )
        shape = [1] * (2 * dims)
        shape[i], shape[dims + i] = count, size
        place = place.reshape([*place.shape[:2], *shape])
        index = place if index is None else index * side + place
    assert index is not None
    return index.expand([*index.shape[:2], *wanted, *kernel]).flatten(2 + dims)


def starts(sample: Tensor, side: Any, size: int, count: int) -> Tensor:
    """Where the windows begin along one dimension: ⌊(i + u) α⌋ − ⌊u α⌋, α = (side − size) / (count − 1), and the last
    at the end. In the dtype of the samples, as the kernel. int64, (N, C, count)."""
    last = torch.full([*sample.shape, 1], side - size, dtype=torch.int64, device=sample.device)
    if count == 1:
        return last
    alpha = torch.full((), side - size, dtype=sample.dtype, device=sample.device) / (count - 1)
    u = sample.unsqueeze(-1)
    steps = torch.arange(count - 1, device=sample.device, dtype=sample.dtype)
    first = cast((steps + u) * alpha, torch.int64) - cast(u * alpha, torch.int64)
    return torch.cat([first, last], -1)


def greatest(values: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """The greatest along the last dimension, which is not empty, and its index: the first of equal ones, the last of
    several NaN."""
    best, found = values.select(-1, 0), index.select(-1, 0)
    for j in range(1, math.prod(values.shape[-1:])):
        value = values.select(-1, j)
        better = (value > best) | (value != value)
        best, found = torch.where(better, value, best), torch.where(better, index.select(-1, j), found)
    return best, found
