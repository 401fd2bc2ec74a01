"""Values with another gradient than their own: what kernels whose backward is not the derivative of their forward need,
without mutation and without a function of autograd's own."""

from __future__ import annotations

import torch
from torch import Tensor


def carrying(value: Tensor, source: Tensor) -> Tensor:
    """`value` to the bit, −0 included, with the gradient of `source`; none where the source is not finite."""
    gap = source.detach() - source
    return value.detach() - torch.where(gap == 0, gap, torch.zeros_like(gap))


def scaled_gradient(x: Tensor, factor: Tensor | float) -> Tensor:
    """x, whose gradient is multiplied by `factor`; it has none where x is not finite."""
    gap = x.detach() - x
    return x.detach() - torch.where(gap == 0, gap, torch.zeros_like(gap)) * factor
