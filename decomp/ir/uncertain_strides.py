"""Strides that only the run decides. Scaled dot product attention is computed by one of several kernels, whose results
differ in the order of dimensions in memory; which one is taken depends on gradients being recorded, among others, so
that the metadata of a program tells the strides of one of them only."""

from __future__ import annotations

import contextlib

import torch
from torch import fx

from decomp.ir.aliases import view_bases
from decomp.metadata.strides import is_surely_contiguous
from decomp.ops import aten

ATTENTION = (aten.scaled_dot_product_attention.default, torch.nn.functional.scaled_dot_product_attention)
"""Calls whose strides only the run decides."""
_KEEPING = (aten.clone.default, aten._to_copy.default)
"""Copies that keep the strides of what they copy, unless they are asked for others."""
_NEW = (None, torch.preserve_format)


def other_strides(value: torch.Tensor) -> torch.Tensor:
    """The metadata of attention's result as another kernel gives it: heads before positions in memory, or after them;
    the same where there are no heads."""
    if value.dim() != 4:
        return value
    with getattr(value, "fake_mode", None) or contextlib.nullcontext():
        if not is_surely_contiguous(value):
            return torch.empty_like(value, memory_format=torch.contiguous_format)
        return torch.empty_like(value.transpose(1, 2), memory_format=torch.contiguous_format).transpose(1, 2)


def of_uncertain_strides(graph: fx.Graph) -> set[fx.Node]:
    """The nodes whose strides may be others, when the graph runs, than those in their metadata."""
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
    """Whether the strides of a result are those of operands of which some are uncertain."""
    if node.op == "output":
        return False
    tags = getattr(node.target, "tags", ())
    if node.target in _KEEPING or node.target is aten.contiguous.default:
        return node.target in _KEEPING and node.kwargs.get("memory_format") in _NEW
    return torch.Tag.pointwise in tags or not uncertain.isdisjoint(view_bases(node))
