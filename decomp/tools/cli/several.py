"""Commands on one model or several: patterns of file names are expanded, each model is run in turn, one that fails does
not stop the others, and a table of all comes last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from glob import glob
from pathlib import Path
import sys
from typing import Any, NamedTuple

from rich.console import RenderableType
from rich.text import Text
import typer

from decomp.errors import count_noun, first_line
from decomp.tables import Table
from decomp.tools.cli.flags import Words
from decomp.tools.cli.terminal import Unusable, error_as_dict, exit_code, print_json, show, tell
from decomp.tools.open_table import OpenTable


class Outcome(NamedTuple):
    """What a command made of one model."""

    shown: Sequence[RenderableType | None]
    cells: tuple[Any, ...]
    """Its cells in the table of all models, between its name and what became of it."""
    data: dict[str, Any]
    """For `--json`."""
    verdict: str
    code: int = 0
    """The exit code."""


def models_named(names: Sequence[str]) -> list[str]:
    """The models of these names, each once, with patterns (`models/*.pt2`) replaced by the files that match. Raises
    `Unusable` for a pattern without files."""
    found: dict[str, None] = {}
    for name in names:
        matching = sorted(glob(name, recursive=True)) if set("*?[") & set(name) and not Path(name).exists() else [name]
        if not matching:
            raise Unusable(f"no file matches {name}")
        found.update(dict.fromkeys(matching))
    return list(found)


def run_models(models: Sequence[str], words: Words, columns: Sequence[str], run: Callable[[str], Outcome]) -> None:
    """Run a command on each model, and show what it returns; of several with a table of all. Exits with the worst code.
    `columns`: the titles of `Outcome.cells`."""
    if len(models) == 1:
        outcome = run(models[0])
        print_json(outcome.data) if words.as_json else show(*outcome.shown)
        codes = [outcome.code]
    else:
        outcomes = [_outcome(name, words, columns, run) for name in models]
        codes = [outcome.code for outcome in outcomes]
        if words.as_json:
            print_json(dict(zip(models, (outcome.data for outcome in outcomes))))
        else:
            show(*_summary(models, columns, outcomes))
    if max(codes):
        raise typer.Exit(max(codes))


def _outcome(name: str, words: Words, columns: Sequence[str], run: Callable[[str], Outcome]) -> Outcome:
    loud = not words.as_json and not words.written["quiet"]
    show(Text(name, style="bold underline")) if loud else None
    try:
        outcome = run(name)
        show(*outcome.shown, "") if loud else None
    except BrokenPipeError:
        raise
    except Exception as error:
        sys.stdout.flush()
        if not words.as_json:
            tell(error, words.written["debug"])
        verdict, data = first_line(error), error_as_dict(error)
        return Outcome((), ("",) * len(columns), data, verdict, exit_code(error))
    return outcome


def _summary(models: Sequence[str], columns: Sequence[str], outcomes: Sequence[Outcome]) -> list[RenderableType]:
    failed = sum(bool(outcome.code) for outcome in outcomes)
    rows = [(name, *outcome.cells, outcome.verdict) for name, outcome in zip(models, outcomes)]
    counted = f"{count_noun(len(models), 'model')}, {failed} failed" if failed else count_noun(len(models), "model")
    return [OpenTable(Table(("model", *columns, "result"), rows)), Text(counted)]
