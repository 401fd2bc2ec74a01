"""`decomp budget` and `memory`: what a lowered model costs in error and in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rich.text import Text
import typer

import decomp
from decomp.rules.keywords import BudgetOptions, PlanOptions
from decomp.tools.cli.arguments import Model, Models, To, ToOrNone, load_target
from decomp.tools.cli.flags import Words, command
from decomp.tools.cli.outputs import require_plot
from decomp.tools.cli.several import Outcome, models_named, run_models
from decomp.tools.cli.terminal import Unusable, print_json, show, working


@command(BudgetOptions)
def budget(
    model: Model,
    to: To,
    *,
    words: Words,
    seed: Annotated[int, typer.Option(help="The seed for ops that draw random numbers.")] = 0,
) -> None:
    """Show the error of a lowered model against float64, by op, next to its error in PyTorch, and which levels of
    accuracy would be better."""
    from decomp.tools.cli import tables

    target, options = load_target(to), words.options()
    program = words.program(model)
    with working(f"running {model}, op by op"):
        found = decomp.budget(program, to=target, options=options, seed=seed)
    if words.as_json:
        print_json(found.as_dict())
    else:
        show(tables.budget_table(found))


@command(PlanOptions)
def memory(
    models: Models,
    to: ToOrNone = None,
    *,
    words: Words,
    plot: Annotated[Path | None, typer.Option("--plot", help="Plot lifetimes and offsets (.svg, .png).")] = None,
) -> None:
    """Show how much memory a model needs when it is interpreted, unchanged or lowered to a target, and how much with
    in-place ops, an arena and blocks of rows; of several models with a table of all."""
    require_plot(plot)
    names, target = models_named(models), load_target(to) if to is not None else None
    options = words.options()
    if len(names) > 1 and plot is not None:
        raise Unusable(f"--plot {plot}: a plot is of one model")

    def run(model: str) -> Outcome:
        program = words.program(model)
        with working(f"planning the memory of {model}"):
            lowered = decomp.lower(program, to=target, options=options) if target is not None else program
            found = decomp.memory_plan(lowered)
        if plot is not None:
            found.plot(plot)
        cells = tuple(f"{size:,}" for size in (found.peak, found.unplanned_peak, found.lower_bound))
        return Outcome([Text(str(found))], cells, found.as_dict(), "planned")

    run_models(names, words, (">peak in bytes", ">without a plan", ">lower bound"), run)
