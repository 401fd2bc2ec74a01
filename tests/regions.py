"""A program with a region without gradients, and what would break it."""

from __future__ import annotations

import torch
from torch import fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from decomp.torch_internals.modes import set_grad_enabled

aten = torch.ops.aten


def sine_with_and_without_gradients() -> fx.GraphModule:
    """-(sin x + sin x), the first sine without gradients."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(set_grad_enabled, (False,))
    constant = graph.call_function(aten.sin.default, (x,))
    graph.call_function(set_grad_enabled, (True,))
    both = graph.call_function(aten.add.Tensor, (constant, graph.call_function(aten.sin.default, (x,))))
    once = graph.call_function(aten.mul.Tensor, (both, 1))
    graph.output(graph.call_function(aten.neg.default, (once,)))
    module = fx.GraphModule({}, graph)
    FakeTensorProp(module).propagate(torch.ones(3))
    return module


def move_out(graph: fx.Graph) -> None:
    """Put the first sine behind the end of the region."""
    _, end = (node for node in graph.nodes if node.target is set_grad_enabled)
    end.append(next(node for node in graph.nodes if node.target is aten.sin.default))
