"""Judges the calls of a program, each on the operands that the backend had."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from decomp.errors import first_line, source_line, spell_target
from decomp.ir.arguments import nodes_in, substituted
from decomp.ir.call import call_if_bound, metadata, module_path
from decomp.jobs import NO_PROGRESS, Progress
from decomp.metadata.fakes import new_mode
from decomp.runtime.loaded import Loaded
from decomp.samples import Sample, program_of
from decomp.tools.certification.results import flat
from decomp.tools.comparing.comparison import MOST, ComparedCall
from decomp.tools.comparing.judging import CallJudgement, judge_results, similarity
from decomp.tools.comparing.observing import (
    Observed,
    Overwritten,
    Prefixes,
    Unreadable,
    calls_in,
    readable,
    walk,
)
from decomp.tools.comparing.references import ReferenceRun, copied_tensors, is_random
from decomp.tools.comparing.subject import ProgramOnBackend, primitive_of
from decomp.tools.measurement.trials import FAILURES


class CallJudge:
    """Judges calls as they are observed."""

    def __init__(self, subject: ProgramOnBackend, inputs: Sequence[Any], progress: Progress = NO_PROGRESS) -> None:
        self.subject, self.progress = subject, progress
        self.total = len(calls_in(subject.root.graph))
        self.inputs, self.is_random = inputs, is_random(subject.root.graph)
        self.begin()

    def begin(self) -> None:
        """Forget all rows."""
        self.reference = ReferenceRun(self.subject.root, self.inputs)
        self.rows: dict[fx.Node, ComparedCall] = {}
        self.samples: dict[fx.Node, Sample] = {}
        """Of the first wrong calls."""

    def look(self, seen: Observed) -> None:
        """Judge a call."""
        found = self._judged(seen)
        row = self._row(seen.node, seen.sample, found)
        if row.is_wrong and seen.sample is not None and len(self.samples) < MOST:
            self.samples[seen.node] = seen.sample
            row = replace(row, alone=self._alone(seen.node, seen.sample))
        self.rows[seen.node] = replace(row, so_far=self._so_far(seen))
        self.progress(len(self.rows), self.total, row.primitive)

    def _judged(self, seen: Observed) -> CallJudgement | None:
        if seen.sample is None:
            return None
        level = self.subject.level(seen.node)
        try:
            found = judge_results(self.subject.backend, seen.sample, seen.result, level)
            if found.problem and seen.again is not None:
                again = judge_results(self.subject.backend, seen.again, seen.result, level)
                found = found if again.problem else again
            return found
        except FAILURES:
            return None  # PyTorch has no result for these operands

    def _row(self, node: fx.Node, sample: Sample | None, found: CallJudgement | None) -> ComparedCall:
        row = self.described(node, sample)
        if found is None:
            return row
        verdict = "wrong" if found.problem else "noted" if found.notes else "by design" if found.by_design else "right"
        known = replace(
            row, verdict=verdict, problem=found.problem, at=found.at, expected=found.expected, got=found.got
        )
        notes = (*found.notes, *found.by_design)
        return replace(known, ulp=found.ulp, own=found.own, pcc=found.pcc, cosine=found.cosine, notes=notes)

    def described(self, node: fx.Node, sample: Sample | None = None) -> ComparedCall:
        """A call that was not judged."""
        call = call_if_bound(node)
        name = primitive_of(self.subject.backend, call) if call is not None else spell_target(node.target)
        module = module_path(node.meta.get("nn_module_stack"))
        text = str(sample) if sample is not None else shown(node)
        op = self.subject.source_op(node)
        return ComparedCall(node.name, name, op, module, source_line(node) or "", text, "not judged")

    def _so_far(self, seen: Observed) -> float | None:
        if self.is_random:
            return None
        try:
            return similarity(flat(seen.result), flat(self.reference.value(seen.node)))[0]
        except (LookupError, *FAILURES):
            return None

    def _alone(self, node: fx.Node, sample: Sample) -> str:
        """The verdict on a program that makes only this call, on the same operands."""
        try:
            results = self.subject.run(program_with_metadata(sample), *copied_tensors(sample.tensors))
            return (
                "wrong"
                if judge_results(self.subject.backend, sample, results, self.subject.level(node)).problem
                else "right"
            )
        except Exception:  # a runtime may raise anything, also for so small a program
            return ""

    def overwritten(self, found: Overwritten) -> None:
        """Add that a call overwrote a value."""
        row = self.rows.get(found.by) or self.described(found.by)
        read = f", which {found.read_by.name} reads" if found.read_by is not None else " before the program returns"
        if found.read_by is found.by:
            read = ", its own operand, which is needed after it"
        if not row.is_wrong:
            self.rows[found.by] = replace(row, verdict="wrong", problem=f"overwrites {found.value.name}{read}")

    def failed(self, node: fx.Node, error: Exception) -> None:
        """Add that a call raised an error."""
        problem = f"{type(error).__name__}: {first_line(error)}"
        self.rows[node] = replace(self.described(node), verdict="fails", problem=problem)

    @property
    def in_order(self) -> tuple[ComparedCall, ...]:
        """The rows in the order of the program."""
        place = {node: i for i, node in enumerate(self.subject.root.graph.nodes)}
        return tuple(self.rows[node] for node in sorted(self.rows, key=lambda node: place[node]))

    @property
    def wrong(self) -> bool:
        """Whether a call is wrong."""
        return any(row.is_wrong for row in self.rows.values())


def shown(node: fx.Node) -> str:
    """A call with the known properties of its operands."""
    args, kwargs = substituted(node.args, metadata), substituted(node.kwargs, metadata)
    return str(Sample(node.target, tuple(args), kwargs))


def program_with_metadata(sample: Sample) -> fx.GraphModule:
    """A program that makes this one call, with metadata, so that a backend can load it."""
    module, tensors = program_of(sample)
    mode, rest = new_mode(), iter(tensors)
    nodes = list(module.graph.nodes)
    for node in nodes:
        if node.op == "placeholder":
            node.meta["val"] = mode.from_tensor(next(rest).detach())
    call = nodes[-2]
    try:
        with mode, torch.no_grad():
            call.meta["val"] = sample.with_tensors(n.meta["val"] for n in nodes if n.op == "placeholder").run()
    except FAILURES:
        call.meta["val"] = sample.run()
    return module


def judge_all(calls: CallJudge, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Judge all calls of a program on these inputs; returns whether it was run call by call. Raises `Unreadable`."""
    subject, loaded = calls.subject, calls.subject.loaded
    if loaded is not None and not subject.is_compiled:
        try:
            _walk(loaded, args, kwargs, calls)
            return True
        except Unreadable:
            calls.begin()  # its functions emit into a graph: there are no intermediate values to read
    prefixes = Prefixes(subject.root, subject.run, calls.inputs)
    try:
        prefixes.observe(calls_in(subject.root.graph), calls.reference, calls.look)
    except Unreadable:
        raise
    except Exception as error:  # a runtime may raise anything
        _blame_failure(prefixes, calls, error)
    return False


def _walk(loaded: Loaded, args: Sequence[Any], kwargs: Mapping[str, Any], calls: CallJudge) -> None:
    order = [step.node for step in loaded.steps if step.primitive]
    seen = 0

    def look(each: Observed) -> None:
        nonlocal seen
        seen = order.index(each.node) + 1
        calls.look(each)

    try:
        for found in walk(loaded, args, kwargs, look):
            calls.overwritten(found)
    except Unreadable:
        raise
    except Exception as error:  # any exception of a backend's function is a finding
        if seen == 0:  # functions that emit into a graph fail outside of one
            raise Unreadable from error
        calls.failed(order[min(seen, len(order) - 1)], error)


def _blame_failure(prefixes: Prefixes, calls: CallJudge, error: Exception) -> None:
    """Find the first call that a runtime fails at. Raises `Unreadable` if it fails only where values are read."""
    try:
        prefixes.fetch(readable(list(nodes_in(prefixes.root.graph.output_node().args))))
    except Exception:  # as above
        pass
    else:
        raise Unreadable from error
    every = [node for node in calls_in(prefixes.root.graph) if readable([node])]
    good, bad, last = 0, len(every), error
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            prefixes.fetch(readable(every[:middle]))
            good = middle
        except Exception as raised:  # a runtime may raise anything
            bad, last = middle, raised
    if every:
        calls.failed(every[good], last)
