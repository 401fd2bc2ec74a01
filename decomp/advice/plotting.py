"""A plot of advice: the number of programs that lower over the number of ops implemented."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from decomp.figures import new_figure, save_figure

if TYPE_CHECKING:
    from decomp.advising import Advice


def plot_curve(advice: Advice, path: Path) -> Path:
    """Draw advice into a file, whose suffix decides the format. Raises `PackageMissing` without matplotlib."""
    figure = new_figure(9, 5)
    axes = figure.subplots()
    steps, programs = zip(*advice.curve)
    total = len(advice.calls) + len(advice.out_of_reach)
    axes.step([*steps, steps[-1] + 1], [*programs, programs[-1]], where="post", color="#253494")
    for (ops, reached), milestone in zip(advice.curve[1:], advice.milestones):
        axes.annotate("+ " + ", ".join(milestone.add), (ops, reached), xytext=(4, -12), textcoords="offset points")
    axes.axhline(total, color="black", linewidth=0.8, linestyle=":")
    axes.set_xlabel(f"ops added to {advice.to}")
    axes.set_ylabel("programs that lower")
    axes.set_ylim(0, total * 1.08)
    axes.set_xlim(0, steps[-1] + 1)
    for axis in (axes.xaxis, axes.yaxis):
        axis.get_major_locator().set_params(integer=True)
    return save_figure(figure, path)
