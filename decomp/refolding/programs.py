"""Takes a program apart into graphs, applies folds, and rebuilds a program of the same kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram

from decomp.capture import frontends
from decomp.capture.frontends import CapturedProgram, Parts
from decomp.capture.lowered_module import check_inputs
from decomp.errors import CaptureError
from decomp.graphs.graph_builder import is_aten
from decomp.graphs.rewrite import Rewrite
from decomp.ir.aliases import attribute
from decomp.ir.call import is_host, is_projection
from decomp.ir.effects import EffectTable
from decomp.metadata.fakes import mode_of
from decomp.refolding.folding import Circular, Fold, apply_folds


@dataclass(frozen=True)
class ProgramGraphs:
    """The graphs of a program, by owning module: first its own, then those of its sub-graphs."""

    program: CapturedProgram
    by_owner: Mapping[nn.Module, fx.Graph]


def graphs_of_result(program: ExportedProgram | fx.GraphModule) -> ProgramGraphs:
    """The graphs of a lowered program, without capturing it again."""
    if isinstance(program, ExportedProgram):
        root: nn.Module = program.graph_module
        return _with_bodies(CapturedProgram(program.graph, root, "exported", "aten", mode_of(program.graph), program))
    graph = program.graph
    return _with_bodies(CapturedProgram(graph, program, "graph", "aten" if is_aten(graph) else "torch", mode_of(graph)))


def capture_graphs(model: Any, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> ProgramGraphs:
    """The graphs of any program, captured with example inputs if it has no metadata. Raises `CaptureError`."""
    program = frontends.capture(model, args, kwargs)
    if program.mode is None and any(node.op.startswith("call") for node in program.graph.nodes):
        raise CaptureError(
            "refold runs parts of a program to find ops, but this program has no metadata for its inputs\n"
            "  to do: pass example inputs, args=(...)"
        )
    return _with_bodies(program)


def _with_bodies(program: CapturedProgram) -> ProgramGraphs:
    bodies = [inner for inner in program.root.modules() if isinstance(inner, fx.GraphModule)]
    by_owner = {inner: inner.graph for inner in bodies if inner is not program.root}
    return ProgramGraphs(program, {program.root: program.graph, **by_owner})


def constants_of(program: CapturedProgram) -> dict[str, torch.Tensor]:
    """The constant indices and masks of a program, by the names of the nodes that read them. Parameters, buffers, and
    constants that look like weights are left out."""
    exported, root = program.exported, program.root
    if exported is not None:
        names = exported.graph_signature.inputs_to_lifted_tensor_constants
        found = {name: exported.constants[target] for name, target in names.items() if target in exported.constants}
    else:
        state = {id(tensor) for tensor in (*root.parameters(), *root.buffers())}
        read = {node.name: attribute(root, str(node.target)) for node in program.graph.find_nodes(op="get_attr")}
        found = {name: value for name, value in read.items() if id(value) not in state}
    return {name: value for name, value in found.items() if isinstance(value, torch.Tensor) and _is_no_weight(value)}


def _is_no_weight(value: torch.Tensor) -> bool:
    """Whether a constant is an index or a mask: integers, bools, or only two distinct numbers (such as 0 and -inf)."""
    if value.is_complex() or value.device.type == "meta":
        return False
    if not value.is_floating_point():
        return True
    low, high = value.aminmax() if value.numel() else (value, value)
    return value.dim() > 1 and bool(((value == low) | (value == high)).all())


def count_calls(graph: fx.Graph) -> int:
    """The number of calls of tensor ops in a graph."""
    return sum(node.op.startswith("call") and not is_host(node) and not is_projection(node) for node in graph.nodes)


@dataclass(frozen=True)
class FoldedGraph:
    """A graph with its folds applied."""

    before: fx.Graph
    rewrite: Rewrite
    dropped: frozenset[str] = frozenset()
    """The names of inputs that are unused now and were removed."""


def fold_graph(graph: fx.Graph, owner: nn.Module, folds: Iterable[Fold], constants: Iterable[str] = ()) -> FoldedGraph:
    """Apply folds to a graph, and remove those of the inputs named in `constants` that are unused then. Folds that
    would depend on themselves are left out."""
    left, names = list(folds), frozenset(constants)
    dropped = {node for node in graph.nodes if node.op == "placeholder" and node.name in names}
    while True:
        try:
            rewrite = apply_folds(graph, left, EffectTable(owner), dropped)
        except Circular as circular:
            left.remove(circular.fold)
            continue
        return FoldedGraph(graph, rewrite, frozenset(node.name for node in dropped if node not in rewrite.values))


def rebuild_program(graphs: ProgramGraphs, refolded: Mapping[nn.Module, FoldedGraph]) -> Any:
    """Rebuild the program from its folded graphs."""
    made: dict[nn.Module, nn.Module] = {}
    program = graphs.program
    for body in reversed(graphs.by_owner):
        if body is not program.root:
            made[body] = frontends.graph_module(body, _parts(body, refolded[body], made), is_body=True)
    result, _ = frontends.rebuild(program, _parts(program.root, refolded[program.root], made))
    if program.by_example:
        check_inputs(result, program.graph, None)
    return result


def _parts(module: nn.Module, refolded: FoldedGraph, made: Mapping[nn.Module, nn.Module]) -> Parts:
    submodules = {name: made[inner] for name, inner in module.named_children() if inner in made}
    return Parts(refolded.rewrite.graph, {}, submodules, (), refolded.dropped)
