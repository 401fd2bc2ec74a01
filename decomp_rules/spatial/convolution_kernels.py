"""Convolutions by the names of their kernels and libraries, each `convolution` with its arguments in another order; and
the gradients of its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from decomp import Rules
from decomp.ops import aten
from decomp_rules.spatial.convolution import convolution_backward
from decomp_rules.spatial.windows import ntuple

RULES = Rules(level="exact")
register = RULES.register


@register(
    aten.thnn_conv2d,
    aten._slow_conv2d_forward,
    aten.slow_conv3d,
    aten.slow_conv3d_forward,
    aten.slow_conv_dilated2d,
    aten.slow_conv_dilated3d,
)
def slow_conv(
    x: Tensor, weight: Tensor, kernel_size: Any, bias: Tensor | None, stride: Any, padding: Any, dilation: Any = 1
) -> Tensor:
    """A convolution; the size of the kernel is the weight's."""
    return convolved(x, weight, bias, stride, padding, dilation, False, 0, 1)


@register(aten._conv_depthwise2d, aten.conv_depthwise3d)
def conv_depthwise(
    x: Tensor, weight: Tensor, kernel_size: Any, bias: Tensor | None, stride: Any, padding: Any, dilation: Any
) -> Tensor:
    """A convolution of each channel on its own."""
    return convolved(x, weight, bias, stride, padding, dilation, False, 0, x.shape[1 - weight.dim()])


@register(aten.slow_conv_transpose2d, aten.slow_conv_transpose3d)
def slow_conv_transpose(
    x: Tensor,
    weight: Tensor,
    kernel_size: Any,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Any = 1,
) -> Tensor:
    """A transposed convolution."""
    return convolved(x, weight, bias, stride, padding, dilation, True, output_padding, 1)


@register(aten.mkldnn_convolution, aten.miopen_convolution, aten.miopen_depthwise_convolution)
def library_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    padding: Any,
    stride: Any,
    dilation: Any,
    groups: Any,
    benchmark: bool = False,
    deterministic: bool = False,
) -> Tensor:
    """A convolution; what else is taken chooses among kernels."""
    return convolved(x, weight, bias, stride, padding, dilation, False, 0, groups)


@register(aten.cudnn_convolution)
def cudnn_convolution(
    x: Tensor,
    weight: Tensor,
    padding: Any,
    stride: Any,
    dilation: Any,
    groups: Any,
    benchmark: bool,
    deterministic: bool,
    allow_tf32: bool,
) -> Tensor:
    """A convolution without a bias; what else is taken chooses among kernels."""
    return convolved(x, weight, None, stride, padding, dilation, False, 0, groups)


@register(aten.cudnn_convolution_transpose)
def cudnn_convolution_transpose(
    x: Tensor,
    weight: Tensor,
    padding: Any,
    output_padding: Any,
    stride: Any,
    dilation: Any,
    groups: Any,
    benchmark: bool,
    deterministic: bool,
    allow_tf32: bool,
) -> Tensor:
    """A transposed convolution without a bias."""
    return convolved(x, weight, None, stride, padding, dilation, True, output_padding, groups)


@register(aten.cudnn_convolution_relu)
def cudnn_convolution_relu(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: Any
) -> Tensor:
    """max(convolution, 0)."""
    return torch.relu(convolved(x, weight, bias, stride, padding, dilation, False, 0, groups))


@register(aten.cudnn_convolution_add_relu)
def cudnn_convolution_add_relu(
    x: Tensor,
    weight: Tensor,
    z: Tensor,
    alpha: Any,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: Any,
) -> Tensor:
    """max(convolution + α z, 0)."""
    scaled = z if alpha is None else z * alpha
    return torch.relu(convolved(x, weight, bias, stride, padding, dilation, False, 0, groups) + scaled)


@register(aten.convolution_overrideable)
def convolution_overrideable(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: Any,
) -> Tensor:
    """`convolution`."""
    return convolved(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)


@register(aten._convolution_mode)
def _convolution_mode(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: str, dilation: Any, groups: int
) -> Tensor:
    """A convolution whose padding has a name."""
    kernel = (torch.conv1d, torch.conv2d, torch.conv3d)[weight.dim() - 3]
    return kernel(x, weight, bias, stride, padding, dilation, groups)


@register(aten.conv_tbc)
def conv_tbc(x: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    """A convolution of (time, batch, channels) with a weight (time, in, out)."""
    return torch.conv1d(x.permute(1, 2, 0), weight.permute(2, 1, 0), bias, padding=pad).permute(2, 0, 1)


@register(aten.conv_tbc_backward)
def conv_tbc_backward(
    grad: Tensor, input: Tensor, weight: Tensor, bias: Tensor, pad: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of input, weight and bias; of complex numbers, for which there is no kernel, by the rule."""
    gradients = convolution_backward if grad.is_complex() else aten.convolution_backward
    dx, dw, db = gradients(
        grad.permute(1, 2, 0),
        input.permute(1, 2, 0),
        weight.permute(2, 1, 0),
        [weight.shape[2]],
        [1],
        [pad],
        [1],
        False,
        [0],
        1,
        [True, True, True],
    )
    return dx.permute(2, 0, 1), dw.permute(2, 1, 0), db


@register(aten._convolution_double_backward)
def _convolution_double_backward(
    ggI: Tensor | None,
    ggW: Tensor | None,
    ggb: Tensor | None,
    gO: Tensor,
    weight: Tensor,
    x: Tensor,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: Any,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """For ggO the convolutions of ggI with w and of x with ggW, and ggb; for x the gradient that ggW makes of gO, and
    for w that of ggI: what a form that is linear in x, w and b has as its second derivatives."""
    settings = (stride, padding, dilation, transposed, output_padding, groups)
    parts = []
    if ggI is not None:
        parts.append(convolved(ggI, weight, None, *settings))
    if ggW is not None:
        parts.append(convolved(x, ggW, None, *settings))
    if ggb is not None:
        parts.append(ggb.reshape([1, -1] + [1] * (gO.dim() - 2)).expand(gO.shape))
    for_output = sum(parts[1:], parts[0]) if parts and output_mask[0] else None
    for_input = for_weight = None
    if output_mask[1] and ggW is not None:
        for_input = through(gO, x, ggW, settings, [True, False, False])[0]
    if output_mask[2] and ggI is not None:
        for_weight = through(gO, ggI, weight, settings, [False, True, False])[1]
    return for_output, for_input, for_weight


def convolved(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: Any,
) -> Tensor:
    """`convolution`, with numbers for every dimension, and missing batch added."""
    dims = weight.dim() - 2
    batched = x if x.dim() == weight.dim() else x.unsqueeze(0)
    out = torch.convolution(
        batched,
        weight,
        bias,
        ntuple(stride, dims),
        ntuple(padding, dims),
        ntuple(dilation, dims),
        transposed,
        ntuple(output_padding, dims),
        groups,
    )
    return out if x.dim() == weight.dim() else out.squeeze(0)


def through(grad: Tensor, x: Tensor, weight: Tensor, settings: Sequence[Any], mask: Sequence[bool]) -> Any:
    """`convolution_backward`."""
    return aten.convolution_backward(grad, x, weight, None, *settings, mask)
