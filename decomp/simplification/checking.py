"""Verification of a simplification: each call of the original graph must map to the image that the record states.
Recorded laws are applied again and their conditions checked again; a call without a law must be the same call on the
images of its operands. Neither the search for laws nor the construction of the new graph is trusted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import fx

from decomp.capture.rebuild_exported import lifted_name, with_lifted
from decomp.ir.agreement import described, same_bits, same_metadata, shown
from decomp.ir.arguments import substituted
from decomp.ir.call import metadata
from decomp.metadata.meta_values import known_value
from decomp.metadata.strides import same_layout
from decomp.proof.correspondence import (
    Correspondence,
    EffectsChanged,
    MetadataChanged,
    NotAsRecorded,
    OutputsChanged,
    ValueLost,
    out_of_region,
)
from decomp.proof.invariants import OF_ONE_GRAPH, WHOLE_GRAPH, same_codegen
from decomp.proof.replay import same, same_call
from decomp.simplification.freezing import LARGEST
from decomp.simplification.new_calls import same_value
from decomp.simplification.replayed_rewrites import ReplayedRewrites
from decomp.simplification.rewrite_constraints import RewriteConstraints
from decomp.simplification.simplifier import Simplified
from decomp.simplification.terms import Term


def check_simplified(found: Simplified, added: Iterable[str] = (), signed: int = 0, full: bool = False) -> list[str]:
    """Verify a simplified graph against the original, whose first `signed` results are leading outputs by now, and
    whose attributes may be inputs by now, under names in `added`. Returns the facts verified. Raises a
    `VerificationError` otherwise."""
    work = Correspondence(found.subject.graph, found.graph, {}, {})
    for invariant in OF_ONE_GRAPH + (WHOLE_GRAPH if full else ()):
        invariant(work)
    same_codegen(work)
    replay = _SimplificationReplay(found, work, frozenset(added), signed)
    # In the order of the original, whose operands come first: each image is known when it is needed.
    for node in found.subject.graph.nodes:
        replay.visit(node)
    replay.require_the_same_order()
    replay.require_nothing_left()
    before, after = len(replay.images.of), len(work.place)
    again = sum(map(len, found.applied.values()))
    return [
        f"simplified from {before} nodes to {after}: {again} law applications repeated by this check; every other "
        "call is the same on the images of its operands; shapes, strides, dtypes and effects are unchanged"
    ]


class _SimplificationReplay:
    """One pass over the original graph."""

    def __init__(self, found: Simplified, work: Correspondence, added: frozenset[str], signed: int) -> None:
        self.found, self.work, self.added, self.signed = found, work, added, signed
        self.images = ReplayedRewrites(found)
        self.around: RewriteConstraints = self.images.around
        self.constants = found.subject.constants(self.around, found.settings)
        self.values: Mapping[fx.Node, Any] = with_lifted(found.rewrite.values, work.place)
        self.bound: dict[fx.Node, Term] = {}
        self.nodes: dict[Term, fx.Node] = {}

    def visit(self, node: fx.Node) -> None:
        """Recompute the image of a node, and compare it with the corresponding node of the new graph."""
        image = self.images.visit(node)
        for each, record in zip(self.images.inner.get(node, ()), self.found.inner.get(node, ())):
            above = self.found.above.get(record.term)
            if above is not None and each.owner is node:
                self._require_made(node, each, above)
                self._require_same(each.value, node, above)
        value = self.values.get(node)
        if value is None:
            if node in self.around.effectful or node in self.found.subject.results:
                raise ValueLost(f"{node.name!r} has an effect or is a result, but is not in the simplified graph", node)
            return
        if value not in self.work.place:
            raise ValueLost(f"{value.name!r}, which replaces {node.name!r}, is not in the graph", value, node)
        if image.owner is node:
            self._require_made(node, image, value)
        elif self.bound.get(value) is not image:
            raise NotAsRecorded(f"{value.name!r} does not replace {node.name!r}", value, node)
        self._require_metadata(node, value)

    def _require_made(self, node: fx.Node, image: Term, value: fx.Node) -> None:
        """The new node must make the call of this term, and of no other."""
        if self.bound.setdefault(value, image) is not image:
            raise NotAsRecorded(f"{value.name!r} replaces two different calls", value, node)
        self.nodes[image] = value
        name = self.found.frozen.get(node)
        if name is not None:
            self._require_constant(node, image, value, name)
            return
        # A constant that an exported program made an input of.
        if node.op == "get_attr" and value.op == "placeholder" and value.target in self.added:
            return
        if node.op == "output":
            self._require_results(node, value)
            return
        # Without a law the node itself is compared and not its
        # term: a term has its arguments in the order of the schema.
        if node in self.found.applied:
            args, kwargs = substituted((image.args, image.kwargs), self._node_of, Term)
            alike = value.target is image.target and same(value.args, args) and same(value.kwargs, kwargs)
        else:
            alike = same_call(value, node.target, node.args, node.kwargs, self.values)
        if value.op != image.op or not alike:
            expected = substituted((image.args, image.kwargs), self._node_of, Term)
            raise NotAsRecorded(
                f"{value.name!r} is not what {node.name!r} was simplified to",
                value,
                node,
                expected=shown(expected),
                found=shown((value.args, value.kwargs)),
            )

    def _require_constant(self, node: fx.Node, image: Term, value: fx.Node, name: str) -> None:
        if not self.constants.is_constant(image) or name not in self.found.constants:
            raise NotAsRecorded(f"{node.name!r} is not the same in every run of the program", value, node)
        if value.op not in ("get_attr", "placeholder") or value.target not in (name, lifted_name(name)):
            raise NotAsRecorded(f"{value.name!r} is not the constant {name!r}", value, node)
        kept = self.found.constants[name]
        # Freezing keeps whole weights: computing them again would double the time of a lowering.
        if kept.numel() <= LARGEST and not same_bits(known_value(kept), self.constants.value(image)):
            raise NotAsRecorded(f"the constant {name!r} is not what {node.name!r} computes", value, node)

    def _require_results(self, node: fx.Node, value: fx.Node) -> None:
        results: Any = value.args[0]
        leading = tuple(self.values.get(each) for each in self.found.subject.results[: self.signed])
        if leading:
            written, results = tuple(results[: len(leading)]), results[len(leading) :]
            if written != leading:
                raise OutputsChanged("other values are written back", value, node, expected=leading, found=written)
        expected: Any = node.args[0]
        if isinstance(expected, (tuple, list)) and isinstance(results, (tuple, list)):
            expected, results = list(expected), list(results)
        if not same(results, expected, self.values):
            raise OutputsChanged("the outputs changed", value, node, expected=shown(expected), found=shown(results))

    def _node_of(self, term: Term) -> Any:
        return self.nodes.get(term)

    def _require_metadata(self, node: fx.Node, value: fx.Node) -> None:
        self._require_same(metadata(node), node, value)

    def _require_same(self, before: Any, node: fx.Node, value: fx.Node) -> None:
        after = metadata(value)
        # The short way; the long one also compares what has no strides.
        if before is after or before is None or same_value(before, after):
            return
        if not same_metadata(before, after) or _is_strided(before) and not same_layout(before, after):
            problem = f"{value.name!r}, which replaces {node.name!r}, has other metadata"
            raise MetadataChanged(problem, value, node, expected=described(before), found=described(after))

    def require_the_same_order(self) -> None:
        """Effects must be in the same order, and each call in its region."""
        latest = -1
        for node in self.found.subject.graph.nodes:
            if node in self.around.effectful:
                place = self.work.place[self.values[node]]
                # The graph is in order, so comparing with the latest effect is enough.
                if place < latest:
                    raise EffectsChanged(
                        f"{node.name!r} follows an effect that it used to precede", self.values[node], node
                    )
                latest = place
        if not self.around.place:
            return
        subject = self.found.subject
        # Constraints of the new graph, computed from it alone.
        after: RewriteConstraints = RewriteConstraints.of(self.found.graph, subject.root, (), ())
        for value, term in self.bound.items():
            (region, writes), found = self.around.place.get(term.owner, (0, 0)), after.place.get(value, (0, 0))
            if region != found[0]:
                raise out_of_region(value, term.owner)
            if writes != found[1]:
                raise EffectsChanged(f"{value.name!r} moved past a write", value, term.owner)

    def require_nothing_left(self) -> None:
        """Every node of the new graph must replace a node of the original."""
        for node in self.work.place:
            lifted = node.op == "placeholder" and node.target in self.added
            if node not in self.bound and not lifted:
                raise NotAsRecorded(f"{node.name!r} replaces no call of the original graph", node)


def _is_strided(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided
