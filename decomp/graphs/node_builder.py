"""Appending nodes to a graph under construction. `Graph.create_node` does more than creating the node; this is the only
module that knows what, and skips it if nothing depends on it."""

from __future__ import annotations

from collections.abc import Callable
import functools
from typing import Any

from torch import fx

from decomp.ir.arguments import key

_CREATE_NODE, _NODE_INIT = fx.Graph.create_node, fx.Node.__init__
Create = Callable[..., fx.Node]
"""Appends a node `(op, target, args, kwargs, name, type_expr=None)` to a graph, with exactly that name."""


def node_creator(graph: fx.Graph) -> Create:
    """A function that appends nodes to a graph: directly if `is_plain` permits it, else by `Graph.create_node`."""
    return _direct_creator(graph) if is_plain(graph) else _public_creator(graph)


def _public_creator(graph: fx.Graph) -> Create:
    """By `create_node`, and renamed, as it refuses some names in graphs of torch.export, such as `input`."""

    def create(op: str, target: Any, args: Any, kwargs: Any, name: str, type_expr: Any = None) -> fx.Node:
        # The namespace of a graph counts builtins of Python as taken, while torch.export names inputs as `forward`
        # does: https://github.com/pytorch/pytorch/pull/133269.
        node = graph.create_node(op, target, args, kwargs, name, type_expr)
        if node.name != name:
            graph._graph_namespace._rename_object(node, name)
            node.name = name
        return node

    return create


def is_plain(graph: fx.Graph) -> bool:
    """Whether `create_node` does the same for this graph as `_direct_creator`: an `fx.Graph` without an owner that
    could have hooks, with nothing patched, and torch's internals as they are known here."""
    return (
        type(graph) is fx.Graph
        # Hooks on new nodes (`GraphModule._create_node_hooks`) belong to the module that owns the graph.
        and graph.owning_module is None
        and fx.Graph.create_node is _CREATE_NODE
        and fx.Node.__init__ is _NODE_INIT
        and "create_node" not in vars(graph)
        and _internals_are_known()
    )


def _direct_creator(graph: fx.Graph) -> Create:
    """The same as `create_node` of torch 2.13 for a name known to be free, without the search for a free name and for
    raw symbolic sizes. The next free suffix of a name is not stored: a later `create_node` finds it by counting."""
    # The list of nodes is a ring, so what is put before its root is at the end.
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


def call_appender(graph: fx.Graph) -> Callable[[Any, Any, Any], fx.Node]:
    """A function that appends calls `(target, args, kwargs)` of functions, with the names of `Graph.call_function`."""
    if not is_plain(graph):
        return lambda target, args, kwargs: graph.call_function(target, args, kwargs)
    create, used = _direct_creator(graph), graph._graph_namespace._used_names
    numbers: dict[str, int] = {}

    def call(target: Any, args: Any, kwargs: Any) -> fx.Node:
        base, first = _name_of(target)
        number = numbers.get(base, first)
        while (name := f"{base}_{number}" if number else base) in used:
            number += 1
        numbers[base] = number + 1
        return create("call_function", target, args, kwargs, name)

    return call


@functools.cache
def _name_of(target: Any) -> tuple[str, int]:
    """The name of the first call of a function in an empty graph, without its numeric suffix, and this suffix; 0 for
    none."""
    # Asked of PyTorch itself, which has rules of its own for names (`_snake_case`, operators, overloads).
    name = fx.Graph().call_function(target).name
    base, _, number = name.rpartition("_")
    return (base, int(number)) if base and number.isdecimal() else (name, 0)


@functools.cache
def _internals_are_known() -> bool:
    """Whether `_direct_creator` leaves a graph in exactly the state in which `create_node` does."""
    try:
        return bool(_state(_probe(lambda graph: graph.create_node)) == _state(_probe(_direct_creator)))
    except (AttributeError, TypeError, KeyError):
        return False


def _probe(creator: Callable[[fx.Graph], Create]) -> fx.Graph:
    graph = fx.Graph()
    create = creator(graph)
    # A node of each kind; operands that repeat, are nested, are in a slice or in a keyword; a type; an unused result.
    x = create("placeholder", "x", (), {}, "x", int)
    w = create("get_attr", "w", (), {}, "w")
    both = create("call_function", max, (x, w, [1, x]), {"key": {"k": w}}, "both")
    again = create("call_method", "add", (both, slice(None, x)), {}, "again")
    create("output", "output", ((again, None),), {}, "output")
    return graph


def _state(graph: fx.Graph) -> Any:
    """The complete state of a graph, with nodes by name."""

    def plain(value: Any) -> Any:
        if isinstance(value, fx.Node):
            return value.name
        if isinstance(value, fx.Graph):
            return value is graph
        if isinstance(value, dict):
            return (type(value), [(plain(k), plain(v)) for k, v in value.items()])
        return (type(value), key(value, plain))

    fields = (
        "op",
        "target",
        "name",
        "type",
        "graph",
        "args",
        "kwargs",
        "users",
        "meta",
        "_input_nodes",
        "_sort_key",
        "_prev",
        "_next",
        "_erased",
    )
    nodes = [[plain(getattr(node, name)) for name in fields] for node in graph.nodes]
    known = {name: type(value) for name, value in vars(graph).items()}
    namespace = {k: plain(v) for k, v in vars(graph._graph_namespace).items() if k != "_base_count"}
    return nodes, known, graph._len, namespace, plain(dict(graph._find_nodes_lookup_table.table)), graph._used_names
