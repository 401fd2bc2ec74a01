"""A program at each stage of its lowering, as text: calls with dtypes and shapes, and for each the node of the stage
before that it comes from, with the justification."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
import re
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from decomp.errors import source_line, spell_target
from decomp.ir.accounting import calls_for_target
from decomp.ir.arguments import text
from decomp.ir.call import metadata, module_path
from decomp.ir.composites import CompositeCall
from decomp.ir.dtypes import name_of
from decomp.metadata.symbolic_sizes import SYMBOLIC

if TYPE_CHECKING:
    from decomp.graphs.rewrite import Rewrite
    from decomp.ir.module import ProgramGraph
    from decomp.simplification.simplifier import Simplified

COPIED = "copied"
_LONGEST = 96
"""Columns of a call before its justification moves to a line of its own."""


@dataclass(frozen=True, slots=True)
class StageNode:
    """One node of a graph at one stage."""

    name: str
    type: str
    """Dtype and shape, as torch.fx prints them (`f32[2, s0]`); empty where nothing is known."""
    call: str
    """What is called, on what; empty for an input."""
    source: str
    """The name of the node of the stage before that it comes from; of the user's module, at the first stage."""
    why: str
    """What justifies it: `copied`, the rules or laws that made it, or the user's line at the first stage."""
    counts: bool
    """Whether it is a call that the target must support, as reports count them: not an input, a constant, a part of a
    result, or what runs on the host."""

    def __str__(self) -> str:
        """One line, or two where it is long; nothing is said of what was copied under its own name."""
        head = f"%{self.name}" + (f": {self.type}" if self.type else "")
        text = f"{head} = {self.call}" if self.call else head
        if not self.why or self.why == COPIED and self.source == self.name:
            return text
        why = f"{self.source}: {self.why}" if self.source else self.why
        gap = "\n" + " " * 8 if len(text) > _LONGEST else "  "
        return f"{text}{gap}# {why}"


@dataclass(frozen=True, slots=True)
class StageGraph:
    """One graph of a program: its own, or the body of a higher-order op."""

    name: str
    """The attribute that holds the body; empty for the program's own graph."""
    nodes: tuple[StageNode, ...]
    results: str

    def __str__(self) -> str:
        title = [f"{self.name}:"] if self.name else []
        return "\n".join([*title, *(f"  {node}" for node in self.nodes), f"  return {self.results}"])


@dataclass(frozen=True, slots=True)
class Stage:
    """A program after one stage. `str(stage)` is readable text."""

    name: str
    graphs: tuple[StageGraph, ...]

    @property
    def calls(self) -> int:
        """How many calls it makes that the target must support, those in bodies included."""
        return sum(node.counts for graph in self.graphs for node in graph.nodes)

    def __getitem__(self, name: str) -> StageNode:
        """The node of a name. Raises `KeyError`."""
        for graph in self.graphs:
            for node in graph.nodes:
                if node.name == name:
                    return node
        raise KeyError(name)

    def __str__(self) -> str:
        return "\n".join([f"{self.name}: {self.calls} calls", *map(str, self.graphs)])


def stage_of(graphs: Iterable[ProgramGraph], name: str | None = None) -> Stage:
    """A program after the pass that made its own graph, which the stage is named after."""
    graphs = tuple(graphs)
    return Stage(name or graphs[0].by, tuple(_graph(own, _justification(own), graphs) for own in graphs))


def stages_of(pieces: tuple[ProgramGraph, ...], bodies: tuple[ProgramGraph, ...] = ()) -> Mapping[str, Stage]:
    """The stages of a lowering by name, in order: `capture`, `functionalize` (which converts types and fuses patterns
    too), `expand`, and `simplify` where that changed something; `composites` instead, if only outlining did. `bodies`:
    those of composites, which are graphs of the last stage."""
    final = final_stage(pieces, bodies)
    functional = tuple(_graph(own, _functional(own)) for own in (piece.planned for piece in pieces))
    return {
        "capture": stage_of(piece.captured for piece in pieces),
        "functionalize": Stage("functionalize", functional),
        "expand": stage_of(piece.expanded for piece in pieces),
        **({final.name: final} if final.name != "expand" else {}),
    }


def final_stage(pieces: tuple[ProgramGraph, ...], bodies: tuple[ProgramGraph, ...] = ()) -> Stage:
    """The last stage of a lowering: its result. `bodies`: those of composites."""
    graphs = (*pieces, *bodies)
    if all(piece.by != "simplify" for piece in graphs):
        return stage_of(graphs, "composites" if bodies else None)
    # A graph that could not be simplified is shown as a copy of the one before.
    last = tuple(_graph(own, _justification(own) if own.by == "simplify" else _unchanged, graphs) for own in graphs)
    return Stage("simplify", last)


Justify = Callable[[fx.Node], tuple[str, str]]
"""For a node, the name of its source and what justifies it."""


def _graph(own: ProgramGraph, justify: Justify, others: Iterable[ProgramGraph] = ()) -> StageGraph:
    graph = own.graph
    nodes = [node for node in graph.nodes if node.op != "output"]
    counted = {*calls_for_target(graph)}
    inside = {each.name: each.graph for each in others}

    def why(node: fx.Node) -> tuple[str, str]:
        made = CompositeCall.of(node)
        if made is None:
            return justify(node)
        body = inside.get(str(node.args[0].target))
        return "", made.described(0 if body is None else len(calls_for_target(body)))

    shown = tuple(
        StageNode(node.name, type_of(metadata(node)), _call(node), *why(node), node in counted) for node in nodes
    )
    return StageGraph(own.name, shown, _value(graph.output_node().args[0]))


def _justification(own: ProgramGraph) -> Justify:
    """What justifies the nodes that the last pass made."""
    if own.by == "capture" or own.before is None or own.edges is None:
        return _of_the_user
    return _simplified(own.why) if own.by == "simplify" else _rewritten(own, own.edges, own.before)


def _rewritten(own: ProgramGraph, edges: Rewrite, before: ProgramGraph) -> Justify:
    """The rules that made a node, the name of the pass, or that it is a copy."""

    def justify(node: fx.Node) -> tuple[str, str]:
        if node not in edges.origin:
            return "", "written back" if node.op.startswith("call") else ""
        sources = edges.sources_of(node)
        names, first = ", ".join(each.name for each in sources), sources[0]
        if chain := own.chains.get(node, ())[len(before.chains.get(first, ())) :]:
            return names, " → ".join(f"{rule.name} ({rule.location})" for rule in chain)
        # An expansion spells a call that it keeps by the name that the target has for it.
        is_copy = own.by == "expand" or first.target == node.target and edges.values.get(first) is node
        return names, COPIED if is_copy and len(sources) == 1 else own.by

    return justify


def _unchanged(node: fx.Node) -> tuple[str, str]:
    return node.name, COPIED


_LINE = re.compile(r'File "(?:.*[/\\])?(.+)", line (\d+), in [^:]*: ?(.*)')


def _of_the_user(node: fx.Node) -> tuple[str, str]:
    return module_path(node.meta.get("nn_module_stack")), user_line(node)


def user_line(node: fx.Node, longest: int = 60) -> str:
    """`model.py:12 y = self.norm(x)`, the user's line that made a node, its code cut to `longest`; empty if unknown."""
    found = _LINE.match(source_line(node) or "")
    return f"{found[1]}:{found[2]} {found[3][:longest]}" if found else ""


def _functional(own: ProgramGraph) -> Justify:
    """The nodes of the captured program that a node of the planned graph comes from, by all passes in between."""

    def justify(node: fx.Node) -> tuple[str, str]:
        sources = own.sources_of(node)
        names = ", ".join(each.name for each in sources)
        return names, COPIED if len(sources) == 1 and sources[0].target == node.target else "made functional"

    return justify


def _simplified(simplified: Simplified) -> Justify:
    origin, replaced = simplified.rewrite.origin, dict[fx.Node, list[str]]()
    for node, first in simplified.merged.items():
        replaced.setdefault(first, []).append(f"{node.name}, the same call")
    for node, laws in simplified.applied.items():
        new = simplified.rewrite.values.get(node)
        if isinstance(new, fx.Node) and origin.get(new) not in (None, node):
            replaced.setdefault(origin[new], []).append(f"{node.name} ({', '.join(laws)})")
    frozen = {name: node.name for node, name in simplified.frozen.items()}

    def justify(node: fx.Node) -> tuple[str, str]:
        if node.op == "get_attr" and str(node.target) in frozen:
            return frozen[str(node.target)], "computed once"
        source = origin.get(node)
        if source is None:
            return "", ""
        why = ", ".join(simplified.applied.get(source, ())) or COPIED
        also = "; ".join(replaced.get(source, ()))
        return source.name, f"{why}; replaces {also}" if also else why

    return justify


_PREFIXES = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"}


def type_of(value: Any) -> str:
    """Dtype and shape of metadata, as torch.fx prints them: `f32[2, s0]`; several results one after the other."""
    if isinstance(value, torch.Tensor):
        return f"{_short(value.dtype)}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(type_of, value))})"
    return type(value).__name__ if isinstance(value, SYMBOLIC) else ""


def _short(dtype: torch.dtype) -> str:
    name = name_of(dtype)
    letters = name.rstrip("0123456789")
    return _PREFIXES[letters] + name[len(letters) :] if letters in _PREFIXES else {"bool": "b8"}.get(name, name)


def _call(node: fx.Node) -> str:
    if node.op == "placeholder":
        return ""
    if node.op == "get_attr":
        return f"self.{node.target}"
    name = {"call_method": f"Tensor.{node.target}", "call_module": f"self.{node.target}"}.get(node.op)
    return f"{name or spell_target(node.target)}({', '.join(_arguments(node))})"


def _arguments(node: fx.Node) -> Iterator[str]:
    yield from map(_value, node.args)
    yield from (f"{name}={_value(value)}" for name, value in node.kwargs.items())


def _value(value: Any) -> str:
    return text(value, _leaf)


def _leaf(value: Any) -> str:
    if isinstance(value, fx.Node):
        return f"%{value.name}"
    return str(value) if isinstance(value, (torch.dtype, torch.device, torch.layout)) else repr(value)
