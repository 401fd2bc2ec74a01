"""Output and failure of commands: an error becomes a message and an exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
from contextvars import ContextVar
from dataclasses import asdict
import errno
import io
import json
import logging
import math
import os
from pathlib import Path
import re
import sys
import traceback
from typing import Any, TextIO
import warnings

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderHook, RenderResult
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.text import Text
import typer

import decomp
from decomp.errors import first_line


class Unusable(decomp.DecompError):
    """Something given on the command line cannot be found, read or written."""


_quiet: ContextVar[bool] = ContextVar("quiet", default=False)
"""Whether the command that runs shows only results and errors."""


@contextlib.contextmanager
def report_errors(
    debug: bool = False, quiet: bool = False, verbose: bool = False, as_json: bool = False
) -> Iterator[None]:
    """Turn an error into a message and an exit code; `debug` adds the traceback, and what PyTorch logs. Quiet: without
    progress, notes and warnings; verbose: with the log of this project."""
    before = _quiet.set(quiet)
    try:
        with contextlib.ExitStack() as loudness:
            loudness.enter_context(_plain_warnings())
            if not debug:
                loudness.enter_context(_quiet_pytorch())
            if quiet:
                loudness.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore")
            if verbose or debug:
                loudness.enter_context(_logged())
            yield
        sys.stdout.flush()
    except typer.Exit:
        raise
    except BrokenPipeError:
        _abandon_output()
        raise typer.Exit(141) from None
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise typer.Exit(130) from None
    except Exception as error:
        tell(error, debug, as_json)
        raise typer.Exit(exit_code(error)) from None
    finally:
        _quiet.reset(before)


@contextlib.contextmanager
def _quiet_pytorch() -> Iterator[None]:
    """Without PyTorch's logs and warnings, which are about attempts that may fail, unless `TORCH_LOGS` asks for the
    logs, and without the graphs that torch.export (2.11 to 2.15) prints of captures that fail."""
    if "torch" not in sys.modules:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # of its C++ parts, read when it is imported
    import torch  # noqa: F401  sets the levels of its loggers

    stream = sys.stderr
    loggers = [] if "TORCH_LOGS" in os.environ else [logging.getLogger("torch"), *_loggers_below("torch")]
    levels = [(logger, logger.level) for logger in loggers]
    for logger in loggers:
        logger.setLevel(_SILENT)
    sys.stderr = _WithoutGraphs(stream)  # a stream by its methods
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"torch(\.|$)")
            yield
    finally:
        sys.stderr = stream
        for logger, level in levels:
            logger.setLevel(level)


_SILENT = logging.CRITICAL + 1


@contextlib.contextmanager
def _plain_warnings() -> Iterator[None]:
    """With the text alone of a warning of this project, which has no line of the user's in a command: it is at the
    line of typer that calls the command."""
    before = warnings.formatwarning

    def formatted(message: Any, category: Any, filename: str, lineno: int, line: str | None = None) -> str:
        if Path(filename).parent == Path(typer.__file__).parent:
            return f"warning: {message}\n"
        return before(message, category, filename, lineno, line)

    warnings.formatwarning = formatted
    try:
        yield
    finally:
        warnings.formatwarning = before


def _loggers_below(name: str) -> list[logging.Logger]:
    """The loggers with levels of their own below one; those made later take its level."""
    known = logging.root.manager.loggerDict.items()
    return [each for key, each in known if key.startswith(f"{name}.") and isinstance(each, logging.Logger)]


@contextlib.contextmanager
def _logged() -> Iterator[None]:
    """With the log of this project on stderr."""
    log, handler = logging.getLogger("decomp"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


class _WithoutGraphs:
    """A stream that drops what the module of `torch.export` prints."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        if sys._getframe(1).f_globals.get("__name__") == "torch.export._trace":
            return len(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def tell(error: Exception, debug: bool, as_json: bool = False) -> None:
    """Print the message of an error: on stderr, or as JSON."""
    if debug:
        print(printable("".join(traceback.format_exception(error))), file=sys.stderr)
    try:
        if as_json:
            print_json(error_as_dict(error))
            sys.stdout.flush()
            return
    except OSError:
        _abandon_output()
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        _abandon_output()
    if not debug:
        _console(stderr=True).print(Text.assemble(("error: ", "bold red"), _message(error)), soft_wrap=True)


def _abandon_output() -> None:
    """Redirect remaining output to nowhere, so that flushing it at exit does not fail again."""
    with contextlib.suppress(OSError, ValueError, io.UnsupportedOperation):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _message(error: Exception) -> str:
    if isinstance(error, decomp.NotLowered):
        return f"{error}\n  on the command line: --keep OP, --partial"
    if isinstance(error, decomp.DecompError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.filename or 'the output'}: {error.strerror or first_line(error)}"
    return f"{type(error).__name__}: {first_line(error)} (--debug shows where)"


def exit_code(error: Exception) -> int:
    """The exit code of a command that an error ends."""
    if isinstance(error, decomp.NotLowered):
        return 1
    unusable = (Unusable, decomp.errors.UnknownOp, decomp.errors.TargetError, decomp.errors.ArgumentError, OSError)
    return 2 if isinstance(error, unusable) or any(isinstance(e, RecursionError) for e in _causes(error)) else 3


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def error_as_dict(error: Exception) -> dict[str, Any]:
    """An error as plain data."""
    return {"error": type(error).__name__, "message": str(error), "blockers": _blockers(error)}


def _blockers(error: Exception) -> list[dict[str, Any]]:
    return [asdict(blocker) for blocker in error.blockers] if isinstance(error, decomp.NotLowered) else []


_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Characters that move the cursor, change colours or reverse text: names may contain them."""


def printable(text: str) -> str:
    """`text` with control characters escaped: `\\x1b`."""
    return _UNSEEN.sub(lambda found: found.group().encode("unicode_escape").decode("ascii"), text)


class _Printable:
    """A renderable whose texts are escaped when it is rendered; rich's own control codes stay."""

    def __init__(self, what: ConsoleRenderable) -> None:
        self.what = what

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.what, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


class _MakingPrintable(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Printable(each) for each in renderables]


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """rich exits with 1, which has another meaning here."""
        raise BrokenPipeError


def _console(stderr: bool = False) -> Console:
    """A console as wide as the terminal; for a file or a pipe as wide as COLUMNS, and otherwise not wrapped at 80."""
    console = _Console(stderr=stderr, highlight=False, emoji=False)
    if not console.is_terminal:
        said = os.environ.get("COLUMNS", "")
        width = int(said) if said.isdecimal() and int(said) else 160
        console = _Console(stderr=stderr, highlight=False, emoji=False, width=width)
    console.push_render_hook(_MakingPrintable())
    return console


def show(*parts: RenderableType | None) -> None:
    """Print the parts that are not None, one below the other."""
    console = _console()
    for part in parts:
        if part is not None:
            console.print(part, soft_wrap=isinstance(part, Text) and bool(part.no_wrap))


def saved(*paths: Any) -> Text | None:
    """A message with the files that were written, whose names are never wrapped; None with `--quiet`."""
    return None if _quiet.get() else Text(f"saved {', '.join(map(str, paths))}", no_wrap=True)


def note(text: str) -> None:
    """Print a line on stderr, unless `--quiet`."""
    if not _quiet.get():
        print(printable(text), file=sys.stderr)


def print_json(data: Any) -> None:
    """Print data as JSON, which has no infinities and no NaN: they are text, "inf" and "nan"."""
    from decomp.ir.arguments import substituted  # which needs PyTorch, and `decomp --help` does not

    print(json.dumps(substituted(data, lambda x: x if math.isfinite(x) else str(x), float), indent=2))


@contextlib.contextmanager
def progressing() -> Iterator[Callable[[int, int, str], None]]:
    """A progress bar on a terminal; yields a function that takes the number of finished items, the total, and the last
    item."""
    console = _console(stderr=True)
    if not console.is_terminal or _quiet.get():
        yield lambda done, total, name: None
        return
    columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}", markup=False)
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, name: bar.update(task, completed=done, total=total, description=name)


@contextlib.contextmanager
def working(what: str) -> Iterator[Callable[[str], None]]:
    """A spinner on a terminal; yields a function that changes its text."""
    console = _console(stderr=True)
    if not console.is_terminal or _quiet.get():
        yield lambda text: None
        return
    with console.status(Text(what)) as status:
        yield lambda text: status.update(Text(text))
