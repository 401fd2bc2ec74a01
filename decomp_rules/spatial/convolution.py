"""Convolutions, as sums over the positions of the kernel.

For each position of the kernel the input is shifted (padded and sliced, `stride` apart) and contracted over its
channels with that position's weights; the sum over the positions is the convolution. The number of operations grows
with the kernel, not with channels or images. Windows that do not overlap (1×1 kernels, the patches of a vision
transformer) are a view of the input and cost one contraction in all. A transposed convolution is the convolution of an
input with zeros put between its elements; its gradients are those of the convolution with input and output exchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
import math
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.spatial.windows import (
    AT_ONCE,
    blocks,
    disjoint,
    elements_of_overlapping,
    every,
    fit,
    ntuple,
    opmath,
    overlapping,
    padded,
    spread,
)
from decomp_rules.support.floating import is_tensor
from decomp_rules.support.operands import cast

RULES = Rules(level="exact")
register = RULES.register


def _convolution_nd(dims: int) -> Callable[..., Tensor]:
    """The rule of conv1d, conv2d or conv3d: the kernel `convolution`, with padding by name and missing batch added."""

    def rule(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        """y[o] = b[o] + Σ over c and k of w[o, c, k] · x[c, stride · i + dilation · k − padding]."""
        batched = x if x.dim() == dims + 2 else x.unsqueeze(0)
        stride, dilation = ntuple(stride, dims), ntuple(dilation, dims)
        if isinstance(padding, str):
            batched, padding = _named_padding(batched, weight, padding, dilation)
        out = _kernel(x)(batched, weight, bias, stride, ntuple(padding, dims), dilation, False, (0,) * dims, groups)
        return out if x.dim() == dims + 2 else out.squeeze(0)

    rule.__name__ = f"conv{dims}d"
    return rule


def _kernel(x: Tensor) -> Callable[..., Tensor]:
    """The kernel, or its rule for complex numbers, which the kernel is not made for on every device."""
    return convolution if x.is_complex() else torch.convolution


def _named_padding(x: Tensor, weight: Tensor, padding: str, dilation: Sequence[int]) -> tuple[Tensor, tuple[Any, ...]]:
    """Padding "valid" or "same" in numbers; where "same" is odd, the last element of it is added to `x` at the end."""
    dims = len(dilation)
    if padding == "valid":
        return x, (0,) * dims
    total = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:])]
    for i, n in enumerate(total):
        x = fit(x, 2 + i, 0, n % 2)
    return x, tuple(n // 2 for n in total)


def _transposed_nd(dims: int) -> Callable[..., Tensor]:
    """The rule of conv_transpose1d, 2d or 3d: the kernel `convolution`, with missing batch added."""

    def rule(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Tensor:
        """y[o, stride · i + dilation · k − padding] += w[c, o, k] · x[c, i], and the bias."""
        batched = x if x.dim() == dims + 2 else x.unsqueeze(0)
        out = _kernel(x)(
            batched,
            weight,
            bias,
            ntuple(stride, dims),
            ntuple(padding, dims),
            ntuple(dilation, dims),
            True,
            ntuple(output_padding, dims),
            groups,
        )
        return out if x.dim() == dims + 2 else out.squeeze(0)

    rule.__name__ = f"conv_transpose{dims}d"
    return rule


for _dims, _conv, _transposed in (
    (1, aten.conv1d, aten.conv_transpose1d),
    (2, aten.conv2d, aten.conv_transpose2d),
    (3, aten.conv3d, aten.conv_transpose3d),
):
    register(_conv)(_convolution_nd(_dims))
    register(_transposed)(_transposed_nd(_dims))


@register(aten._convolution)
def _convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    benchmark: bool = False,
    deterministic: bool = False,
    cudnn_enabled: bool = True,
    allow_tf32: bool = True,
) -> Tensor:
    """`convolution`; what else it takes chooses among kernels, not among results."""
    return torch.convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)


@register(aten.convolution)
def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Tensor:
    """Σ over the positions of the kernel of shifted inputs times weights, plus bias; half precision sums in float32."""
    dims = weight.dim() - 2
    if not all(isinstance(side, int) for side in weight.shape[2:]):
        return decline("the sides of the kernel are not known")
    stride, padding, dilation = ntuple(stride, dims), ntuple(padding, dims), ntuple(dilation, dims)
    compute = opmath(x.dtype)
    wide, kernel = cast(x, compute), cast(weight, compute)
    if transposed:
        out = _transpose(wide, kernel, stride, padding, dilation, ntuple(output_padding, dims), groups)
    else:
        out = _convolve(wide, kernel, stride, [(p, p) for p in padding], dilation, groups)
    return _with_bias(out, bias, x.dtype)


@register(aten.convolution, level="standard", unless=("mm", "bmm"))
def convolution_by_sum(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Tensor:
    """Σ over channels and positions of the kernel at once, of the shifted inputs in one tensor times the weights: for
    targets without products of matrices. With one group, or one channel in each."""
    dims, kernel = weight.dim() - 2, list(weight.shape[2:])
    if transposed or x.is_complex() or not all(isinstance(side, int) for side in kernel):
        return decline("only convolutions of real numbers with a kernel of known sides that are not transposed")
    apart = groups == weight.shape[0] == x.shape[1]
    if groups != 1 and not apart:
        return decline("there are several channels in a group")
    stride, dilation, compute = ntuple(stride, dims), ntuple(dilation, dims), opmath(x.dtype)
    wide = padded(cast(x, compute), [(p, p) for p in ntuple(padding, dims)])
    places = _places(wide, kernel, stride, dilation)
    elements = math.prod([x.shape[0], *weight.shape, *places])
    if disjoint(kernel, stride, dilation) or isinstance(elements, int) and elements > AT_ONCE:
        return decline("windows that do not overlap are a view, and too many are taken one after the other")
    shifts = torch.stack(_shifts(wide.unsqueeze(2 if apart else 1), places, stride, kernel, dilation), 3)
    taps = cast(weight, compute).reshape([*weight.shape[:2], -1] + [1] * dims)
    return _with_bias(torch.sum(shifts * taps, [2, 3]), bias, x.dtype)


@register(aten.convolution, level="standard", unless=("mm", "bmm"))
def convolution_by_windows(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Tensor:
    """Σ over channels and positions of the kernel at once, of all windows times the weights, in the same number of
    calls for any kernel: for targets without matrix products."""
    dims, outputs = weight.dim() - 2, weight.shape[0]
    apart_or_one = groups == 1 or groups == outputs == x.shape[1]
    if apart_or_one and _few(weight, stride):
        return decline("a few windows that move by one are as many slices")
    found = _windows(x, weight, stride, padding, dilation, transposed, groups, groups != 1, outputs)
    if not is_tensor(found):
        return found
    apart = [groups, outputs // groups] if groups != 1 else [outputs]
    spread_taps = [size for side in weight.shape[2:] for size in (side, 1)]
    taps = cast(weight, found.dtype).reshape([*apart, weight.shape[1], *spread_taps])
    first = len(apart) + 1
    out = torch.sum(found * taps, [first, *range(first + 1, first + 1 + 2 * dims, 2)])
    if groups != 1:
        out = out.reshape([x.shape[0], outputs, *out.shape[3:]])
    return _with_bias(out, bias, x.dtype)


@register(aten.convolution, level="standard", needs=("bmm",))
def convolution_by_product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Tensor:
    """One product of matrices for each image: the weights times all windows, as columns. With one group."""
    dims, outputs = weight.dim() - 2, weight.shape[0]
    if groups != 1:
        return decline("there are several groups")
    found = _windows(x, weight, stride, padding, dilation, transposed, groups, None, 1)
    if not is_tensor(found):
        return found
    places, inner = list(found.shape[3::2]), math.prod(weight.shape[1:])
    if _few(weight, stride):
        wide = padded(cast(x, found.dtype), [(p, p) for p in ntuple(padding, dims)]).unsqueeze(2)
        found = torch.stack(_shifts(wide, places, [1] * dims, weight.shape[2:], ntuple(dilation, dims)), 2)
    else:
        found = found.permute([0, 1, *range(2, 2 + 2 * dims, 2), *range(3, 3 + 2 * dims, 2)])
    columns = found.reshape([x.shape[0], inner, math.prod(places)])
    taps = cast(weight, found.dtype).reshape([1, outputs, inner]).expand([x.shape[0], outputs, inner])
    return _with_bias(torch.bmm(taps, columns).reshape([x.shape[0], outputs, *places]), bias, x.dtype)


def _few(weight: Tensor, stride: Any) -> bool:
    """Whether slices, which are copied once each, cost few more calls than all windows, which are copied with more
    around them."""
    taps = weight.shape[2:]
    known = all(type(side) is int for side in taps)
    return known and 1 < math.prod(taps) <= _FEW and set(ntuple(stride, len(taps))) == {1}


_FEW = 9


def _windows(
    x: Tensor,
    weight: Tensor,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    groups: int,
    grouped: bool | None,
    products: Any,
) -> Any:
    """All windows of a convolution, each with its channels: (N, C, k₀, places₀, …); with a dimension of one element for
    the outputs before the channels, and for the groups before that, unless `grouped` is None or False. `products`: by
    how many elements each is multiplied at once."""
    dims, kernel, sizes = weight.dim() - 2, list(weight.shape[2:]), list(x.shape[2:])
    if transposed or x.is_complex():
        return decline("only convolutions of real numbers that are not transposed")
    if not all(type(size) is int and size for size in (*x.shape[1:], *weight.shape)):
        return decline("the sizes of channels, images or the kernel are not known, or 0")
    stride, dilation, compute = ntuple(stride, dims), ntuple(dilation, dims), opmath(x.dtype)
    wide = padded(cast(x, compute), [(p, p) for p in ntuple(padding, dims)])
    places, sizes = _places(wide, kernel, stride, dilation), list(wide.shape[2:])
    taken = x.shape[1] * elements_of_overlapping(sizes, places, kernel, stride, dilation)
    multiplied = products * weight.shape[1] * math.prod([*kernel, *places])
    images = x.shape[0] if type(x.shape[0]) is int else 1
    if math.prod(kernel) > 1 and images * max(taken, multiplied) > AT_ONCE:
        return decline("there are too many products to be in memory together")
    within = [] if grouped is None else [groups, 1] if grouped else [1]
    lead = [x.shape[0], *within, x.shape[1] // groups if grouped else x.shape[1]]
    return overlapping(wide, lead, places, kernel, stride, dilation)


def _with_bias(out: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    if bias is not None:
        out = out + cast(bias, out.dtype).reshape([-1] + [1] * (out.dim() - 2))
    return cast(out, dtype)


@register(aten.convolution_backward)
def convolution_backward(
    grad_output: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """dx = the transposed convolution of dy with w; dw[k] = Σ over images and places of dy · shifted x; db = Σ dy."""
    dims = weight.dim() - 2
    if not all(isinstance(side, int) for side in weight.shape[2:]):
        return decline("the sides of the kernel are not known")
    if transposed and not isinstance(grad_output.shape[1], int):
        return decline("the number of channels is not known")
    stride, padding, dilation = ntuple(stride, dims), ntuple(padding, dims), ntuple(dilation, dims)
    grad_x = grad_weight = grad_bias = None
    if output_mask[0]:
        missing = (0,) * dims if transposed else _missing(grad_output, x, weight, stride, padding, dilation)
        grad_x = _kernel(weight)(grad_output, weight, None, stride, padding, dilation, not transposed, missing, groups)
        for i in range(dims):
            if not isinstance(grad_x.shape[2 + i], int):  # guaranteed by the op, but not known from symbols
                grad_x = grad_x.narrow(2 + i, 0, x.shape[2 + i])
    if output_mask[1]:
        small, large = (x, grad_output) if transposed else (grad_output, x)
        grad_weight = _weight_gradient(small, large, weight, stride, padding, dilation, groups)
    if output_mask[2]:
        grad_bias = grad_output.sum([0] + list(range(2, grad_output.dim())))
    return grad_x, grad_weight, grad_bias


@register(aten.im2col)
def im2col(x: Tensor, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Tensor:
    """The windows of (N, C, H, W) as columns: (N, C·|K|, places)."""
    kernel, dilation, stride = ntuple(kernel_size, 2), ntuple(dilation, 2), ntuple(stride, 2)
    batched = x if x.dim() == 4 else x.unsqueeze(0)
    batched = padded(batched, [(p, p) for p in ntuple(padding, 2)])
    places = _places(batched, kernel, stride, dilation)
    columns = torch.stack(_shifts(batched.unsqueeze(2), places, stride, kernel, dilation), 2)
    columns = columns.reshape([batched.shape[0], batched.shape[1] * kernel[0] * kernel[1], places[0] * places[1]])
    return columns if x.dim() == 4 else columns.squeeze(0)


@register(aten.col2im)
def col2im(x: Tensor, output_size: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Tensor:
    """The adjoint of `im2col`: each image (C, *output_size) as the sum of its windows."""
    kernel, dilation, stride = ntuple(kernel_size, 2), ntuple(dilation, 2), ntuple(stride, 2)
    padding, sizes = ntuple(padding, 2), list(output_size)
    places = [(sizes[i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i in range(2)]
    lead = list(x.shape[:-2])
    windows = cast(x, opmath(x.dtype)).reshape([*lead, x.shape[-2] // (kernel[0] * kernel[1]), *kernel, *places])
    for i in (1, 0):  # (…, C, rows, columns, *places) loses the last dimension of the kernel, then the first
        dim = windows.dim() - 2 + i
        at = len(lead) + 1 + i
        parts = [
            spread(windows.select(at, j), dim - 1, j * dilation[i] - padding[i], stride[i], sizes[i])
            for j in range(kernel[i])
        ]
        windows = functools.reduce(torch.add, parts)
    return cast(windows, x.dtype)


@register(aten.col2im)
def col2im_of_one_image(
    x: Tensor, output_size: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any
) -> Tensor:
    """The images of a batch as the channels of one, which takes a dimension less. Exactly the op."""
    if x.dim() < 3:
        return decline("there is one image")
    one = aten.col2im(x.flatten(0, 1), output_size, kernel_size, dilation, padding, stride)
    return one.unflatten(0, (x.shape[0], -1))


def _missing(
    grad_output: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> tuple[Any, ...]:
    """The elements at the end of each dimension of `x` that no window of the convolution reached."""
    return tuple(
        x.shape[2 + i]
        + 2 * padding[i]
        - dilation[i] * (weight.shape[2 + i] - 1)
        - 1
        - (grad_output.shape[2 + i] - 1) * stride[i]
        for i in range(len(stride))
    )


def _convolve(
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    pads: Sequence[tuple[int, int]],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """x (N, G·C, *S) and weight (G·O, C, *K) → (N, G·O, *places)."""
    kernel = list(weight.shape[2:])
    x = padded(x, pads)
    places = _places(x, kernel, stride, dilation)
    outputs = _per_group(weight.shape[0], groups)
    grouped = weight.reshape([groups, outputs] + list(weight.shape[1:]))
    if disjoint(kernel, stride, dilation):
        out = _contract(grouped.flatten(2), _patches(x, places, stride, kernel, groups))
    else:
        total = None
        taps = grouped.flatten(3).permute(3, 0, 1, 2)
        for i, shifted in enumerate(_shifts(_channels_first(x, groups), places, stride, kernel, dilation)):
            term = _contract(taps.select(0, i), shifted)
            total = term if total is None else total + term
        assert total is not None
        out = total
    return _batch_first(out.reshape([groups, outputs, x.shape[0]] + places))


def _per_group(channels: Any, groups: int) -> Any:
    """How many channels a group has; −1 where that is left to `reshape`, which of an empty tensor cannot tell."""
    return channels // groups if isinstance(channels, int) else -1


def _transpose(
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[Any],
    groups: int,
) -> Tensor:
    """x (N, G·C, *S) and weight (G·C, O, *K) → (N, G·O, *places); the adjoint of `_convolve` in its input."""
    if disjoint(list(weight.shape[2:]), stride, dilation):
        return _tiles(x, _outputs_first(weight, groups), stride, padding, output_padding)
    x, mirrored, pads = spread_out(x, weight, stride, padding, dilation, output_padding, groups)
    return _convolve(x, mirrored, (1,) * len(stride), pads, dilation, groups)


def spread_out(
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[Any],
    dilation: Sequence[int],
    output_padding: Sequence[Any],
    groups: int,
) -> tuple[Tensor, Tensor, list[tuple[Any, Any]]]:
    """Of a transposed convolution the plain one that it is, of stride 1: x with `stride` - 1 zeros between elements,
    the kernel mirrored, (G·C, O, *K) → (G·O, C, *K), and how many zeros stand before and after each dimension."""
    dims, kernel, pads = len(stride), list(weight.shape[2:]), []
    grouped = _outputs_first(weight, groups)
    for i in range(dims):
        edge = dilation[i] * (kernel[i] - 1) - padding[i]
        x = spread(x, 2 + i, 0, stride[i], (x.shape[2 + i] - 1) * stride[i] + 1)
        pads.append((edge, edge + output_padding[i]))
    mirrored = grouped.flip(list(range(3, 3 + dims))).reshape([-1, grouped.shape[2]] + kernel)
    return x, mirrored, pads


def _outputs_first(weight: Tensor, groups: int) -> Tensor:
    """(G·C, O, *K) → (G, O, C, *K)."""
    apart = [groups, _per_group(weight.shape[0], groups)] + list(weight.shape[1:])
    return weight.reshape(apart).transpose(1, 2)


def _tiles(
    x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], output_padding: Sequence[Any]
) -> Tensor:
    """A transposed convolution whose windows do not overlap: each element of `x` fills a tile of the output."""
    dims, (groups, channels, _, *kernel) = len(stride), weight.shape
    places = list(x.shape[2:])
    across = [0, 1] + list(range(3, 3 + dims)) + [2]
    tall = weight.permute(across).reshape([groups, -1, weight.shape[2]])
    tiles = _contract(tall, _channels_first(x, groups)).reshape([groups, channels] + kernel + [x.shape[0]] + places)
    for i in range(dims):
        tiles = fit(tiles, 2 + i, 0, stride[i] - kernel[i])
    order = [2 + dims, 0, 1]
    for i in range(dims):
        order += [3 + dims + i, 2 + i]
    out = tiles.permute(order).reshape([x.shape[0], groups * channels] + [n * s for n, s in zip(places, stride)])
    for i in range(dims):
        spare = stride[i] - kernel[i]
        out = fit(out, 2 + i, -padding[i], output_padding[i] - padding[i] - spare)
    return out


def _weight_gradient(
    small: Tensor,
    large: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """The gradient of the weight between `small` (N, G·O, *places) and `large` (N, G·C, *S), shaped as `weight`."""
    compute, kernel, places = opmath(weight.dtype), list(weight.shape[2:]), list(small.shape[2:])
    large = padded(cast(large, compute), [(p, p) for p in padding])
    flat = _channels_first(cast(small, compute), groups).flatten(2)
    if disjoint(kernel, stride, dilation):
        out = torch.bmm(flat, _patches(large, places, stride, kernel, groups).flatten(2).transpose(1, 2))
    else:
        shifts = _shifts(_channels_first(large, groups), places, stride, kernel, dilation)
        out = torch.stack([torch.bmm(flat, shifted.flatten(2).transpose(1, 2)) for shifted in shifts], -1)
    return cast(out.reshape(weight.shape), weight.dtype)


def _places(x: Tensor, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> list[Any]:
    """How many windows fit in each of the spatial dimensions of the padded `x`."""
    return [(x.shape[2 + i] - dilation[i] * (k - 1) - 1) // stride[i] + 1 for i, k in enumerate(kernel)]


def _channels_first(x: Tensor, groups: int) -> Tensor:
    """(N, G·C, *S) → (G, C, N, *S)."""
    x = x.reshape([x.shape[0], groups, x.shape[1] // groups] + list(x.shape[2:]))
    return x.permute([1, 2, 0] + list(range(3, x.dim())))


def _batch_first(x: Tensor) -> Tensor:
    """(G, O, N, *S) → (N, G·O, *S)."""
    return x.permute([2, 0, 1] + list(range(3, x.dim()))).flatten(1, 2)


def _patches(x: Tensor, places: Sequence[Any], stride: Sequence[int], kernel: Sequence[int], groups: int) -> Tensor:
    """(N, G·C, *S) → (G, C·|K|, N, *places), for windows that do not overlap."""
    dims = len(kernel)
    x = blocks(x, dims, places, stride, kernel)
    x = x.reshape([x.shape[0], groups, x.shape[1] // groups] + list(x.shape[2:]))
    order = [1, 2] + [4 + 2 * i for i in range(dims)] + [0] + [3 + 2 * i for i in range(dims)]
    return x.permute(order).flatten(1, 1 + dims)


def _shifts(
    x: Tensor,
    places: Sequence[Any],
    stride: Sequence[int],
    kernel: Sequence[int],
    dilation: Sequence[int],
) -> list[Tensor]:
    """(G, C, N, *S) as each position of the kernel sees it, in the order of the kernel: (G, C, N, *places)."""
    rows = [x]
    for i, k in enumerate(kernel):
        rows = [every(row, 3 + i, j * dilation[i], places[i], stride[i]) for row in rows for j in range(k)]
    return rows


def _contract(weight: Tensor, x: Tensor) -> Tensor:
    """weight (G, O, C) and x (G, C, *L) → (G, O, *) with |L| elements in the end, summed over C."""
    flat = x.flatten(2)
    return weight * flat if weight.shape[2] == 1 else torch.bmm(weight, flat)
