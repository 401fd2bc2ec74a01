"""Convolutions in terms of other convolutions, for targets that only have some: groups one after the other, one
dimension as two, transposed ones as plain ones over an input with zeros in it, padding beforehand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.spatial.convolution import spread_out
from decomp_rules.spatial.windows import ntuple, padded

RULES = Rules(level="exact")

MOST_GROUPS = 64
"""The maximum number of convolutions into which one is split."""


@RULES.register(aten.convolution, needs=["convolution"])
def convolution_by_groups(
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
    """Each group of channels by itself, x (N, G·C, *S) → (N, G·O, *places), for targets whose convolutions have one."""
    if not 1 < groups <= MOST_GROUPS:
        return decline(f"there is one group, or there are more than {MOST_GROUPS}")
    inputs, rows = x.shape[1] // groups, weight.shape[0] // groups
    outputs = weight.shape[1] if transposed else rows
    found = []
    for i in range(groups):
        own = x.narrow(1, i * inputs, inputs), weight.narrow(0, i * rows, rows)
        added = None if bias is None else bias.narrow(0, i * outputs, outputs)
        found.append(torch.convolution(*own, added, stride, padding, dilation, transposed, output_padding, 1))
    return torch.cat(found, 1)


@RULES.register(aten.convolution, needs=["convolution"])
def convolution_in_a_plane(
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
    """One dimension, (N, C, L), as two of which the first has one element, (N, C, 1, L)."""
    if weight.dim() != 3:
        return decline("the convolution is not one of one dimension")
    stride, dilation = (1, *ntuple(stride, 1)), (1, *ntuple(dilation, 1))
    padding, output_padding = (0, *ntuple(padding, 1)), (0, *ntuple(output_padding, 1))
    plane = x.unsqueeze(2), weight.unsqueeze(2)
    return torch.convolution(*plane, bias, stride, padding, dilation, transposed, output_padding, groups).squeeze(2)


@RULES.register(aten.convolution, needs=["convolution"])
def convolution_over_spread_input(
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
    """A transposed convolution as a plain one, of stride 1, over an input with zeros between its elements."""
    dims = weight.dim() - 2
    if not transposed or not all(isinstance(side, int) for side in weight.shape[2:]):
        return decline("only transposed convolutions with a kernel of known sides")
    stride, padding, dilation = ntuple(stride, dims), ntuple(padding, dims), ntuple(dilation, dims)
    x, mirrored, pads = spread_out(x, weight, stride, padding, dilation, ntuple(output_padding, dims), groups)
    edges = [before for before, _ in pads]
    if any(before < 0 or before != after for before, after in pads):
        x, edges = padded(x, pads), [0] * dims
    return torch.convolution(x, mirrored, bias, [1] * dims, edges, dilation, False, [0] * dims, groups)


@RULES.register(aten.convolution, needs=["convolution"])
def convolution_padded_before(
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
    """The zeros at the edges put there first, for targets whose convolutions do not pad."""
    dims = weight.dim() - 2
    padding = ntuple(padding, dims)
    if transposed or all(isinstance(n, int) and n == 0 for n in padding):
        return decline("only convolutions with padding that are not transposed")
    wide = padded(x, [(n, n) for n in padding])
    return torch.convolution(wide, weight, bias, stride, [0] * dims, dilation, False, output_padding, groups)
