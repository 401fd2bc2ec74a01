"""Where files are kept from one process to the next: the directory that the platform has for caches, or the one that
`DECOMP_CACHE` names."""

from __future__ import annotations

import os
from pathlib import Path
import sys

VARIABLE = "DECOMP_CACHE"
_OFF = ("0", "off", "no", "false")


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
