"""The version of the installed PyTorch, read without importing it, and the versions that this package supports."""

from __future__ import annotations

import importlib.util
from pathlib import Path
import re
import runpy
import sys
import warnings

OLDEST, NEWEST = (2, 11), (2, 15)
"""The oldest and the newest supported version."""


def torch_version() -> str:
    """`torch.__version__`; empty where PyTorch is not installed. The metadata of its package lack what it was built
    for."""
    if "torch" in sys.modules:
        return str(sys.modules["torch"].__version__)
    # Reading the version must not import PyTorch, which takes seconds:
    # the command line prints it, and `decomp` checks it first.
    found = importlib.util.find_spec("torch")
    version_file = Path(found.origin).with_name("version.py") if found is not None and found.origin else None
    if version_file is None or not version_file.exists():
        return ""
    # `torch/version.py` is executed by itself: to import `torch.version` would import `torch`.
    return str(runpy.run_path(str(version_file))["__version__"])


def version_of(text: str) -> tuple[int, int]:
    """Major and minor number: (2, 13) of "2.13.0+cpu"."""
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else NEWEST


def in_words(version: tuple[int, int]) -> str:
    """`2.13`."""
    return f"{version[0]}.{version[1]}"


def require_supported(installed: str) -> None:
    """Raise `ImportError` for a PyTorch that is too old, and warn about one newer than those known."""
    between = f"torch {in_words(OLDEST)} to {in_words(NEWEST)}"
    if version_of(installed) < OLDEST:
        remedy = f"pip install 'torch>={in_words(OLDEST)}'"
        raise ImportError(f"decomp runs on {between}; this is {installed}: {remedy}")
    if version_of(installed) > NEWEST:
        warnings.warn(f"decomp was tested on {between}; this is {installed}", stacklevel=3)
