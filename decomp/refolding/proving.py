"""Verifies a refolded program: each graph against its source, then the whole program."""

from __future__ import annotations

from collections.abc import Collection, Mapping
import time
from typing import Any

from torch import fx

from decomp.ir.agreement import described, same_metadata
from decomp.ir.module import ProgramGraph
from decomp.proof.between_programs import as_many_effects
from decomp.proof.correspondence import Correspondence, MetadataChanged, Proof
from decomp.proof.invariants import (
    OF_ONE_GRAPH,
    WHOLE_GRAPH,
    same_codegen,
    same_outputs,
    same_placeholders,
    same_regions,
)
from decomp.proof.returned_program import signatures_agree
from decomp.validation.running_programs import without_numbers
from decomp.validation.whole_programs import whole_programs


def verify_refolding(
    source: Any,
    result: Any,
    graphs: Collection[ProgramGraph],
    level: bool | str,
    given: tuple[tuple[Any, ...], Mapping[str, Any]] | None,
) -> Proof:
    """Verify that `result` is `source` with calls folded. With `level` "values", both are also run on the inputs
    `given`. Raises the `VerificationError` of the first check that fails."""
    began = time.perf_counter()
    # All graphs are checked; the first is the program itself, of which the proof speaks.
    checked = [_graph_checks(refolded, full=level == "full") for refolded in graphs]
    checks = checked[0] if checked else []
    # An input that is no longer needed is not in the new signature.
    if not any(refolded.dropped for refolded in graphs):
        checks += signatures_agree(source, result)
    if level == "values":
        checks.append(_measured(source, result, given))
    nodes = sum(len(refolded.graph.nodes) for refolded in graphs)
    return Proof(tuple(checks), nodes, 0, time.perf_counter() - began)


def _measured(source: Any, result: Any, given: Any) -> str:
    if given is None:
        return "the whole program not run, as there are no example inputs"
    missing = without_numbers(source, *given)
    if missing is not None:
        return f"the whole program not run, as {missing}"
    return whole_programs(source, result, *given)


def _graph_checks(refolded: ProgramGraph, full: bool) -> list[str]:
    """Check the new graph on its own, then against its source."""
    assert refolded.before is not None and refolded.edges is not None
    before, rewrite = refolded.before.graph, refolded.edges
    alone = Correspondence(rewrite.graph, rewrite.graph, {}, {})
    checks = [invariant(alone) for invariant in OF_ONE_GRAPH + (WHOLE_GRAPH if full else ())]
    # Folding drops inputs. The checks expect the second graph to have more inputs, so the order is reversed here.
    inputs = Correspondence(rewrite.graph, before, {}, {}, added=refolded.dropped)
    pair = Correspondence(before, rewrite.graph, rewrite.origin, rewrite.values)
    checks += [same_placeholders(inputs), same_outputs(pair), same_codegen(pair), as_many_effects(pair)]
    checks += [_same_metadata(refolded), same_regions(pair)]
    return [check for check in checks if check]


def _same_metadata(refolded: ProgramGraph) -> str:
    compared = 0
    values = refolded.edges.values if refolded.edges is not None else {}
    for old, new in values.items():
        expected = old.meta.get("val")
        if isinstance(new, fx.Node) and expected is not None:
            compared += 1
            found = new.meta.get("val")
            if found is not expected and not same_metadata(expected, found):
                raise MetadataChanged(
                    f"the value of {old.name!r} has other metadata",
                    new,
                    old,
                    expected=described(expected),
                    found=described(found),
                )
    return f"shape, dtype and device of {compared} values unchanged"
