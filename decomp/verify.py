"""Proving a lowering: `check` from its provenance, `verify` for any two programs. `invariants.py` says what must
hold."""

from __future__ import annotations

import itertools
import time
from typing import Any

from torch import fx, nn

from decomp.calls import graphs_of
from decomp.errors import CaptureError, boundary
from decomp.invariants import ALONE, BETWEEN_PROGRAMS, INVARIANTS, WHOLE_GRAPH, Work, output_of
from decomp.options import CHECKS
from decomp.proof import (
    CodegenChanged,
    Correspondence,
    Dangling,
    DeadCodeAdded,
    EffectsChanged,
    IllegalCall,
    InventedDependency,
    MalformedExpansion,
    MetadataChanged,
    NameClash,
    OutOfOrder,
    OutputsChanged,
    PlaceholdersChanged,
    Proof,
    ValueLost,
    VerificationError,
    WithoutOrigin,
)

__all__ = [
    "CodegenChanged",
    "Correspondence",
    "Dangling",
    "DeadCodeAdded",
    "EffectsChanged",
    "IllegalCall",
    "InventedDependency",
    "MalformedExpansion",
    "MetadataChanged",
    "NameClash",
    "OutOfOrder",
    "OutputsChanged",
    "PlaceholdersChanged",
    "Proof",
    "ValueLost",
    "VerificationError",
    "WithoutOrigin",
    "check",
    "verify",
]


@boundary("verify", CHECKS)
def verify(source: Any, lowered: Any, *, full: bool = False) -> Proof:
    """Checks that `lowered` is a faithful lowering of `source`, and returns what was checked. A `Lowering` carries its
    provenance and is checked whole; of two plain programs (GraphModule, Graph, ExportedProgram) what needs none: order,
    references, placeholders, outputs, codegen, effects. Raises the `VerificationError` of the first broken
    invariant."""
    correspondence = getattr(lowered, "correspondence", None)
    if correspondence is not None:
        return check(correspondence, full)
    began = time.perf_counter()
    after = _graph(lowered)
    checks = _well_formed(lowered, full)
    if not _without_graph(source):
        pair = _pair(source, lowered)
        checks += [invariant(pair) for invariant in BETWEEN_PROGRAMS]
    return Proof(tuple(checks), len(after.nodes), 0, time.perf_counter() - began)


def check(correspondence: Correspondence, full: bool = False) -> Proof:
    """Proves a lowering from its provenance. `full` hands the whole lowered graph to networkx and to `Graph.lint` too.
    Raises the `VerificationError` of the first broken invariant."""
    began = time.perf_counter()
    work = Work(correspondence)
    invariants = INVARIANTS + (WHOLE_GRAPH if full else ())
    checks = tuple(invariant(work) for invariant in invariants)
    return Proof(checks, len(work.place), len(correspondence.expansions), time.perf_counter() - began)


def _well_formed(program: Any, full: bool) -> list[str]:
    """The checks of every graph of a program, sub-programs included, on its own."""
    invariants = ALONE + (WHOLE_GRAPH if full else ())
    checks: list[str] = []
    for _, graph in graphs_of(program):
        work = Work(Correspondence(graph, graph, {}, {}))
        checks = [invariant(work) for invariant in invariants]
    return checks


def _pair(source: Any, lowered: Any) -> Work:
    before, after = _graph(source), _graph(lowered)
    added = _constants(lowered) - _constants(source)
    results = _returned(source, before), _returned(lowered, after)
    return Work(Correspondence(before, after, {}, {}, added=frozenset(added)), results)


def _constants(program: Any) -> set[str]:
    """Names of the constants that an exported program takes as inputs."""
    signature = getattr(program, "graph_signature", None)
    specs = signature.input_specs if signature is not None else ()
    return {spec.arg.name for spec in specs if spec.kind.name == "CONSTANT_TENSOR"}


def _returned(program: Any, graph: fx.Graph) -> Any:
    """What a program returns, without what it writes back."""
    results = output_of(graph).args[0]
    signature = getattr(program, "graph_signature", None)
    if signature is None:
        return results
    returned = (spec.kind.name in ("USER_OUTPUT", "LOSS_OUTPUT") for spec in signature.output_specs)
    return tuple(itertools.compress(results, returned))


def _without_graph(program: Any) -> bool:
    return isinstance(program, nn.Module) and not isinstance(program, fx.GraphModule)


def _graph(program: Any) -> fx.Graph:
    if isinstance(program, fx.Graph):
        return program
    graph = getattr(program, "graph", None)
    if not isinstance(graph, fx.Graph):
        raise CaptureError(f"{type(program).__name__} has no graph to verify; pass a GraphModule or an ExportedProgram")
    return graph
