"""Layers and the calls that follow them: a linear layer or a convolution, its normalization, its activation."""

from torch import nn
from torch.nn import functional as F

import decomp

linear_relu = decomp.Pattern.of(lambda x, w, b=None: F.relu(F.linear(x, w, b)), "linear_relu")
"""`relu(x·wᵀ + b)`; b may be absent."""
linear_gelu = decomp.Pattern.of(lambda x, w, b=None: F.gelu(F.linear(x, w, b)), "linear_gelu")
"""`gelu(x·wᵀ + b)`, by the error function."""
linear_gelu_tanh = decomp.Pattern.of(
    lambda x, w, b=None: F.gelu(F.linear(x, w, b), approximate="tanh"), "linear_gelu_tanh"
)
"""`gelu(x·wᵀ + b)`, by the hyperbolic tangent."""
linear_silu = decomp.Pattern.of(lambda x, w, b=None: F.silu(F.linear(x, w, b)), "linear_silu")
"""`silu(x·wᵀ + b)`."""
linear_bn = decomp.Pattern.of(lambda x, linear, bn: bn(linear(x)), "linear_bn", linear=nn.Linear, bn=nn.BatchNorm1d)
"""A linear layer and a batch norm that does not train: `linear.weight`, `linear.bias`, `bn.running_mean`, …."""
conv_bn = decomp.Pattern.of(lambda x, conv, bn: bn(conv(x)), "conv_bn", conv=nn.Conv2d, bn=nn.BatchNorm2d)
"""A convolution of images and a batch norm that does not train: `conv.weight`, `conv.stride`, `bn.eps`, …."""
conv_bn_relu = decomp.Pattern.of(
    lambda x, conv, bn: F.relu(bn(conv(x))), "conv_bn_relu", conv=nn.Conv2d, bn=nn.BatchNorm2d
)
"""The same, and ReLU."""
conv_relu = decomp.Pattern.of(lambda x, conv: F.relu(conv(x)), "conv_relu", conv=nn.Conv2d)
"""A convolution of images and ReLU."""
conv_silu = decomp.Pattern.of(lambda x, conv: F.silu(conv(x)), "conv_silu", conv=nn.Conv2d)
"""A convolution of images and SiLU."""
