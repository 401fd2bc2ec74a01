"""Appending nodes to a graph that is being built: the one place that knows what `Graph.create_node` does beyond making
the node, and does only that where nothing else listens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
import functools
from typing import Any

from torch import fx

_CREATE_NODE, _NODE_COPY, _NODE_INIT = fx.Graph.create_node, fx.Graph.node_copy, fx.Node.__init__


class Appender:
    """Appends to the end of one graph: directly where `is_plain` allows it, else by `Graph.create_node`."""

    def __init__(self, graph: fx.Graph, reserved: Iterable[str]) -> None:
        """`reserved`: names that belong to nodes still to be copied, and that no other node may take."""
        self.graph = graph
        self.used = set(reserved)
        self.direct = is_plain(graph)
        self.create: Callable[..., fx.Node] = _direct(graph) if self.direct else graph.create_node
        """Make a node of `(op, target, args, kwargs, name)`, under a name that `free` gave or that is reserved."""

    def copy(self, node: fx.Node, values: Mapping[fx.Node, Any]) -> fx.Node:
        """Copy a node of another graph under its own name."""
        if not self.direct:
            return copied(self.graph, node, values.__getitem__)
        args = fx.map_arg(node.args, values.__getitem__)
        kwargs = fx.map_arg(node.kwargs, values.__getitem__) if node.kwargs else node.kwargs
        new = self.create(node.op, node.target, args, kwargs, node.name, node.type)
        new.meta.update(node.meta)
        return new

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


def is_plain(graph: fx.Graph) -> bool:
    """Whether `create_node` does no more for this graph than what `_direct` does: it is an `fx.Graph` without an owner
    that could have hooks, nothing was patched, and torch's internals are those that are known here."""
    return (
        type(graph) is fx.Graph
        and graph.owning_module is None
        and fx.Graph.create_node is _CREATE_NODE
        and fx.Graph.node_copy is _NODE_COPY
        and fx.Node.__init__ is _NODE_INIT
        and vars(graph).keys().isdisjoint(("create_node", "node_copy"))
        and _internals_are_known()
    )


def _direct(graph: fx.Graph) -> Callable[..., fx.Node]:
    """What `create_node` does in torch 2.13 for a name that is known to be free, without the search for a free name and
    for raw symbolic sizes. The next free number of a name is not noted: a later `create_node` finds it by counting."""
    namespace, table, make, prepend = graph._graph_namespace, graph._find_nodes_lookup_table.table, fx.Node, graph._root
    use, names, append = namespace._used_names.add, namespace._obj_to_name, prepend._prepend

    def create(op: str, target: Any, args: Any, kwargs: Any, name: str, type_expr: Any = None) -> fx.Node:
        node = make(graph, name, op, target, args, kwargs, type_expr)
        use(name)
        names[node] = name
        append(node)
        table[op, target if op == "call_function" else None][node] = None
        graph._len += 1
        return node

    return create


@functools.cache
def _internals_are_known() -> bool:
    """Whether `_direct` leaves a graph in the very state in which `create_node` leaves it."""
    try:
        return bool(_state(_probe(lambda graph: graph.create_node)) == _state(_probe(_direct)))
    except (AttributeError, TypeError, KeyError):
        return False


def _probe(creator: Callable[[fx.Graph], Callable[..., fx.Node]]) -> fx.Graph:
    graph = fx.Graph()
    create = creator(graph)
    x = create("placeholder", "x", (), {}, "x", int)
    w = create("get_attr", "w", (), {}, "w")
    both = create("call_function", max, (x, w, [1, x]), {"key": {"k": w}}, "both")
    again = create("call_method", "add", (both, slice(None, x)), {}, "again")
    create("output", "output", ((again, None),), {}, "output")
    return graph


def _state(graph: fx.Graph) -> Any:
    """Everything that a graph knows, with its nodes by name."""

    def plain(value: Any) -> Any:
        if isinstance(value, fx.Node):
            return value.name
        if isinstance(value, fx.Graph):
            return value is graph
        if isinstance(value, slice):
            return [plain(v) for v in (value.start, value.stop, value.step)]
        if isinstance(value, dict):
            return (type(value), [(plain(k), plain(v)) for k, v in value.items()])
        return (type(value), [plain(v) for v in value]) if isinstance(value, (list, tuple)) else value

    fields = ("op", "target", "name", "type", "graph", "args", "kwargs", "users", "meta", "_input_nodes", "_sort_key",
              "_prev", "_next", "_erased")
    nodes = [[plain(getattr(node, name)) for name in fields] for node in graph.nodes]
    known = {name: type(value) for name, value in vars(graph).items()}
    namespace = {k: plain(v) for k, v in vars(graph._graph_namespace).items() if k != "_base_count"}
    return nodes, known, graph._len, namespace, plain(dict(graph._find_nodes_lookup_table.table)), graph._used_names
