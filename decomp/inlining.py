"""Inlining modules: in the torch dialect a leaf module is one call. Where what it computes must be lowered, it is
replaced by the graph of its own forward, its parameters becoming attributes of the root."""

from __future__ import annotations

from collections.abc import Callable
import copy
import inspect

from torch import fx, nn

from decomp import appending

Wanted = Callable[[nn.Module, fx.Node], fx.Graph | None]
"""The graph to put in the place of a leaf module, or None to leave the call as it is."""


def inlined(graph: fx.Graph, root: nn.Module, wanted: Wanted) -> tuple[fx.Graph, dict[fx.Node, fx.Node]]:
    """A copy of `graph` with modules inlined, and which node of `graph` each of its nodes stands for."""
    new = fx.Graph(tracer_cls=graph._tracer_cls)
    values: dict[fx.Node, object] = {}
    origin: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        body = wanted(root.get_submodule(str(node.target)), node) if node.op == "call_module" else None
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


def traced_forward(module: nn.Module, call: fx.Node | None = None) -> fx.Graph | None:
    """The graph of a module's own forward, its children being leaves; None if it cannot be traced. Parameters of the
    forward that `call` leaves out are at their defaults."""
    try:
        return _Forward().trace(_without_checks(module), _defaults(module, call))
    except Exception:
        return None


def _defaults(module: nn.Module, call: fx.Node | None) -> dict[str, object]:
    parameters = list(inspect.signature(module.forward).parameters.values())
    given = 1 if call is None else len(call.args)
    named = {} if call is None else call.kwargs
    return {
        p.name: p.default
        for p in parameters[given:]
        if p.name not in named and p.default is not inspect.Parameter.empty
    }


def _without_checks(module: nn.Module) -> nn.Module:
    """Normalisation modules ask for the rank of their input, which a proxy does not know: a copy that shares everything
    else does not ask."""
    if not hasattr(module, "_check_input_dim"):
        return module
    copied = copy.copy(module)
    object.__setattr__(copied, "_check_input_dim", lambda x: None)
    return copied


class _Forward(fx.Tracer):
    proxy_buffer_attributes = True  # else tracing would run `num_batches_tracked.add_(1)` on the user's own buffer

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return m.__module__.startswith("torch.nn") and not list(m.children())
