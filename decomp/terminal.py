"""What a verb of the command line prints, and how it fails: an error becomes a message and one of three exit codes."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
from dataclasses import asdict
import json
import traceback
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text
import typer

import decomp
from decomp.errors import first_line

EXIT_CODES = (
    "Exit codes: 0 done; 1 not lowered, some ops do not reach the target, or a rule contradicts its op's schema or is "
    "worse than its certificate; "
    "2 wrong usage, or a model, target or op that is unknown or cannot be read; 3 the model could not be captured, or "
    "a rule or the verification failed."
)


class Unusable(decomp.DecompError):
    """What was named on the command line cannot be found or read."""


@contextlib.contextmanager
def failing(debug: bool, as_json: bool = False) -> Iterator[None]:
    """An error becomes a message and an exit code; `--debug` adds the traceback."""
    try:
        yield
    except typer.Exit:
        raise
    except Exception as error:
        if debug:
            traceback.print_exc()
        if as_json:
            print_json({"error": type(error).__name__, "message": str(error), "blockers": _blockers(error)})
        elif not debug:
            _console(stderr=True).print(Text.assemble(("error: ", "bold red"), _message(error)), soft_wrap=True)
        raise typer.Exit(_code(error)) from None


def _message(error: Exception) -> str:
    if isinstance(error, decomp.NotLowered):
        return f"{error}\n  on the command line: --keep OP, --partial"
    if isinstance(error, decomp.DecompError):
        return str(error)
    return f"{type(error).__name__}: {first_line(error)} (--debug shows where)"


def _code(error: Exception) -> int:
    if isinstance(error, decomp.NotLowered):
        return 1
    return 2 if isinstance(error, (Unusable, decomp.UnknownOp, decomp.TargetError)) else 3


def _blockers(error: Exception) -> list[dict[str, Any]]:
    return [asdict(blocker) for blocker in error.blockers] if isinstance(error, decomp.NotLowered) else []


def _console(stderr: bool = False) -> Console:
    """As wide as the terminal; into a file or a pipe, lines are not folded at 80."""
    console = Console(stderr=stderr, highlight=False, emoji=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, emoji=False, width=160)


def show(*parts: RenderableType | None) -> None:
    """Print what is there of these, one below the other."""
    console = _console()
    for part in parts:
        if part is not None:
            console.print(part)


def print_json(data: Any) -> None:
    """Print data for machines."""
    print(json.dumps(data, indent=2))


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """A spinner while something takes its time, on a terminal."""
    console = _console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(what):
        yield
