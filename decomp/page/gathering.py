"""The contents of the page, from a lowering: every graph at every stage, each node with the node of the stage before
that it comes from, and the explanations of rules and decisions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from decomp.costs.counting import CALLS
from decomp.ir.call import module_path
from decomp.ir.module import ProgramGraph
from decomp.ir.stages import StageGraph, user_line
from decomp.lowering import Lowering
from decomp.page.contents import (
    CALL,
    CONSTANT,
    HOST,
    INPUT,
    CheckText,
    GraphColumns,
    GraphStages,
    PageContents,
    StageTitle,
)
from decomp.page.explanations import DecisionTexts, RuleTexts
from decomp.simplification.simplifier import Simplified

TITLES = {
    "capture": ("Source", "the program as it was captured"),
    "functionalize": ("Functional", "without mutation, in the target's dtypes, with patterns fused"),
    "expand": ("Expanded", "each call that the target lacks is replaced by what its rules recorded"),
    "composites": ("Composites", "calls that keep their names, each with its decomposition inside"),
    "simplify": ("Simplified", "repeated and redundant calls are removed"),
}


def contents_of(lowering: Lowering, title: str | None = None) -> PageContents:
    """Everything that the page of a lowering shows."""
    internals = lowering.internals
    report, gathering = lowering.report(), _Gathering(lowering)
    graphs = tuple(gathering.graphs())
    facts = [*report.facts, ("accuracy", str(internals.request.accuracy)), ("PyTorch", str(torch.__version__))]
    facts += [("effort", report.effort), ("time", report.timing)]
    return PageContents(
        title or type(internals.model).__name__,
        lowering.target.name,
        report.headline,
        tuple(facts),
        tuple(CheckText(each.part, each.checked, each.text) for each in report.verified),
        report.checks,
        _cost(lowering),
        tuple(StageTitle(name, *TITLES[name], stage.calls) for name, stage in lowering.stages.items()),
        tuple(gathering.texts),
        tuple(gathering.rules.found),
        tuple(gathering.chains),
        tuple(gathering.decisions.found),
        graphs,
    )


def _cost(lowering: Lowering) -> str:
    cost = lowering.internals.request.policy.cost or lowering.target.costs or CALLS
    return "calls" if cost is CALLS else repr(cost)


class _Gathering:
    """The tables that the graphs of one page share."""

    def __init__(self, lowering: Lowering) -> None:
        self.lowering = lowering
        self.texts: dict[str, int] = {}
        self.chains: dict[tuple[int, ...], int] = {}
        self.rules = RuleTexts(lowering.target.name)
        self.decisions = DecisionTexts(lowering, self.rules)

    def graphs(self) -> Iterator[GraphStages]:
        """Every graph of the program."""
        for i, piece in enumerate(self.lowering.internals.pieces):
            made = [stage.graphs[i] for stage in self.lowering.stages.values()]
            yield GraphStages(piece.name, tuple(self._stages(i, piece, made)))

    def _stages(self, number: int, piece: ProgramGraph, made: Sequence[StageGraph]) -> Iterator[GraphColumns]:
        captured = self._columns(piece.captured.graph, made[0], {})
        nodes = _nodes(piece.captured.graph)
        captured.modules = [self._text(module_path(node.meta.get("nn_module_stack"))) for node in nodes]
        captured.why = [self._text(user_line(node, 200)) for node in nodes]
        yield captured

        functional = self._columns(piece.planned.graph, made[1], _places(captured))
        functional.decisions = [self.decisions.number(number, node, piece) for node in _nodes(piece.planned.graph)]
        functional.fused = _fused(made[1], _places(captured))
        yield functional

        expanded = self._columns(piece.expanded.graph, made[2], _places(functional))
        expanded.chains = [self._chain(chain) for chain in _chains(piece)]
        simplified = piece.record("simplify")
        if simplified is None:
            yield expanded
        else:
            outlined = _outlined(piece)
            now = (outlined.get(node, node) for node in _nodes(piece.expanded.graph))
            expanded.gone = [self._text(each if isinstance(each, str) else _gone(each, simplified)) for each in now]
            yield expanded
        if len(made) > 3:
            yield self._columns(piece.graph, made[3], _places(expanded))

    def _columns(self, graph: fx.Graph, made: StageGraph, before: dict[str, int]) -> GraphColumns:
        """A graph as columns; `before` has the places of the nodes of the stage before, by name."""
        places = {node: i for i, node in enumerate(_nodes(graph))}
        columns = GraphColumns()
        for node, shown in zip(places, made.nodes, strict=True):
            op, opening, rest = shown.call.partition("(")
            columns.names.append(node.name)
            columns.kinds.append(_kind(node, shown.counts))
            columns.ops.append(self._text(op))
            columns.arguments.append(f"{opening}{rest}")
            columns.types.append(self._text(shown.type))
            columns.operands.append([places[each] for each in node.all_input_nodes])
            columns.origins.append(before.get(shown.source.rpartition(", ")[2], -1))
            columns.why.append(self._text(shown.why))
        columns.results = [places[each] for each in graph.output_node().all_input_nodes]
        return columns

    def _text(self, text: str) -> int:
        return self.texts.setdefault(text, len(self.texts)) if text else -1

    def _chain(self, chain: tuple[Any, ...]) -> int:
        numbers = tuple(map(self.rules.number, chain))
        return self.chains.setdefault(numbers, len(self.chains)) if numbers else -1


def _nodes(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op != "output"]


def _kind(node: fx.Node, counts: bool) -> int:
    if node.op == "placeholder":
        return INPUT
    if node.op == "get_attr":
        return CONSTANT
    return CALL if counts else HOST


def _places(columns: GraphColumns) -> dict[str, int]:
    return {name: i for i, name in enumerate(columns.names)}


def _fused(made: StageGraph, places: dict[str, int]) -> dict[int, list[int]]:
    several = {i: node.source.split(", ") for i, node in enumerate(made.nodes) if ", " in node.source}
    return {i: [places[name] for name in names if name in places] for i, names in several.items()}


def _chains(piece: ProgramGraph) -> Iterator[tuple[Any, ...]]:
    """The rules that created each node of the expanded graph, those that put it on pairs of real numbers first."""
    return (piece.expanded.chains.get(node, ()) for node in _nodes(piece.expanded.graph))


def _outlined(piece: ProgramGraph) -> dict[fx.Node, fx.Node | str]:
    """For each node of the expanded graph, that of the graph with composite calls, or the composite that it is in."""
    own = piece.at("composites")
    if own is None or own.edges is None:
        return {}
    inside = {node: f"inside %{call.name}" for call, nodes in own.edges.several.items() for node in nodes}
    return {**inside, **{node: now for node, now in own.edges.values.items() if isinstance(now, fx.Node)}}


def _gone(node: fx.Node, simplified: Simplified) -> str:
    """Why simplification left no node of its own for a node; empty if it did."""
    new = simplified.rewrite.values.get(node)
    if isinstance(new, fx.Node) and simplified.rewrite.origin.get(new) is node or node in simplified.frozen:
        return ""
    laws = ", ".join(simplified.applied.get(node, ()))
    if node in simplified.merged:
        return f"the same call as %{simplified.merged[node].name}"
    if isinstance(new, fx.Node):
        return f"{laws or 'the same value'}: now %{new.name}"
    return laws or "not needed"
