"""Proving a lowering from what it recorded: each graph from its provenance, then the last step to the program that is
handed over."""

from __future__ import annotations

from collections.abc import Sequence
import time

from decomp.proof.correspondence import Correspondence, Proof
from decomp.proof.handed_over import HandedOver, require_as_handed_over
from decomp.proof.invariants import INVARIANTS, WHOLE_GRAPH, Work


def proved(correspondences: Sequence[Correspondence], program: HandedOver, full: bool = False) -> Proof:
    """Proves a whole program, that of its sub-programs included: each graph from its record, and the last step to what
    is handed over."""
    began = time.perf_counter()
    proofs = [check(each, full) for each in correspondences]
    checks = (*proofs[0].checks, *require_as_handed_over(program))
    nodes, expansions = sum(p.nodes for p in proofs), sum(p.expansions for p in proofs)
    return Proof(checks, nodes, expansions, time.perf_counter() - began)


def check(correspondence: Correspondence, full: bool = False) -> Proof:
    """Proves a lowering from its provenance. `full` hands the whole lowered graph to networkx and to `Graph.lint` too.
    Raises the `VerificationError` of the first broken invariant."""
    began = time.perf_counter()
    work = Work(correspondence)
    invariants = INVARIANTS + (WHOLE_GRAPH if full else ())
    checks = tuple(phrase for invariant in invariants if (phrase := invariant(work)))
    return Proof(checks, len(work.place), len(correspondence.expansions), time.perf_counter() - began)
