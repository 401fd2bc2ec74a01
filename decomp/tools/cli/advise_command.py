"""`decomp advise`: which ops a target should implement next, for some models."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
import contextlib
import functools
import hashlib
from pathlib import Path
from typing import Annotated, Any

from rich.console import Group
from rich.text import Text
import typer

from decomp.errors import first_line
from decomp.rules.keywords import AdviseOptions
from decomp.tools.cli.arguments import MODEL, To, file_of, require_model
from decomp.tools.cli.executors import EXECUTOR, cores, made_executor, processes
from decomp.tools.cli.flags import Words, command
from decomp.tools.cli.outputs import require_directory, require_plot
from decomp.tools.cli.several import models_named
from decomp.tools.cli.terminal import Unusable, print_json, progressing, saved, show

FEW = 12
"""Up to this many models are analysed in this process by default: starting another takes seconds."""

Models = Annotated[list[str] | None, typer.Argument(metavar="[MODEL...]", help=MODEL, show_default=False)]
HISTOGRAM = "Instead of models, analyse the ops that about 100 real models call, and rank those that are not lowered."
WITHOUT = "An op that you will not implement, and that is not advised (may be repeated)."
SAVINGS = "How many ops to try in each model, of those that most calls come from, to see what they would save."
RESULTS = "Keep the answers by model in this directory, and resume from them."
WORKERS = f"Worker processes; by default one per core, and none for up to {FEW} models."


@command(AdviseOptions, shared="trust imports as_json")
def advise(
    to: To,
    models: Models = None,
    histogram: Annotated[bool, typer.Option("--histogram", help=HISTOGRAM)] = False,
    *,
    words: Words,
    without: Annotated[list[str], typer.Option("--without", metavar="OP", help=WITHOUT)] = [],
    savings: Annotated[int, typer.Option("--savings", min=0, metavar="N", help=SAVINGS)] = 5,
    plot: Annotated[Path | None, typer.Option("--plot", help="Plot models over ops (.svg, .png).")] = None,
    results: Annotated[Path | None, typer.Option("--results", metavar="DIR", help=RESULTS)] = None,
    workers: Annotated[int | None, typer.Option(min=1, metavar="N", help=WORKERS)] = None,
    executor: Annotated[str | None, typer.Option(metavar="MODULE:CALLABLE", help=EXECUTOR)] = None,
) -> None:
    """Show which ops a target should implement next, so that models lower to it: the fewest that are enough, in the
    best order, and those that would then save the most calls. Exits with 1 if a model is out of reach."""
    from decomp.advising import AdviceSearch
    from decomp.tools.cli.histogram import histogram_table, rank_blocked_ops
    from decomp.tools.cli.tables import indented

    require_plot(plot)
    require_directory("--results", results)
    if histogram == bool(models):
        raise Unusable("name models, or pass --histogram")
    programs = _sample_calls() if histogram else _models(models_named(models or ()), words)
    names = tuple(programs)
    versions = {name: _version(name) for name in names} if results is not None and models else {}
    with _pool(executor, workers, len(names)) as pool, progressing() as report:
        making = functools.partial(words.setting, to)
        search = AdviceSearch(making(), making, programs, pool, results, report, versions, without)
        found = search.advice(0 if histogram else savings)
    if plot is not None:
        try:
            found.plot(plot)
        except (OSError, ValueError) as error:
            raise Unusable(f"cannot draw {plot}: {first_line(error)}") from error
    if words.as_json:
        print_json({**found.as_dict(), "ranked": rank_blocked_ops(found)} if histogram else found.as_dict())
    elif histogram:
        show(histogram_table(found))
    else:
        first, *rest = found.lines()
        show(Text(first, style="bold"))
        show(Group(*map(indented, rest)) if rest else None)
        show(saved(plot) if plot is not None else None)
    if found.out_of_reach and not histogram:
        raise typer.Exit(1)


def _models(names: list[str], words: Words) -> dict[str, Callable[[], Any]]:
    for name in names:
        require_model(name)
    return {name: functools.partial(words.load, name) for name in names}


def _sample_calls() -> dict[str, Callable[[], Any]]:
    from decomp.tools.cli.histogram import called, histogram_names

    return {name: functools.partial(called, name) for name in histogram_names()}


def _version(name: str) -> str:
    """A digest of the file that a model comes from."""
    file = file_of(name)
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16] if file is not None else ""


def _pool(name: str | None, workers: int | None, models: int) -> contextlib.AbstractContextManager[Executor | None]:
    if name is not None:
        return made_executor(name)
    count = workers or (min(cores(), models) if models > FEW else 1)
    return processes(count) if count > 1 else contextlib.nullcontext()
