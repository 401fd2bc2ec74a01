"""Appending nodes to a graph that is being built: the one place that knows what `Graph.create_node` does beyond making
the node, and does only that where nothing else listens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import fx

class Appender:
    """Appends to the end of one graph."""

    def __init__(self, graph: fx.Graph, reserved: Iterable[str]) -> None:
        """`reserved`: names that belong to nodes still to be copied, and that no other node may take."""
        self.graph = graph
        self.used = set(reserved)

    def copy(self, node: fx.Node, values: Mapping[fx.Node, Any]) -> fx.Node:
        """Copy a node of another graph under its own name."""
        return copied(self.graph, node, values.__getitem__)

    def create(self, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> fx.Node:
        """Make a node under a name that `free` gave, or that is reserved for it."""
        return self.graph.create_node(op, target, args, kwargs, name=name)

    def free(self, name: str) -> str:
        """`name`, or the first of `name_1`, `name_2`, … that nobody has; it is taken from now on."""
        if name in self.used:
            i = 1
            while f"{name}_{i}" in self.used:
                i += 1
            name = f"{name}_{i}"
        self.used.add(name)
        return name


def copied(graph: fx.Graph, node: fx.Node, value_of: Callable[[fx.Node], Any]) -> fx.Node:
    """Copy a node of another graph under its very name: graphs of torch.export hold names that `create_node` would not
    give, such as `input`."""
    new = graph.node_copy(node, value_of)
    if new.name != node.name:
        graph._graph_namespace._rename_object(new, node.name)
        new.name = node.name
    return new
