"""Where the cache is: the directory that the platform has for caches, or the one that `DECOMP_CACHE` names."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
import os
from pathlib import Path
import sys

VARIABLE = "DECOMP_CACHE"
_OFF = ("0", "off", "no", "false")
SUFFIX = ".decomp-cache"
MOST = 512 * 2**20
"""So many bytes are kept; beyond, what has not been used for longest is deleted."""


def directory() -> Path | None:
    """The directory of the cache, which need not exist; None if the cache is off."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted.lower() in _OFF:
        return None
    return Path(wanted).expanduser() if wanted else _platform_directory()


def _platform_directory() -> Path | None:
    try:
        if sys.platform == "win32":
            return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "decomp" / "Cache"
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Caches" / "decomp"
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "decomp"
    except RuntimeError:  # a user without a home
        return None


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
