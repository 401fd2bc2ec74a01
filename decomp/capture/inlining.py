"""Inlining modules: in the torch dialect a leaf module is one call. Where what it computes must be lowered, it is
replaced by a graph of its own forward, its parameters becoming attributes of the root."""

from __future__ import annotations

from collections.abc import Callable, Mapping
import copy
from dataclasses import dataclass, field
import operator
from typing import Any

from torch import fx, nn

from decomp.capture.input_checks import flat_inputs
from decomp.capture.module_hooks import is_customised
from decomp.capture.traced_regions import no_regions
from decomp.graphs import node_builder as appending
from decomp.ir.call import substituted
from decomp.torch_internals import pytree
from decomp.torch_internals.graphs import PyTreeCodeGen


@dataclass(frozen=True, slots=True)
class Item:
    """A part of what a node gives, where that is a tuple, list or dict."""

    node: fx.Node
    path: tuple[Any, ...]


@dataclass(frozen=True)
class Body:
    """What is put in the place of a call of a leaf module."""

    graph: fx.Graph
    inputs: tuple[Any, ...]
    """What each placeholder is, in terms of the graph that makes the call: arguments, or an `Item`."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Tensors that the graph names and the module does not have."""


Wanted = Callable[[nn.Module, fx.Node], Body | None]
"""The body to put in the place of a leaf module, or None to leave the call as it is."""


@dataclass(frozen=True)
class Leaves:
    """What is to become of calls of leaf modules."""

    body: Wanted
    """Its forward, traced symbolically; None if it is to stay, or cannot be traced."""
    wants: Callable[[nn.Module, fx.Node], bool]
    """Whether a module that could not be traced is to be captured by torch.export."""
    serves: Callable[[fx.Graph, nn.Module], bool]
    """Whether its graph is then to take the place of the call."""


def inlined(graph: fx.Graph, root: nn.Module, wanted: Wanted) -> tuple[fx.Graph, dict[fx.Node, fx.Node]]:
    """A copy of `graph` with modules inlined, and which node of `graph` each of its nodes stands for."""
    new = fx.Graph(tracer_cls=graph._tracer_cls)
    values: dict[fx.Node, Any] = {}
    origin: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        body = wanted(root.get_submodule(str(node.target)), node) if node.op == "call_module" else None
        if body is not None:
            values[node] = _put(new, body, node, values, origin)
        elif _is_projection(node, values):
            values[node] = values[node.args[0]][node.args[1]]
        else:
            copied = appending.copied(new, node, values.__getitem__)
            values[node], origin[copied] = copied, node
    new._codegen = copy.copy(graph._codegen)
    return new, origin


def _is_projection(node: fx.Node, values: Mapping[fx.Node, Any]) -> bool:
    """Whether a node takes one of several results of a module that was inlined."""
    if node.target is not operator.getitem or not isinstance(node.args[1], (int, str)):
        return False
    return isinstance(node.args[0], fx.Node) and isinstance(values[node.args[0]], (tuple, list, dict))


def _put(
    new: fx.Graph, body: Body, call: fx.Node, values: Mapping[fx.Node, Any], origin: dict[fx.Node, fx.Node]
) -> Any:
    """Copy `body`, the forward of the module that `call` calls, into `new`."""
    inner: dict[fx.Node, Any] = {}
    inputs = iter(body.inputs)
    result: Any = None
    for node in body.graph.nodes:
        if node.op == "placeholder":
            inner[node] = _given(new, next(inputs), call, values, origin)
        elif node.op == "output":
            result = fx.node.map_arg(node.args[0], inner.__getitem__)
        elif _is_projection(node, inner):
            inner[node] = inner[node.args[0]][node.args[1]]
        else:
            inner[node] = copied = _copied(new, node, call, inner)
            origin[copied] = call
    if isinstance(body.graph._codegen, PyTreeCodeGen):
        return pytree.tree_unflatten(list(result), body.graph._codegen.pytree_info.out_spec)
    return result


def _given(
    new: fx.Graph, given: Any, call: fx.Node, values: Mapping[fx.Node, Any], origin: dict[fx.Node, fx.Node]
) -> Any:
    """What a placeholder of a body is in the new graph."""
    if not isinstance(given, Item):
        return fx.node.map_arg(given, values.__getitem__)
    value = values[given.node]
    for key in given.path:
        if isinstance(value, (tuple, list, dict)):
            value = value[key]  # type: ignore[index]
        else:
            value = new.call_function(operator.getitem, (value, key))
            origin[value] = call
    return value


def _copied(new: fx.Graph, node: fx.Node, call: fx.Node, inner: Mapping[fx.Node, Any]) -> fx.Node:
    target = f"{call.target}.{node.target}" if node.op in ("get_attr", "call_module") else node.target
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), inner.__getitem__)
    copied = new.create_node(node.op, target, args, kwargs, name=f"{call.name}_{node.name}")
    copied.meta = {**{k: v for k, v in call.meta.items() if k != "val"}, **node.meta}
    return copied


def body_of_graph_module(module: fx.GraphModule, call: fx.Node) -> Body:
    """The graph of a GraphModule that is called as a module."""
    graph = module.graph
    if isinstance(graph._codegen, PyTreeCodeGen):
        return Body(graph, tuple(flat_inputs(graph._codegen, call.args, call.kwargs)))
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    more = {str(node.target): call.kwargs.get(str(node.target), *node.args[:1]) for node in inputs[len(call.args):]}
    return Body(graph, (*call.args, *more.values()))


def traced_forward(module: nn.Module, call: fx.Node) -> Body | None:
    """The graph of what a module's forward does with the arguments of `call`, its children being leaves; None if it
    cannot be traced."""
    tracer = _Forward(call)
    try:
        with no_regions(tracer):
            return Body(tracer.trace(_without_checks(module)), tuple(call.all_input_nodes))
    except Exception:
        return None


def _without_checks(module: nn.Module) -> nn.Module:
    """Normalisation modules ask for the rank of their input, which a proxy does not know: a copy that shares everything
    else does not ask."""
    if not hasattr(module, "_check_input_dim"):
        return module
    copied = copy.copy(module)
    object.__setattr__(copied, "_check_input_dim", lambda x: None)
    return copied


class _Forward(fx.Tracer):
    """Traces `module.forward`, which may be the instance's own, on the arguments of a call."""

    proxy_buffer_attributes = True  # else tracing would run `num_batches_tracked.add_(1)` on the user's own buffer

    def __init__(self, call: fx.Node) -> None:
        super().__init__()
        self.call = call

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        proxies = {
            node: self.create_proxy("placeholder", f"input_{i}", (), {})
            for i, node in enumerate(self.call.all_input_nodes)
        }
        args, kwargs = substituted((self.call.args, self.call.kwargs), proxies.__getitem__)
        return (lambda root: root.forward(*args, **kwargs)), [self.root]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return is_customised(m) or m.__module__.startswith("torch.nn") and not list(m.children())


def parts_of(node: fx.Node, value: Any, path: tuple[Any, ...] = ()) -> Any:
    """`node`, or, where its value is a container, a container of its parts."""
    if isinstance(value, (list, tuple)):
        items = [parts_of(node, item, (*path, i)) for i, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, dict):
        return {key: parts_of(node, item, (*path, key)) for key, item in value.items()}
    return Item(node, path) if path else node


def with_attributes(root: nn.Module, attributes: Mapping[str, Any]) -> nn.Module:
    """A copy of `root` that shares everything with it and has more attributes, by path."""
    if not attributes:
        return root
    new = _shallow(root)
    for path, value in attributes.items():
        *parents, name = path.split(".")
        owner = new
        for parent in parents:
            owner._modules[parent] = _shallow(owner._modules[parent])
            owner = owner._modules[parent]  # type: ignore[assignment]
        vars(owner)[name] = value
    return new


def _shallow(module: Any) -> Any:
    copied = object.__new__(type(module))
    vars(copied).update(vars(module), _modules=dict(module._modules))
    return copied
