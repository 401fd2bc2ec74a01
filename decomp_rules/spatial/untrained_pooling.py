"""Max pooling for programs that are not trained: maxima whose gradients differ from the op's at ties."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
import itertools
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.spatial.pooling import Window, lowest, windows
from decomp_rules.spatial.windows import every

RULES = Rules(level="standard")
register = RULES.register
_FORWARD = ((1, aten.max_pool1d), (2, aten.max_pool2d), (3, aten.max_pool3d))


def _extrema_nd(dims: int) -> Callable[..., Tensor]:
    """The rule of max_pool1d, 2d or 3d for programs that are not trained."""

    def rule(
        x: Tensor, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
    ) -> Tensor:
        """y = max over the window, one element after the other. Exact, but for the sign of 0."""
        boxes = windows(x, dims, kernel_size, stride, padding, dilation, ceil_mode)
        x = _surrounded(x, boxes, [max(window.tail, 0) for window in boxes])
        for back, window in enumerate(reversed(boxes), 1):
            x = functools.reduce(
                torch.maximum,
                (every(x, x.dim() - back, j * window.gap, window.count, window.step) for j in range(window.size)),
            )
        return x

    rule.__name__ = f"max_pool{dims}d_by_maximum"
    return rule


for _dims, _forward in _FORWARD:
    register(_forward, needs=("maximum",), forward_only=True)(_extrema_nd(_dims))


def _phases_nd(dims: int) -> Callable[..., Any]:
    """The rule of max_pool1d, 2d or 3d for programs that are not trained, for targets without strided slices."""

    def rule(
        x: Tensor, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
    ) -> Any:
        """y = max over the window, from maxima over as many elements as it moves by. Exact, but for the sign of 0."""
        boxes = windows(x, dims, kernel_size, stride, padding, dilation, ceil_mode)
        if any(type(window.extent) is not int or window.gap > 1 for window in boxes):
            return decline("the sizes are not known, or the window has gaps")
        sides = [(window.count - 1 - (-window.size // window.step)) * window.step for window in boxes]
        x = _surrounded(x, boxes, [side - window.pad - window.extent for side, window in zip(sides, boxes)])
        for back, window in enumerate(reversed(boxes), 1):
            x = _largest_by_phases(x, x.dim() - back, window)
        return x

    rule.__name__ = f"max_pool{dims}d_by_phases"
    return rule


for _dims, _forward in _FORWARD:
    register(_forward, needs=("maximum",), forward_only=True)(_phases_nd(_dims))


def _surrounded(x: Tensor, boxes: Sequence[Window], ends: Sequence[int]) -> Tensor:
    """x with the padding of the windows before each of the last dimensions, and so many elements behind, or cut off."""
    pads = [n for window, end in zip(reversed(boxes), reversed(ends)) for n in (window.pad, end)]
    return torch.constant_pad_nd(x, pads, lowest(x.dtype)) if any(pads) else x


def _largest_by_phases(x: Tensor, dim: int, window: Window) -> Tensor:
    """The maxima along one dimension, which has a whole number of steps: a window is some whole steps, and the first
    phases of one more."""
    step, shape = window.step, list(x.shape)
    whole, more = divmod(window.size, step)
    x = x.reshape(shape[:dim] + [shape[dim] // step, step] + shape[dim + 1 :])
    largest = list(
        itertools.accumulate((every(x, dim + 1, phase, 1) for phase in range(min(window.size, step))), torch.maximum)
    )
    parts = [every(largest[-1], dim, start, window.count) for start in range(whole)]
    if more:
        parts.append(every(largest[more - 1], dim, whole, window.count))
    return functools.reduce(torch.maximum, parts).squeeze(dim + 1)
