"""`decomp advise`: which ops a target should know next, for some models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rich.text import Text
import typer

import decomp
from decomp.errors import first_line
from decomp.tools.cli.arguments import (
    MODEL,
    Debug,
    Json,
    Keep,
    Levels,
    RulesOf,
    To,
    Trust,
    load_accuracy,
    load_model,
    load_rules,
    load_target,
)
from decomp.tools.cli.terminal import Unusable, failing, print_json, show, working

Models = Annotated[list[str], typer.Argument(metavar="MODEL...", help=MODEL, show_default=False)]
SAVINGS = "Try so many ops, of those that most calls come from, to see what they would save."


def advise(
    models: Models,
    to: To,
    keep: Keep = [],
    rules: RulesOf = [],
    accuracy: Levels = [],
    savings: Annotated[int, typer.Option("--savings", min=0, metavar="N", help=SAVINGS)] = 5,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw models against ops (.svg, .png).")] = None,
    trust: Trust = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Say which ops a target should know next, so that models lower to it: the fewest that are enough, in the order in
    which they pay, and those that would then save most calls. Exits with 1 if a model is out of reach."""
    with failing(debug, as_json):
        target, own, levels = load_target(to), load_rules(rules), load_accuracy(accuracy)
        programs = {}
        for name in dict.fromkeys(models):
            with working(f"loading {name}"):
                programs[name] = load_model(name, trust)
        with working("planning") as status:
            found = decomp.advise(
                programs, to=target, rules=own, keep=keep, accuracy=levels, savings=savings, progress=status
            )
        if plot is not None:
            try:
                found.plot(plot)
            except (OSError, ValueError) as error:
                raise Unusable(f"cannot draw {plot}: {first_line(error)}") from error
        if as_json:
            print_json(found.as_dict())
        else:
            first, *rest = found.lines()
            show(Text(first, style="bold"))
            show(Text("\n".join(rest)) if rest else None)
            show(Text(f"saved {plot}") if plot is not None else None)
        if found.out_of_reach:
            raise typer.Exit(1)
