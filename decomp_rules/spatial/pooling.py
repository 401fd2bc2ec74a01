"""Pooling: windows that move over the last dimensions, one dimension after the other.

Sums and maxima over a box are sums and maxima along each of its sides in turn, so that a window of k × k costs 2k
slices and not k². Of equal maxima the first in the order of the window is the maximum, and of several NaN the last; a
maximum carries its place in the input along, and the gradient goes to that place alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
import math
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.creation.factories import count_by_squares
from decomp_rules.spatial.windows import (
    AT_ONCE,
    cut,
    elements_of_overlapping,
    every,
    fit,
    ntuple,
    opmath,
    overlapping,
    spread,
)
from decomp_rules.support.floating import is_tensor
from decomp_rules.support.gradients import with_gradient_of
from decomp_rules.support.operands import cast

RULES = Rules(level="exact")
register = RULES.register


Ramp = Callable[[Any, torch.device], Tensor]
"""Makes 0, 1, … up to a length: int64."""


def _read(length: Any, device: torch.device) -> Tensor:
    return torch.arange(length, dtype=torch.int64, device=device)


@dataclass(frozen=True, slots=True)
class Window:
    """The windows along one dimension: `count` of them, each of `size` elements `gap` apart, moving by `step`."""

    size: int
    step: int
    pad: int
    gap: int
    extent: Any
    """The size of the input's dimension."""
    count: Any
    spill: int = 0
    """How far at most the last window reaches over the padding behind the input (`ceil_mode`)."""

    @property
    def tail(self) -> Any:
        """The elements that the last window needs after the end of the input; negative if it does not reach the end.
        For a dynamic size, the most that it could need."""
        if not isinstance(self.extent, int):
            return self.pad + self.spill
        return (self.count - 1) * self.step + self.gap * (self.size - 1) + 1 - self.extent - self.pad

    def spare(self, position: int) -> int:
        """The elements at most behind the last step of this position of the windows, in the input."""
        return self.gap * (self.size - 1 - position) - self.pad

    def starts(self, device: torch.device, counted: Ramp | None = None) -> Tensor:
        """The place in the input where each window starts, negative in the padding: int64, (count,)."""
        return (counted or _read)(self.count, device) * self.step - self.pad


def windows(
    x: Tensor,
    dims: int,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
) -> list[Window]:
    """The windows of a pooling over the last `dims` dimensions of `x`; no stride means the size of the kernel."""
    sizes, pads, gaps = ntuple(kernel_size, dims), ntuple(padding, dims), ntuple(dilation, dims)
    steps = sizes if stride is None or stride == [] or stride == () else ntuple(stride, dims)
    result = []
    for size, step, pad, gap, extent in zip(sizes, steps, pads, gaps, x.shape[-dims:]):
        span = extent + 2 * pad - gap * (size - 1) - 1
        count = (span + (step - 1 if ceil_mode else 0)) // step + 1
        if ceil_mode and (count - 1) * step >= extent + pad:
            count = count - 1
        result.append(Window(size, step, pad, gap, extent, count, step - 1 if ceil_mode else 0))
    return result


@register(aten.max_pool1d, needs=("max_pool2d_with_indices",))
def max_pool1d(
    x: Tensor, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Tensor:
    """The values of `max_pool1d_with_indices`."""
    return max_pool1d_with_indices(x, kernel_size, stride, padding, dilation, ceil_mode)[0]


@register(aten.max_pool1d_with_indices)
def max_pool1d_with_indices(
    x: Tensor, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> tuple[Tensor, Tensor]:
    """Two-dimensional pooling of one row."""
    size, step = ntuple(kernel_size, 1), ntuple(stride, 1) if stride else ()
    values, indices = aten.max_pool2d_with_indices(
        x.unsqueeze(-2),
        (1, *size),
        (1, *(step or size)),
        (0, *ntuple(padding, 1)),
        (1, *ntuple(dilation, 1)),
        ceil_mode,
    )
    return values.squeeze(-2), indices.squeeze(-2)


@register(aten.max_pool2d, needs=("max_pool2d_with_indices",))
def max_pool2d(
    x: Tensor, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Tensor:
    """The values of `max_pool2d_with_indices`."""
    return aten.max_pool2d_with_indices(
        x,
        ntuple(kernel_size, 2),
        ntuple(stride, 2) if stride else (),
        ntuple(padding, 2),
        ntuple(dilation, 2),
        ceil_mode,
    )[0]


@register(aten.max_pool3d, needs=("max_pool3d_with_indices",))
def max_pool3d(
    x: Tensor, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Tensor:
    """The values of `max_pool3d_with_indices`."""
    return aten.max_pool3d_with_indices(
        x,
        ntuple(kernel_size, 3),
        ntuple(stride, 3) if stride else (),
        ntuple(padding, 3),
        ntuple(dilation, 3),
        ceil_mode,
    )[0]


def _largest_nd(dims: int) -> Callable[..., Tensor]:
    """The rule of max_pool1d, 2d or 3d for values alone."""

    def rule(
        x: Tensor, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
    ) -> Tensor:
        """y = max over the window, found without its place. Exact."""
        boxes = windows(x, dims, kernel_size, stride, padding, dilation, ceil_mode)
        if any(window.pad and window.gap > 1 for window in boxes):
            return _maxima(x, boxes)[0]
        for back, window in enumerate(reversed(boxes), 1):
            x = _largest_along(x, x.dim() - back, window)
        return x

    rule.__name__ = f"max_pool{dims}d_values"
    return rule


for _dims, _forward in ((1, aten.max_pool1d), (2, aten.max_pool2d), (3, aten.max_pool3d)):
    register(_forward)(_largest_nd(_dims))


def _largest_along(x: Tensor, dim: int, window: Window) -> Tensor:
    """The maxima along one dimension. An element takes the place of the best before it if it is greater or NaN.

    The padding in front repeats the first element, which every window has that begins there: that no more is lost to
    the padding than to it, the gradient of -∞ included.
    """
    x = fit(x, dim, 0, window.tail, lowest(x.dtype))
    if window.pad:
        shape = [-1] * x.dim()
        shape[dim] = window.pad
        x = torch.cat([every(x, dim, 0, 1).expand(shape), x], dim)
    best = every(x, dim, 0, window.count, window.step)
    for j in range(1, window.size):
        value = every(x, dim, j * window.gap, window.count, window.step)
        best = torch.where(value > best, value, best)
        if value.is_floating_point():
            best = torch.where(value != value, value, best)
    return best


@register(aten.max_pool2d_with_indices, needs=("stack",))
def max_pool2d_by_counting(
    x: Tensor, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> tuple[Tensor, Tensor]:
    """The same, with the places of windows counted and not read from a table: if a table is read, Inductor (torch 2.13)
    does not keep the maxima along the first side, but recomputes them for each element of the second."""
    boxes = windows(x, 2, kernel_size, stride, padding, dilation, ceil_mode)
    if any(type(window.count) is not int for window in boxes):
        return decline("the number of windows is not known")
    return _maxima(x, boxes, count_by_squares)


@register(aten.max_pool2d_with_indices)
def max_pool2d_with_indices(
    x: Tensor, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> tuple[Tensor, Tensor]:
    """y = max over the window; the index counts the elements of the two last dimensions. Exact."""
    return _maxima(x, windows(x, 2, kernel_size, stride, padding, dilation, ceil_mode))


def _blocks_nd(dims: int) -> Callable[..., Any]:
    """The rule of max_pool1d, 2d or 3d, or of its kernel, at the level standard."""

    def rule(
        x: Tensor, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
    ) -> Any:
        """y = max over the window, where windows do not overlap and fill the input. Ties share the gradient. Exact."""
        return _of_blocks(x, windows(x, dims, kernel_size, stride, padding, dilation, ceil_mode))

    rule.__name__ = f"max_pool{dims}d_of_blocks"
    return rule


def _all_of(x: Tensor, boxes: Sequence[Window]) -> Any:
    """All windows at once, zeros in the padding: (*, size₀, count₀, size₁, count₁, …)."""
    lead, extents = list(x.shape[: x.dim() - len(boxes)]), [window.extent for window in boxes]
    if not all(type(size) is int and size for size in (*lead, *extents)):
        return decline("the sizes are not known, or 0")
    kernel, places, steps, gaps = zip(*[(window.size, window.count, window.step, window.gap) for window in boxes])
    ends = [max(window.tail, 0) for window in boxes]
    sides = [window.pad + window.extent + end for window, end in zip(boxes, ends)]
    if math.prod(lead) * elements_of_overlapping(sides, places, kernel, steps, gaps) > AT_ONCE:
        return decline("there are too many elements to be in memory together")
    pads = [n for window, end in zip(reversed(boxes), reversed(ends)) for n in (window.pad, end)]
    filled = torch.constant_pad_nd(x, pads, 0) if any(pads) else x
    return overlapping(filled, lead, places, kernel, steps, gaps)


def _sides(within: Tensor, dims: int) -> list[int]:
    """The dimensions inside the windows."""
    return list(range(within.dim() - 2 * dims, within.dim(), 2))


def _of_blocks(x: Tensor, boxes: Sequence[Window]) -> Any:
    shape = list(x.shape[: x.dim() - len(boxes)])
    sides = range(len(shape) + 1, len(shape) + 2 * len(boxes), 2)
    for window in boxes:
        known = type(window.extent) is int and window.pad == 0 and window.gap == 1
        if not known or window.size != window.step or window.count * window.size != window.extent:
            return decline("windows overlap, or do not fill the input")
        shape += [window.count, window.size]
    return torch.amax(x.reshape(shape), list(sides))


@register(aten.max_pool2d_with_indices, level="standard")
def max_pool2d_with_indices_of_blocks(
    x: Tensor, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Any:
    """y = max over the window, which needs no index; the index is found with the maximum. Ties share the gradient."""
    boxes = windows(x, 2, kernel_size, stride, padding, dilation, ceil_mode)
    values = _of_blocks(x, boxes)
    return (values, _maxima(x, boxes)[1]) if is_tensor(values) else values


for _dims, _forward in ((1, aten.max_pool1d), (2, aten.max_pool2d), (3, aten.max_pool3d)):
    register(_forward, level="standard")(_blocks_nd(_dims))


@register(aten.max_pool3d_with_indices)
def max_pool3d_with_indices(
    x: Tensor, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> tuple[Tensor, Tensor]:
    """y = max over the window; the index counts the elements of the three last dimensions. Exact."""
    return _maxima(x, windows(x, 3, kernel_size, stride, padding, dilation, ceil_mode))


def _maxima(x: Tensor, boxes: Sequence[Window], ramp: Ramp = _read) -> tuple[Tensor, Tensor]:
    """The maximum of each box of the last dimensions, and its index in them."""
    values, index, inner = x, None, 1
    for back, window in enumerate(reversed(boxes), 1):
        values, index = _maxima_along(values, _places(x, index, back, window.extent, inner), back, window, ramp)
        inner = inner * window.extent
    assert index is not None
    return values, index.expand(values.shape)


def _places(x: Tensor, index: Tensor | None, back: int, extent: Any, inner: Any) -> Tensor:
    """The index of each element in the last `back` dimensions, from that in one dimension less."""
    place = torch.arange(extent, dtype=torch.int64, device=x.device) * inner
    return place if index is None else place.reshape([-1] + [1] * (back - 1)) + index


def _maxima_along(
    values: Tensor, index: Tensor, back: int, window: Window, ramp: Ramp = _read
) -> tuple[Tensor, Tensor]:
    """The maxima along the dimension -back of `values`, and the `index` that stands where each was found.

    An element takes the place of the best before it if it is greater or NaN, or if all before it was padding.
    """
    values, index = (
        fit(t, t.dim() - back, window.pad, window.tail, value)
        for t, value in ((values, lowest(values.dtype)), (index, 0))
    )
    best, found = (every(t, t.dim() - back, 0, window.count, window.step) for t in (values, index))
    for j in range(1, window.size):
        value, place = (every(t, t.dim() - back, j * window.gap, window.count, window.step) for t in (values, index))
        # One after the other: a compiler turns each into a selection, but `greater | nan` into jumps.
        reasons = [value > best]
        if value.is_floating_point():
            reasons.append(value != value)
        if (j - 1) * window.gap < window.pad:
            only_padding = window.starts(values.device, ramp) < -(j - 1) * window.gap
            reasons.append(only_padding.reshape([-1] + [1] * (back - 1)))
        for reason in reasons:
            best, found = torch.where(reason, value, best), torch.where(reason, place, found)
    return best, found


def lowest(dtype: torch.dtype) -> float:
    return float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min


@register(aten.max_pool2d_with_indices_backward)
def max_pool2d_with_indices_backward(
    grad_output: Tensor,
    x: Tensor,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    indices: Tensor,
) -> Tensor:
    """dx[indices[i]] += dy[i], by a sum over the positions of the window. Adds in float32 for half precision."""
    return _put_back(grad_output, windows(x, 2, kernel_size, stride, padding, dilation, ceil_mode), indices)


@register(aten.max_pool3d_with_indices_backward)
def max_pool3d_with_indices_backward(
    grad_output: Tensor,
    x: Tensor,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    indices: Tensor,
) -> Tensor:
    """dx[indices[i]] += dy[i], by a sum over the positions of the window. Adds in float32 for half precision."""
    return _put_back(grad_output, windows(x, 3, kernel_size, stride, padding, dilation, ceil_mode), indices)


def _put_back(grad: Tensor, boxes: Sequence[Window], indices: Tensor) -> Tensor:
    """Each gradient at the index where its maximum was, in zeros of the input's shape."""
    origin: Tensor | None = None
    for back, window in enumerate(boxes):
        start = window.starts(grad.device)
        origin = start if origin is None else origin.unsqueeze(-1) * window.extent + start
    assert origin is not None
    return cast(_put_back_from(cast(grad, opmath(grad.dtype)), boxes, indices - origin, 0), grad.dtype)


def _put_back_from(grad: Tensor, boxes: Sequence[Window], place: Tensor, level: int) -> Tensor:
    """Sum over the positions of the box in dimensions `level` and later; `place` counts from the first of them."""
    if level == len(boxes):
        return torch.where(place == 0, grad, torch.zeros_like(grad))
    window, inner = boxes[level], 1
    for later in boxes[level + 1 :]:
        inner = inner * later.extent
    dim, total = grad.dim() - len(boxes) + level, None
    for j in range(window.size):
        rest = _put_back_from(grad, boxes, place - j * window.gap * inner if j else place, level + 1)
        term = spread(rest, dim, j * window.gap - window.pad, window.step, window.extent, window.spare(j))
        total = term if total is None else total + term
    assert total is not None
    return total


@register(aten.max_unpool2d)
def max_unpool2d(x: Tensor, indices: Tensor, output_size: Any) -> Tensor:
    """y[indices[i]] = x[i], zero elsewhere."""
    return _unpooled(x, indices, ntuple(output_size, 2))


@register(aten.max_unpool3d)
def max_unpool3d(x: Tensor, indices: Tensor, output_size: Any, stride: Any, padding: Any) -> Tensor:
    """y[indices[i]] = x[i], zero elsewhere; stride and padding were needed to find the size."""
    return _unpooled(x, indices, ntuple(output_size, 3))


def _unpooled(x: Tensor, indices: Tensor, sizes: Sequence[Any]) -> Tensor:
    """Overlapping windows name an element more than once: one of them is its value, each takes its gradient."""
    lead = list(x.shape[: -len(sizes)])
    zeros = torch.zeros([*lead, math.prod(sizes)], dtype=x.dtype, device=x.device)
    index, flat = indices.flatten(-len(sizes)), x.flatten(-len(sizes))
    value = zeros.scatter(-1, index, flat.detach())
    if x.is_floating_point():
        value = with_gradient_of(value, zeros.scatter_add(-1, index, flat))
    return value.reshape([*lead, *sizes])


def _average_nd(dims: int) -> Callable[..., Tensor]:
    """The rule of avg_pool1d, 2d or 3d."""

    def rule(
        x: Tensor,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor:
        """y = Σ over the window / how many elements it has, cut off for integers. Half precision sums in float32."""
        boxes = windows(x, dims, kernel_size, stride, padding, 1, ceil_mode)
        total = cast(x, opmath(x.dtype))
        for back, window in enumerate(reversed(boxes), 1):
            total = _sum_along(total, total.dim() - back, window)
        divisor = _divisor(total, boxes, count_include_pad, divisor_override)
        if not x.is_floating_point():
            return torch.div(total, divisor, rounding_mode="trunc")
        return cast(total / divisor, x.dtype)

    rule.__name__ = f"avg_pool{dims}d"
    return rule


def _average_backward_nd(dims: int) -> Callable[..., Tensor]:
    """The rule of avg_pool2d_backward or avg_pool3d_backward."""

    def rule(
        grad_output: Tensor,
        x: Tensor,
        kernel_size: Any,
        stride: Any,
        padding: Any,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Tensor:
        """dx = Σ over the windows that hold x of dy / how many elements they have."""
        boxes = windows(x, dims, kernel_size, stride, padding, 1, ceil_mode)
        grad = cast(grad_output, opmath(grad_output.dtype))
        grad = grad / _divisor(grad, boxes, count_include_pad, divisor_override)
        for back, window in enumerate(reversed(boxes), 1):
            grad = _spread_along(grad, grad.dim() - back, window)
        return cast(grad, grad_output.dtype)

    rule.__name__ = f"avg_pool{dims}d_backward"
    return rule


def _average_at_once_nd(dims: int) -> Callable[..., Any]:
    """The rule of avg_pool1d, 2d or 3d for all windows at once, at the level standard."""

    def rule(
        x: Tensor,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        """y = Σ over all windows at once · 1 / how many elements each has, which is known beforehand."""
        boxes = windows(x, dims, kernel_size, stride, padding, 1, ceil_mode)
        if not x.is_floating_point():
            return decline("integers are divided exactly")
        within = _all_of(cast(x, opmath(x.dtype)), boxes)
        if not is_tensor(within):
            return within
        total = torch.sum(within, _sides(within, dims))
        shares = [[1.0]] if divisor_override is None else [[1.0 / divisor_override]]
        for window in boxes if divisor_override is None else ():
            shares.append([1.0 / n for n in _counted(window, count_include_pad)])
        whole = math.prod(share[0] for share in shares if len(set(share)) == 1)
        total = total * whole if whole != 1.0 else total
        for back, share in enumerate(reversed(shares)):
            if len(set(share)) > 1:
                total = total * torch.tensor(share, dtype=total.dtype, device=x.device).reshape([-1] + [1] * back)
        return cast(total, x.dtype)

    rule.__name__ = f"avg_pool{dims}d_at_once"
    return rule


def _counted(window: Window, count_include_pad: bool) -> list[int]:
    """How many elements each window along one dimension has."""
    edge = window.pad if count_include_pad else 0
    starts = [i * window.step - window.pad for i in range(window.count)]
    return [min(start + window.size, window.extent + edge) - max(start, -edge) for start in starts]


for _dims, _forward in ((1, aten.avg_pool1d), (2, aten.avg_pool2d), (3, aten.avg_pool3d)):
    register(_forward)(_average_nd(_dims))
    register(_forward, level="standard")(_average_at_once_nd(_dims))
for _dims, _backward in ((2, aten.avg_pool2d_backward), (3, aten.avg_pool3d_backward)):
    register(_backward)(_average_backward_nd(_dims))


def _sum_along(x: Tensor, dim: int, window: Window) -> Tensor:
    """Sums over the windows along one dimension: a view where they do not overlap, else a sum of slices."""
    if window.size <= window.step:
        x = fit(x, dim, window.pad, 0)
        x = cut(x, dim, window.count * window.step, window.pad + window.spill + window.step - window.size)
        x = x.reshape(list(x.shape[:dim]) + [window.count, window.step] + list(x.shape[dim + 1 :]))
        return every(x, dim + 1, 0, window.size).sum(dim + 1)
    x = fit(x, dim, window.pad, window.tail)
    total = every(x, dim, 0, window.count, window.step)
    for j in range(1, window.size):
        total = total + every(x, dim, j, window.count, window.step)
    return total


def _spread_along(grad: Tensor, dim: int, window: Window) -> Tensor:
    """The adjoint of `_sum_along`."""
    if window.size <= window.step:
        shape = list(grad.shape)
        tiles = grad.unsqueeze(dim + 1).expand(shape[: dim + 1] + [window.size] + shape[dim + 1 :])
        tiles = fit(tiles, dim + 1, 0, window.step - window.size)
        tiles = tiles.reshape(shape[:dim] + [shape[dim] * window.step] + shape[dim + 1 :])
        return cut(fit(tiles, dim, -window.pad, 0), dim, window.extent, max(window.spare(0), 0))
    total = None
    for j in range(window.size):
        term = spread(grad, dim, j - window.pad, window.step, window.extent, window.spare(j))
        total = term if total is None else total + term
    assert total is not None
    return total


def _divisor(x: Tensor, boxes: Sequence[Window], count_include_pad: bool, override: int | None) -> Any:
    """The divisor of the sum over each window: a number, or a tensor if windows are cut at the edges."""
    if override is not None:
        return override
    divisor: Any = 1
    for back, window in enumerate(reversed(boxes), 1):
        edge = window.pad if count_include_pad else 0
        whole = window.tail <= edge and (count_include_pad or window.pad == 0)
        if whole:
            divisor = divisor * window.size
        else:
            start = window.starts(x.device)
            inside = (start + window.size).clamp(max=window.extent + edge) - start.clamp(min=-edge)
            divisor = divisor * cast(inside, x.dtype).reshape([-1] + [1] * (back - 1))
    return divisor
