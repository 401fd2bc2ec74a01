"""Finds the primitive at fault in a wrong program: the first call that is wrong on the backend's own operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from decomp.ir.call import call_if_bound
from decomp.lowering import Lowering
from decomp.runtime.tables import Backend
from decomp.samples import Sample
from decomp.tools.bringup.rows import Problem
from decomp.tools.comparing.comparison import ComparedCall
from decomp.tools.comparing.judged_calls import CallJudge, judge_all, program_with_metadata
from decomp.tools.comparing.subject import ProgramOnBackend


@dataclass(frozen=True)
class Difference:
    """The first call of a program that is wrong."""

    primitive: str
    problem: Problem


def difference_in(
    backend: Backend, lowering: Lowering, args: Sequence[Any], where: str, by_design: list[str] | None = None
) -> Difference | None:
    """The first call that is wrong on its own operands; None if all are right. Reasons of calls that differ by design
    are added to `by_design`. Raises `Unreadable` if their results cannot be read."""
    subject = ProgramOnBackend.of(lowering, backend)
    calls = CallJudge(subject, subject.flat(tuple(args), {}))
    judge_all(calls, tuple(args), {})
    if by_design is not None:
        stated = (row for row in calls.in_order if row.verdict == "by design")
        by_design += [f"{row.primitive}: {note}" for row in stated for note in row.notes]
    return next((_difference(row, where) for row in calls.in_order if row.is_wrong), None)


def _difference(row: ComparedCall, where: str) -> Difference:
    problem = Problem(where, row.problem, row.call, row.at, row.expected, row.got, row.node, row.source)
    return Difference(row.primitive, problem)


def loaded_call(backend: Backend, sample: Sample) -> Any:
    """A loaded program with only this call; None if the call is not legal in the target. Raises `LoadError`."""
    module = program_with_metadata(sample)
    call = call_if_bound(list(module.graph.nodes)[-2])
    legal = call is not None and backend.target.why_illegal(call) is None
    return backend.load(module) if legal else None
