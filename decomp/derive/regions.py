"""Inlining of regions without gradients, or under autocast: targets have ops, not regions. The inputs of a region
without gradients are detached, so that the same values are computed and saved."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
import operator
from typing import Any

import torch
from torch import fx, nn

from decomp.capture import autocast
from decomp.functionalize.writes import can_require_grad
from decomp.graphs.rewrite import Rewrite
from decomp.ir.aliases import attribute, is_same_tensor, is_view, list_operands, view_bases
from decomp.ir.call import metadata
from decomp.ir.module import ProgramGraph
from decomp.ops import aten

# torch.export makes regions of calls under `torch.no_grad`, https://github.com/pytorch/pytorch/pull/119915, and under
# autocast, https://github.com/pytorch/pytorch/pull/131914.
_WITHOUT_GRADIENT = "wrap_with_set_grad_enabled"


@dataclass(frozen=True)
class _Region:
    body: fx.Graph
    operands: tuple[Any, ...]
    detached: bool
    """Whether gradients are disabled in it."""


def inline_regions(
    graph: fx.Graph, body_of: Callable[[str], fx.GraphModule | None], root: nn.Module, frozen: Collection[str]
) -> Rewrite | None:
    """The graph with its regions inlined; None if none can be. `frozen`: names of inputs that never require
    gradients."""
    regions = {node: region for node in graph.nodes if (region := _inlinable(node, body_of)) is not None}
    return _RegionWalk(graph, regions, root, frozen).rewrite if regions else None


def _inlinable(node: fx.Node, body_of: Callable[[str], fx.GraphModule | None]) -> _Region | None:
    """The region that a node runs, if it contains only ops. Regions that enable gradients, or have data-dependent
    sizes, are not inlined."""
    name = node.target.__name__ if isinstance(node.target, torch._ops.HigherOrderOperator) else ""
    if _switches_gradients_off(node):
        place = 1
    elif name == "wrap_with_autocast":
        # The body comes after the arguments of `torch.autocast`: device_type, dtype, enabled, cache_enabled.
        place = 4
    else:
        return None
    attr = node.args[place]
    body = body_of(str(attr.target)) if isinstance(attr, fx.Node) else None
    if body is None or not _is_plain(node, body.graph):
        return None
    # Casts are made explicit before the body loses its region, which is what says where they are.
    policy = autocast.region_policy(node) if place == 4 else None
    return _Region(_with_explicit_casts(body, policy).graph, tuple(node.args[place + 1 :]), place == 1)


def _is_plain(region: fx.Node, body: fx.Graph) -> bool:
    # Data-dependent sizes are bound by the region's node, for which an inlined body has no counterpart.
    if region.kwargs or "unbacked_bindings" in region.meta:
        return False
    # Users take results by number; anything else would read the tuple as a value.
    if any(user.target is not operator.getitem or not isinstance(user.args[1], int) for user in region.users):
        return False
    return all(
        node.op in ("placeholder", "output")
        or isinstance(node.target, torch._ops.OpOverload)
        and "unbacked_bindings" not in node.meta
        or node.target is operator.getitem
        for node in body.nodes
    )


class _RegionWalk:
    """One pass over a program that copies it and inlines its regions."""

    def __init__(
        self, source: fx.Graph, regions: Mapping[fx.Node, _Region], root: nn.Module, frozen: Collection[str]
    ) -> None:
        self.root, self.frozen = root, frozen
        self.detached: dict[fx.Node, fx.Node] = {}
        self.tracked: set[fx.Node] = set()
        """Nodes of the copy that may require a gradient."""
        # Their names are free for the nodes of the bodies, so that users find the results by the names that they had.
        gone = {user for region in regions for user in (region, *region.users)}
        self.rewrite = Rewrite.of(source, without=gone)
        for node in source.nodes:
            if node in regions:
                self.rewrite.replace(node, self._inlined(node, regions[node]))
            # The attribute with the body: nothing reads it once its calls are inlined.
            elif not (node.op == "get_attr" and node.users and regions.keys() >= node.users.keys()):
                self._copy_node(node)

    def _copy_node(self, node: fx.Node) -> None:
        new = self.rewrite.copy(node)
        is_copy = isinstance(new, fx.Node) and self.rewrite.source_of(new) is node
        if is_copy and self._may_require_grad(node, new):
            self.tracked.add(new)

    def _may_require_grad(self, node: fx.Node, new: fx.Node) -> bool:
        # Only parameters, and constants that say so themselves.
        if node.op == "get_attr":
            value = attribute(self.root, str(node.target))
            return isinstance(value, nn.Parameter) or bool(getattr(value, "requires_grad", False))
        if not can_require_grad(metadata(node)) or node.target is aten.detach.default:
            return False
        if node.op == "placeholder":
            return node.name not in self.frozen
        return not self._is_untracked(new)

    def _inlined(self, call: fx.Node, region: _Region) -> tuple[Any, ...]:
        """Copy the body of a region; returns the values of its results."""
        operands = list(fx.map_arg(region.operands, self.rewrite.values.__getitem__))
        given = [self._detached(call, operand) for operand in operands] if region.detached else operands

        def make(node: fx.Node, args: Any, kwargs: Any) -> fx.Node:
            new = self.rewrite.add(node.op, node.target, args, kwargs, self._name(node.name, call), at=node)
            new.meta = dict(node.meta)
            # With detached operands nothing inside can require a gradient.
            if not region.detached and can_require_grad(metadata(node)) and not self._is_untracked(new):
                self.tracked.add(new)
            return new

        values = self.rewrite.inline(region.body, given, make)
        # Recorded as well for the proof, which follows each node of a body to its copy.
        self.rewrite.values.update(values)
        # In PyTorch a tensor that a no_grad region only hands on is the tensor itself, with its gradient.
        values.update(_passed_through(region.body, operands))
        results = region.body.output_node().args[0]
        return tuple(fx.map_arg(list(results) if isinstance(results, (list, tuple)) else [results], values.__getitem__))

    def _is_untracked(self, new: fx.Node) -> bool:
        return self.tracked.isdisjoint(new.all_input_nodes)

    def _detached(self, call: fx.Node, value: Any) -> Any:
        if value not in self.tracked:
            return value
        if value in self.detached:
            return self.detached[value]
        name = self._name(f"{value.name}_detached", call)
        new = self.rewrite.add("call_function", aten.detach.default, (value,), {}, name, at=call)
        self.detached[value] = new
        known = metadata(value)
        # Metadata of the region's call describes its results, not this operand.
        new.meta = {key: item for key, item in call.meta.items() if key in ("stack_trace", "nn_module_stack")}
        if isinstance(known, torch.Tensor):
            with known.fake_mode:
                new.meta["val"] = aten.detach.default(known)
        return new

    def _name(self, name: str, call: fx.Node) -> str:
        """The name of an inlined node: its own, unless another node of the program has it."""
        return f"{call.name}_{name}" if name in self.rewrite.names else name


def _passed_through(body: fx.Graph, operands: Sequence[Any]) -> dict[fx.Node, Any]:
    """The values that a region passes through, which keep their gradients: its inputs, and results of calls that return
    an argument itself, or several (`broadcast_tensors`)."""
    handed: dict[fx.Node, Any] = dict(zip(body.find_nodes(op="placeholder"), operands))
    for node in (node for node in body.nodes if node.op == "call_function"):
        whole, bases = node, view_bases(node)
        if node.target is operator.getitem and (listed := list_operands(node.args[0])):
            whole, bases = node.args[0], (listed[node.args[1]],)
        base = next((base for base in bases if base in handed), None)
        if base is not None and is_view(whole, base) and is_same_tensor(whole, base):
            handed[node] = handed[base]
    return handed


# Bodies.


def bodies_of(
    own: ProgramGraph, policy: autocast.Policy | None
) -> dict[str, tuple[fx.GraphModule, autocast.Policy | None]]:
    """The bodies of higher-order ops, by attribute, with the autocast under which each runs; its casts are made
    explicit."""
    found: dict[str, tuple[fx.GraphModule, autocast.Policy | None]] = {}
    for node in own.graph.find_nodes(op="get_attr"):
        name = str(node.target)
        # A body without users would be lowered for nothing, and its autocast is no longer known.
        body = body_named(name, own) if name not in found and node.users else None
        if body is not None:
            # A region's attribute may also be an operand of another higher-order op.
            regions = [user for user in node.users if autocast.is_region(user) and user.args[4] is node]
            inner = autocast.region_policy(regions[0]) if regions else policy
            found[name] = _with_explicit_casts(body, inner), inner
    return found


def _with_explicit_casts(body: fx.GraphModule, policy: autocast.Policy | None) -> fx.GraphModule:
    return autocast.make_casts_explicit(body, lambda _: policy) if policy is not None else body


def body_named(name: str, own: ProgramGraph) -> fx.GraphModule | None:
    """The body that a graph calls by this name; None if it is no body."""
    value = own.bodies[name] if name in own.bodies else attribute(own.owner, name)
    return value if isinstance(value, fx.GraphModule) else None


def runs_untracked(graph: fx.Graph, name: str) -> bool:
    """Whether a body runs only in regions without gradients."""
    calls = [user for node in graph.find_nodes(op="get_attr", target=name) for user in node.users]
    return bool(calls) and all(map(_switches_gradients_off, calls))


def _switches_gradients_off(call: fx.Node) -> bool:
    return getattr(call.target, "__name__", "") == _WITHOUT_GRADIENT and call.args[0] is False
