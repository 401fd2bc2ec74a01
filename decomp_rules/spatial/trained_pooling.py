"""Max pooling that is trained under a compiler that fuses: the maximum of all positions of the window, then its place.

Maxima along one side at a time are fewer, but each is read by several windows. A compiler that does not keep them
(Inductor, torch 2.13) recomputes those of the first side for each element of the second, and again in the backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
import itertools
import math
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.spatial.pooling import Window, windows
from decomp_rules.spatial.windows import every, fit

RULES = Rules(level="standard")
register = RULES.register

POSITIONS = 32
"""How many positions a window has at most: each is a slice, a maximum, a comparison and a selection."""


def _trained_nd(dims: int) -> Callable[..., Any]:
    """The rule of max_pool1d, 2d or 3d."""

    def rule(
        x: Tensor, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
    ) -> Any:
        """y = max over the window, as the first element that is equal to it, which takes the gradient; where y is NaN,
        none does. Exact."""
        boxes = windows(x, dims, kernel_size, stride, padding, dilation, ceil_mode)
        if not x.is_floating_point():
            return decline("integers have no gradient")
        if math.prod(window.size for window in boxes) > POSITIONS:
            return decline(f"a window has more than {POSITIONS} positions")
        return _first_of_largest(x, boxes)

    rule.__name__ = f"max_pool{dims}d_trained"
    return rule


for _dims, _forward in ((1, aten.max_pool1d), (2, aten.max_pool2d), (3, aten.max_pool3d)):
    register(_forward, needs=("maximum",))(_trained_nd(_dims))


def _first_of_largest(x: Tensor, boxes: Sequence[Window]) -> Tensor:
    """The maximum of each box of the last dimensions. The padding is -∞ where the maximum is sought, and NaN where its
    place is: that of a window of -∞ alone no padding takes the gradient."""
    best = largest = functools.reduce(torch.maximum, _positions(x.detach(), boxes, float("-inf")))
    for element in reversed(_positions(x, boxes, float("nan"))):
        best = torch.where(element.detach() != largest, best, element)
    return best


def _positions(x: Tensor, boxes: Sequence[Window], padding: float) -> list[Tensor]:
    """For each position inside the windows, in order, the elements of all windows that are there."""
    first = x.dim() - len(boxes)
    for back, window in enumerate(reversed(boxes), 1):
        x = _steps(x, first + len(boxes) - back, window, padding)
    return [_at(x, boxes, first, place) for place in itertools.product(*(range(window.size) for window in boxes))]


def _steps(x: Tensor, dim: int, window: Window, padding: float) -> Tensor:
    """The dimension as steps of the windows, and the elements of each: as many as any position of the windows needs.
    On a target whose slices have no steps, slices of this need no padding of their own."""
    steps = window.count + window.gap * (window.size - 1) // window.step
    length = steps * window.step
    if isinstance(window.extent, int):
        x = fit(x, dim, window.pad, length - window.extent - window.pad, padding)
    else:
        x = fit(x, dim, window.pad, window.tail + window.step - 1, padding).narrow(dim, 0, length)
    return x if window.step == 1 else x.reshape([*x.shape[:dim], steps, window.step, *x.shape[dim + 1 :]])


def _at(x: Tensor, boxes: Sequence[Window], first: int, place: Sequence[int]) -> Tensor:
    for dim, (window, position) in enumerate(zip(boxes, place), first):
        step, element = divmod(position * window.gap, window.step)
        x = every(x, dim, step, window.count)
        x = x if window.step == 1 else x.select(dim + 1, element)
    return x
