"""A plot of a memory plan: offsets in the arena over time, and the bytes held at each step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from decomp.figures import new_figure, save_figure
from decomp.memory.placing import ARENA

if TYPE_CHECKING:
    from decomp.memory.planning import MemoryPlan

BEFORE, AFTER = "#c6dbef", "#253494"
MEGABYTE = 1e6


def plot(plan: MemoryPlan, path: Path) -> Path:
    """Draw a plan into a file, whose suffix decides the format. Raises `PackageMissing` without matplotlib."""
    figure = new_figure(9, 7)
    upper, lower = figure.subplots(2, 1, sharex=True)
    _held(upper, plan)
    _arena(lower, plan)
    return save_figure(figure, path)


def _held(axes: Any, plan: MemoryPlan) -> None:
    steps = range(len(plan.placement.profile))
    axes.fill_between(steps, [n / MEGABYTE for n in plan.before], step="mid", color=BEFORE, label="without the plan")
    axes.step(steps, [n / MEGABYTE for n in plan.placement.profile], where="mid", color=AFTER, label="planned")
    axes.axhline(plan.lower_bound / MEGABYTE, color="black", linewidth=0.8, linestyle=":", label="lower bound")
    axes.set_ylabel("MB held")
    axes.legend()


def _arena(axes: Any, plan: MemoryPlan) -> None:
    # Deferred: matplotlib is an optional dependency.
    from matplotlib.patches import Rectangle

    for i, buffer in enumerate(plan.placement.in_arena()):
        corner, height = (buffer.birth - 0.5, buffer.offset / MEGABYTE), buffer.nbytes / MEGABYTE
        shade = f"C{i % 10}"
        axes.add_patch(Rectangle(corner, buffer.death - buffer.birth + 1, height, alpha=0.6, color=shade))
    axes.set_xlim(0, max(len(plan.placement.profile), 1))
    axes.set_ylim(0, max(plan.arena, 1) / MEGABYTE * 1.05)
    axes.set_xlabel("step")
    axes.set_ylabel(f"offset in the {ARENA}, MB")
