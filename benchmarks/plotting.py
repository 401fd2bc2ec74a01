"""The plots of `lowering.py`: the cost per node as programs grow, and in comparison with other tools."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from benchmarks.measuring import microseconds
from decomp.tools.benchmarking.records import BenchmarkRow

OURS, BASE, OTHERS = "#08519c", "0.35", "#d95f0e"
GROWING = {
    "Graph.create_node": BASE,
    "lower, warm": "#6baed6",
    "lower, warm, verified": "#3182bd",
    "lower, warm, code generated": "#08306b",
}
"""The contenders plotted over the number of nodes, and their colours."""
GROWN, CONTENDED = "synthetic", "exported transformer"
"""The programs of the two plots: one that comes in all sizes, and a model."""


def plots(results: Sequence[BenchmarkRow], folder: Path) -> list[Path]:
    """Every plot that the results have data for; returns the files."""
    made = []
    grown = [row for row in results if row.case.name == GROWN and row.variant in GROWING and row.nodes]
    if grown:
        made.append(growth(grown, folder / "lowering_growth.png"))
    contended = [row for row in results if row.case.name == CONTENDED and row.nodes and row.seconds is not None]
    if contended:
        made.append(contenders(contended, folder / "lowering_contenders.png"))
    return made


def growth(rows: Sequence[BenchmarkRow], path: Path) -> Path:
    """Plot the cost per node over the size of a program."""
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.subplots()
    for variant, colour in GROWING.items():
        line = sorted((row.nodes or 0, microseconds(row)) for row in rows if row.variant == variant)
        if line:
            axes.plot(*zip(*line), marker="o", markersize=4, color=colour)
            axes.annotate(
                variant,
                line[-1],
                xytext=(6, 0),
                textcoords="offset points",
                fontsize=8,
                va="center",
                color=colour,
                annotation_clip=False,
            )
    axes.set(xscale="log", xlabel="nodes emitted", ylabel="µs per emitted node", ylim=0)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.grid(True, alpha=0.2)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.suptitle("Cost per node as programs grow", fontsize=11)
    figure.savefig(path, dpi=120)
    return path


def contenders(rows: Sequence[BenchmarkRow], path: Path) -> Path:
    """Plot the cost per node of each contender on an exported model, with numbers beside the bars."""
    rows = sorted(rows, key=microseconds)
    figure = Figure(figsize=(8, 0.8 + 0.28 * len(rows)), layout="constrained")
    axes = figure.subplots()
    bars = axes.barh([row.variant for row in rows], [microseconds(row) for row in rows], color=list(map(_colour, rows)))
    axes.bar_label(bars, [f"{microseconds(row):,.0f}" for row in rows], padding=3, fontsize=8)
    _plain(axes)
    axes.set(xscale="log", xlabel="µs per emitted node, logarithmic")
    axes.margins(x=0.1)
    size = rows[0].case.size
    figure.suptitle(f"Cost of lowering an exported transformer of {size} layers (blue: decomp)", fontsize=11)
    figure.savefig(path, dpi=120)
    return path


def _colour(row: BenchmarkRow) -> str:
    if row.variant.startswith(("lower", "decompose")):
        return OURS
    return BASE if row.variant.startswith("Graph.") else OTHERS


def _plain(axes: Axes) -> None:
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0, labelsize=9)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
