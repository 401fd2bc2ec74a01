"""The directory of the disk cache: the platform's directory for caches, or that of `DECOMP_CACHE`."""

from __future__ import annotations

import os
from pathlib import Path
import sys

VARIABLE = "DECOMP_CACHE"
_OFF = ("0", "off", "no", "false")


def directory() -> Path | None:
    """The directory of the cache, which may not exist yet; None if the cache is off."""
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
    except RuntimeError:  # the user has no home directory
        return None
