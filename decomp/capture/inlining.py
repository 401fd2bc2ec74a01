"""Inlining of modules. In the torch dialect a leaf module is one call; where its computation must be lowered, the call
is replaced by the graph of its forward, whose parameters become attributes of the root."""

from __future__ import annotations

from collections.abc import Callable, Mapping
import copy
from dataclasses import dataclass, field
import operator
from typing import Any

from torch import fx, nn

from decomp.capture.inputs.trees import flat_inputs
from decomp.capture.module_hooks import is_customised
from decomp.capture.traced_regions import refuse_regions
from decomp.graphs.rewrite import Rewrite
from decomp.ir.arguments import substituted
from decomp.torch_internals import pytree
from decomp.torch_internals.graphs import PyTreeCodeGen


@dataclass(frozen=True, slots=True)
class Item:
    """One element of a node's result that is a tuple, list or dict."""

    node: fx.Node
    path: tuple[Any, ...]


@dataclass(frozen=True)
class InlinedBody:
    """The graph that replaces a call of a leaf module."""

    graph: fx.Graph
    inputs: tuple[Any, ...]
    """What each placeholder maps to in the calling graph: an argument, or an `Item`."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Tensors that the graph refers to and the module lacks."""


Wanted = Callable[[nn.Module, fx.Node], InlinedBody | None]
"""Returns the body that replaces a call of a leaf module, or None to keep the call."""


@dataclass(frozen=True)
class Leaves:
    """What happens to calls of leaf modules."""

    body: Wanted
    """Its forward, traced symbolically; None if the call stays, or cannot be traced."""
    wants: Callable[[nn.Module, fx.Node], bool]
    """Whether to try torch.export on a module that could not be traced."""
    serves: Callable[[fx.Graph, nn.Module], bool]
    """Whether the exported graph should then replace the call."""


def inline_modules(graph: fx.Graph, root: nn.Module, wanted: Wanted) -> Rewrite:
    """A copy of `graph` with modules inlined."""
    rewrite = Rewrite.of(graph)
    for node in graph.nodes:
        body = wanted(root.get_submodule(str(node.target)), node) if node.op == "call_module" else None
        if body is None:
            rewrite.copy(node)
        else:
            rewrite.replace(node, _inline_body(rewrite, body, node))
    return rewrite


def _inline_body(rewrite: Rewrite, body: InlinedBody, call: fx.Node) -> Any:
    """Inline `body`, the forward of the module that `call` calls, into the new graph. Returns its result."""

    def make(node: fx.Node, args: Any, kwargs: Any) -> fx.Node:
        target = f"{call.target}.{node.target}" if node.op in ("get_attr", "call_module") else node.target
        new = rewrite.add(node.op, target, args, kwargs, f"{call.name}_{node.name}", at=call)
        # The module path and stack of the call, but not its value, which only its result has.
        new.meta = {**{k: v for k, v in call.meta.items() if k != "val"}, **node.meta}
        return new

    inner = rewrite.inline(body.graph, [_input(rewrite, given, call) for given in body.inputs], make)
    result: Any = fx.node.map_arg(body.graph.output_node().args[0], inner.__getitem__)
    if isinstance(body.graph._codegen, PyTreeCodeGen):
        return pytree.tree_unflatten(list(result), body.graph._codegen.pytree_info.out_spec)
    return result


def _input(rewrite: Rewrite, given: Any, call: fx.Node) -> Any:
    """The value of a body's placeholder in the new graph."""
    if not isinstance(given, Item):
        return fx.node.map_arg(given, rewrite.values.__getitem__)
    value = rewrite.values[given.node]
    for key in given.path:
        if isinstance(value, (tuple, list, dict)):
            value = value[key]
        else:
            value = rewrite.add("call_function", operator.getitem, (value, key), {}, "getitem", at=call)
    return value


def body_of_graph_module(module: fx.GraphModule, call: fx.Node) -> InlinedBody:
    """The graph of a GraphModule that is called as a leaf module."""
    graph = module.graph
    if isinstance(graph._codegen, PyTreeCodeGen):
        return InlinedBody(graph, tuple(flat_inputs(graph._codegen, call.args, call.kwargs)))
    inputs = graph.find_nodes(op="placeholder")
    more = {str(node.target): call.kwargs.get(str(node.target), *node.args[:1]) for node in inputs[len(call.args) :]}
    return InlinedBody(graph, (*call.args, *more.values()))


def trace_forward(module: nn.Module, call: fx.Node) -> InlinedBody | None:
    """The graph of a module's forward on the arguments of `call`, with its children as leaves; None if it cannot be
    traced."""
    tracer = _Forward(call)
    try:
        with refuse_regions(tracer):
            return InlinedBody(tracer.trace(_without_checks(module)), tuple(call.all_input_nodes))
    # A forward may do anything with a proxy; that it cannot be traced is an answer, not an error.
    except Exception:
        return None


def _without_checks(module: nn.Module) -> nn.Module:
    """Normalisation modules check the rank of their input, which a proxy does not have. Returns a copy without that
    check, which shares everything else."""
    if not hasattr(module, "_check_input_dim"):
        return module
    copied = copy.copy(module)
    object.__setattr__(copied, "_check_input_dim", lambda x: None)
    return copied


class _Forward(fx.Tracer):
    """Traces `module.forward`, which may be assigned on the instance, on the arguments of a call."""

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
    """`node`, or, if its value is a container, a container of its items."""
    if isinstance(value, (list, tuple)):
        items = [parts_of(node, item, (*path, i)) for i, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, dict):
        return {key: parts_of(node, item, (*path, key)) for key, item in value.items()}
    return Item(node, path) if path else node


def with_attributes(root: nn.Module, attributes: Mapping[str, Any]) -> nn.Module:
    """A copy of `root` that shares everything with it and has additional attributes, by path."""
    if not attributes:
        return root
    new = _shallow(root)
    for path, value in attributes.items():
        *parents, name = path.split(".")
        owner = new
        for parent in parents:
            owner._modules[parent] = _shallow(owner._modules[parent])
            owner = owner._modules[parent]
        # Not by `setattr`, which would register parameters and buffers, and so change the state dict.
        vars(owner)[name] = value
    return new


def _shallow(module: Any) -> Any:
    # `copy.copy` of a GraphModule generates its code again.
    copied = object.__new__(type(module))
    vars(copied).update(vars(module), _modules=dict(module._modules))
    return copied
