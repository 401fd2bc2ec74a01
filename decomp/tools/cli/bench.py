"""`decomp bench`: run workloads and write the results, or compare two results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from rich.text import Text
import typer

from decomp.tools.cli.arguments import BACKEND, TARGET, TO, load_cost
from decomp.tools.cli.extras import is_installed
from decomp.tools.cli.flags import FLAGS, Words, command
from decomp.tools.cli.outputs import require_directory
from decomp.tools.cli.terminal import show

NAMES = (
    "Workloads by name (softmax, GPT-2), or your own model: a .pt2 file, or package.module:callable, which is imported "
    "and called. By default the whole suite."
)
COST = FLAGS["cost"].help
QUICK_TARGETS = ("core_aten", "tinygrad")


@command(shared="trust imports")
def bench(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help=NAMES, show_default=False)] = None,
    to: Annotated[list[str], typer.Option(*TO, metavar="TARGET", help=f"{TARGET} By default all.")] = [],
    compile_for: Annotated[
        list[str], typer.Option("--compile", metavar="TARGET", help="Also compile what is lowered to this target.")
    ] = list(QUICK_TARGETS),
    backend: Annotated[
        list[str],
        typer.Option("--backend", metavar="BACKEND", help=f"Run on this backend, without gradients: {BACKEND}."),
    ] = [],
    accuracy: Annotated[list[str], typer.Option(metavar="LEVEL", help="exact, standard or fast (may be repeated).")] = [
        "standard"
    ],
    cost: Annotated[str | None, typer.Option(metavar="COST", help=COST, show_default=False)] = None,
    size: Annotated[
        list[str], typer.Option(help="small, medium or large; by default all three; or cached, for --threads 1.")
    ] = [],
    backward: Annotated[bool | None, typer.Option(help="Include the backward pass; by default at medium size.")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Also run each lowering without simplification.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A few small ops on two targets, in two minutes.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Resume an interrupted run.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for results and plots.")] = Path("benchmarks/results"),
    device: Annotated[str, typer.Option(help="cpu or cuda; by default cuda if there is one.")] = "",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; by default PyTorch's choice.")] = None,
    seed: int = 0,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="A.json B.json", help="Compare two results without running anything."),
    ] = None,
    *,
    words: Words,
) -> None:
    """Time programs against their lowered versions, eager, compiled and on backends, in one run. It can be interrupted
    at any time and continued with `--resume`. Exits with 1 if `--compare` finds a regression."""
    import torch

    from decomp.rules.accuracy import require_level
    from decomp.tools.benchmarking.workload import with_plain
    from decomp.tools.cli import bench_runs

    if compare is not None:
        bench_runs.compare_files(*compare)
        return
    if threads is not None:
        torch.set_num_threads(threads)
    levels = [require_level(level, "--accuracy") for level in accuracy]
    chips = bench_runs.backend_variants(backend, levels, backward)
    plan = bench_runs.suite_plan(
        names or [],
        to,
        compile_for,
        levels,
        size,
        backward,
        quick,
        bench_runs.device_named(device),
        seed,
        words.written["trust"],
        chips,
    )
    if plain:
        plan = replace(plan, variants=with_plain(plan.variants))
    if (price := load_cost(cost)) is not None:
        plan = replace(plan, variants=[replace(each, cost=price) for each in plan.variants])
    require_directory("--out", out)
    path = out / bench_runs.FILE
    show(Text(f"{sum(1 for _ in plan.cases())} cases, about {bench_runs.duration(plan.estimate())}; results in {path}"))
    if not is_installed("matplotlib"):
        show(Text('no plots: pip install "decomp[plot]"'))
    bench_runs.write_results(bench_runs.run_suite(plan, path, resume), out)
