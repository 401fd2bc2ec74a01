"""What a directory with the cache of expansions holds; the least recently used goes first."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
import os
from pathlib import Path

SUFFIX = ".decomp-cache"
MOST = 512 * 2**20
"""So many bytes are kept; beyond, what has not been used for longest is deleted."""


@dataclass(frozen=True)
class Contents:
    """What a cache holds."""

    directory: Path
    files: int
    """One for each set of rules, target and version that programs were lowered with."""
    size: int
    """In bytes."""


def contents(place: Path) -> Contents:
    """What is in a cache directory."""
    sizes = [stat.st_size for path in _files(place) if (stat := _stat(path)) is not None]
    return Contents(place, len(sizes), sum(sizes))


def clear(place: Path) -> Contents:
    """Delete the files of a cache, and say what it held. Other files in its directory stay."""
    held = contents(place)
    for path in _files(place):
        path.unlink(missing_ok=True)
    return held


def trim(place: Path, most: int | None = None) -> None:
    """Delete the files of a cache that have not been used for longest, until the others take at most `most` bytes
    (`MOST`)."""
    found = [(stat.st_mtime, stat.st_size, path) for path in _files(place) if (stat := _stat(path)) is not None]
    left = MOST if most is None else most
    for _, size, path in sorted(found, reverse=True):
        left -= size
        if left < 0:
            with contextlib.suppress(OSError):  # another process has it open, or was faster
                path.unlink(missing_ok=True)


def _files(place: Path) -> list[Path]:
    return sorted(place.glob(f"*{SUFFIX}")) if place.is_dir() else []


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
