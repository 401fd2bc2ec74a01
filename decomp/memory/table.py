"""A memory plan as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from decomp.costs.plans import spell_bytes
from decomp.tables import Table

if TYPE_CHECKING:
    from decomp.memory.planning import MemoryPlan, OpMemory

MAX_OPS = 20
"""The maximum number of ops listed."""
MAX_NAME_WIDTH = 30
"""The maximum number of columns for the name of an op."""


def render_plan(plan: MemoryPlan) -> Iterator[str]:
    """A headline, a table of ops and a few remarks, in 80 columns."""
    yield headline(plan)
    yield ""
    yield from _table(plan)
    yield ""
    yield from _remarks(plan)


def headline(plan: MemoryPlan) -> str:
    """`peak 17.8 MB, 0.18 of the 101 MB without a plan; lower bound 17.8 MB`"""
    share = f"{plan.ratio:.2f} of the {spell_bytes(plan.unplanned_peak)} without a plan"
    return f"peak {spell_bytes(plan.peak)}, {share}; lower bound {spell_bytes(plan.lower_bound)}"


def _table(plan: MemoryPlan) -> Iterator[str]:
    columns = ("op", ">calls", ">before", ">after", ">in place", ">in arena", ">in blocks")
    return Table(columns, [*map(_row, plan.ops)], MAX_OPS).lines()


def _row(op: OpMemory) -> tuple[str, ...]:
    name = op.op if len(op.op) <= MAX_NAME_WIDTH else f"…{op.op[1 - MAX_NAME_WIDTH :]}"
    numbers = op.in_place, op.in_arena, op.in_blocks
    return name, str(op.calls), spell_bytes(op.before), spell_bytes(op.after), *map(str, numbers)


def _remarks(plan: MemoryPlan) -> Iterator[str]:
    yield "before, after: most bytes held while the op runs, without inputs and state."
    yield "in place: calls that overwrite an operand; in arena: into planned memory;"
    yield "in blocks: that run on one block of rows after the other."
    if plan.arena:
        yield f"The arena takes {spell_bytes(plan.arena)}, and is allocated in each run."
    else:
        yield "No arena: each result has memory of its own."
    if plan.dynamic:
        yield "Sizes vary: figures are for the example inputs. Results that vary have their own memory."
