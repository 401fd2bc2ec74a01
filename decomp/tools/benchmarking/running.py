"""Runs one case: builds every variant, compares it with the exact result, and times all of them in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
from dataclasses import dataclass, field
import math
import os
from typing import Any
import warnings

import torch
from torch import nn

from decomp.tools.benchmarking import needs
from decomp.tools.benchmarking.accuracy import error_of
from decomp.tools.benchmarking.clock import Clock, Effort, Timing, time_interleaved
from decomp.tools.benchmarking.counting import CompilationCounts, Counts, count_call
from decomp.tools.benchmarking.records import BenchmarkCase, BenchmarkRow
from decomp.tools.benchmarking.workload import Variant, Workload, exact_outputs, task, tensors

SHARE_OF_MEMORY = 0.15
"""The share of the machine's memory above which a variant is not run."""


@dataclass(frozen=True)
class Setup:
    """The settings of a case's measurement."""

    case: BenchmarkCase
    device: torch.device
    effort: Effort
    seed: int
    machine: Mapping[str, Any]
    """The machine, with its measured limits `copy` and `matmul`."""


@dataclass
class _Contender:
    """A variant that is ready to run."""

    run: Callable[[], Any]
    nodes: int | None
    compiled: CompilationCounts | None
    found: list[torch.Tensor] = field(repr=False)
    """Its float outputs."""


class TooLarge(Exception):
    """A variant would need more memory than it is allowed."""


def measure_case(setup: Setup, workload: Workload, variants: Sequence[Variant]) -> list[BenchmarkRow]:
    """A row for each variant; one that fails has an `error` and does not affect the others."""
    module, args = workload.made(setup.seed, setup.device)
    exact = exact_outputs(module, args)
    ready: dict[str, _Contender] = {}
    errors: dict[str, str] = {}
    for variant in variants:
        try:
            ready[variant.name] = _made(setup, variant, module, args)
        except Exception as error:
            errors[variant.name] = first_error_line(error)
    timing = _timed(setup, ready, errors)
    elsewhere = {variant.name for variant in variants if variant.backend is not None}
    counts = {
        name: Counts() if name in elsewhere else count_call(ready[name].run, setup.device, ready[name].compiled)
        for name in timing.taken
    }
    work = _CaseWork(
        _needed(module, args, ready, variants), max((one.operations for one in counts.values()), default=0)
    )
    return [
        BenchmarkRow(setup.case, variant.name, error=errors[variant.name])
        if variant.name in errors
        else _row(setup, variant, variants, ready[variant.name], timing, counts[variant.name], work, exact)
        for variant in variants
    ]


def _made(setup: Setup, variant: Variant, module: nn.Module, args: tuple[Any, ...]) -> _Contender:
    """The variant, lowered, compiled and run once."""
    with _quiet():
        lowering = variant.lowered(module, args, setup.case.mode)
        if lowering is not None and (variant.backend is None or variant.backend.jit is None):
            refuse_too_large(lowering.result.graph, setup.device)
        program = variant.callable(module, lowering)
        run = task(program, module, args, setup.case.mode)
        compiled = CompilationCounts() if variant.compiled else None
        with compiled.noting() if compiled is not None else contextlib.nullcontext():
            run()
        with torch.no_grad():
            found = tensors(program(*args))
    nodes = sum(node.op == "call_function" for node in lowering.result.graph.nodes) if lowering is not None else None
    return _Contender(run, nodes, compiled, found)


def refuse_too_large(graph: torch.fx.Graph, device: torch.device) -> None:
    """Raise `TooLarge` for a variant that would need more than its share of the memory."""
    wanted, there = needs.bytes_held(graph), _memory(device)
    if wanted > SHARE_OF_MEMORY * there:
        raise TooLarge(
            f"it would hold {wanted / 2**30:.1f} GiB at once, more than {SHARE_OF_MEMORY:.0%} of the memory of "
            f"{there / 2**30:.0f} GiB; not run"
        )


def _memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _timed(setup: Setup, ready: Mapping[str, _Contender], errors: dict[str, str]) -> Timing:
    """The times of all that run; if one fails now, the others are timed without it."""
    runs: dict[str, Callable[[], Any]] = {}
    for name, contender in ready.items():
        try:
            contender.run()
            runs[name] = contender.run
        except Exception as error:
            errors[name] = first_error_line(error)
    return time_interleaved(runs, Clock(setup.device), setup.effort, setup.seed) if runs else Timing({})


@dataclass(frozen=True)
class _CaseWork:
    """The work of a case, independent of the variant."""

    needed: int
    operations: int

    def limit(self, machine: Mapping[str, Any]) -> float:
        """The least time of the machine in seconds."""
        return float(max(self.needed / machine["copy"], self.operations / machine["matmul"]))


def _needed(
    module: nn.Module, args: tuple[Any, ...], ready: Mapping[str, _Contender], variants: Sequence[Variant]
) -> int:
    first = next((ready[variant.name] for variant in variants if variant.name in ready), None)
    return needs.bytes_needed(module, args, first.run()) if first is not None else 0


def _row(
    setup: Setup,
    variant: Variant,
    variants: Sequence[Variant],
    contender: _Contender,
    timing: Timing,
    counts: Counts,
    work: _CaseWork,
    exact: list[torch.Tensor] | None,
) -> BenchmarkRow:
    name, seconds = variant.name, timing.spread(variant.name)
    ulp, mean_ulp = error_of(contender.found, exact)
    baseline, compiled = variants[0].name, next((v.name for v in variants if v.compiled), "")
    return BenchmarkRow(
        setup.case,
        name,
        seconds,
        to_baseline=timing.ratio(name, baseline) if baseline in timing.taken else None,
        to_compiled=timing.ratio(name, compiled) if compiled in timing.taken else None,
        nodes=contender.nodes,
        memory=counts.memory,
        kernels=counts.kernels,
        needed=work.needed,
        moved=counts.moved,
        operations=work.operations,
        of_limit=work.limit(setup.machine) / seconds.median,
        ulp=_finite(ulp),
        mean_ulp=_finite(mean_ulp),
    )


def _finite(value: float | None) -> float | None:
    """Replaces infinity, which JSON does not have, by a number larger than any error in ULP."""
    return 1e300 if value is not None and math.isinf(value) else value


def first_error_line(error: BaseException) -> str:
    """An error as one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence PyTorch's warnings about its own code (TF32, tree specs, deprecated calls inside Inductor)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
