"""Convolutions of complex numbers as four real ones, for targets whose convolution is of real numbers. (Where there is
none, the products of `convolution` serve both.)"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.complex.numbers import parts

RULES = Rules(level="exact")
register = RULES.register


def _convolution(convolve: Callable[..., Tensor]) -> Callable[..., Any]:
    """A rule for a convolution whose real form is `convolve`."""

    def rule(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Any:
        """(a ∗ u − b ∗ v) + i·(a ∗ v + b ∗ u) for z = a + ib and w = u + iv."""
        if not x.is_complex() or not weight.is_complex():
            return decline("only complex numbers")
        return _by_parts(lambda a, u: convolve(a, u, None, stride, padding, dilation, groups), x, weight, bias)

    return rule


def _transposed(convolve: Callable[..., Tensor]) -> Callable[..., Any]:
    """A rule for a transposed convolution whose real form is `convolve`."""

    def rule(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Any:
        """As for convolutions."""
        if not x.is_complex() or not weight.is_complex():
            return decline("only complex numbers")
        return _by_parts(
            lambda a, u: convolve(a, u, None, stride, padding, output_padding, groups, dilation), x, weight, bias
        )

    return rule


def _by_parts(convolve: Callable[[Tensor, Tensor], Tensor], x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    (a, b), (u, v) = parts(x), parts(weight)
    out = torch.complex(convolve(a, u) - convolve(b, v), convolve(a, v) + convolve(b, u))
    return out if bias is None else out + bias.view(-1, *[1] * (weight.dim() - 2))


for _op, _real in ((aten.conv1d, F.conv1d), (aten.conv2d, F.conv2d), (aten.conv3d, F.conv3d)):
    register(_op, name=f"{_op.__name__}_of_complex", needs=(aten.convolution,))(_convolution(_real))

for _op, _real in (
    (aten.conv_transpose1d, F.conv_transpose1d),
    (aten.conv_transpose2d, F.conv_transpose2d),
    (aten.conv_transpose3d, F.conv_transpose3d),
):
    register(_op, name=f"{_op.__name__}_of_complex", needs=(aten.convolution,))(_transposed(_real))
