"""Values with the gradient of another value, in plain ops: for kernels whose backward is not the derivative of their
forward, without mutation and without `torch.autograd.Function`."""

from __future__ import annotations

import torch
from torch import Tensor


def with_gradient_of(value: Tensor, source: Tensor) -> Tensor:
    """`value`, bit for bit (−0 too), with the gradient of `source`: zero where `source` is not finite."""
    gap = source.detach() - source
    return value.detach() - torch.where(gap == 0, gap, torch.zeros_like(gap))


def scaled_gradient(x: Tensor, factor: Tensor | float) -> Tensor:
    """x with its gradient multiplied by `factor`: zero where x is not finite."""
    gap = x.detach() - x
    return x.detach() - torch.where(gap == 0, gap, torch.zeros_like(gap)) * factor
