"""The files that a command writes. They are checked before it computes anything, and an error names the option."""

from __future__ import annotations

from pathlib import Path

from decomp.tools.cli.extras import require
from decomp.tools.cli.terminal import Unusable


def require_output(option: str, path: Path | None, *suffixes: str) -> None:
    """Raise `Unusable` if no file can be written at the path of an option, or its name has none of the suffixes, of
    which without any all are fine."""
    if path is None:
        return
    if suffixes and path.suffix not in suffixes:
        raise Unusable(f"{option} {path}: the name must end in {' or '.join(suffixes)}")
    if path.is_dir():
        raise Unusable(f"{option} {path}: a directory is in its place")
    if not path.absolute().parent.is_dir():
        raise Unusable(f"{option} {path}: there is no directory {path.parent}")


def load_lock(path: Path | None) -> Path | None:
    """The path of `--lock`, where a lock is or can be written. Raises `Unusable`."""
    require_output("--lock", path)
    return path


def require_plot(path: Path | None) -> None:
    """The same for `--plot`. Raises `Unusable` also if matplotlib is not installed, or draws no such files."""
    if path is None:
        return
    require("matplotlib", f"--plot {path}")
    from decomp.figures import plot_suffixes

    suffixes = plot_suffixes()
    require_output("--plot", path, *(() if path.suffix.lower() in suffixes else suffixes))


def require_directory(option: str, path: Path | None) -> None:
    """Raise `Unusable` if no directory can be made at the path of an option."""
    if path is None:
        return
    there = next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
    if not there.is_dir():
        raise Unusable(f"{option} {path}: {there} is a file, not a directory")
