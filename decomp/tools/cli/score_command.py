"""`decomp score`: how much of PyTorch reaches a target, as figures, a page and a badge."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Group, RenderableType
from rich.text import Text
import typer

from decomp.files import write_atomically
from decomp.rules.keywords import AdviseOptions
from decomp.tables import Table
from decomp.tools.cli.arguments import TARGET, require_json_file
from decomp.tools.cli.executors import EXECUTOR, chosen_executor
from decomp.tools.cli.flags import Words, command
from decomp.tools.cli.prove_command import more_of, proved_to_file
from decomp.tools.cli.terminal import Unusable, print_json, progressing, saved, show
from decomp.tools.open_table import OpenTable
from decomp.tools.proving.records import TIMEOUT

if TYPE_CHECKING:
    from decomp.tools.scoring.score import TargetScore

FEW = 6
"""So many rows of what is missing are shown, unless all are asked for."""
OUTPUT = "Write the score to this file, .json."
PROOF = (
    "The proof to score, as `decomp prove -o` writes it: it is made there, or gone on with, where it is not complete."
)
WORKERS = "Processes; by default one a core."


@command(AdviseOptions, shared="imports as_json")
def score(
    to: Annotated[str, typer.Argument(metavar="TARGET", help=TARGET, show_default=False)],
    output: Annotated[Path | None, typer.Option("-o", "--output", help=OUTPUT, show_default=False)] = None,
    proof: Annotated[Path | None, typer.Option("--proof", metavar="FILE", help=PROOF, show_default=False)] = None,
    page: Annotated[Path | None, typer.Option("--page", metavar="FILE", help="Write a page, .html.")] = None,
    badge: Annotated[Path | None, typer.Option("--badge", metavar="FILE", help="Write a badge, .svg.")] = None,
    *,
    words: Words,
    workers: Annotated[int | None, typer.Option(min=1, metavar="N", help=WORKERS)] = None,
    executor: Annotated[str | None, typer.Option(metavar="MODULE:CALLABLE", help=EXECUTOR)] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that one op may take.")] = TIMEOUT,
    everything: Annotated[bool, typer.Option("--all", help=f"Show more than {FEW} rows of what is missing.")] = False,
) -> None:
    """Show how much of PyTorch reaches a target: ops, calls of real models, and sample models, and what is missing. It
    is made from a proof, without hardware, and is the same on each machine."""
    from decomp.tools.scoring.pages import badge_of, page_of
    from decomp.tools.scoring.score import score as score_of

    for path in (output, proof):
        if path is not None:
            require_json_file(path)
    for path, suffix in ((page, ".html"), (badge, ".svg")):
        if path is not None and path.suffix != suffix:
            raise Unusable(f"{path}: the name must end in {suffix}")
    with chosen_executor(executor, workers) as pool, progressing() as report:
        proved = proved_to_file(to, proof, (), words, pool, timeout, report)
        found = score_of(proved, functools.partial(words.asked, to), executor=pool, progress=report)
    written = [path for path in (proof, output, page, badge) if path is not None]
    if output is not None:
        found.save(output)
    for path, text in ((page, page_of), (badge, badge_of)):
        if path is not None:
            with write_atomically(path) as unfinished:
                unfinished.write_text(text(found), encoding="utf-8")
    if words.as_json:
        print_json(found.as_dict())
    else:
        show(score_table(found, None if everything else FEW), saved(*written) if written else None)


def score_table(found: TargetScore, most: int | None = None) -> RenderableType:
    """The figures, and what is missing for each."""
    from decomp.tools.cli.tables import indented
    from decomp.tools.scoring.pages import basis, lacks_table, summary_table

    parts: list[RenderableType] = [Text(found.headline, style="bold"), indented(f"  {basis(found)}"), ""]
    parts.append(OpenTable(summary_table(found)))
    for figure in found.figures:
        if figure.lacks:
            table = lacks_table(figure, None)
            shown = OpenTable(Table(table.columns, table.rows[:most]))
            parts += ["", Text(f"what is missing: {figure.unit}", style="bold"), shown, *more_of(len(table.rows), most)]
        if figure.untried:
            parts += [indented(f"  not counted, without a sample call: {', '.join(figure.untried)}")]
    return Group(*parts)
