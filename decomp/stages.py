"""A program at each stage of its lowering, as text: calls with dtypes and shapes, and for each the node of the stage
before that it comes from, with the justification."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
import re
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from decomp.errors import source_line, spell_target
from decomp.ir.accounting import calls_for_target
from decomp.ir.arguments import text
from decomp.ir.call import metadata, module_path
from decomp.ir.dtypes import name_of
from decomp.metadata.symbolic_sizes import SYMBOLIC

if TYPE_CHECKING:
    from decomp.derive.pipeline import RewrittenGraph

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


def stages_of(pieces: tuple[RewrittenGraph, ...]) -> Mapping[str, Stage]:
    """The stages of a lowering by name, in order: `capture`, `functionalize` (which converts types and fuses patterns
    too), `expand`, and `simplify` where that changed something."""
    names = ["capture", "functionalize", "expand", *(["simplify"] if _is_simplified(pieces) else [])]
    return {name: _stage(name, pieces) for name in names}


def final_stage(pieces: tuple[RewrittenGraph, ...]) -> Stage:
    """The last stage of a lowering: its result."""
    return _stage("simplify" if _is_simplified(pieces) else "expand", pieces)


def _is_simplified(pieces: tuple[RewrittenGraph, ...]) -> bool:
    return any(piece.simplified is not None for piece in pieces)


def _stage(name: str, pieces: tuple[RewrittenGraph, ...]) -> Stage:
    return Stage(name, tuple(_graph(piece.planned.name, *_MADE[name](piece)) for piece in pieces))


Justify = Callable[[fx.Node], tuple[str, str]]
"""For a node, the name of its source and what justifies it."""


def _graph(name: str, graph: fx.Graph, justify: Justify) -> StageGraph:
    nodes = [node for node in graph.nodes if node.op != "output"]
    counted = {*calls_for_target(graph)}
    shown = tuple(
        StageNode(node.name, type_of(metadata(node)), _call(node), *justify(node), node in counted) for node in nodes
    )
    return StageGraph(name, shown, _value(graph.output_node().args[0]))


def captured_graph(piece: RewrittenGraph) -> fx.Graph:
    """The graph of the source program that a lowered graph was made from."""
    planned = piece.planned
    return planned.program.graph if not planned.name else planned.owner.graph


_LINE = re.compile(r'File "(?:.*[/\\])?(.+)", line (\d+), in [^:]*: ?(.*)')


def _of_the_user(node: fx.Node) -> tuple[str, str]:
    return module_path(node.meta.get("nn_module_stack")), user_line(node)


def user_line(node: fx.Node, longest: int = 60) -> str:
    """`model.py:12 y = self.norm(x)`, the user's line that made a node, its code cut to `longest`; empty if unknown."""
    found = _LINE.match(source_line(node) or "")
    return f"{found[1]}:{found[2]} {found[3][:longest]}" if found else ""


def _functional(piece: RewrittenGraph) -> Justify:
    planned = piece.planned

    def justify(node: fx.Node) -> tuple[str, str]:
        sources = planned.origins(node)
        names = ", ".join(each.name for each in sources)
        return names, COPIED if len(sources) == 1 and sources[0].target == node.target else "made functional"

    return justify


def _expanded(piece: RewrittenGraph) -> Justify:
    origin, chains = piece.retraced.rewrite.origin, piece.retraced.chains

    def justify(node: fx.Node) -> tuple[str, str]:
        source = origin.get(node)
        if source is None:
            return "", "written back" if node.op.startswith("call") else ""
        chain = chains.get(node, ())
        return source.name, " → ".join(f"{rule.name} ({rule.location})" for rule in chain) or COPIED

    return justify


def _simplified(piece: RewrittenGraph) -> Justify:
    simplified = piece.simplified
    if simplified is None:
        return lambda node: (node.name, COPIED)
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


_MADE: Mapping[str, Callable[[RewrittenGraph], tuple[fx.Graph, Justify]]] = {
    "capture": lambda piece: (captured_graph(piece), _of_the_user),
    "functionalize": lambda piece: (piece.source, _functional(piece)),
    "expand": lambda piece: (piece.retraced.graph, _expanded(piece)),
    "simplify": lambda piece: (piece.graph, _simplified(piece)),
}
"""By stage: the graph, and what justifies its nodes."""


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
