"""`decomp budget` and `memory`: what a lowered model costs in error and in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rich.text import Text
import typer

import decomp
from decomp.rules.keywords import BudgetOptions, PlanOptions
from decomp.tools.cli.arguments import Model, To, ToOrNone, load_target
from decomp.tools.cli.extras import require_matplotlib
from decomp.tools.cli.flags import Words, command
from decomp.tools.cli.terminal import print_json, show, working


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
    model: Model,
    to: ToOrNone = None,
    *,
    words: Words,
    plot: Annotated[Path | None, typer.Option("--plot", help="Plot lifetimes and offsets (.svg, .png).")] = None,
) -> None:
    """Show how much memory a model needs when it is interpreted, unchanged or lowered to a target, and how much with
    in-place ops, an arena and blocks of rows."""
    require_matplotlib(plot)
    target, options = load_target(to) if to is not None else None, words.options()
    program = words.program(model)
    with working(f"planning the memory of {model}"):
        if target is not None:
            program = decomp.lower(program, to=target, options=options)
        found = decomp.memory_plan(program)
    if plot is not None:
        found.plot(plot)
    if words.as_json:
        print_json(found.as_dict())
    else:
        show(Text(str(found)))
