"""Verification of a lowering: each lowered graph against its record, then the returned program against the verified
graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
import time

from decomp.proof.correspondence import Correspondence, Proof
from decomp.proof.invariants import INVARIANTS, WHOLE_GRAPH
from decomp.proof.returned_program import ReturnedProgram, check_returned_program


def check_program(correspondences: Sequence[Correspondence], program: ReturnedProgram, full: bool = False) -> Proof:
    """Verify a whole program: its graphs against their records, and the program returned to the user against the
    verified graph."""
    began = time.perf_counter()
    proofs = [check(each, full) for each in correspondences]
    # The phrases of the main graph; those of bodies are the same.
    checks = (*proofs[0].checks, *check_returned_program(program))
    nodes, expansions = sum(p.nodes for p in proofs), sum(p.expansions for p in proofs)
    return Proof(checks, nodes, expansions, time.perf_counter() - began)


def check(correspondence: Correspondence, full: bool = False) -> Proof:
    """Verify one lowered graph from its record. `full` additionally runs networkx and `Graph.lint` on the whole lowered
    graph. Raises the `VerificationError` of the first broken invariant."""
    began = time.perf_counter()
    invariants = INVARIANTS + (WHOLE_GRAPH if full else ())
    work = replace(correspondence)  # its tables are those of the graphs as they are now
    checks = tuple(phrase for invariant in invariants if (phrase := invariant(work)))
    return Proof(checks, len(work.place), len(work.expansions), time.perf_counter() - began)
