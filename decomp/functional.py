"""A program without mutation, and the writes to inputs and buffers that it owes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from decomp.emitting import is_aten

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Write:
    """An input or buffer that the program writes, and its last value."""

    source: fx.Node
    """Placeholder or `get_attr` of the source graph."""
    value: fx.Node
    """Node of the functional graph."""
    untracked: bool = False
    """Whether autograd is not to see the write: it was made with gradients off."""


@dataclass(frozen=True)
class Functional:
    """A program without mutation, and the writes that it owes."""

    graph: fx.Graph
    origin: dict[fx.Node, fx.Node]
    """Node of this graph → node of the source that it stands for; every node is here."""
    writes: tuple[Write, ...]
    """Inputs and buffers to be written back, once each, in order of the first write."""
    submodules: dict[str, fx.GraphModule]
    """Functional versions of the bodies of higher-order ops that mutate, by the name of their attribute."""


def append_writes(functional: Functional) -> None:
    """Write inputs and buffers back by `copy_` nodes just before the output."""
    output = next(iter(reversed(functional.graph.nodes)))
    copies = {source: copy for copy, source in functional.origin.items() if copy.op in ("placeholder", "get_attr")}
    aten_dialect = is_aten(functional.graph)
    with functional.graph.inserting_before(output):
        for write in functional.writes:
            target = copies[write.source]
            if write.untracked:
                target = _detach(functional.graph, target, aten_dialect)
                functional.origin[target] = write.source
            if aten_dialect:
                new = functional.graph.call_function(aten.copy_.default, (target, write.value))
            else:
                new = functional.graph.call_method("copy_", (target, write.value))
            new.meta = {k: v for k, v in write.source.meta.items() if k in ("val", "example_value", "stack_trace")}
            functional.origin[new] = write.source
    functional.graph.lint()


def _detach(graph: fx.Graph, node: fx.Node, aten_dialect: bool) -> fx.Node:
    new = graph.call_function(aten.detach.default if aten_dialect else torch.detach, (node,))
    new.meta = {k: v for k, v in node.meta.items() if k in ("val", "example_value")}
    return new


def as_module(body: fx.GraphModule, functional: Functional) -> fx.GraphModule:
    """`body` with a functional graph in the place of its own."""
    module = fx.GraphModule(body, functional.graph, type(body).__name__)
    for name, inner in functional.submodules.items():
        module.add_submodule(name, inner)
    module.meta.update(body.meta)
    return module.train(body.training)
