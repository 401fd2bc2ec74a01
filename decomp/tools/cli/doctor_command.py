"""`decomp doctor`: what this installation is made of, and whether the library works in it."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
import typer

from decomp.tools.cli.flags import Words, command
from decomp.tools.cli.terminal import print_json, show, working

if TYPE_CHECKING:
    from decomp.tools.diagnosis import Diagnosis, Fact

MARKS = {"fine": Text("✓", style="green"), "absent": Text("-", style="dim"), "broken": Text("✗", style="red")}


@command(shared="as_json")
def doctor(*, words: Words) -> None:
    """Show versions, extras, devices and compilers, what this PyTorch lacks, and whether the library works: what an
    issue report should quote. Exits with 1 if something is broken."""
    from decomp.tools.diagnosis import diagnose

    with working("looking") as report:
        found = diagnose(report)
    if words.as_json:
        print_json(found.as_dict())
    else:
        show(diagnosis_table(found))
    if not found.ok:
        raise typer.Exit(1)


def diagnosis_table(found: Diagnosis) -> RenderableType:
    """A line a fact, in groups, the texts one below the other."""
    width = max(len(fact.name) for fact in found.facts)
    parts: list[RenderableType] = [Text(found.headline, style="bold green" if found.ok else "bold red")]
    for group, facts in groupby(found.facts, lambda fact: fact.group):
        table = Table.grid(padding=(0, 1))
        table.add_column(width=1)
        table.add_column(width=width, no_wrap=True)
        table.add_column(overflow="fold")
        for fact in facts:
            table.add_row(MARKS[fact.state], Text(fact.name), Text(_said(fact)))
        parts += ["", Text(group, style="bold"), table]
    return Group(*parts)


def _said(fact: Fact) -> str:
    return f"{fact.text}; to do: {fact.remedy}" if fact.remedy else fact.text
