"""The content of a cache directory, and its eviction: the least recently used files are deleted first."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
import os
from pathlib import Path

SUFFIX = ".decomp-cache"
CAPACITY = 512 * 2**20
"""The capacity in bytes; beyond it, the least recently used files are deleted."""


@dataclass(frozen=True)
class CacheContents:
    """The content of a cache."""

    directory: Path
    files: int
    """The number of files: one for each set of rules, target and version."""
    size: int
    """In bytes."""


def contents(place: Path) -> CacheContents:
    """The content of a cache directory."""
    sizes = [stat.st_size for path in _files(place) if (stat := _stat(path)) is not None]
    return CacheContents(place, len(sizes), sum(sizes))


def clear(place: Path) -> CacheContents:
    """Delete the files of a cache, and return its former content. Other files in its directory are kept."""
    held = contents(place)
    for path in _files(place):
        path.unlink(missing_ok=True)
    return held


def trim(place: Path, most: int | None = None) -> None:
    """Delete the least recently used files of a cache, until the others take at most `most` bytes (`CAPACITY`)."""
    # The time of the last change is that of the last use: `Store` touches the file when it opens it. The time of the
    # last access is not kept by many file systems.
    found = [(stat.st_mtime, stat.st_size, path) for path in _files(place) if (stat := _stat(path)) is not None]
    left = CAPACITY if most is None else most
    for _, size, path in sorted(found, reverse=True):
        left -= size
        if left < 0:
            with contextlib.suppress(OSError):  # another process has it open, or has deleted it
                path.unlink(missing_ok=True)


def _files(place: Path) -> list[Path]:
    return sorted(place.glob(f"*{SUFFIX}")) if place.is_dir() else []


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
