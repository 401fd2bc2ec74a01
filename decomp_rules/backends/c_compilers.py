"""The C compiler of tinygrad's CPU device: `CC`, a clang on the path, or the one of the package `ziglang`. Asked
without importing tinygrad, so that what is missing can be said where that is missing too."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
import shutil

NO_COMPILER = (
    "tinygrad's CPU device needs a C compiler: install clang (apt install clang), or pip install ziglang, or set CC to "
    "the path of a clang"
)


def compiler() -> str | None:
    """The compiler that is used, by its path; None if there is none."""
    if "CC" in os.environ:
        return os.environ["CC"]
    found = shutil.which("clang") or zig_of_package()
    return str(found) if found is not None else None


def zig_of_package() -> Path | None:
    """The compiler of the package `ziglang`, if that is installed."""
    try:
        spec = importlib.util.find_spec("ziglang")
    except ValueError:  # a module that is None
        return None
    return Path(spec.origin).parent / "zig" if spec is not None and spec.origin is not None else None
