"""The line of a model at which PyTorch refused to trace it, from the traceback of what it raised."""

from __future__ import annotations

import linecache
from pathlib import Path
import traceback

_TRACERS = frozenset({"torch", "decomp", "decomp_rules", "sympy", "optree", "contextlib", "functools"})
"""Packages whose frames are not those of a model."""


def refused_line(error: BaseException) -> str | None:
    """`model.py:16, in forward: if x.sum() > 0`, the innermost line outside of PyTorch and this package; None if no
    frame is the model's, as in an error of Dynamo, which does not run the model."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        code, module = frame.f_code, str(frame.f_globals.get("__name__", ""))
        # PyTorch also generates functions, whose file is `<string>`.
        source = linecache.getline(code.co_filename, line, frame.f_globals).strip().rstrip(":")
        if source and not code.co_filename.startswith("<") and module.partition(".")[0] not in _TRACERS:
            return f"{Path(code.co_filename).name}:{line}, in {code.co_name}: {source}"
    return None
