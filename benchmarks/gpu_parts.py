"""The three parts of `benchmarks.on_gpu`, and the time that they share. Each takes the results so far, does what is
missing in them, and saves them after every item."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
import contextlib
from dataclasses import dataclass
import importlib.util
import json
import os
from pathlib import Path
import signal
import tempfile
import time
from typing import Any

import torch

from benchmarks.gpu_results import GpuResults
import decomp
from decomp.jobs import stop
from decomp.rules.certificate import Certificate
from decomp.rules.certificates import identity, level_of
from decomp.rules.rules import Rule
from decomp.samples import program_of
from decomp.tools.benchmarking import suite
from decomp.tools.benchmarking.accuracy import error_of
from decomp.tools.benchmarking.clock import Effort
from decomp.tools.benchmarking.records import BenchmarkResults
from decomp.tools.benchmarking.running import first_error_line
from decomp.tools.benchmarking.workload import exact_outputs, tensors, variants
from decomp.tools.certification.jobs import job, measure_in_process
from decomp_rules import samples, targets
from decomp_rules.samples.in_models import call_of, ops_in_models
from decomp_rules.samples.workloads import OPS, PRODUCTS, workloads

SHARES = {"certificates": 0.4, "models": 0.15, "timings": 0.45}
"""The share of the time that each part may take; what one leaves is for those after it."""
TARGETS = ("core_aten", "tinygrad")
WORKERS = 8
"""The most processes that measure rules. Each takes half a gigabyte of the device."""
TIMEOUT = 60.0
"""The time limit of one rule in seconds."""
LONGEST = 86_400.0
"""The longest time in seconds that a part is given."""
SIZES = ("medium", "large")
GPU_SIZES = (*SIZES, "huge")
"""A GPU has done the smaller ones before the next is launched."""
EFFORT = Effort(warm_up=1, seconds=0.1, patience=4.0)


class TimeUp(BaseException):
    """The time of a part is over. Not an `Exception`, which would be taken for a failure of what was running."""


@dataclass(frozen=True)
class Plan:
    """What is asked for."""

    device: torch.device
    seconds: float
    rules: int = 100
    models: Sequence[str] | None = None
    """None: all of them."""
    families: Sequence[str] | None = None


def run(results: GpuResults, plan: Plan) -> None:
    """Run all parts, and print a line for each when it ends."""
    parts: dict[str, Callable[[GpuResults, Plan, float], str]] = {
        "certificates": certify,
        "models": lower_models,
        "timings": time_families,
    }
    began, share = time.monotonic(), 0.0
    for name, part in parts.items():
        share += SHARES[name]
        since, deadline = time.monotonic(), began + share * plan.seconds
        done = part(results, plan, deadline)
        results.save()
        late = ", time up" if time.monotonic() >= deadline else ""
        print(f"{name}: {done}; {time.monotonic() - since:.0f} s{late}", flush=True)


@contextlib.contextmanager
def _until(deadline: float) -> Iterator[None]:
    """End what runs inside, at the deadline."""

    def ring(number: int, frame: Any) -> None:
        raise TimeUp

    before = signal.signal(signal.SIGALRM, ring)
    try:
        with contextlib.suppress(TimeUp):
            try:
                signal.setitimer(signal.ITIMER_REAL, min(max(deadline - time.monotonic(), 1e-3), LONGEST))
                yield
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)


def certify(results: GpuResults, plan: Plan, deadline: float) -> str:
    """Measure the certificates of the rules that models use most."""
    rules = most_used_rules(plan.rules)
    left = [rule for rule in rules if identity(rule) not in results.certificates]
    to = [targets.get("tinygrad")]
    jobs = [job(rule, to, None, None, 0, (level_of(rule),), str(plan.device)) for rule in left]
    workers = min(WORKERS, os.cpu_count() or 1) if plan.device.type != "cpu" else 1
    threads = ThreadPoolExecutor(workers)
    waiting: list[Future[Certificate]] = [threads.submit(measure_in_process, each, TIMEOUT) for each in jobs]
    try:
        for future in as_completed(waiting, max(deadline - time.monotonic(), 0.0)):
            made = future.result()
            results.certificates[made.rule] = made.to_json()
            results.save()
    except TimeoutError:
        pass  # those that are done are saved
    finally:
        stop(waiting)
        threads.shutdown(wait=False, cancel_futures=True)
    found = [Certificate.from_json(each) for each in results.certificates.values()]
    return f"{len(found)} of {len(rules)} rules, {sum(one.ok for one in found)} without a fault"


def most_used_rules(count: int) -> list[Rule]:
    """The rules by which the ops of real models reach the targets: those of the op in most models first."""
    found: dict[Rule, None] = {}
    for counted in ops_in_models():
        sample = call_of(counted.op)
        if sample is None:
            continue
        module, args = program_of(sample)
        for target in TARGETS:
            lowering = decomp.lower(module, to=targets.get(target), args=args, partial=True, verify=False)
            chains = [chain for piece in lowering.internals.pieces for chain in piece.chains.values()]
            found.update(dict.fromkeys(rule for chain in chains for rule in chain if isinstance(rule, Rule)))
        if len(found) >= count:
            break
    return list(found)[:count]


def lower_models(results: GpuResults, plan: Plan, deadline: float) -> str:
    """Lower the sample models, verify them and compare their outputs with float64."""
    names = list(samples.MODELS) if plan.models is None else list(plan.models)
    done = {(row["model"], row["target"]) for row in results.models}
    cases = [(name, target) for name in names for target in TARGETS]
    with _until(deadline):
        for name, target in cases:
            if (name, target) not in done and time.monotonic() < deadline:
                results.models.append({"model": name, "target": target, **_lowered(name, target, plan.device)})
                results.save()
    good = sum("error" not in row for row in results.models)
    return f"{good} of {len(cases)} lowered and verified, {len(results.models) - good} failed"


def _lowered(name: str, target: str, device: torch.device) -> dict[str, Any]:
    """The row of a model lowered to a target, without the first two columns."""
    module, args = samples.model(name)
    module, args = module.eval().to(device), tuple(t.to(device) for t in args)
    try:
        lowering = decomp.lower(module, to=targets.get(target), args=args, training=False, verify="values")
        with torch.no_grad():
            exact = exact_outputs(module, args)
            (ulp, _), (own, _) = (error_of(tensors(each(*args)), exact) for each in (lowering.result, module))
    except Exception as error:  # of any kind: it is the finding
        return {"error": first_error_line(error)}
    checked = [part.part for part in lowering.report().verified if part.checked]
    return {"calls": len(decomp.calls(lowering.result)), "ulp": ulp, "own_ulp": own, "verified": ", ".join(checked)}


def time_families(results: GpuResults, plan: Plan, deadline: float) -> str:
    """Time each family of ops as it is and lowered, both compiled by Inductor."""
    if plan.device.type == "cuda" and importlib.util.find_spec("triton") is None:
        return "none, for triton is not installed"
    names = list(OPS) if plan.families is None else list(plan.families)
    made = variants([], [targets.get("tinygrad")], PRODUCTS)
    sizes = SIZES if plan.device.type == "cpu" else GPU_SIZES
    asked = suite.SuitePlan(workloads(names, sizes, models=False), made, device=plan.device, effort=EFFORT)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "timings.json"
        if results.timings:
            path.write_text(json.dumps(results.timings), "utf-8")

        def keep(*progress: Any) -> None:
            if path.exists():
                results.timings = json.loads(path.read_text("utf-8"))
                results.save()

        if time.monotonic() < deadline:
            with _until(deadline):
                suite.run(asked, "python -m benchmarks.on_gpu", path, resume=True, progress=keep)
        keep()
    found = BenchmarkResults.from_data(results.timings) if results.timings else None
    cases = found.cases() if found is not None else []
    failed = [row for row in found.rows if row.error is not None] if found is not None else []
    return f"{len(cases)} of {len(asked.workloads)} cases of {len(names)} families, {len(failed)} programs failed"
