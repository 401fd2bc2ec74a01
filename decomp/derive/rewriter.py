"""Rewriting of derived calls: one pass over a graph that copies kept nodes and inlines expansions for the others.
Metadata of copied nodes is not recomputed; each inlined value gets new metadata, in which a view shares the storage of
its base."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from decomp.derive.expansion import Expansion, drop_dead
from decomp.graphs.rewrite import Rewrite
from decomp.graphs.template import ExpansionTemplate, InnerCall, compile_template, make_value
from decomp.ir.arguments import nodes_in
from decomp.ir.call import inherited_meta, metadata
from decomp.metadata.fakes import Fakes, mode_of
from decomp.torch_internals.fakes import FakeTensorMode

if TYPE_CHECKING:
    from decomp.derive.decisions import Derived


def inline_expansions(
    source: fx.Graph,
    decisions: Mapping[fx.Node, Derived],
    mode: FakeTensorMode | None,
    taken: Iterable[str],
    without: Collection[fx.Node],
    traced: bool,
) -> Inlining:
    """Build the lowered graph: nodes in `decisions` are replaced, those in `without` are left out. `taken`: attribute
    names that are in use. `traced`: whether to record what became of each call, and of calls inside it."""
    walk = Inlining(source, mode, set(taken), traced)
    for node in source.nodes:
        decision = decisions.get(node)
        if node in without:
            continue
        if decision is None:
            walk.rewrite.copy(node)
        else:
            walk.inline(node, decision.template)
    return walk


class Inlining:
    """One walk, and what came of it."""

    def __init__(self, source: fx.Graph, mode: FakeTensorMode | None, taken: set[str], traced: bool) -> None:
        self.rewrite = Rewrite.of(source)
        self.chains: dict[fx.Node, tuple[Any, ...]] = {}
        """The rules, the outermost first, by node that their expansion created."""
        self.constants: dict[str, torch.Tensor] = {}
        """Concrete tensors that rules use, by attribute name; one name per tensor."""
        self.fakes = Fakes(mode) if mode is not None else None
        self.taken, self.traced = taken, traced
        self.attributes: dict[int, fx.Node] = {}
        self.calls: dict[fx.Node, tuple[InnerCall, ...]] = {}
        """For each replaced node, if traced: itself, then the calls inside it, at any depth."""

    def inline(self, node: fx.Node, template: ExpansionTemplate) -> None:
        """Inline an expansion in place of `node`."""
        rewrite, fakes = self.rewrite, self.fakes
        values = [rewrite.values[slot] for slot in node.all_input_nodes]
        # Without a mode nothing is computed: this loop runs once
        # a recorded call, which is most of the time of a rewrite.
        metas = [metadata(v) if type(v) is fx.Node else None for v in values] if fakes is not None else []
        kept = inherited_meta(node)
        for i, entry in enumerate(template.entries):
            if entry.op == "get_attr":
                new = self._attribute(template.constants[entry.target], entry.spec)
                values.append(new)
                metas.append(new.meta.get("val"))
                # A constant that several expansions share belongs to the first of them, which creates the node.
                rewrite.origin.setdefault(new, node)
                continue
            args, kwargs = entry.arguments(values)
            # An item of several results that were given to the call: the node is known, no call is needed to take it.
            if entry.target is operator.getitem and type(args[0]) is tuple:
                values.append(args[0][args[1]])
                metas.append(metadata(values[-1]) if fakes is not None else None)
                continue
            # The result keeps the name of the replaced node, so that users still find it.
            name = node.name if i == template.result else rewrite.free(f"{node.name}_{entry.suffix}")
            new = rewrite.create(entry.op, entry.target, args, kwargs, name)
            if kept:
                # `nn_module_stack`, `stack_trace` and their like, by which
                # costs are summed by layer and errors name the user's line.
                new.meta.update(kept)
            if fakes is not None:
                value = None if entry.spec is None else make_value(entry.spec, fakes, metas)
                metas.append(value)
                if value is not None:
                    new.meta["val"] = value
            values.append(new)
            rewrite.origin[new] = node
            self.chains[new] = entry.chain
        rewrite.replace(node, template.outputs(values))
        if self.traced:
            self.calls[node] = tuple(self._calls(node, template, values))

    def _calls(self, node: fx.Node, template: ExpansionTemplate, values: list[Any]) -> Iterator[InnerCall]:
        """What became of a call, and of those inside it. `values`: those of the template's nodes, in order."""
        now, origin = self.rewrite.values, self.rewrite.origin
        nodes = (each for each in values if type(each) is fx.Node and origin.get(each) is node)
        made = tuple(dict.fromkeys(each for each in nodes if each.op != "get_attr"))
        yield InnerCall(node, template, tuple(now[slot] for slot in node.all_input_nodes), now[node], made)
        inside = dict(zip(template.graph.nodes, values))
        yield from (each.through(inside.__getitem__) for each in template.calls)

    def _attribute(self, tensor: torch.Tensor, spec: Any) -> fx.Node:
        """The node of a constant, one for each tensor in the graph."""
        # By identity: equal tensors of different rules may be replaced apart, and comparing values would read the data.
        found = self.attributes.get(id(tensor))
        if found is None:
            name = next(f"_constant{i}" for i in range(len(self.taken) + 1) if f"_constant{i}" not in self.taken)
            self.taken.add(name)
            self.constants[name] = tensor
            found = self.rewrite.create("get_attr", name, (), {}, self.rewrite.free(name))
            self.attributes[id(tensor)] = found
            if self.fakes is not None and spec is not None:
                found.meta["val"] = make_value(spec, self.fakes, [])
        return found


def flatten(expansion: Expansion, decisions: Mapping[fx.Node, Derived], traced: bool = False) -> ExpansionTemplate:
    """The expansion with its derived calls replaced by their own expansions, compiled to a template. `traced`: whether
    it says what became of each of these calls."""
    graph, constants, calls = expansion.graph, dict(expansion.constants), expansion.calls
    if decisions:
        walk = inline_expansions(graph, decisions, mode_of(graph), constants, (), traced)
        for new, chain in walk.chains.items():
            new.meta["chain"] = (expansion.rule, *chain)
        calls = tuple(each.through(walk.rewrite.values.__getitem__) for each in calls)
        calls = (*calls, *(each for known in walk.calls.values() for each in known))
        graph = walk.rewrite.graph
        constants.update(walk.constants)
    for node in graph.nodes:
        if node.op not in ("placeholder", "output"):
            node.meta.setdefault("chain", (expansion.rule,))
    drop_dead(graph)
    return compile_template(graph, constants, tuple(_surviving(calls, {*graph.nodes})) if calls else ())


def _surviving(calls: Iterable[InnerCall], alive: Collection[fx.Node]) -> Iterator[InnerCall]:
    """Calls without the nodes that nothing read; those that computed nothing else are left out."""
    for call in calls:
        nodes = tuple(node for node in call.nodes if node in alive)
        result = fx.map_arg(call.result, lambda node: node if node in alive else None)
        # An op may read no more of an operand than its size: then the operand itself is gone, and the call with it.
        if nodes and all(operand in alive for operand in nodes_in(call.operands)):
            yield replace(call, nodes=nodes, result=result)
