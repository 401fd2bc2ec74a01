"""Figures of plots: what matplotlib, an optional package, is asked for in one place, when something is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from decomp.errors import ArgumentError, PackageMissing
from decomp.files import naming_file, place_of_user, write_atomically


def new_figure(width: float, height: float) -> Any:
    """An empty figure of this size in inches. Raises `PackageMissing`."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PackageMissing('plots need matplotlib\n  to do: pip install "decomp[plot]"') from error
    return Figure(figsize=(width, height), layout="constrained")


def plot_suffixes() -> tuple[str, ...]:
    """The suffixes of the files that matplotlib draws. Raises `PackageMissing`."""
    return tuple(f".{each}" for each in sorted(new_figure(1, 1).canvas.get_supported_filetypes()))


def place_of_plot(given: Any) -> Path:
    """The path of a plot, which a user passed. Raises `ArgumentError` if no file can be there, or matplotlib writes no
    such files, and `PackageMissing`."""
    path = place_of_user(given, "plot", "plot.png")
    suffixes = plot_suffixes()
    if path.suffix.lower() not in suffixes:
        raise ArgumentError(
            f"plot: the suffix of a file says its format, and {path} has {path.suffix or 'none'}\n"
            f"  to do: name it {path.with_suffix('.png').name}; there are {', '.join(each[1:] for each in suffixes)}"
        )
    return path


def save_figure(figure: Any, path: Path, dpi: int | None = None) -> Path:
    """Write a figure to a file, whose suffix decides the format, and return its path."""
    with naming_file(path, "plot: cannot write"), write_atomically(path) as unfinished:
        figure.savefig(unfinished, dpi=dpi or "figure")
    return path
