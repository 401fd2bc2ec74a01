"""Outlining: what a call was expanded to becomes the body of a composite call, whether the source makes it or a rule,
at any depth. It is done right after expansion, where the nodes of one call follow one another and depend on nothing but
its operands and constants; later, simplification shares and moves calls across this border. Inlining each body gives
back the graph, which is verified."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
import operator
from typing import Any

import torch
from torch import fx, nn

from decomp.graphs.node_builder import node_creator
from decomp.graphs.rewrite import Rewrite
from decomp.graphs.template import InnerCall
from decomp.ir.arguments import nodes_in
from decomp.ir.call import call_if_bound, inherited_meta, metadata
from decomp.ir.composites import KEY, CompositeCall, Outlined, composites_in
from decomp.ir.module import BODY, Module, ProgramGraph
from decomp.ir.ops import Op
from decomp.patterns.pattern import Pattern

Versions = Mapping[Op | Pattern, int]
"""The ops and patterns whose calls become composites, each with a version."""


def outline_module(module: Module, versions: Versions) -> Module:
    """The expanded program with composite calls, and their bodies among its graphs."""
    graphs: dict[nn.Module, ProgramGraph] = {}
    for own in module.graphs.values():
        bodies = _Bodies(own)
        outlined = _Outlining(own, *_regions(own, versions), bodies).outlined()
        graphs[outlined.owner] = outlined
        graphs.update((body.owner, body) for body in bodies.known.values())
    return replace(module, graphs=graphs)


@dataclass(frozen=True, eq=False)
class _ExpandedCall:
    """What one call was expanded to, with the regions of composites inside it."""

    call: InnerCall
    name: str
    version: int
    inner: list[_ExpandedCall] = field(default_factory=list)

    def through(self, value_of: Callable[[fx.Node], Any]) -> _ExpandedCall:
        """The same in the copy of its graph."""
        inner = [each.through(value_of) for each in self.inner]
        return replace(self, call=self.call.through(value_of), inner=inner)


def _regions(own: ProgramGraph, versions: Versions) -> tuple[list[_ExpandedCall], dict[str, str]]:
    """The regions of composites in an expanded graph, and calls that were to be composites and are not, with the
    reason."""
    by_key = {composite_key(op): (spell_composite(op), version) for op, version in versions.items()}
    found: list[_ExpandedCall] = []
    left: dict[str, str] = {}
    for source, calls in (own.expanded.why or {}).items():
        if composite_key(source) in by_key and (reason := _why_not(calls[0], own)):
            left[source.name] = reason
        found += _nested(_named(calls, by_key, own))
    return found, left


def _named(
    calls: Iterable[InnerCall], by_key: Mapping[Any, tuple[str, int]], own: ProgramGraph
) -> Iterator[_ExpandedCall]:
    for call in calls:
        named = by_key.get(composite_key(call.source))
        if named is not None and not _why_not(call, own):
            yield _ExpandedCall(call, *named)


def _nested(regions: Iterable[_ExpandedCall]) -> list[_ExpandedCall]:
    """The outermost of regions, of which each comes before those inside it; the others are within these."""
    outermost: list[_ExpandedCall] = []
    around: list[_ExpandedCall] = []
    for region in regions:
        while around and not {*region.call.nodes} <= {*around[-1].call.nodes}:
            around.pop()
        (around[-1].inner if around else outermost).append(region)
        around.append(region)
    return outermost


def _why_not(call: InnerCall, own: ProgramGraph) -> str:
    # Its expansion returns an operand or a constant: there is no call to put in a body.
    if not call.nodes:
        return "it computes nothing"
    operands = {given for node in call.nodes for given in node.all_input_nodes}
    # A body of control flow would have to move into the body, under a name of its own.
    if any(node.op == "get_attr" and str(node.target) in own.bodies for node in operands):
        return "it runs bodies of its own"
    return ""


class _Bodies:
    """The bodies of the composites in one graph of the source, at any depth."""

    def __init__(self, root: ProgramGraph) -> None:
        self.known: dict[Any, ProgramGraph] = {}
        """By what their calls have in common."""
        self.constants: dict[fx.Node, str] = {}
        """The names of constants, by the nodes that read them, and by the inputs of bodies that they are given to."""
        self._root = root

    def named(self, operands: Iterable[fx.Node]) -> tuple[str | None, ...]:
        """For each operand, the constant that it is."""
        self.constants.update((each, str(each.target)) for each in operands if each.op == "get_attr")
        return tuple(self.constants.get(each) for each in operands)

    def free_name(self, op: str) -> str:
        """A name that no graph has for anything else: the body of a composite may be called by several."""
        root = self._root
        taken = {*root.attribute_names, *root.bodies, *(body.name for body in self.known.values())}
        return next(name for i in range(len(taken) + 1) if (name := f"{op}_composite_{i}") not in taken)


class _Outlining:
    """One pass over a graph that copies it, except for the regions of composites."""

    def __init__(
        self, own: ProgramGraph, regions: Sequence[_ExpandedCall], left: Mapping[str, str], bodies: _Bodies
    ) -> None:
        self.own, self.left, self.bodies = own, left, bodies
        self.called: dict[str, nn.Module] = {}
        """The owners of the bodies that its calls run, by name."""
        self.attributes: dict[str, fx.Node] = {}
        self.calls: dict[fx.Node, CompositeCall] = {}
        self.written = {write.value for write in own.writes}
        self.regions = {node: region for region in regions for node in region.call.nodes}
        self.rewrite = Rewrite.of(own.graph)

    def outlined(self) -> ProgramGraph:
        """The graph with composite calls; the graph itself if it has none."""
        if not self.regions:
            return self.own
        for node in self.own.graph.nodes:
            region = self.regions.get(node)
            if region is None:
                self.rewrite.copy(node)
            # At the last node: all operands precede it, and no user
            # comes before it, as an expansion is inlined in one piece.
            elif node is region.call.nodes[-1]:
                self._call(region)
        after = self.own.rewritten(
            self.rewrite,
            "composites",
            why=Outlined(self.calls, tuple(composites_in(self.rewrite.graph).values()), self.left),
            bodies={**self.own.bodies, **self.called},
        )
        chains = {new: self.own.chains.get(old, ()) for new, old in self.rewrite.origin.items()}
        made = {call: chains[call][:1] for call in self.calls}
        return replace(after, chains={new: chain for new, chain in {**chains, **made}.items() if chain})

    def _call(self, region: _ExpandedCall) -> None:
        """The composite call, in place of the nodes of a region."""
        nodes, rewrite = region.call.nodes, self.rewrite
        results = [*nodes_in(region.call.result)]
        # `wrap` runs its first operand on the others, and exported programs
        # and torch.compile know it; no op of our own needs to be registered.
        operands = _operands(region.call)
        made = _composite(region, operands)
        body = self._body(region, made, operands, results)
        args = (self._attribute(body), *(rewrite.values[operand] for operand in operands))
        name = rewrite.free(f"{region.call.source.name}_composite")
        call = rewrite.create("call_function", torch.ops.higher_order.wrap, args, {}, name)
        # The nodes have that of the source's call, which a call inside its expansion does not.
        call.meta.update(inherited_meta(nodes[-1]))
        # Of all metadata, `torch.export.save` keeps "custom", "nn_module_stack", "stack_trace" and a few more.
        call.meta["custom"] = {**call.meta.get("custom", {}), KEY: made.meta}
        values = tuple(metadata(result) for result in results)
        if all(value is not None for value in values):
            call.meta["val"] = values
        rewrite.origin[call], rewrite.several[call] = nodes[-1], nodes
        self.calls[call] = made
        inside = set(nodes)
        for i, result in enumerate(results):
            # A result that is an operand of the call is already there, and an unused one needs no node.
            if result in inside and (result.users or result in self.written) and result not in rewrite.values:
                part = rewrite.create("call_function", operator.getitem, (call, i), {}, result.name)
                part.meta.update(result.meta)
                rewrite.origin[part] = result
                rewrite.replace(result, part)

    def _attribute(self, body: ProgramGraph) -> fx.Node:
        """The node of a body, one for all calls of it in this graph."""
        found = self.attributes.get(body.name)
        if found is None:
            found = self.rewrite.create("get_attr", body.name, (), {}, self.rewrite.free(body.name))
            self.attributes[body.name], self.called[body.name] = found, body.owner
        return found

    def _body(
        self, region: _ExpandedCall, made: CompositeCall, operands: Sequence[fx.Node], results: Sequence[fx.Node]
    ) -> ProgramGraph:
        """The body of a composite, one for all calls of its signature."""
        known = self.bodies.known
        # Two expansions may read other constants at the same place: their bodies are not the same function.
        # One template a signature, so that equal calls share a body.
        key = region.call.template, repr(made), self.bodies.named(operands), len(region.call.nodes)
        if key not in known:
            # Known before those inside it, which it precedes in every list.
            flat, values = self._flat_body(region, made, operands, results)
            known[key] = flat
            inner = [each.through(values.__getitem__) for each in region.inner]
            known[key] = _Outlining(flat, inner, {}, self.bodies).outlined()
        return known[key]

    def _flat_body(
        self, region: _ExpandedCall, made: CompositeCall, operands: Sequence[fx.Node], results: Sequence[fx.Node]
    ) -> tuple[ProgramGraph, dict[fx.Node, fx.Node]]:
        """The body of a composite without composites inside, and its node for each node of this graph."""
        edges = Rewrite(fx.Graph())
        values: dict[fx.Node, fx.Node] = {}
        for operand, constant in zip(operands, self.bodies.named(operands)):
            new = values[operand] = edges.create("placeholder", operand.name, (), {}, operand.name)
            new.meta.update(operand.meta)
            if constant is not None:
                self.bodies.constants[new] = constant
        for node in region.call.nodes:
            args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
            new = values[node] = edges.values[node] = edges.create(node.op, node.target, args, kwargs, node.name)
            new.meta.update(node.meta)
            edges.origin[new] = node
        node_creator(edges.graph)("output", "output", (tuple(values[each] for each in results),), {}, "output")
        owner = nn.Module()
        owner.training = self.own.owner.training
        chains = {new: self.own.chains[old] for new, old in edges.origin.items() if old in self.own.chains}
        name = self.bodies.free_name(made.short)
        return ProgramGraph(edges.graph, owner, name, BODY, self.own, edges, chains=chains, composite=made), values


def _operands(call: InnerCall) -> list[fx.Node]:
    """The operands of a call, in its order, then the constants that only its decomposition reads."""
    inside = set(call.nodes)
    read = (node for each in call.nodes for node in each.all_input_nodes if node not in inside)
    return list(dict.fromkeys((*nodes_in(call.operands), *read)))


def _composite(region: _ExpandedCall, operands: Sequence[fx.Node]) -> CompositeCall:
    source, found = region.call.source, region.call.result
    places = {node: {"operand": i} for i, node in enumerate(operands)}
    given = zip(source.all_input_nodes, region.call.operands)
    operand_of = {node: fx.map_arg(value, places.__getitem__) for node, value in given}
    leaves = found if isinstance(found, (tuple, list)) else ()
    kept = [i for i, leaf in enumerate(leaves) for _ in nodes_in(leaf)]
    if isinstance(source.target, Pattern):
        named = dict(zip(source.target.variables, source.args))
        return CompositeCall.made_from(region.name, region.version, None, named, operand_of, kept)
    call = call_if_bound(source)
    assert call is not None
    return CompositeCall.made_from(region.name, region.version, call.overload, call.arguments, operand_of, kept)


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
