"""Atomic writes: an existing file is replaced only when the new one is complete."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import os
from pathlib import Path


@contextlib.contextmanager
def write_atomically(path: Path) -> Iterator[Path]:
    """A temporary path next to `path`, with its suffix, to write to; at the end it replaces `path`."""
    # In the same directory, since `os.replace` is atomic only within a file
    # system; with the suffix, since some writers choose the format by it.
    unfinished = path.with_name(f".{path.stem}.unfinished{path.suffix}")
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
