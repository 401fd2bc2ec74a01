"""`verify`: check that one program is a faithful lowering of another. A `Lowering` is checked in full, by its
provenance; two plain programs, by the checks that need no provenance. On request, values and gradients are measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
import itertools
import time
from typing import Any

from torch import fx, nn
from torch.export import ExportedProgram

from decomp.capture.lowered_module import has_replaced_forward
from decomp.capture.module_hooks import global_hooks
from decomp.derive.pipeline import prove_program
from decomp.errors import CaptureError, boundary
from decomp.ir.call import graphs_of
from decomp.lowering_internals import internals_of
from decomp.proof.between_programs import BETWEEN_PROGRAMS
from decomp.proof.correspondence import Correspondence, HooksChanged, Proof, StaleCode
from decomp.proof.invariants import OF_ONE_GRAPH, WHOLE_GRAPH, output_of
from decomp.proof.returned_program import (
    ReturnedProgram,
    require_no_more_hooks,
    require_source,
    signatures_agree,
)
from decomp.rules.options import CHECKS
from decomp.validation.values import measure_lowering


@boundary("verify", CHECKS)
def verify(
    source: Any,
    lowered: Any,
    *,
    level: str = "structure",
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    full: bool = False,
) -> Proof:
    """Check that `lowered` is a faithful lowering of `source`, and return a `Proof`: what was checked, in phrases.

    If `lowered` is a `Lowering`, the current state of its `result` is checked: every node is a copy of a source node or
    of a node of a recorded expansion, with the same operands; signature, state, hooks and write-backs are the recorded
    ones; `source` is the program that was lowered (a module without a graph is captured again). For any other program
    (`GraphModule`, `Graph`, `ExportedProgram`) the checks are those that need no provenance: order, references,
    placeholders, outputs, codegen, effects, signature, and which inputs each result depends on.

    The code of a `GraphModule`, and of those inside it, must be that of its graph.

    `level="values"` also compares values and gradients: of each distinct expansion, on operands made for its signature,
    with the op's own kernel and float64; and of the whole program on `args`, `kwargs` (for a `Lowering`, by default its
    example inputs). `full` also checks the whole lowered graph with networkx and `Graph.lint`.

    Raises the `VerificationError` of the first check that fails.
    """
    began = time.perf_counter()
    if internals_of(lowered) is not None:
        proof = _of_lowering(source, lowered, full)
    else:
        proof = _of_programs(source, lowered, full)
    proof = replace(proof, checks=(*_own_code(getattr(lowered, "result", lowered)), *proof.checks))
    if level == "values":
        proof = proof.also(measure_lowering(source, lowered, args, kwargs))
    return replace(proof, seconds=time.perf_counter() - began)


def _of_lowering(source: Any, lowering: Any, full: bool) -> Proof:
    internals = lowering.internals
    found = require_source(internals.model, internals.program, source, internals.request.captured)
    # The result is read now: users may have changed it since it was lowered, and its present state is checked.
    program = replace(internals.returned_program, result=lowering.result)
    return prove_program(program, lowering.target, full).also([found])


def _of_programs(source: Any, lowered: Any, full: bool) -> Proof:
    after = _graph(lowered)
    checks = _well_formed(lowered, full)
    hooks = ReturnedProgram.hooks_of(source)
    require_no_more_hooks(lowered, [hook for kind in hooks for hook in kind])
    # A graph with parameters as inputs and one with parameters as attributes can be compared only by their values.
    if not _without_graph(source) and isinstance(source, ExportedProgram) is isinstance(lowered, ExportedProgram):
        pair = _pair(source, lowered)
        checks += [phrase for invariant in BETWEEN_PROGRAMS if (phrase := invariant(pair))]
        checks += signatures_agree(source, lowered)
    return Proof(tuple(checks), len(after.nodes), 0, 0.0)


def _well_formed(program: Any, full: bool) -> list[str]:
    """The checks of each single graph of a program, including sub-programs."""
    invariants = OF_ONE_GRAPH + (WHOLE_GRAPH if full else ())
    # Invariants of one graph take a correspondence, so the graph is paired with itself.
    pairs = [Correspondence(graph, graph, {}, {}) for _, graph in graphs_of(program)]
    checked = [[invariant(pair) for invariant in invariants] for pair in pairs]
    return checked[0] if checked else []


def _own_code(program: Any) -> list[str]:
    """Check that every module runs the code of its graph."""
    modules = program.named_modules() if isinstance(program, nn.Module) else ()
    graphs = [(name, module) for name, module in modules if isinstance(module, fx.GraphModule)]
    for name, module in graphs:
        # A graph that was changed without `recompile()` still runs its old code.
        if has_replaced_forward(module) or module.code != module.graph.python_code("self").src:
            raise StaleCode(f"{repr(name) if name else 'the module'} runs code that is not that of its graph")
    # Global hooks run for every module of the process, also for the lowered one.
    for hook in global_hooks() if graphs else ():
        raise HooksChanged(f"there is {hook}, which can change what the program computes")
    return ["the code is that of the graph"] if graphs else []


def _pair(source: Any, lowered: Any) -> Correspondence:
    before, after = _graph(source), _graph(lowered)
    # Lowering may add constants as inputs, so the placeholders of the two programs differ by these.
    added = _constants(lowered) - _constants(source)
    results = _returned(source, before), _returned(lowered, after)
    return Correspondence(before, after, {}, {}, added=frozenset(added), results=results)


def _constants(program: Any) -> set[str]:
    """Names of the constants that an exported program takes as inputs."""
    signature = getattr(program, "graph_signature", None)
    specs = signature.input_specs if signature is not None else ()
    return {spec.arg.name for spec in specs if spec.kind.name == "CONSTANT_TENSOR"}


def _returned(program: Any, graph: fx.Graph) -> Any:
    """The results of a program, without the values that it writes back."""
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
