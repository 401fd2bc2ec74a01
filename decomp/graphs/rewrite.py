"""Rewriting of graphs. A new graph is built node by node from a source, which is not changed. Every pass that copies a
graph uses a `Rewrite`, which keeps two maps: from each new node to its source node, and from each source node to its
new value."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
import contextlib
import copy
from dataclasses import dataclass, field
import operator
from typing import Any

from torch import fx

from decomp.graphs.node_builder import node_creator
from decomp.ir.call import is_projection, projected

Make = Callable[[fx.Node, tuple[Any, ...], dict[str, Any]], Any]
"""Creates a call like that of a node, on other arguments."""


@dataclass
class Rewrite:
    """A graph, and its relation to the source from which it was made."""

    graph: fx.Graph
    origin: dict[fx.Node, fx.Node] = field(default_factory=dict)
    """From a node of this graph to the source node from which it comes."""
    values: dict[fx.Node, Any] = field(default_factory=dict)
    """From a source node to its value: a node, or nested containers of nodes and constants."""
    several: dict[fx.Node, tuple[fx.Node, ...]] = field(default_factory=dict)
    """From a node that replaces several source nodes to all of them."""
    names: set[str] = field(default_factory=set)
    """Names that new nodes must not use: those of nodes still to be copied, and those returned by `free`."""

    def __post_init__(self) -> None:
        self.create = node_creator(self.graph)
        """Creates a node `(op, target, args, kwargs, name)` with exactly that name, without an origin."""
        self._numbers: dict[str, int] = {}
        self._placed: set[fx.Node] = set()

    @classmethod
    def of(cls, source: fx.Graph, without: Collection[fx.Node] = ()) -> Rewrite:
        """An empty graph with the calling convention of `source`. All its nodes except `without` keep their names."""
        # Pickled modules are traced again when they are read, by this class of tracer (`GraphModule.__reduce__`).
        graph = fx.Graph(tracer_cls=getattr(source, "_tracer_cls", None))
        # There is a public method to set a graph's codegen, but none to read it (torch 2.13).
        graph.set_codegen(copy.copy(source._codegen))
        return cls(graph, names={node.name for node in source.nodes if node not in without})

    def copy(self, node: fx.Node, value_of: Callable[[fx.Node], Any] | None = None) -> Any:
        """Copy a node of the source under its own name; `value_of` maps its arguments, by default `values`. Taking an
        item of a container that is the value of a node creates no node. Returns the value of `node`."""
        # The tests are ordered by cost: this runs for each node of a program, and few have anything but a node as their
        # value.
        values, args = self.values, node.args
        if args and type(args[0]) is fx.Node and type(values.get(args[0])) is not fx.Node and _takes_part(node, values):
            part = values[node] = projected(node, values[args[0]])
            return part
        of = values.__getitem__ if value_of is None else value_of
        kwargs = fx.map_arg(node.kwargs, of) if node.kwargs else node.kwargs
        new = self.create(node.op, node.target, fx.map_arg(args, of), kwargs, node.name, node.type)
        new.meta.update(node.meta)
        values[node] = new
        self.origin[new] = node
        return new

    def replace(self, node: fx.Node, value: Any) -> None:
        """From here on, `value` replaces a node of the source."""
        self.values[node] = value

    def add(self, op: str, target: Any, args: Any, kwargs: Any, name: str | None = None, *, at: fx.Node) -> fx.Node:
        """A new node with the source node `at`, under a free name like `name`; without one, under the name of `at`
        itself, which it replaces."""
        own = name is None and at not in self._placed
        if own:
            self._placed.add(at)
        new = self.create(op, target, args, kwargs, at.name if own else self.free(name or at.name))
        self.origin[new] = at
        return new

    def inline(self, body: fx.Graph, inputs: Iterable[Any], make: Make) -> dict[fx.Node, Any]:
        """Inline another graph: `inputs` replace its placeholders, `make(node, args, kwargs)` creates each call.
        Returns the value of each of its nodes; the output is not created."""
        values, given = dict[fx.Node, Any](), iter(inputs)
        for node in body.nodes:
            if node.op == "placeholder":
                values[node] = next(given)
            elif _takes_part(node, values):
                values[node] = projected(node, values[node.args[0]])
            elif node.op != "output":
                values[node] = make(node, *fx.map_arg((node.args, node.kwargs), values.__getitem__))
        return values

    def free(self, name: str) -> str:
        """`name`, or the first unused one of `name_1`, `name_2`, …, which is reserved from now on."""
        found, number = name, self._numbers.get(name, 0)
        while found in self.names:
            number += 1
            found = f"{name}_{number}"
        if number:
            self._numbers[name] = number
        self.names.add(found)
        return found

    def erase(self, node: fx.Node) -> None:
        """Remove a node of the new graph that nothing uses."""
        source = self.origin.pop(node, None)
        if source is not None and self.values.get(source) is node:
            del self.values[source]
        self.graph.erase_node(node)

    def source_of(self, node: fx.Node) -> fx.Node:
        """The source node from which a node comes; the node itself if it has no origin."""
        return self.origin.get(node, node)

    def sources_of(self, node: fx.Node) -> tuple[fx.Node, ...]:
        """All source nodes from which a node comes; the node itself if it has no origin."""
        return self.several.get(node, (self.source_of(node),))

    def then(self, after: Rewrite) -> Rewrite:
        """The composition of this rewrite with `after`, whose source is the graph of this one."""
        both = Rewrite(after.graph, {new: self.source_of(old) for new, old in after.origin.items()}, names=after.names)
        for source, value in self.values.items():
            with contextlib.suppress(KeyError):  # for nodes that `after` left out
                both.values[source] = fx.map_arg(value, after.values.__getitem__)
        return both


def copy_graph(source: fx.Graph) -> Rewrite:
    """A copy of a whole graph."""
    rewrite = Rewrite.of(source)
    for node in source.nodes:
        rewrite.copy(node)
    return rewrite


def _takes_part(node: fx.Node, values: Mapping[fx.Node, Any]) -> bool:
    """Whether a node only takes an item of a container that is the value of another node."""
    whole = node.args[0] if node.args else None
    if type(whole) is not fx.Node or not isinstance(values.get(whole), (tuple, list, dict)):
        return False
    return node.target is operator.getitem and isinstance(node.args[1], (int, str)) or is_projection(node)
