"""Outlining: what a call of the source was expanded to becomes the body of a composite call. It is done right after
expansion, where the nodes of one call follow one another and depend on nothing but its operands and constants; later,
simplification shares and moves calls across this border. Inlining each body gives back the graph, which is verified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
import operator
from typing import Any

import torch
from torch import fx, nn

from decomp.derive.decisions import Derived
from decomp.graphs.node_builder import node_creator
from decomp.graphs.rewrite import Rewrite
from decomp.ir.arguments import nodes_in
from decomp.ir.call import call_if_bound, inherited_meta, metadata
from decomp.ir.composites import KEY, CompositeCall, Outlined, composites_in
from decomp.ir.module import Module, ProgramGraph
from decomp.ir.ops import Op
from decomp.patterns.pattern import Pattern

Versions = Mapping[Op | Pattern, int]
"""The ops and patterns whose calls become composites, each with a version."""


def outline_module(module: Module, versions: Versions) -> Module:
    """The expanded program with composite calls, and their bodies among its graphs."""
    graphs: dict[nn.Module, ProgramGraph] = {}
    for own in module.graphs.values():
        walk = _Outlining(own, versions)
        outlined = walk.outlined()
        graphs[outlined.owner] = outlined
        graphs.update((body.owner, body) for body in walk.bodies.values())
    return replace(module, graphs=graphs)


@dataclass
class _ExpandedCall:
    """What one call of the planned graph was expanded to."""

    source: fx.Node
    decision: Derived
    name: str
    version: int
    nodes: list[fx.Node] = field(default_factory=list)


class _Outlining:
    """One pass over an expanded graph that copies it, except for the regions of composites."""

    def __init__(self, own: ProgramGraph, versions: Versions) -> None:
        assert own.edges is not None
        self.own, self.edges = own, own.edges
        self.bodies: dict[Any, ProgramGraph] = {}
        """The body of each distinct composite."""
        self.attributes: dict[str, fx.Node] = {}
        self.calls: dict[fx.Node, CompositeCall] = {}
        self.left: dict[str, str] = {}
        self.written = {write.value for write in own.writes}
        self.regions = self._regions(versions)
        self.rewrite = Rewrite.of(own.graph)

    def _regions(self, versions: Versions) -> dict[fx.Node, _ExpandedCall]:
        found: dict[fx.Node, _ExpandedCall] = {}
        by_key = {composite_key(op): (spell_composite(op), version) for op, version in versions.items()}
        for node, decision in (self.own.planned.decisions or {}).items():
            named = by_key.get(composite_key(node)) if isinstance(decision, Derived) else None
            if isinstance(decision, Derived) and named is not None:
                found[node] = _ExpandedCall(node, decision, *named)
        # One walk over the lowered graph for all regions, in its order: the body has the same order.
        for node in self.own.graph.nodes if found else ():
            region = found.get(self.edges.origin.get(node))
            if region is not None and node.op.startswith("call"):
                region.nodes.append(node)
        for region in found.values():
            if reason := self._why_not(region):
                self.left[region.source.name] = reason
        return {node: region for node, region in found.items() if node.name not in self.left}

    def _why_not(self, region: _ExpandedCall) -> str:
        # Its expansion returns an operand or a constant: there is no call to put in a body.
        if not region.nodes:
            return "it computes nothing"
        operands = {given for node in region.nodes for given in node.all_input_nodes}
        # A body of control flow would have to move into the body, under a name of its own.
        if any(node.op == "get_attr" and str(node.target) in self.own.bodies for node in operands):
            return "it runs bodies of its own"
        return ""

    def outlined(self) -> ProgramGraph:
        """The graph with composite calls; the graph itself if it has none."""
        if not self.regions:
            return self.own
        for node in self.own.graph.nodes:
            region = self.regions.get(self.edges.origin.get(node))
            if region is None or not node.op.startswith("call"):
                self.rewrite.copy(node)
            # At the last node: all operands precede it, and no user
            # comes before it, as an expansion is inlined in one piece.
            elif node is region.nodes[-1]:
                self._call(region)
        bodies = {body.name: body.owner for body in self.bodies.values()}
        after = self.own.rewritten(
            self.rewrite,
            "composites",
            why=Outlined(self.calls, tuple(composites_in(self.rewrite.graph).values()), self.left),
            bodies={**self.own.bodies, **bodies},
        )
        chains = {new: self.own.chains.get(old, ()) for new, old in self.rewrite.origin.items()}
        made = {call: chains[call][:1] for call in self.calls}
        return replace(after, chains={new: chain for new, chain in {**chains, **made}.items() if chain})

    def _call(self, region: _ExpandedCall) -> None:
        """The composite call, in place of the nodes of a region."""
        source, rewrite = region.source, self.rewrite
        results = [*nodes_in(self.edges.values[source])]
        # `wrap` runs its first operand on the others, and exported programs
        # and torch.compile know it; no op of our own needs to be registered.
        operands = self._operands(region)
        made = self._composite(region, operands)
        body = self._body(region, made, operands, results)
        attribute = self.attributes.get(body.name)
        if attribute is None:
            attribute = rewrite.create("get_attr", body.name, (), {}, rewrite.free(body.name))
            self.attributes[body.name] = attribute
        args = (attribute, *(rewrite.values[operand] for operand in operands))
        name = rewrite.free(f"{source.name}_composite")
        call = rewrite.create("call_function", torch.ops.higher_order.wrap, args, {}, name)
        call.meta.update(inherited_meta(source))
        # Of all metadata, `torch.export.save` keeps "custom", "nn_module_stack", "stack_trace" and a few more.
        call.meta["custom"] = {**call.meta.get("custom", {}), KEY: made.meta}
        values = tuple(metadata(result) for result in results)
        if all(value is not None for value in values):
            call.meta["val"] = values
        rewrite.origin[call], rewrite.several[call] = region.nodes[-1], tuple(region.nodes)
        self.calls[call] = made
        inside = set(region.nodes)
        for i, result in enumerate(results):
            # A result that is an operand of the call is already there, and an unused one needs no node.
            if result in inside and (result.users or result in self.written) and result not in rewrite.values:
                part = rewrite.create("call_function", operator.getitem, (call, i), {}, result.name)
                part.meta.update(result.meta)
                rewrite.origin[part] = result
                rewrite.replace(result, part)

    def _operands(self, region: _ExpandedCall) -> list[fx.Node]:
        """The operands of the source call, in its order, then the constants that only its decomposition reads."""
        inside = set(region.nodes)
        given = nodes_in([self.edges.values[node] for node in region.source.all_input_nodes])
        read = (node for each in region.nodes for node in each.all_input_nodes if node not in inside)
        return list(dict.fromkeys((*given, *read)))

    def _composite(self, region: _ExpandedCall, operands: Sequence[fx.Node]) -> CompositeCall:
        source, values = region.source, self.edges.values
        places = {node: {"operand": i} for i, node in enumerate(operands)}
        operand_of = {node: fx.map_arg(values[node], places.__getitem__) for node in source.all_input_nodes}
        found = values[source]
        leaves = found if isinstance(found, (tuple, list)) else ()
        kept = [i for i, leaf in enumerate(leaves) for _ in nodes_in(leaf)]
        if isinstance(source.target, Pattern):
            named = dict(zip(source.target.variables, source.args))
            return CompositeCall.made_from(region.name, region.version, None, named, operand_of, kept)
        call = call_if_bound(source)
        assert call is not None
        return CompositeCall.made_from(region.name, region.version, call.overload, call.arguments, operand_of, kept)

    def _body(
        self, region: _ExpandedCall, made: CompositeCall, operands: Sequence[fx.Node], results: Sequence[fx.Node]
    ) -> ProgramGraph:
        """The body of a composite, one for all calls of its signature."""
        # Two expansions may read other constants at the same place: their bodies are not the same function.
        constants = tuple(str(each.target) for each in operands if each.op == "get_attr")
        # One template a signature, so that equal calls share a body.
        key = region.decision.stamp, repr(made), constants
        if key not in self.bodies:
            self.bodies[key] = self._new_body(region, made, operands, results)
        return self.bodies[key]

    def _new_body(
        self, region: _ExpandedCall, made: CompositeCall, operands: Sequence[fx.Node], results: Sequence[fx.Node]
    ) -> ProgramGraph:
        edges = Rewrite(fx.Graph())
        values: dict[fx.Node, fx.Node] = {}
        for operand in operands:
            values[operand] = edges.create("placeholder", operand.name, (), {}, operand.name)
            values[operand].meta.update(operand.meta)
        for node in region.nodes:
            args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
            new = values[node] = edges.values[node] = edges.create(node.op, node.target, args, kwargs, node.name)
            new.meta.update(node.meta)
            edges.origin[new] = node
        node_creator(edges.graph)("output", "output", (tuple(values[each] for each in results),), {}, "output")
        owner = nn.Module()
        owner.training = self.own.owner.training
        return ProgramGraph(
            edges.graph,
            owner,
            self._free_name(made.short),
            "composites",
            self.own,
            edges,
            chains={new: self.own.chains[old] for new, old in edges.origin.items() if old in self.own.chains},
            composite=made,
        )

    def _free_name(self, op: str) -> str:
        taken = {*self.own.attribute_names, *self.own.bodies, *(body.name for body in self.bodies.values())}
        return next(name for i in range(len(taken) + 1) if (name := f"{op}_composite_{i}") not in taken)


def composite_key(called: fx.Node | Op | Pattern) -> Any:
    """By what ops and patterns, and calls of them, are compared: the name of an op, the graph of a pattern, of which a
    rule has a copy by another name; None for a node that calls neither."""
    target = called.target if isinstance(called, fx.Node) else called
    if isinstance(target, Pattern):
        return target.graph
    call = call_if_bound(called) if isinstance(called, fx.Node) else None
    return str(call.op) if call is not None else None if isinstance(called, fx.Node) else str(called)


def spell_composite(op: Op | Pattern) -> str:
    """`aten.gelu`, or `pattern.rms_norm` of a pattern."""
    return f"pattern.{op.name}" if isinstance(op, Pattern) else str(op)
