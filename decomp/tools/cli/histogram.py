"""Coverage of the ops that real models call: each is tried by a sample call, and ranked by how many models call it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from decomp.advising import Advice
from decomp.samples import program_of
from decomp.tables import Table
from decomp.tools.open_table import OpenTable
from decomp_rules.samples.in_models import call_of, ops_in_models


def histogram_names() -> list[str]:
    """The overloads that models call and that have a sample call, those in most models first."""
    return [each.op for each in ops_in_models() if call_of(each.op) is not None]


def called(overload: str) -> Any:
    """A program with a sample call, and its inputs."""
    sample = call_of(overload)
    assert sample is not None
    return program_of(sample)


def rank_blocked_ops(advice: Advice) -> list[dict[str, Any]]:
    """The ops that are not lowered, those in most models first, each with the last of its missing ops in the order of
    the advice."""
    return list(_ranked(advice))


def _ranked(advice: Advice) -> Iterator[dict[str, Any]]:
    needed: dict[str, tuple[str, ...]] = {}
    for milestone in advice.milestones:
        needed.update(dict.fromkeys(milestone.unlocks, milestone.add))
    asked = {*advice.lowers, *needed, *advice.out_of_reach}
    for each in ops_in_models():
        if each.op in asked and each.op not in advice.lowers:
            row = {"op": each.op, "models": each.models, "calls": each.calls, "add": needed.get(each.op, ())}
            yield {**row, "reason": advice.out_of_reach.get(each.op, "")}


def histogram_table(advice: Advice) -> RenderableType:
    """How many of the ops lower, and one row for each of the others."""
    rows = rank_blocked_ops(advice)
    total = len(advice.lowers) + len(rows)
    head = f"{len(advice.lowers)} of {total} ops that real models call lower to {advice.to} now"
    parts: list[RenderableType] = [Text(head, style="bold")]
    if advice.ops:
        proof = "no smaller set is" if advice.smallest else f"a set of {advice.at_least} may be"
        reached = advice.curve[-1][1]
        what = "all" if reached == total else f"{reached} of them"
        order = ", ".join(advice.ops)
        parts.append(Text(f"{len(advice.ops)} more are enough for {what}, in this order: {order}; {proof}"))
    if rows:
        remedies = [", ".join(row["add"]) or f"out of reach: {row['reason']}" for row in rows]
        cells = [(row["op"], row["models"], row["calls"], remedy) for row, remedy in zip(rows, remedies)]
        parts += ["", OpenTable(Table(("op", ">models", ">calls", "waits for"), cells))]
    return Group(*parts)
