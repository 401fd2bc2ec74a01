"""`decomp budget` and `memory`: what a lowered model costs in error and in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rich.text import Text
import typer

import decomp
from decomp.tools.cli import tables
from decomp.tools.cli.arguments import (
    CostBy,
    Debug,
    Imports,
    Json,
    Keep,
    Levels,
    Model,
    RulesOf,
    To,
    ToOrNone,
    Trust,
    load_accuracy,
    load_cost,
    load_model,
    load_rules,
    load_target,
)
from decomp.tools.cli.extras import require_matplotlib
from decomp.tools.cli.terminal import print_json, report_errors, show, working


def budget(
    model: Model,
    to: To,
    keep: Keep = [],
    rules: RulesOf = [],
    accuracy: Levels = [],
    cost: CostBy = None,
    seed: Annotated[int, typer.Option(help="The seed for ops that draw random numbers.")] = 0,
    trust: Trust = False,
    imports: Imports = [],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show the error of a lowered model against float64, by op, next to its error in PyTorch, and which levels of
    accuracy would be better."""
    with report_errors(debug, as_json):
        target, levels, price = load_target(to), load_accuracy(accuracy), load_cost(cost)
        chosen = load_rules(rules)
        with working(f"loading {model}"):
            program = load_model(model, trust)
        with working(f"running {model}, op by op"):
            found = decomp.budget(program, to=target, rules=chosen, keep=keep, accuracy=levels, cost=price, seed=seed)
        if as_json:
            print_json(found.as_dict())
        else:
            show(tables.budget_table(found))


def memory(
    model: Model,
    to: ToOrNone = None,
    rules: RulesOf = [],
    accuracy: Levels = [],
    plot: Annotated[Path | None, typer.Option("--plot", help="Plot lifetimes and offsets (.svg, .png).")] = None,
    trust: Trust = False,
    imports: Imports = [],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show how much memory a model needs when it is interpreted, unchanged or lowered to a target, and how much with
    in-place ops, an arena and blocks of rows."""
    with report_errors(debug, as_json):
        require_matplotlib(plot)
        target, chosen = load_target(to) if to is not None else None, load_rules(rules)
        with working(f"loading {model}"):
            program = load_model(model, trust)
        with working(f"planning the memory of {model}"):
            if target is not None:
                program = decomp.lower(program, to=target, rules=chosen, accuracy=load_accuracy(accuracy))
            found = decomp.memory_plan(program)
        if plot is not None:
            found.plot(plot)
        if as_json:
            print_json(found.as_dict())
        else:
            show(Text(str(found)))
