"""Figures of plots: what matplotlib, an optional package, is asked for in one place, when something is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from decomp.files import write_atomically


def new_figure(width: float, height: float) -> Any:
    """An empty figure of this size in inches. Raises `ImportError`, which says what to do."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('plots need matplotlib\n  to do: pip install "decomp[plot]"') from error
    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, path: Path, dpi: int | None = None) -> Path:
    """Write a figure to a file, whose suffix decides the format, and return its path."""
    with write_atomically(path) as unfinished:
        figure.savefig(unfinished, dpi=dpi or "figure")
    return path
