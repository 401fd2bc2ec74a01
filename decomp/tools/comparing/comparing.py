"""`compare`: run a lowered program on a backend, judge each of its calls on the backend's own operands, and say which
is wrong, or that correct calls add up to a wrong result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import contextlib
from dataclasses import replace
import functools
import logging
from pathlib import Path
import time
from typing import Any

import torch
from torch import fx

from decomp.errors import boundary, first_line
from decomp.ir.arguments import nodes_in
from decomp.jobs import NO_PROGRESS, Progress
from decomp.rules.accuracy import Spec
from decomp.runtime.tables import Backend
from decomp.tools.certification.results import flat
from decomp.tools.comparing.bisecting import Bisection
from decomp.tools.comparing.comparison import Comparison
from decomp.tools.comparing.judged_calls import CallJudge, judge_all
from decomp.tools.comparing.judging import PROGRAMS, CallJudgement, judge_against
from decomp.tools.comparing.observing import Prefixes, Run, Unreadable, calls_in, own_copies, prefix_of, readable
from decomp.tools.comparing.references import (
    ReferenceRun,
    copied_module,
    copied_tensors,
    expected_results,
    results_in_float64,
    results_in_pytorch,
)
from decomp.tools.comparing.reproducing import place_of_runner, save_call
from decomp.tools.comparing.subject import ProgramOnBackend


@boundary("compare")
def compare(
    program: Any,
    model: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    on: Backend | Run | None = None,
    accuracy: Spec | None = None,
    bisect: bool = False,
    save: str | Path | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Run a lowered program on a backend and find the calls whose results differ by more than their operands explain.

    Each call is made again in PyTorch on the operands that the backend had, in their dtype and in float64: what earlier
    calls got wrong does not count against it. It may be off by what `accuracy` allows, in ULP, by a multiple of the
    error of PyTorch's own kernel, and by what the backend declares (`Backend.deviates`). The results of the program are
    compared with the model in float64. If they are wrong and no call is, errors add up ("drift"), or the compiler of
    the runtime is at fault ("compiled").

    - `program`: a program loaded on a backend; or, with `on`, a `Lowering`, an ExportedProgram or a GraphModule.
    - `model`: its source, a module or a function that runs on `args` and `kwargs` (tensors of any shape and dtype that
      the program takes, or nested); None to compare the results with the lowered program in PyTorch alone.
    - `on`: a `Backend`; or, for any other runtime, a function `run(prefix, *inputs)` that runs a GraphModule, which
      computes some intermediate values of the program, on the flat inputs of the program (tensors and numbers), and
      returns the tensors. The names of these are the nodes that the GraphModule returns.
    - `accuracy`: a level, or levels by op, as in `decomp.lower`; by default those that the program was lowered with.
    - `bisect`: for programs whose intermediate values are expensive to read: if the results are right, no call is
      judged; if not, halves of the program are judged like programs, until one call is left. By default all values are
      read, in runs that return at most 1 GiB.
    - `save`: a directory for the operands of the first wrong calls, each with a Python script that repeats the call.
    - `progress`: called with the number of calls that were compared, the total, and the last one.

    Errors are in ULP: units in the last place of the exact result, or of the largest term of a sum; PCC and cosine are
    numbers between -1 and 1, of all elements of a result in float64.

    Raises `ArgumentError` for other arguments, `LoadError` if the backend cannot load the program, `CaptureError` if it
    is no program, and what the model raises on these inputs."""
    began = time.perf_counter()
    subject = ProgramOnBackend.of(program, on, accuracy)
    given = (copied_tensors(tuple(args)), copied_tensors(dict(kwargs or {})))
    comparing = _Comparing(subject, model, *given, progress or NO_PROGRESS)
    comparison = replace(comparing.run(bisect), seconds=round(time.perf_counter() - began, 1))
    return comparison if save is None else comparison.with_files(comparing.save(comparison, Path(save)))


class _Comparing:
    """One comparison."""

    def __init__(
        self, subject: ProgramOnBackend, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], progress: Progress
    ) -> None:
        self.subject, self.model, self.args, self.kwargs, self.progress = subject, model, args, kwargs, progress
        inputs = subject.flat(args, kwargs)
        self.prefixes = Prefixes(subject.root, subject.run, inputs)
        self.outputs = readable(list(nodes_in(subject.root.graph.output_node().args)))
        self.calls = CallJudge(subject, inputs, progress)
        self.results: CallJudgement | None = None
        self.lowered = CallJudgement()
        self.verdict, self.piece = "not compared", list[fx.Node]()

    def run(self, bisect: bool) -> Comparison:
        """The comparison, without files."""
        self.results = self._judge_results()
        is_wrong = self.results is not None and bool(self.results.problem)
        walked = False
        if not bisect:
            with contextlib.suppress(Unreadable):
                walked = judge_all(self.calls, self.args, self.kwargs)
        if is_wrong and not self.calls.wrong and (bisect or not walked):
            self._bisect()
        self.verdict = self._verdict(is_wrong, walked)
        found = self.results or CallJudgement()
        piece = tuple(node.name for node in self.piece)
        rows = self.calls.in_order
        name = self.subject.name
        return Comparison(name, self.verdict, rows, self._problem(), found.pcc, found.cosine, found.ulp, piece)

    def _verdict(self, is_wrong: bool, walked: bool) -> str:
        rows = self.calls.rows.values()
        if self.calls.wrong or is_wrong and any(row.verdict == "noted" for row in rows):
            return "wrong"
        if is_wrong:
            return "compiled" if not walked and self._is_right_when_read() else "drift"
        self.lowered = self._judge_lowered()
        if self.lowered.problem:
            return "lowering"
        return "right" if self.results is not None or rows else "not compared"

    def _problem(self) -> str:
        found = self.lowered if self.verdict == "lowering" else self.results
        if found is None or not found.problem:
            return ""
        return f"{found.problem}: {found.got} instead of {found.expected} at {found.at}" if found.at else found.problem

    # The results of the whole program.

    def _judge_results(self) -> CallJudgement | None:
        """The judgement of the results; None if there are none to compare."""
        loaded = self.subject.loaded
        try:
            if loaded is None:
                return self._judge_outputs(self.prefixes.fetch(self.outputs)) if self.outputs else None
            found = flat(loaded.results(loaded.function(*own_copies(loaded, self.args, self.kwargs))))
        except Exception as error:  # a runtime may raise anything
            return CallJudgement(f"{type(error).__name__}: {first_line(error)}")
        return self._against(self.own, found) if found else None

    def _judge_outputs(self, found: Mapping[fx.Node, torch.Tensor]) -> CallJudgement:
        own = results_in_pytorch(prefix_of(self.subject.root, self.outputs), self.prefixes.inputs)
        return self._against(own, [found[node] for node in self.outputs])

    def _against(self, own: Sequence[torch.Tensor], found: Sequence[torch.Tensor]) -> CallJudgement:
        truth = expected_results(own, self.exact)
        return judge_against(None, truth, found, times=PROGRAMS, values=not self.calls.is_random)

    @functools.cached_property
    def own(self) -> list[torch.Tensor]:
        """The results of the lowered program in PyTorch."""
        return results_in_pytorch(self.subject.root, self.args, self.kwargs)

    @functools.cached_property
    def exact(self) -> list[torch.Tensor] | None:
        """The results of the model in float64."""
        return None if self.model is None else results_in_float64(self.model, self.args, self.kwargs)

    def _judge_lowered(self) -> CallJudgement:
        """The judgement of the lowered program in PyTorch by its source."""
        if self.model is None or self.calls.is_random:
            return CallJudgement()
        with torch.no_grad():
            source = copied_module(self.model)
            wanted = flat(source(*copied_tensors(self.args), **copied_tensors(self.kwargs)))
        if [(t.shape, t.dtype) for t in wanted] != [(t.shape, t.dtype) for t in self.own]:
            return CallJudgement()  # another structure of the same results, or more of them: they cannot be compared
        return self._against(wanted, self.own)

    # Where the intermediate values are not read.

    def _bisect(self) -> None:
        """Find the shortest piece that is wrong, and judge it if it is one call."""
        bisection = Bisection(self.prefixes, self.progress)
        try:
            self.piece = bisection.find()
            if len(self.piece) == 1 and self.piece[0] not in self.calls.rows:
                reference = ReferenceRun(self.subject.root, self.prefixes.inputs)
                self.prefixes.look_at(self.piece[0], bisection.values, reference, self.calls.look)
        except Exception as error:  # a runtime may raise anything
            logging.getLogger(__name__).debug("bisection: %s", error)

    def _is_right_when_read(self) -> bool:
        """Whether the results are right if the values within the program, or the piece, are read as well."""
        read = readable(calls_in(self.subject.root.graph) if self.calls.rows else self.piece)
        try:
            inner = [node for node in read if node not in self.outputs]
            return not self._judge_outputs(self.prefixes.fetch([*self.outputs, *inner])).problem
        except Exception:  # a runtime may raise anything
            return False

    def save(self, comparison: Comparison, directory: Path) -> dict[str, str]:
        """Write the first wrong calls to files; returns the scripts by node."""
        place = place_of_runner(self.subject.on)
        rows = {row.node: row for row in comparison.calls if row.is_wrong}
        return {
            node.name: str(save_call(directory, rows[node.name], sample, place))
            for node, sample in self.calls.samples.items()
            if node.name in rows
        }
