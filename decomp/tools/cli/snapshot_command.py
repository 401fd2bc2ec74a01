"""`decomp snapshot` and `decomp upgrade`: what a version of PyTorch does for a target and some models, recorded in the
environment of that version, and what changed between two such records."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Group, RenderableType
from rich.text import Text
import typer

from decomp.errors import count_noun
from decomp.rules.keywords import AdviseOptions
from decomp.tools.cli.advise_command import Models
from decomp.tools.cli.arguments import To, near, require_model
from decomp.tools.cli.flags import Words, command
from decomp.tools.cli.outputs import require_output
from decomp.tools.cli.several import models_named
from decomp.tools.cli.terminal import Unusable, print_json, progressing, saved, show
from decomp.tools.upgrading.records import KINDS, TIMEOUT, VersionRecord

if TYPE_CHECKING:
    from decomp.tools.upgrading.comparing import Upgrade

OUTPUT = "The file to write, .json."
ONLY = f"Of {', '.join(KINDS)}, what is recorded (may be repeated); by default all."
OP = "Only this op (may be repeated)."
OLD, NEW = "A snapshot of the version that you have.", "A snapshot of the version that you may go to."
FEW = 12
"""So many lines of each kind are shown, unless all are asked for."""


@command(AdviseOptions, shared="trust imports as_json")
def snapshot(
    to: To,
    output: Annotated[Path, typer.Option("-o", "--output", help=OUTPUT, show_default=False)],
    models: Models = None,
    op: Annotated[list[str], typer.Option("--op", metavar="OP", help=OP)] = [],
    only: Annotated[list[str], typer.Option("--only", metavar="KIND", help=ONLY)] = [],
    *,
    words: Words,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; by default one a core.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that one op may take.")] = TIMEOUT,
) -> None:
    """Record what the installed PyTorch does for a target and some models: how ops reach it, what kernels compute, how
    models are exported and lowered. `decomp upgrade` says what changed between two of them."""
    from decomp.tools.upgrading.taking import take

    require_output("-o", output, ".json")
    unknown = next((each for each in only if each not in KINDS), None)
    if unknown is not None:
        raise Unusable(f"--only {unknown}:{near(unknown, KINDS)} There are {', '.join(KINDS)}")
    names = models_named(models or ())
    for name in names:
        require_model(name)
    made = {name: functools.partial(words.load, name) for name in names}
    asked = {"target": to, "rules": list(dict(words.written)["rules"]), "models": names}
    with progressing() as report:
        found = take(
            functools.partial(words.setting, to),
            made,
            ops=op or None,
            kinds=only or KINDS,
            workers=workers,
            timeout=timeout,
            asked=asked,
            progress=report,
        )
    try:
        found.save(output)
    except OSError as error:
        raise Unusable(f"cannot write {output}: {error.strerror or error}") from error
    count = sum(map(len, found.ops.values()))
    if words.as_json:
        print_json({"file": str(output), **found.header, "ops": len(found.ops), "calls": count})
        return
    counts = f"{count_noun(count, 'call')} of {count_noun(len(found.ops), 'op')}, {count_noun(len(names), 'model')}"
    show(Text(f"torch {found.version} for {found.target}: {counts}"))
    show(*(Text(f"{name}: {said}", style="red") for name, said in found.lost.items()))
    show(saved(output))


@command(shared="as_json")
def upgrade(
    old: Annotated[Path, typer.Argument(metavar="OLD", help=OLD, show_default=False)],
    new: Annotated[Path, typer.Argument(metavar="NEW", help=NEW, show_default=False)],
    everything: Annotated[bool, typer.Option("--all", help=f"Show more than {FEW} lines of a kind.")] = False,
    *,
    words: Words,
) -> None:
    """Say what changed for a target and its models between two versions of PyTorch, from snapshots that each of them
    made. Exits with 1 if something did."""
    from decomp.tools.upgrading.comparing import compare

    found = compare(VersionRecord.load(old), VersionRecord.load(new), (str(old), str(new)))
    if words.as_json:
        print_json(found.as_dict())
    else:
        show(upgrade_table(found, None if everything else FEW))
    if found.changes:
        raise typer.Exit(1)


def upgrade_table(found: Upgrade, most: int | None = None) -> RenderableType:
    """The changes by kind, the gravest first."""
    from decomp.tools.cli.tables import change_groups

    parts: list[RenderableType] = [Text(found.headline, style="bold")]
    parts += [Text(note, style="dim") for note in found.notes]
    parts += change_groups(
        (
            (kind.title, "bold red" if kind.is_grave else "bold", [change.text for change in changes])
            for kind, changes in found.by_kind()
        ),
        most,
    )
    parts += ["", *map(Text, found.models)] if found.models else []
    return Group(*parts)
