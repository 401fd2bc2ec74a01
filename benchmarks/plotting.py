"""The plot of `lowering.py`: time per emitted node against nodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.measuring import microseconds
from decomp.tools.benchmarking.records import Row

MARKERS = "os^D"
"""One for each kind of program."""


def plot(results: Sequence[Row], path: Path) -> None:
    """One panel without metadata and one with, log axes: a colour a contender, a marker a kind of program."""
    figure = Figure(figsize=(11, 7), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    contenders = list(dict.fromkeys(row.variant for row in results))
    colours = {name: f"C{i}" if i < 10 else f"{0.15 * (i - 9):.2f}" for i, name in enumerate(contenders)}
    for axes, title, exported in ((panels[0], "without metadata", False), (panels[1], "exported, with metadata", True)):
        _panel(axes, [r for r in results if r.case.name.startswith("exported") == exported], colours)
        axes.set(title=title, xscale="log", yscale="log", xlabel="nodes emitted")
        axes.grid(True, which="both", alpha=0.2)
    panels[0].set_ylabel("time per emitted node (µs)")
    labels = {label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels())}
    figure.legend(list(labels.values()), list(labels), loc="outside lower center", ncols=4, fontsize=9)
    figure.savefig(path, dpi=120)


def _panel(axes: Axes, results: Sequence[Row], colours: dict[str, str]) -> None:
    programs = list(dict.fromkeys(row.case.name for row in results))
    for program, contender in dict.fromkeys((r.case.name, r.variant) for r in results):
        line = sorted((r.nodes, microseconds(r)) for r in results if (r.case.name, r.variant) == (program, contender))
        marker = MARKERS[programs.index(program) % len(MARKERS)]
        axes.plot(*zip(*line), marker=marker, markersize=4, color=colours[contender], label=contender)
    shapes = [f"{'●■▲◆'[i % 4]} {program}" for i, program in enumerate(programs)]
    axes.text(0.02, 0.98, "\n".join(shapes), transform=axes.transAxes, va="top", fontsize=9)
