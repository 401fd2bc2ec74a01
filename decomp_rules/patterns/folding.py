"""Folds batch norm at inference into the weights of the layer before it (Jacob et al., Quantization and Training of
Neural Networks, 2018, section 3.2). The added calls depend only on weights, so that freezing leaves one call."""

import torch
from torch import nn
from torch.nn import functional as F

import decomp
from decomp_rules.patterns.layers import conv_bn, linear_bn

FOLDING = decomp.Rules()
"""Rules that fold batch norm into convolutions and linear layers. They are for `decomp.decompose`, or for a cost that
distinguishes weights from data: by number of calls, the computation on weights costs more than a batch norm."""


def _folded(layer, bn):
    """The weight and bias of `bn(layer(x))`: w·s and (b − mean)·s + β, where s = γ / √(var + eps) for each channel."""
    scale = torch.rsqrt(bn.running_var + bn.eps)
    if bn.weight is not None:
        scale = scale * bn.weight
    shift = -bn.running_mean if layer.bias is None else layer.bias - bn.running_mean
    bias = shift * scale
    if bn.bias is not None:
        bias = bias + bn.bias
    return scale, bias


@FOLDING.pattern(conv_bn)
def conv_with_bn(x, conv, bn):
    """`bn(conv(x))` as one convolution; x: float, (N, C, H, W) or (C, H, W)."""
    scale, bias = _folded(conv, bn)
    weight = conv.weight * scale.reshape(-1, 1, 1, 1)
    return F.conv2d(x, weight, bias, conv.stride, conv.padding, conv.dilation, conv.groups)


@FOLDING.pattern(lambda x, conv, bn: bn(conv(x)), conv=nn.Conv1d, bn=nn.BatchNorm1d)
def conv1d_with_bn(x, conv, bn):
    """`bn(conv(x))` as one convolution; x: float, (N, C, L)."""
    scale, bias = _folded(conv, bn)
    weight = conv.weight * scale.reshape(-1, 1, 1)
    return F.conv1d(x, weight, bias, conv.stride, conv.padding, conv.dilation, conv.groups)


@FOLDING.pattern(lambda x, conv, bn: bn(conv(x)), conv=nn.Conv3d, bn=nn.BatchNorm3d)
def conv3d_with_bn(x, conv, bn):
    """`bn(conv(x))` as one convolution; x: float, (N, C, D, H, W)."""
    scale, bias = _folded(conv, bn)
    weight = conv.weight * scale.reshape(-1, 1, 1, 1, 1)
    return F.conv3d(x, weight, bias, conv.stride, conv.padding, conv.dilation, conv.groups)


def _is_matrix(match):
    """A linear layer has its channels last, and batch norm has them second: the same dimension only for matrices."""
    return isinstance(match["x"], torch.Tensor) and match["x"].dim() == 2 or "the input is not known to be a matrix"


@FOLDING.pattern(linear_bn, where=_is_matrix)
def linear_with_bn(x, linear, bn):
    """`bn(linear(x))` as one linear layer; x: float, (N, C)."""
    scale, bias = _folded(linear, bn)
    return F.linear(x, linear.weight * scale.reshape(-1, 1), bias)
