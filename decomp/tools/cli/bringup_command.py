"""`decomp bringup`: compare a backend with PyTorch, primitive by primitive, and find the cause of wrong results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Group, RenderableType
from rich.text import Text
import typer

import decomp
from decomp import cache_directory
from decomp.rules.keywords import BringUpOptions
from decomp.tools.bringup import TIMEOUT
from decomp.tools.cli.arguments import BACKEND, load_backend, load_callable
from decomp.tools.cli.flags import Words, command
from decomp.tools.cli.outputs import require_output
from decomp.tools.cli.terminal import Unusable, print_json, progressing, saved, show
from decomp.tools.open_table import OpenTable

if TYPE_CHECKING:
    from decomp.tools.bringup.report import BringUp

MODELS = (
    "A sample model, or package.module:callable or file.py:callable that returns a module and example inputs (may be "
    "repeated); by default all samples."
)
OPS = "Only this op or primitive (may be repeated)."


@command(BringUpOptions, "imports as_json")
def bringup(
    backend: Annotated[str, typer.Argument(metavar="BACKEND", help=BACKEND, show_default=False)],
    quick: Annotated[bool, typer.Option("--quick", help="Test fewer dtypes, samples, ops and models.")] = False,
    model: Annotated[list[str], typer.Option("--model", metavar="MODEL", help=MODELS)] = [],
    op: Annotated[list[str], typer.Option("--op", metavar="OP", help=OPS)] = [],
    only: Annotated[list[str], typer.Option("--only", metavar="KIND", help="primitive, op or model.")] = [],
    html: Annotated[Path | None, typer.Option("--html", help="Write the report as an HTML page.")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the report as JSON.")] = None,
    compare: Annotated[Path | None, typer.Option("--compare", help="Show what changed since this report.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run all rows again, ignoring an earlier run.")] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes; by default one per core.")] = None,
    timeout: Annotated[float, typer.Option(help="The time limit of one row in seconds.")] = TIMEOUT,
    isolate: Annotated[bool, typer.Option("--isolate/--here", help="Run in other processes or in this one.")] = True,
    *,
    words: Words,
) -> None:
    """Compare a backend with PyTorch: its primitives, and the library's ops and models lowered to them. Exits with 1 if
    something is wrong, or if nothing was computed because nothing can be lowered to the target."""
    from decomp.tools.bringup.report import BringUp

    require_output("--html", html, ".html")
    require_output("-o", output, ".json")
    chip, old = load_backend(backend), BringUp.load(compare) if compare is not None else None
    models = {name: _model(name) for name in model} if any(":" in name for name in model) else model or None
    options = words.options()
    place = cache_directory.directory() if not fresh else None
    with progressing() as progress:
        report = decomp.bring_up(
            chip,
            models=models,
            ops=op or None,
            only=only or None,
            quick=quick,
            rules=options.rules,
            narrow=options.narrow,
            training=bool(options.training),
            workers=workers,
            timeout=timeout,
            isolate=None if isolate else False,
            results=place / "bringup" if place else None,
            progress=progress,
        )
    changes = report.compare(old) if old is not None else None
    if words.as_json:
        said = {} if changes is None else {"changes": [str(change) for change in changes]}
        print_json({**report.as_dict(), **said})
    else:
        show(bringup_table(report))
        if changes is not None:
            show("", *(Text(str(each), style=_COLOURS[each.better]) for each in changes))
            show(Text(f"{len(changes)} rows differ from {compare}"))
    for path in (output, html):
        if path is not None:
            written = report.save(path)
            show(saved(written) if not words.as_json else None)
    if not report.ok:
        raise typer.Exit(1)


_COLOURS = {True: "green", False: "red", None: "yellow"}


def _model(name: str) -> Any:
    from decomp_rules import samples

    made = load_callable(name)() if ":" in name else samples.model(name)
    if not isinstance(made, tuple) or len(made) != 2:
        raise Unusable(f"{name} must return a module and example inputs, not {type(made).__name__}")
    return made


def bringup_table(report: BringUp) -> RenderableType:
    """The report: the primitives, and everything that is wrong."""
    parts: list[RenderableType] = [Text(report.headline, style="bold green" if report.ok else "bold red"), ""]
    table = report.primitives
    if table.rows:
        parts.append(OpenTable(replace(table, rows=[_coloured(row, report) for row in table.rows])))
    others = report.others
    if others.rows:
        rows = [(name, Text(verdict, style="red"), cases) for name, verdict, cases in others.rows]
        parts += ["", OpenTable(replace(others, rows=rows))]
    lines = list(report.lines())
    parts += ["", *map(Text, lines[:60]), *([Text(f"and {len(lines) - 60} more lines")] if len(lines) > 60 else [])]
    return Group(*parts)


def _coloured(cells: Sequence[Any], report: BringUp) -> tuple[Any, ...]:
    name, verdict, *rest = cells
    row = report.row("primitive", name)
    colour = "green" if row.verdict in ("right", "by design") else "red" if not row.fine else "dim"
    return (name, Text(verdict, style=colour), *rest)
