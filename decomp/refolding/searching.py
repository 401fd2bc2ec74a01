"""Finds ops in a program without provenance, by several searches, each on the graph that the one before has folded."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
import functools
from typing import Any

import torch
from torch import fx, nn

from decomp.derive.stride_propagation import StridePropagation
from decomp.graphs.rewrite import Rewrite
from decomp.ir.module import ProgramGraph
from decomp.ir.uncertain_strides import ATTENTION, other_strides
from decomp.metadata.strides import same_layout
from decomp.refolding.folding import Fold
from decomp.refolding.found import Findings, FoundCall, ResultMetadata, WantedCalls, make_fold
from decomp.refolding.outcome import MissedCall, RestoredCall
from decomp.refolding.programs import fold_graph
from decomp.refolding.regions import GraphIndex
from decomp.refolding.searches.attention import Attentions
from decomp.refolding.searches.batch_norms import BatchNorms
from decomp.refolding.searches.functions import Functions
from decomp.refolding.searches.intermediate_matches import IntermediateMatch, IntermediateMatches
from decomp.refolding.searches.names import Names
from decomp.refolding.searches.products import Products
from decomp.refolding.searches.rules_backwards import RulesBackwards, overloads_of
from decomp.refolding.searches.weighted_norms import WeightedNorms
from decomp.refolding.searches.weights import Weights
from decomp.refolding.trials import Runner, TrialCache
from decomp.rules.rules import Rules

# Softmax before attention, which is found around it; normalizations before their weights; products after attention,
# whose products are no linear layers; other names of what was found come last.
SEARCHES = (Functions, Weights, WeightedNorms, BatchNorms, Attentions, Products, Names)
"""The searches, in order: later ones build on the calls that earlier ones find."""


@dataclass
class RefoldSearch:
    """The findings in one graph."""

    rewrite: Rewrite
    folded: list[RestoredCall] = field(default_factory=list)
    missed: list[MissedCall] = field(default_factory=list)


def search(
    graph: fx.Graph,
    owner: nn.Module,
    wanted: WantedCalls,
    rules: Rules | None = None,
    constants: Mapping[str, torch.Tensor] | None = None,
) -> RefoldSearch:
    """Find calls in a graph, also the ops of `rules`, and fold them. `constants` are the values of inputs that are
    constants of the program, by name."""
    whole, known = GraphIndex(graph, owner, constants), TrialCache()
    rounds = _Rounds(whole, wanted, known)
    rounds.run(_kinds(wanted, rules))
    missed = rounds.missed
    if any(node.name in rounds.intermediate for node in rounds.around.graph.nodes):
        with_intermediates = functools.partial(IntermediateMatches, steps=rounds.steps)
        # From the original graph: what led to nothing is not folded there, so that nothing has to be taken back.
        rounds = _Rounds(whole, wanted, known)
        rounds.run([(with_intermediates, ()), *_kinds(wanted, rules, intermediate=False)])
        missed += rounds.missed
    rewrite = rounds.rewrite if rounds.rewrite is not None else _folded(graph, owner, [])
    return RefoldSearch(rewrite, *_surviving(rewrite.graph, rounds.folded, missed))


_Kind = tuple[Callable[[GraphIndex, Runner, WantedCalls], Any], Container[Any]]
"""A search, and the overloads that it may find only as intermediate matches for other searches."""


def _kinds(wanted: WantedCalls, rules: Rules | None, intermediate: bool = True) -> list[_Kind]:
    """The searches that can find a wanted call, or intermediate matches for such a search."""
    found, needed = list[_Kind](), set[Any]()
    # From the last to the first, as a search is needed by later ones.
    for kind in reversed(SEARCHES):
        own = needed.intersection(kind.finds) if intermediate else set[Any]()
        useful = [overload for overload in kind.finds if overload in own or wanted.may((overload,))]
        needed.update(each for overload in useful for each in kind.finds[overload])
        found += [(kind, own)] if useful else []
    if rules:
        found.append((functools.partial(RulesBackwards, rules=rules), overloads_of(rules) if intermediate else ()))
    return found[::-1]


class _Rounds:
    """Runs searches one after the other, each on the graph that those before it have folded."""

    def __init__(self, around: GraphIndex, wanted: WantedCalls, known: TrialCache) -> None:
        self.around, self.wanted, self.known = around, wanted, known
        self.rewrite: Rewrite | None = None
        self.folded: list[RestoredCall] = []
        self.missed: list[MissedCall] = []
        self.steps: list[IntermediateMatch] = []
        self.intermediate: set[str] = set()
        """The names of intermediate matches that were folded but are not wanted."""
        self._earlier: dict[str, RestoredCall] = {}
        self._results = ResultMetadata()

    def run(self, kinds: Sequence[_Kind]) -> None:
        """Run each search, and fold its findings."""
        for kind, intermediate in kinds:
            wanted = replace(self.wanted, intermediate=intermediate)
            findings: Findings = kind(self.around, Runner(self.around, self.known), wanted).search()
            self.missed += findings.missed
            chosen = list(findings.chosen(self.around))
            if chosen:
                self._fold(chosen)

    def _fold(self, chosen: list[FoundCall]) -> None:
        around = self.around
        made = [make_fold(found, around, self._earlier, self._results) for found in chosen]
        for found, (_, record) in zip(chosen, made):
            self._earlier[found.region.root.name] = replace(record, nodes=0)  # the projection, if there are several
            self._earlier[record.node] = record
            (self.intermediate.add if found.is_intermediate else self.intermediate.discard)(record.node)
        self.folded += [record for _, record in made]
        self.steps.append(IntermediateMatch(self.rewrite, chosen))
        step = _folded(around.graph, around.owner, [fold for fold, _ in made])
        self.rewrite = step if self.rewrite is None else self.rewrite.then(step)
        self.around = around.after(self.rewrite.graph)


def _surviving(
    graph: fx.Graph, folded: list[RestoredCall], missed: list[MissedCall]
) -> tuple[list[RestoredCall], list[MissedCall]]:
    """The findings that are still in the graph, and the misses that no later search found."""
    names = {node.name for node in graph.nodes}
    found = [each for each in folded if each.node in names]
    nodes = {each.node for each in found}
    return found, [each for each in dict.fromkeys(missed) if each.node in names and each.node not in nodes]


def _folded(graph: fx.Graph, owner: nn.Module, folds: list[Fold]) -> Rewrite:
    """Apply folds to a graph, and re-propagate strides, also for the other strides that attention kernels may
    return."""
    rewrite = fold_graph(ProgramGraph(graph, owner), folds).edges
    assert rewrite is not None
    given = [(node, rewrite.values.get(node)) for fold in folds if fold.target in ATTENTION for node in fold.gives]
    own = {old: new.meta.get("val") for old, new in given if new is not None}
    # Which kernel attention uses is decided at run time, and the kernels lay out results differently. What follows must
    # work on either layout, so it is propagated once with each.
    for old, value in own.items():
        rewrite.values[old].meta["val"] = other_strides(value)
    rewrite = _with_strides(rewrite, dict(_changed(rewrite, folds)))
    others = {}
    for old, value in own.items():
        node = rewrite.values[old]
        if not same_layout(node.meta["val"], value):
            others[node] = node.meta["val"]
        node.meta["val"] = value
    return _with_strides(rewrite, others)


def _with_strides(rewrite: Rewrite, before: dict[fx.Node, torch.Tensor]) -> Rewrite:
    """The rewrite with the strides of all later nodes recomputed, given the old values of nodes whose strides
    changed."""
    if not before:
        return rewrite
    # Nothing is expected of the strides of results: they are whatever the calls return.
    propagation = StridePropagation(rewrite.graph, before, expected=())
    for _ in propagation.nodes():
        pass
    return rewrite if propagation.emit is None else rewrite.then(propagation.emit.rewrite)


def _changed(rewrite: Rewrite, folds: list[Fold]) -> Iterator[tuple[fx.Node, torch.Tensor]]:
    """The new nodes of folds whose strides differ from the value replaced, with the old value."""
    for fold in folds:
        for old in fold.gives:
            new = rewrite.values.get(old)
            was, now = old.meta.get("val"), new.meta.get("val") if new is not None else None
            if isinstance(was, torch.Tensor) and isinstance(now, torch.Tensor) and not same_layout(was, now):
                yield new, was
