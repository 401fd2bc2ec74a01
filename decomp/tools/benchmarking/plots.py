"""Results as plots: one message each, legible at the width of a README."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from decomp.tools.benchmarking.records import Attribution, Results, Row
from decomp.tools.writing import whole

COLOURS = {"small": "#8fbbd9", "medium": "#2c7fb8", "large": "#253494", "whole": "#253494"}
WIDTH = 9.0
DPI = 130


def plot_all(results: Results, folder: Path) -> list[Path]:
    """Every plot that the results have data for; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    made: list[Path] = []
    forward = [row for row in results.rows if row.case.mode == "forward" and row.to_baseline is not None]
    if any(row.to_compiled is not None and _shown(row.variant, True) for row in forward):
        made.append(ratios(forward, folder / "fused_vs_primitive_compiled.png", compiled=True))
    if any(_shown(row.variant, False) for row in forward):
        made.append(ratios(forward, folder / "fused_vs_primitive_eager.png", compiled=False))
    if any(row.operations or row.needed for row in forward):
        made.append(roofline(results, forward, folder / "fused_vs_primitive_roofline.png"))
    if results.attributions:
        made.append(waterfalls(results.attributions, folder / "fused_vs_primitive_waterfall.png"))
    return made


def ratios(rows: Sequence[Row], path: Path, compiled: bool) -> Path:
    """Ratio by workload and size, quartiles as bars: a panel a variant, logarithmic."""
    variants = [v for v in dict.fromkeys(row.variant for row in rows) if _shown(v, compiled)]
    names = list(dict.fromkeys(row.case.name for row in rows))
    columns = min(4, len(variants))
    lines = -(-len(variants) // columns)
    figure = Figure(figsize=(WIDTH, 1.0 + lines * (0.5 + 0.3 * len(names))), layout="constrained")
    grid = figure.subplots(lines, columns, sharey=True, sharex=True, squeeze=False)
    panels = grid.ravel()
    for axes, variant in zip(panels, variants):
        _ratio_panel(axes, [row for row in rows if row.variant == variant], names, compiled)
        axes.set_title(variant.removesuffix(", compiled"), fontsize=9)
    for axes in panels[len(variants) :]:
        axes.set_axis_off()
    for first in grid[:, 0]:
        first.set_yticks(range(len(names)), names, fontsize=8)
    panels[0].invert_yaxis()
    _ratio_scale(panels[0], [row for row in rows if row.variant in variants], compiled)
    base = "the compiled original" if compiled else "the original, eager"
    what = "Compiled by Inductor" if compiled else "Eager"
    scale = "1×: as fast, to the right: slower; bars are quartiles of the rounds"
    figure.suptitle(f"{what}: time of the lowered program over that of {base}\n({scale})", fontsize=10)
    handles = {label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels())}
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    with whole(path) as unfinished:
        figure.savefig(unfinished, dpi=DPI)
    return path


def _shown(variant: str, compiled: bool) -> bool:
    return ("compiled" in variant) == compiled and not variant.startswith("fused")


def _ratio_panel(axes: Axes, rows: Sequence[Row], names: Sequence[str], compiled: bool) -> None:
    sizes = list(dict.fromkeys(row.case.size for row in rows))
    for size in sizes:
        chosen = [row for row in rows if row.case.size == size]
        spreads = [row.to_compiled if compiled else row.to_baseline for row in chosen]
        known = [(names.index(row.case.name), one) for row, one in zip(chosen, spreads) if one is not None]
        if not known:
            continue
        places = [place + 0.22 * (sizes.index(size) - (len(sizes) - 1) / 2) for place, _ in known]
        middle = [one.median for _, one in known]
        errors = [[one.median - one.low for _, one in known], [one.high - one.median for _, one in known]]
        label = {"whole": "model"}.get(size, size)
        axes.errorbar(middle, places, xerr=errors, fmt="o", markersize=4, color=COLOURS.get(size), label=label)
    axes.axvline(1, color="0.4", linewidth=0.8)
    axes.grid(True, axis="x", alpha=0.3)


def _ratio_scale(axes: Axes, rows: Sequence[Row], compiled: bool) -> None:
    """The scale of all panels, by the medians: a round that was disturbed reaches out of the picture."""
    ratios = [one.median for row in rows if (one := row.to_compiled if compiled else row.to_baseline) is not None]
    low, high = min(0.5, *ratios) / 1.2, max(2.0, *ratios) * 1.2
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 30 else (1,)))
    axes.xaxis.set_major_formatter(_ratio_text)
    axes.xaxis.set_minor_formatter("")


def _ratio_text(value: float, position: float) -> str:
    return f"{value:g}×"


def roofline(results: Results, rows: Sequence[Row], path: Path) -> Path:
    """Rate of the useful operations against intensity, under the machine's measured limits. Programs without products
    have no such operations; for them the rate is of bytes, in a panel of its own."""
    copy, matmul = results.machine["copy"], results.machine["matmul"]
    variants = [v for v in dict.fromkeys(row.variant for row in rows) if v == "fused" or "compiled" in v]
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for place, variant in enumerate(variants):
        style = {"marker": "osD^v"[place % 5], "s": 18, "color": f"C{place}", "label": variant, "alpha": 0.8}
        points = [_Point.of(row) for row in rows if row.variant == variant and row.needed]
        others = [point for point in points if point.intensity <= 1]
        left.scatter([point.needed / 1e6 for point in others], [point.bandwidth / 1e9 for point in others], **style)
        products = [point for point in points if point.intensity > 1]
        right.scatter([point.intensity for point in products], [point.rate / 1e9 for point in products], **style)
    left.axhline(copy / 1e9, color="0.4", linewidth=1)
    start = (0.02, copy / 1e9)
    left.annotate("copying a large buffer", start, xycoords=("axes fraction", "data"), fontsize=8, va="bottom")
    left.set(title="no matrix products", xlabel="bytes that must move (MB)", ylabel="GB/s that had to move")
    knee = matmul / copy
    right.plot([knee / 30, knee, knee * 10], [matmul / 30 / 1e9, matmul / 1e9, matmul / 1e9], color="0.4", linewidth=1)
    right.annotate("a large matrix product", (knee, matmul / 1e9), fontsize=8, va="bottom")
    right.set(title="with matrix products", xlabel="operations per byte that must move", ylabel="GFLOP/s")
    for axes in (left, right):
        if not len(axes.collections) or all(not len(one.get_offsets()) for one in axes.collections):
            axes.set_xlim(0.1, 10)  # a logarithmic axis without data would be an error
        axes.set(xscale="log", yscale="log")
        axes.grid(True, which="both", alpha=0.2)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    figure.suptitle("How near to the limits of the machine (lines, measured in the same run)", fontsize=11)
    with whole(path) as unfinished:
        figure.savefig(unfinished, dpi=DPI)
    return path


@dataclass(frozen=True)
class _Point:
    """Where a row lies: bytes that must move, operations, seconds."""

    needed: int
    operations: int
    seconds: float

    @classmethod
    def of(cls, row: Row) -> _Point:
        assert row.seconds is not None
        return cls(row.needed or 0, row.operations or 0, row.seconds.median)

    @property
    def intensity(self) -> float:
        return self.operations / self.needed

    @property
    def bandwidth(self) -> float:
        return self.needed / self.seconds

    @property
    def rate(self) -> float:
        return self.operations / self.seconds


def waterfalls(attributions: Sequence[Attribution], path: Path, most: int = 7) -> Path:
    """From the time of a source program to that of its lowering, by the source ops that added most."""
    shown = list({one.case.name: one for one in attributions}.values())
    columns = min(2, len(shown))
    lines = -(-len(shown) // columns)
    figure = Figure(figsize=(WIDTH, 0.6 + 2.5 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes, one in zip(panels, shown):
        _waterfall(axes, one, most)
    for axes in panels[len(shown):]:
        axes.set_axis_off()
    variants = " / ".join(dict.fromkeys(one.variant for one in shown))
    figure.suptitle(f"Where lowering to {variants} costs time: eager, node by node (ms)", fontsize=11)
    with whole(path) as unfinished:
        figure.savefig(unfinished, dpi=DPI)
    return path


def _waterfall(axes: Axes, one: Attribution, most: int) -> None:
    added = sorted(((share.label, share.seconds - (share.source_seconds or 0)) for share in one.shares),
                   key=lambda item: -abs(item[1]))  # fmt: skip
    steps, others = added[:most], added[most:]
    if others:
        steps.append((f"{len(others)} others", sum(value for _, value in others)))
    names, starts, lengths, colours = ["fused"], [0.0], [one.source_seconds], ["#253494"]
    level = one.source_seconds
    for name, value in steps:
        names.append(_short(name))
        starts.append(level)
        lengths.append(value)
        colours.append("#d95f0e" if value >= 0 else "#41ab5d")
        level += value
    names.append("lowered")
    starts.append(0.0)
    lengths.append(one.seconds)
    colours.append("#253494")
    axes.barh(range(len(names)), [1e3 * v for v in lengths], left=[1e3 * v for v in starts], color=colours)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.invert_yaxis()
    axes.tick_params(axis="x", labelsize=8)
    axes.set_title(f"{one.case.name} ({one.seconds / max(one.source_seconds, 1e-12):.1f} × fused)", fontsize=9)
    axes.grid(True, axis="x", alpha=0.2)


def _short(label: str) -> str:
    """The innermost module and the op."""
    module, _, op = label.rpartition(" · ")
    names = [name for name in module.split(".") if name != "*"]
    return " · ".join(part for part in ((names or [""])[-1], op) if part)
