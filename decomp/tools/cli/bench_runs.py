"""How `decomp bench` makes its suite, runs it, and writes and compares results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import os
from pathlib import Path
import shlex
import sys
from typing import Any

from rich.text import Text
import torch
from torch import nn
import typer

from decomp.capture.calling import unlift
from decomp.files import write_atomically
from decomp.tools.benchmarking import suite
from decomp.tools.benchmarking.clock import Effort
from decomp.tools.benchmarking.comparing import compare_results, in_both
from decomp.tools.benchmarking.records import BenchmarkResults
from decomp.tools.benchmarking.table import document, heading, summary
from decomp.tools.benchmarking.workload import MODES, Variant, Workload, on_backend, variants
from decomp.tools.cli.arguments import load_backend, load_model, load_target, require_weights
from decomp.tools.cli.bench import QUICK_TARGETS
from decomp.tools.cli.extras import is_installed
from decomp.tools.cli.terminal import Unusable, note, progressing, saved, show

FILE = "fused_vs_primitive.json"
QUICK = Effort(warm_up=1, seconds=0.05, patience=4.0)
WHOLE = Effort(seconds=0.15, patience=10.0)


def run_suite(plan: suite.SuitePlan, path: Path, resume: bool) -> BenchmarkResults:
    """The results of a plan, with progress. Raises `Unusable`, and `typer.Exit` if it is interrupted."""
    try:
        with _progress() as report:
            return suite.run(plan, _command(), path, resume, report)
    except ValueError as error:
        raise Unusable(str(error)) from error
    except KeyboardInterrupt:
        show(Text(f"interrupted; {path} has the results so far. To resume: {_command()} --resume", style="bold"))
        raise typer.Exit(130) from None


def suite_plan(
    names: list[str],
    to: list[str],
    compile_for: list[str],
    levels: list[str],
    sizes: list[str],
    backward: bool | None,
    quick: bool,
    device: torch.device,
    seed: int,
    trust: bool,
    chips: list[Variant],
) -> suite.SuitePlan:
    from decomp_rules import targets
    from decomp_rules.samples.workloads import PRODUCTS, QUICK as FEW, ROWS, SIZES

    unknown = [size for size in sizes if size not in ROWS]
    if unknown:
        raise Unusable(f"no size {unknown[0]!r}; available: {', '.join(ROWS)}")
    chosen = to or ([] if chips else QUICK_TARGETS if quick else targets.names())
    compiled = [load_target(name) for name in compile_for if name in to or not (to or chips)]
    made = variants([load_target(name) for name in chosen], compiled, PRODUCTS, levels)
    torch.manual_seed(seed)
    workloads = _workloads(names or (list(FEW) if quick else []), sizes or (["small"] if quick else list(SIZES)), trust)
    kept = tuple(variant.name for variant in made if variant.name in ("tinygrad + products", "core_aten"))
    attribute = kept or tuple(v.name for v in made if v.target is not None and not v.compiled)
    effort, modes = QUICK if quick else WHOLE, _modes(False if chips else backward, quick)
    return suite.SuitePlan(
        workloads, (*made, *chips), modes_of=modes, device=device, effort=effort, seed=seed, attribute=attribute[-1:]
    )


def backend_variants(names: list[str], levels: list[str], backward: bool | None) -> list[Variant]:
    """The backends to run on. XLA reads its number of threads only when it starts."""
    if names and backward:
        raise Unusable("--backend runs without gradients: leave out --backward")
    if names and torch.get_num_threads() == 1:
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
    return [on_backend(load_backend(name), level) for name in names for level in levels]


def _modes(backward: bool | None, quick: bool) -> Callable[[Workload], tuple[str, ...]]:
    def modes(one: Workload) -> tuple[str, ...]:
        wanted = one.size == "medium" and not quick if backward is None else backward
        return MODES if wanted else MODES[:1]

    return modes


def _workloads(names: list[str], sizes: list[str], trust: bool) -> list[Workload]:
    from decomp_rules.samples.workloads import workloads

    own = [name for name in names if ":" in name or name.endswith(".pt2")]
    known = [name for name in names if name not in own]
    try:
        found = workloads(known, sizes) if known or not own else []
    except LookupError as error:
        raise Unusable(str(error)) from error
    return [*found, *(Workload(name, "model", "whole", _maker(name, trust)) for name in own)]


def _maker(name: str, trust: bool) -> Callable[[], tuple[nn.Module, tuple[Any, ...]]]:
    """Load the model now, so that errors are raised before anything is measured."""
    require_weights(name)
    program = load_model(name, trust)
    if program.example_inputs is None or program.example_inputs[1]:
        raise Unusable(f"{name} must have positional example inputs")
    inputs = tuple(program.example_inputs[0])
    return lambda: (unlift(program), inputs)


def device_named(name: str) -> torch.device:
    if name and name not in ("cpu", "cuda"):
        raise Unusable(f"no device {name!r}; available: cpu, cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise Unusable("PyTorch finds no CUDA device here; run with --device cpu")
    return torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))


def compare_files(before: Path, after: Path) -> None:
    try:
        first, second = BenchmarkResults.load(before), BenchmarkResults.load(after)
    except (OSError, ValueError) as error:
        raise Unusable(str(error)) from error
    changes = compare_results(first, second)
    for change in changes:
        show(Text(str(change), style="red" if change.worse else "green"))
    worse = sum(change.worse for change in changes)
    show(Text(f"{in_both(first, second)} rows compared, {worse} figures worse, {len(changes) - worse} better"))
    if worse:
        raise typer.Exit(1)


def write_results(results: BenchmarkResults, out: Path) -> None:
    """Write the table as Markdown next to the JSON, and the plots, and print a summary."""
    with write_atomically((out / FILE).with_suffix(".md")) as unfinished:
        unfinished.write_text(document(results), "utf-8")
    show(Text("\n".join([*heading(results), "", *summary(results)])))
    failed = [row for row in results.rows if row.error is not None]
    for row in failed:
        show(Text(f"failed: {row.case}, {row.variant}: {row.error}", style="yellow"))
    plots: list[Path] = []
    if is_installed("matplotlib"):
        from decomp.tools.benchmarking.plots import plot_all

        plots = plot_all(results, out)
    show(saved(out / FILE, *plots))


@contextlib.contextmanager
def _progress() -> Iterator[suite.Progress]:
    """A progress bar on a terminal, otherwise one line per case."""
    if not sys.stderr.isatty():
        yield lambda done, total, what, rest: note(f"{done}/{total} {what}; {duration(rest)} left")
        return
    with progressing() as report:
        yield lambda done, total, what, rest: report(done, total, f"{what} (about {duration(rest)} left)")


def duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _command() -> str:
    """The command as it was typed."""
    program = Path(sys.argv[0])
    if program.name == "__main__.py":
        start = "python -m decomp"
    elif program.suffix == ".py":
        start = f"python -m {program.parent.name}.{program.stem}"
    else:
        start = program.name
    return " ".join([start, *map(shlex.quote, (arg for arg in sys.argv[1:] if arg != "--resume"))])
