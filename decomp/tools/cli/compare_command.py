"""`decomp compare`: lower a model to a backend and find the call that the backend gets wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from rich.console import Group, RenderableType
from rich.text import Text
import typer

import decomp
from decomp.rules.keywords import PlanOptions
from decomp.tools.cli.arguments import BACKEND, Model, ToOrNone, attribute, load_backend, load_target
from decomp.tools.cli.flags import Words, command
from decomp.tools.cli.outputs import require_directory
from decomp.tools.cli.terminal import Unusable, print_json, progressing, saved, show
from decomp.tools.comparing.comparison import ComparedCall, Comparison
from decomp.tools.open_table import OpenTable

ON = (
    f"What runs the program: {BACKEND}; or a function run(prefix, *inputs) of another runtime, as file.py:function, "
    "with --to."
)
SAVE = "Where the operands of wrong calls are saved, with scripts that repeat the calls."


@command(PlanOptions)
def compare(
    model: Model,
    on: Annotated[str, typer.Option("--on", metavar="BACKEND", help=ON, show_default=False)],
    to: ToOrNone = None,
    *,
    words: Words,
    bisect: Annotated[bool, typer.Option("--bisect", help="Read few intermediate values, for slow runtimes.")] = False,
    save: Annotated[Path, typer.Option("--save", metavar="DIRECTORY", help=SAVE)] = Path("wrong"),
) -> None:
    """Find the call that a backend gets wrong in a model: each call is made again in PyTorch on the operands that the
    backend had. Also says whether correct calls add up to a wrong result. Exits with 1 if something is wrong, or if
    nothing was compared."""
    from decomp.capture.calling import unlift

    require_directory("--save", save)
    runner = _runner(on)
    if to is None and not isinstance(runner, decomp.Backend):
        raise Unusable(f"{on} is a function, so --to must say what the model is lowered to")
    target, options = load_target(to) if to is not None else runner.target, words.options(verify=False)
    program = words.program(model)
    if program.example_inputs is None:
        raise Unusable(f"{model} has no example inputs: export it with the inputs to compare on")
    lowering = decomp.lower(program, to=target, options=options)
    args, kwargs = program.example_inputs
    with progressing() as progress:
        how: dict[str, Any] = {"on": runner, "bisect": bisect, "save": save, "progress": progress}
        comparison = decomp.compare(lowering, unlift(program), args, kwargs, **how)
    print_json(comparison.as_dict()) if words.as_json else show(comparison_table(comparison))
    files = [call.file for call in comparison.calls if call.file]
    show(saved(*files) if files and not words.as_json else None)
    if not comparison.ok:
        raise typer.Exit(1)


def _runner(name: str) -> Any:
    """A backend, or a function that runs prefixes. Raises `Unusable`."""
    if ":" not in name:
        return load_backend(name)
    found = attribute(name)
    if not isinstance(found, decomp.Backend) and not callable(found):
        raise Unusable(f"{name} is of type {type(found).__name__}, not a decomp.Backend or a function")
    return found


def comparison_table(comparison: Comparison) -> RenderableType:
    """What is wrong, and the calls by gravity."""
    parts: list[RenderableType] = [Text(comparison.headline, style="bold green" if comparison.ok else "bold red")]
    parts += map(Text, comparison.lines())
    table, rows = comparison.table, comparison.rows
    if rows:
        coloured = [(Text(verdict, style=_colour(row)), *rest) for row, (verdict, *rest) in zip(rows, table.rows)]
        parts += ["", OpenTable(replace(table, rows=coloured))]
    return Group(*parts)


def _colour(row: ComparedCall) -> str:
    return "red" if row.is_wrong else "green" if row.verdict in ("right", "by design") else "yellow"
