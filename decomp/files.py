"""Files that are written: an existing file is replaced only when the new one is complete."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import os
from pathlib import Path
from typing import Any

from decomp.errors import ArgumentError, first_line


@contextlib.contextmanager
def write_atomically(path: Path) -> Iterator[Path]:
    """A temporary path next to `path`, with its suffix, to write to; at the end it replaces `path`."""
    # In the same directory, since `os.replace` is atomic only within a file
    # system; with the suffix, since some writers choose the format by it;
    # with the process, since two may write the same file.
    unfinished = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def path_of_user(path: Any, verb: str) -> Path:
    """A path that a user passed to `verb`. Raises `ArgumentError` if it is something else."""
    if isinstance(path, (str, os.PathLike)):
        return Path(path)
    raise ArgumentError(f"{verb}: path= must be the path of a file, not {type(path).__name__}")


def place_of_user(given: Any, verb: str, example: str) -> Path:
    """A path to which a file that is named like `example` can be written. Raises `ArgumentError`."""
    path = path_of_user(given, verb)
    if path.is_dir():
        raise ArgumentError(f"{verb}: {path} is a directory\n  to do: name a file, as {path / example}")
    if not path.absolute().parent.is_dir():
        raise ArgumentError(f"{verb}: there is no directory {path.parent}\n  to do: make it, or write elsewhere")
    return path


@contextlib.contextmanager
def naming_file(path: Path, failed: str) -> Iterator[None]:
    """Inside this context an `OSError` is an `ArgumentError`: what `failed`, as "cannot read", the file, and why."""
    try:
        yield
    except OSError as error:
        raise ArgumentError(f"{failed} {path}: {error.strerror or first_line(error)}") from error
