"""The plot of `lowering.py`: time per emitted node against nodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.measuring import Result


def plot(results: Sequence[Result], path: Path) -> None:
    """One panel without metadata and one with, log axes, a line a contender and program."""
    figure = Figure(figsize=(12, 5), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, title, exported in ((panels[0], "without metadata", False), (panels[1], "exported", True)):
        chosen = [r for r in results if r.program.startswith("exported") == exported]
        for program, contender in dict.fromkeys((r.program, r.contender) for r in chosen):
            line = [r for r in chosen if (r.program, r.contender) == (program, contender)]
            label = f"{contender} ({program})"
            axes.plot([r.nodes for r in line], [r.microseconds for r in line], marker="o", markersize=3, label=label)
        axes.set(title=title, xscale="log", yscale="log", xlabel="nodes emitted", ylabel="µs a node")
        axes.grid(True, which="both", alpha=0.2)
        if chosen:
            axes.legend(fontsize=5)
    figure.savefig(path, dpi=120)
