"""The suite runs case by case and saves results after each, so that a run can be interrupted and resumed, and a crash
is a row with an error and does not end the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
import time
from typing import Any

import torch

from decomp.costs.machine import describe_machine
from decomp.tools.benchmarking import attributing, machine
from decomp.tools.benchmarking.clock import Effort
from decomp.tools.benchmarking.records import Attribution, BenchmarkCase, BenchmarkResults, BenchmarkRow
from decomp.tools.benchmarking.running import Setup, first_error_line, measure_case
from decomp.tools.benchmarking.workload import Variant, Workload

Progress = Callable[[int, int, str, float], None]
"""Called with the number of finished cases, the total, the next case, and the estimated seconds of the rest."""

COMPILING = {"op": 2.0, "model": 20.0}
"""The initial estimate of the seconds to compile one variant."""


@dataclass(frozen=True)
class SuitePlan:
    """The cases to measure."""

    workloads: Sequence[Workload]
    variants: Sequence[Variant]
    modes: Sequence[str] = ("forward",)
    modes_of: Callable[[Workload], Sequence[str]] | None = None
    """Returns the modes of a workload, if they differ."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    effort: Effort = Effort()
    seed: int = 0
    attribute: Sequence[str] = ()
    """Variants whose time is attributed to source ops, for models."""

    def cases(self) -> Iterator[tuple[BenchmarkCase, Workload]]:
        """Each workload in each mode."""
        for one in self.workloads:
            for mode in self.modes_of(one) if self.modes_of is not None else self.modes:
                yield BenchmarkCase(one.name, one.family, one.size, mode, self.device.type), one

    def estimate(self, done: BenchmarkResults | None = None) -> float:
        """The estimated seconds of the plan, or of the remaining cases."""
        finished = set(done.cases()) if done is not None else set()
        return sum(self._cost(case) for case, _ in self.cases() if case not in finished)

    def _cost(self, case: BenchmarkCase) -> float:
        compiled = sum(variant.compiled for variant in self.variants)
        twice = 2 if "backward" in case.mode else 1
        timing = min(self.effort.seconds * len(self.variants), self.effort.patience)
        return twice * compiled * COMPILING.get(case.family, 2.0) + 2 * timing + 1.0


def run(
    plan: SuitePlan, command: str, path: Path | None = None, resume: bool = False, progress: Progress | None = None
) -> BenchmarkResults:
    """Measure everything in `plan` and return it; with a `path`, saved there as JSON after each case.

    `resume`: continue with the results in the file. A case during which the process died is a row with that error.
    Raises `ValueError` if the file is of another machine, version, seed or number of threads.
    """
    with machine.kept_pages() as pages:
        return _run(plan, {**describe_machine(plan.device), "pages": pages}, command, path, resume, progress)


def _run(
    plan: SuitePlan, here: Mapping[str, Any], command: str, path: Path | None, resume: bool, progress: Progress | None
) -> BenchmarkResults:
    earlier = BenchmarkResults.load(path) if resume and path is not None and path.exists() else None
    if earlier is not None:
        _same(earlier, here, plan.seed, path)
        results = _crashed(earlier, plan)
    else:
        results = BenchmarkResults(command, {**here, **machine.limits(plan.device, plan.seed)}, plan.seed)
    left = [(case, workload) for case, workload in plan.cases() if case not in set(results.cases())]
    total, began, expected = len(left), time.perf_counter(), plan.estimate(results)
    for number, (case, workload) in enumerate(left):
        if progress is not None:
            progress(number, total, str(case), _rest(plan, results, began, expected))
        results = _measured(plan, case, workload, results, path)
    if progress is not None:
        progress(total, total, "done", 0.0)
    return results


def _measured(
    plan: SuitePlan, case: BenchmarkCase, workload: Workload, results: BenchmarkResults, path: Path | None
) -> BenchmarkResults:
    """The results with one more case. The file records the running case, to detect that the process died."""
    if path is not None:
        replace(results, running=case).save(path)
    try:
        results = results.with_case(*_case(plan, case, workload, results))
    finally:
        if path is not None:
            results.save(path)
    return results


def _rest(plan: SuitePlan, results: BenchmarkResults, began: float, expected: float) -> float:
    """The estimate of the remaining time, corrected by the progress so far."""
    left = plan.estimate(results)
    spent, foreseen = time.perf_counter() - began, expected - left
    return left * spent / foreseen if foreseen > 0 else left


def _same(earlier: BenchmarkResults, here: Mapping[str, Any], seed: int, path: Path | None) -> None:
    differ = [
        f"{name} {earlier.machine.get(name)} -> {value}"
        for name, value in here.items()
        if earlier.machine.get(name) != value
    ]
    if earlier.seed != seed:
        differ.append(f"seed {earlier.seed} -> {seed}")
    if differ:
        raise ValueError(
            f"{path} cannot be resumed here: {', '.join(differ)}\n  to do: run without --resume, or with another --out"
        )


def _crashed(results: BenchmarkResults, plan: SuitePlan) -> BenchmarkResults:
    """The results with an error row for a case during which the process died."""
    if results.running is None:
        return results
    said = "the process died while this case ran, or was killed"
    return results.with_case([BenchmarkRow(results.running, plan.variants[0].name, error=said)])


def _case(
    plan: SuitePlan, case: BenchmarkCase, workload: Workload, results: BenchmarkResults
) -> tuple[list[BenchmarkRow], list[Attribution]]:
    try:
        setup = Setup(case, plan.device, plan.effort, plan.seed, results.machine)
        chosen = [v for v in plan.variants if not (v.expanded and workload.family == "model")]
        rows = measure_case(setup, workload, chosen)
    except Exception as error:  # a workload that cannot be built is a row, too
        return [BenchmarkRow(case, plan.variants[0].name, error=first_error_line(error))], []
    finally:
        torch.compiler.reset()
    if case.family != "model" or case.mode != "forward":
        return rows, []
    return rows, list(_attributions(plan, case, workload, rows))


def _attributions(
    plan: SuitePlan, case: BenchmarkCase, workload: Workload, rows: Iterable[BenchmarkRow]
) -> Iterator[Attribution]:
    ran = {row.variant for row in rows if row.error is None}
    module, args = workload.made(plan.seed, plan.device)
    source = torch.export.export(module, args, strict=False).module(check_guards=False)
    for variant in plan.variants:
        if variant.name in plan.attribute and variant.name in ran and variant.target is not None:
            lowering = variant.lowering_of(source, args, "forward")
            yield attributing.attribute_time(case, variant.name, source, lowering, args)
