"""Programs as modules, folds applied to one graph, and a program of the same kind rebuilt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from decomp.capture import frontends
from decomp.capture.lowered_module import check_inputs
from decomp.errors import CaptureError
from decomp.graphs.graph_builder import is_aten
from decomp.ir.aliases import attribute
from decomp.ir.call import is_host, is_projection
from decomp.ir.effects import EffectTable
from decomp.ir.module import Module, ProgramGraph
from decomp.metadata.fakes import mode_of
from decomp.refolding.folding import Circular, Fold, apply_folds

_CALLED_BY = ("get_attr", "call_module")
"""Folds are applied to the graphs of modules as well as to bodies of higher-order ops."""


def module_of_result(program: ExportedProgram | fx.GraphModule) -> Module:
    """A lowered program as a `Module`, without capturing it again."""
    if isinstance(program, ExportedProgram):
        graph, root = program.graph, program.graph_module
        module = Module.of(graph, root, "exported", "aten", mode_of(graph), program)
    else:
        graph = program.graph
        module = Module.of(graph, program, "graph", "aten" if is_aten(graph) else "torch", mode_of(graph))
    return module.with_bodies(_CALLED_BY)


def capture_module(model: Any, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> Module:
    """Any program as a `Module`, captured with example inputs if it has no metadata. Raises `CaptureError`."""
    module = frontends.capture(model, args, kwargs)
    if module.mode is None and any(node.op.startswith("call") for node in module.graph.nodes):
        raise CaptureError(
            "refold runs parts of a program to find ops, but this program has no metadata for its inputs\n"
            "  to do: pass example inputs, args=(...)"
        )
    return module.with_bodies(_CALLED_BY)


def constants_of(program: Module) -> dict[str, torch.Tensor]:
    """The constant indices and masks of a program, by the names of the nodes that read them. Parameters, buffers, and
    constants that look like weights are left out."""
    exported, root = program.exported, program.root
    if exported is not None:
        # A lifted constant is what no parameter or buffer is: a tensor in the model's Python.
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
    # A vector of zeros and ones may be a bias before training.
    return value.dim() > 1 and bool(((value == low) | (value == high)).all())


def count_calls(graph: fx.Graph) -> int:
    """The number of calls of tensor ops in a graph."""
    return sum(node.op.startswith("call") and not is_host(node) and not is_projection(node) for node in graph.nodes)


def fold_graph(own: ProgramGraph, folds: Iterable[Fold], constants: Iterable[str] = ()) -> ProgramGraph:
    """A graph with folds applied, without those of the inputs named in `constants` that are unused then. Folds that
    would depend on themselves are left out."""
    left, names = list(folds), frozenset(constants)
    given = {node for node in own.graph.nodes if node.op == "placeholder" and node.name in names}
    while True:
        try:
            rewrite = apply_folds(own.graph, left, EffectTable(own.owner), given)
        except Circular as circular:
            # Any of a cycle will do; which one is unknown before the graph is sorted.
            left.remove(circular.fold)
            continue
        return own.rewritten(
            rewrite, "refold", dropped=frozenset(node.name for node in given if node not in rewrite.values)
        )


def rebuild_program(module: Module, source: fx.Graph) -> Any:
    """Rebuild a program from its folded graphs; `source` is its own graph before that."""
    result, _ = frontends.rebuild(module, source)
    if module.by_example:
        check_inputs(result, source, None)
    return result
