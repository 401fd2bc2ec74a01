"""Inlining modules: in the torch dialect a leaf module is one call. Where what it computes must be lowered, it is replaced
by the graph of its own forward, its parameters becoming attributes of the root."""

from __future__ import annotations

from collections.abc import Callable
import copy

from torch import fx, nn

from decomp import appending

Wanted = Callable[[nn.Module], fx.Graph | None]
"""The graph to put in the place of a leaf module, or None to leave the call as it is."""


def inlined(graph: fx.Graph, root: nn.Module, wanted: Wanted) -> tuple[fx.Graph, dict[fx.Node, fx.Node]]:
    """A copy of `graph` with modules inlined, and which node of `graph` each of its nodes stands for."""
    new = fx.Graph(tracer_cls=graph._tracer_cls)
    values: dict[fx.Node, object] = {}
    origin: dict[fx.Node, fx.Node] = {}
    reserved = {node.name for node in graph.nodes}
    for name in reserved:
        new._graph_namespace._used_names.discard(name)
    for node in graph.nodes:
        body = wanted(root.get_submodule(str(node.target))) if node.op == "call_module" else None
        if body is None:
            copied = appending.copied(new, node, values.__getitem__)
            values[node], origin[copied] = copied, node
        else:
            values[node] = _put(new, body, node, values, origin)
    new._codegen = copy.copy(graph._codegen)
    return new, origin


def _put(
    new: fx.Graph, body: fx.Graph, call: fx.Node, values: dict[fx.Node, object], origin: dict[fx.Node, fx.Node]
) -> object:
    """Copy `body`, the forward of the module that `call` calls, into `new`."""
    inner: dict[fx.Node, object] = {}
    given = list(call.args)
    named = dict(call.kwargs)
    result: object = None
    for node in body.nodes:
        if node.op == "placeholder":
            name = str(node.target)
            value = given.pop(0) if given else named.get(name, node.args[0] if node.args else None)
            inner[node] = fx.node.map_arg(value, values.__getitem__)
        elif node.op == "output":
            result = fx.node.map_arg(node.args[0], inner.__getitem__)
        else:
            inner[node] = copied = _copied(new, node, call, inner)
            origin[copied] = call
    return result


def _copied(new: fx.Graph, node: fx.Node, call: fx.Node, inner: dict[fx.Node, object]) -> fx.Node:
    target = f"{call.target}.{node.target}" if node.op in ("get_attr", "call_module") else node.target
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), inner.__getitem__)
    copied = new.create_node(node.op, target, args, kwargs, name=f"{call.name}_{node.name}")
    copied.meta = {**{k: v for k, v in call.meta.items() if k != "val"}, **node.meta}
    return copied


def traced_forward(module: nn.Module) -> fx.Graph | None:
    """The graph of a module's own forward, its children being leaves; None if it cannot be traced."""
    try:
        return _Forward().trace(module)
    except Exception:
        return None


class _Forward(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return m.__module__.startswith("torch.nn") and not list(m.children())
