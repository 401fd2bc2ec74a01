"""`decomp score`: how much of PyTorch reaches a target, as figures, a page and a badge."""

from __future__ import annotations

from collections.abc import Iterator
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Group, RenderableType
from rich.text import Text
import typer

from decomp import cache_directory
from decomp.files import write_atomically
from decomp.jobs import Progress
from decomp.rules.keywords import AdviseOptions
from decomp.tables import Table
from decomp.tools.cli.arguments import TARGET, attribute, load_backend
from decomp.tools.cli.executors import EXECUTOR, chosen_executor
from decomp.tools.cli.extras import is_installed
from decomp.tools.cli.flags import Words, command
from decomp.tools.cli.outputs import require_output
from decomp.tools.cli.prove_command import more_of, proved_to_file
from decomp.tools.cli.terminal import print_json, progressing, saved, show
from decomp.tools.open_table import OpenTable
from decomp.tools.proving.records import TIMEOUT

if TYPE_CHECKING:
    from decomp import Backend
    from decomp.tools.bringup.report import BringUp
    from decomp.tools.scoring.records import ScoreHalf, TargetScore
    from decomp.tools.scoring.structural import Maker

FEW = 6
"""So many rows of what is missing are shown, unless all are asked for."""
OUTPUT = "Write the score to this file, .json."
PROOF = (
    "The proof to score, as `decomp prove -o` writes it: it is made there, or gone on with, where it is not complete."
)
OF = f"{TARGET} Or a decomp.Backend, named in the same way: then its functions are run, too."
HALF = "Run the functions of the backend, or do not; by default if TARGET is one."
WORKERS = "Processes; by default one a core."


@command(AdviseOptions, shared="imports as_json")
def score(
    to: Annotated[str, typer.Argument(metavar="TARGET", help=OF, show_default=False)],
    output: Annotated[Path | None, typer.Option("-o", "--output", help=OUTPUT, show_default=False)] = None,
    proof: Annotated[Path | None, typer.Option("--proof", metavar="FILE", help=PROOF, show_default=False)] = None,
    page: Annotated[Path | None, typer.Option("--page", metavar="FILE", help="Write a page, .html.")] = None,
    badge: Annotated[Path | None, typer.Option("--badge", metavar="FILE", help="Write a badge, .svg.")] = None,
    run: Annotated[bool | None, typer.Option("--numeric/--structural", help=HALF, show_default=False)] = None,
    *,
    words: Words,
    workers: Annotated[int | None, typer.Option(min=1, metavar="N", help=WORKERS)] = None,
    executor: Annotated[str | None, typer.Option(metavar="MODULE:CALLABLE", help=EXECUTOR)] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that one op may take.")] = TIMEOUT,
    everything: Annotated[bool, typer.Option("--all", help=f"Show more than {FEW} rows of what is missing.")] = False,
) -> None:
    """Show how much of PyTorch reaches a target (ops, calls of real models, sample models, families of language models)
    and what is missing, without hardware; and how much of it a backend computes right, and what is wrong."""
    from decomp.tools.scoring.pages import badge_of, page_of
    from decomp.tools.scoring.score import score as score_of

    require_output("-o", output, ".json")
    require_output("--proof", proof, ".json")
    require_output("--page", page, ".html")
    require_output("--badge", badge, ".svg")
    backend = _backend(to, run)
    with chosen_executor(executor, workers) as pool, progressing() as progress:
        proved = proved_to_file(to, proof, (), words, pool, timeout, progress)
        report = _brought_up(backend, words, workers, timeout, progress) if backend is not None else None
        asked = functools.partial(words.asked, to)
        found = score_of(proved, asked, report=report, configured=_maker(), executor=pool, progress=progress)
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


def _backend(name: str, run: bool | None) -> Backend | None:
    """The backend whose functions are run; None if they are not. Raises `Unusable`."""
    from decomp import Backend
    from decomp_rules import backends, targets

    if run is None and ":" in name:
        found = attribute(name)
        return found if isinstance(found, Backend) else None
    is_backend_alone = name in backends.names() and name not in targets.names()
    return load_backend(name) if run or run is None and is_backend_alone else None


def _brought_up(backend: Backend, words: Words, workers: int | None, timeout: float, progress: Progress) -> BringUp:
    """The bring-up of a backend, with rows that were computed before."""
    import decomp

    options, place = words.options(), cache_directory.directory()
    return decomp.bring_up(
        backend,
        rules=options.rules,
        narrow=options.narrow,
        training=bool(options.training),
        workers=workers,
        timeout=timeout,
        results=place / "bringup" if place else None,
        progress=progress,
    )


def _maker() -> Maker | str:
    """What makes families of language models, or why they are not tried."""
    if not is_installed("transformers"):
        return "transformers is not installed (pip install 'decomp[bench]')"
    from decomp.tools.cli.configured_models import configured

    return configured


def score_table(found: TargetScore, most: int | None = None) -> RenderableType:
    """The figures, and what is missing or wrong for each."""
    from decomp.tools.scoring.pages import versions_of

    parts: list[RenderableType] = [Text(found.headline, style="bold"), Text(f"  {versions_of(found)}")]
    for name, half in found.halves.items():
        parts += _half_table(name, half, most)
    return Group(*parts)


def _half_table(name: str, half: ScoreHalf, most: int | None) -> Iterator[RenderableType]:
    from decomp.tools.cli.tables import indented
    from decomp.tools.scoring.pages import BASES, TITLES, VERBS, lacks_table, left_out, summary_table

    yield from ("", Text(name, style="bold"), indented(f"  {BASES[name]}"), OpenTable(summary_table(half)))
    for figure in half.figures:
        if figure.lacks:
            table = lacks_table(figure, None, VERBS[name])
            yield from ("", Text(f"{TITLES[name]}: {figure.unit}", style="bold"))
            yield OpenTable(Table(table.columns, table.rows[:most]))
            yield from more_of(len(table.rows), most)
        yield from (indented(f"  {line}") for line in left_out(figure))
