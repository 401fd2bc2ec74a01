"""The bytes that any implementation of a workload must read and write, and the peak memory of a lowered program, which
is computed from its metadata before it runs."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn

from decomp.ir.call import metadata
from decomp.metadata.symbolic_sizes import has_fixed_sizes
from decomp.tools.benchmarking.counting import bytes_of_elements
from decomp.torch_internals import pytree


def bytes_needed(module: nn.Module, args: tuple[Any, ...], result: Any) -> int:
    """The bytes of inputs, parameters, buffers and results: each tensor once."""
    leaves = [*pytree.tree_leaves((args, result)), *module.parameters(), *module.buffers()]
    found = {(t.data_ptr(), t.shape): bytes_of_elements(t) for t in leaves if isinstance(t, torch.Tensor)}
    return sum(found.values())


def bytes_held(graph: fx.Graph) -> int:
    """The peak bytes of the results of a graph's calls if each is freed after its last use."""
    last: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        for used in node.all_input_nodes:
            last[used] = node
    live = peak = 0
    for node in graph.nodes:
        size = _size(node)
        live += size
        peak = max(peak, live)
        live -= sum(_size(used) for used in set(node.all_input_nodes) if last[used] is node)
        if node not in last:
            live -= size
    return peak


def _size(node: fx.Node) -> int:
    """Bytes that a call allocates; a view, none."""
    if node.op != "call_function" or getattr(node.target, "is_view", False):
        return 0
    return sum(t.numel() * t.element_size() for t in pytree.tensors_in(metadata(node)) if has_fixed_sizes(t))
