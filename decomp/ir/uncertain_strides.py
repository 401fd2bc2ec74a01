"""Strides that are only known at run time. Scaled dot product attention runs one of several kernels, whose results have
different dimension orders; the choice depends on whether gradients are recorded, among other things, so the metadata of
a program only has the strides of one of them."""

from __future__ import annotations

import contextlib

import torch
from torch import fx

from decomp.ir.aliases import view_bases
from decomp.metadata.strides import is_surely_contiguous
from decomp.ops import aten

# By kernel on one CPU: https://github.com/pytorch/pytorch/issues/133671; by device:
# https://github.com/pytorch/pytorch/issues/153903.
ATTENTION = (aten.scaled_dot_product_attention.default, torch.nn.functional.scaled_dot_product_attention)
"""Calls whose strides are only known at run time."""
_KEEPING = (aten.clone.default, aten._to_copy.default)
"""Copies that preserve strides by default."""
_NEW = (None, torch.preserve_format)


def other_strides(value: torch.Tensor) -> torch.Tensor:
    """The metadata of attention's result as another kernel lays it out: heads before positions in memory, or after
    them; unchanged if there are no heads."""
    if value.dim() != 4:
        return value
    with getattr(value, "fake_mode", None) or contextlib.nullcontext():
        if not is_surely_contiguous(value):
            return torch.empty_like(value, memory_format=torch.contiguous_format)
        return torch.empty_like(value.transpose(1, 2), memory_format=torch.contiguous_format).transpose(1, 2)


def of_uncertain_strides(graph: fx.Graph) -> set[fx.Node]:
    """The nodes whose strides may differ at run time from those in their metadata."""
    attention = [node for target in ATTENTION for node in graph.find_nodes(op="call_function", target=target)]
    found = set(attention)
    waiting = list(attention)
    while waiting:
        for user in waiting.pop().users:
            if user not in found and _follows(user, found):
                found.add(user)
                waiting.append(user)
    return found


def _follows(node: fx.Node, uncertain: set[fx.Node]) -> bool:
    """Whether the strides of a result depend on those of its uncertain operands."""
    if node.op == "output":
        return False
    tags = getattr(node.target, "tags", ())
    if node.target in _KEEPING or node.target is aten.contiguous.default:
        return node.target in _KEEPING and node.kwargs.get("memory_format") in _NEW
    return torch.Tag.pointwise in tags or not uncertain.isdisjoint(view_bases(node))
