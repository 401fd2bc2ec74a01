"""Graphs of Dynamo with inputs that are lists of tensors, which it makes of backward passes under compiled autograd.
They are lowered with an input for each element, as PyTorch's own backends compile them (`flatten_graph_inputs`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import copy
from itertools import chain
import operator
from typing import Any

from torch import fx

from decomp.ir.arguments import substituted


def has_lists(inputs: Sequence[Any]) -> bool:
    return any(isinstance(value, (list, tuple)) for value in inputs)


def listed(inputs: Sequence[Any]) -> list[Any]:
    """The inputs, with the elements of lists in their place."""
    return list(chain(*(each if isinstance(each, (list, tuple)) else (each,) for each in inputs)))


def with_an_input_for_each(module: fx.GraphModule, inputs: Sequence[Any]) -> fx.GraphModule:
    """The graph with a placeholder for each element of each list, in order."""
    graph = fx.Graph()
    made: dict[fx.Node, Any] = {}
    for node in module.graph.nodes:
        value = inputs[len(made)] if node.op == "placeholder" else None
        if isinstance(value, (list, tuple)):
            made[node] = [graph.placeholder(f"{node.target}_{index}") for index in range(len(value))]
        elif node.target is operator.getitem and isinstance(made[node.args[0]], list):
            made[node] = made[node.args[0]][node.args[1]]
            if isinstance(made[node], fx.Node):
                made[node].meta = dict(node.meta)
        else:
            made[node] = graph.node_copy(node, lambda given: given)
            made[node].args = substituted(node.args, made.__getitem__, fx.Node)
            made[node].kwargs = substituted(node.kwargs, made.__getitem__, fx.Node)
    graph._codegen = copy.copy(module.graph._codegen)
    result = fx.GraphModule(module, graph)
    result.meta.update(module.meta)
    return result


def taking_lists(function: Callable[..., Any], module: fx.GraphModule) -> Callable[..., Any]:
    """A compiled graph with an input for each element, called with the inputs of `module`."""
    placeholders = module.graph.find_nodes(op="placeholder")
    # Of compiled autograd they are emptied, so that each tensor is freed after its last use.
    emptied = [place for place, node in enumerate(placeholders) if node.meta.get("steal_arg", False)]

    def called(*args: Any) -> Any:
        flat = listed(args)
        for place in emptied:
            args[place].clear()
        return function(*flat)

    return called
