"""Results as plots: one message each, legible at the width of a README."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
import math
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from decomp.figures import new_figure, save_figure
from decomp.tools.benchmarking.records import Attribution, BenchmarkResults, BenchmarkRow

COLOURS = {"small": "#9ecae1", "medium": "#4292c6", "large": "#08519c", "huge": "#08306b", "whole": "#d95f0e"}
"""By size: sizes are shades of one colour, models have another colour."""
WIDTH = 9.0
DPI = 130
HOTTEST = 50.0
"""Larger ratios have the same colour in a heat map."""


def plot_all(results: BenchmarkResults, folder: Path) -> list[Path]:
    """Draw every plot that the results have data for; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    made: list[Path] = []
    forward = [row for row in results.rows if row.case.mode == "forward" and row.to_baseline is not None]
    if any(row.to_compiled is not None and _shown(row.variant, True) for row in forward):
        made.append(ratios(forward, folder / "fused_vs_primitive_compiled.png"))
    if any(_shown(row.variant, False) for row in forward):
        made.append(heat_map(forward, folder / "fused_vs_primitive_eager.png"))
    if any(row.operations or row.needed for row in forward):
        made.append(roofline(results, forward, folder / "fused_vs_primitive_roofline.png"))
    if results.attributions:
        made.append(waterfalls(results.attributions, folder / "fused_vs_primitive_waterfall.png"))
    return made


def ratios(rows: Sequence[BenchmarkRow], path: Path) -> Path:
    """Compiled programs: ratio by workload and size, quartiles as bars; one panel per variant, logarithmic."""
    variants = [v for v in dict.fromkeys(row.variant for row in rows) if _shown(v, True)]
    names = [name for _, name in _workloads(rows)]
    figure = new_figure(WIDTH, 1.2 + 0.3 * len(names))
    panels = list(figure.subplots(1, len(variants), sharey=True, sharex=True, squeeze=False).ravel())
    for axes, variant in zip(panels, variants):
        _ratio_panel(axes, [row for row in rows if row.variant == variant], names)
        axes.set_title(variant.removesuffix(", compiled"), fontsize=9)
    panels[0].set_yticks(range(len(names)), names, fontsize=8)
    panels[0].invert_yaxis()
    _ratio_scale(panels[0], [row for row in rows if row.variant in variants])
    title = "Compiled by Inductor: time of the lowered program over that of the original"
    figure.suptitle(f"{title}\n(1×: as fast, to the right: slower; bars are quartiles of the rounds)", fontsize=10)
    _legend(figure, panels)
    return save_figure(figure, path, DPI)


def _shown(variant: str, compiled: bool) -> bool:
    return ("compiled" in variant) == compiled and not variant.startswith("fused")


def _workloads(rows: Sequence[BenchmarkRow]) -> list[tuple[str, str]]:
    """Family and name of each workload, models last."""
    found = dict.fromkeys((row.case.family, row.case.name) for row in rows)
    return sorted(found, key=lambda each: each[0] == "model")


def _legend(figure: Figure, panels: Sequence[Axes]) -> None:
    handles = {label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels())}
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=4, fontsize=9, frameon=False)


def _ratio_panel(axes: Axes, rows: Sequence[BenchmarkRow], names: Sequence[str]) -> None:
    sizes = list(dict.fromkeys(row.case.size for row in rows))
    among = [size for size in sizes if size != "whole"]
    for size in sizes:
        known = [(names.index(row.case.name), row.to_compiled) for row in rows if row.case.size == size]
        shown = [(place, one) for place, one in known if one is not None]
        if not shown:
            continue
        shift = 0.22 * (among.index(size) - (len(among) - 1) / 2) if size in among else 0.0
        middle = [one.median for _, one in shown]
        errors = [[one.median - one.low for _, one in shown], [one.high - one.median for _, one in shown]]
        style: dict[str, Any] = {"markersize": 5, "fmt": "D"} if size == "whole" else {"markersize": 4, "fmt": "o"}
        label = {"whole": "model"}.get(size, size)
        places = [place + shift for place, _ in shown]
        axes.errorbar(middle, places, xerr=errors, color=COLOURS.get(size), label=label, **style)
    axes.axvline(1, color="0.4", linewidth=0.8)
    axes.grid(True, axis="x", alpha=0.3)


def _ratio_scale(axes: Axes, rows: Sequence[BenchmarkRow]) -> None:
    """The scale of all panels, by the medians: disturbed rounds are cut off."""
    ratios = [row.to_compiled.median for row in rows if row.to_compiled is not None]
    low, high = min(0.5, *ratios) / 1.2, max(2.0, *ratios) * 1.2
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 30 else (1,)))
    axes.xaxis.set_major_formatter(_ratio_text)
    axes.xaxis.set_minor_formatter("")


def _ratio_text(value: float, position: float) -> str:
    return f"{value:g}×"


def heat_map(rows: Sequence[BenchmarkRow], path: Path) -> Path:
    """Eager programs: ratio by workload, target and size, as colours and numbers. One panel for ops, one for models."""
    rows = [row for row in rows if _shown(row.variant, False) and row.to_baseline is not None]
    panels = [part for model in (False, True) if (part := [r for r in rows if (r.case.family == "model") == model])]
    tables = [_HeatMap.of(part) for part in panels]
    heights = [1.2 + 0.22 * len(each.lines) for each in tables]
    widest = max(len(each.columns) for each in tables)
    figure = new_figure(max(WIDTH, 1.8 + 0.42 * widest), 0.9 + sum(heights))
    grid = figure.subplots(len(tables), 1, squeeze=False, height_ratios=heights).ravel()
    for axes, table in zip(grid, tables):
        table.draw(axes)
    figure.suptitle("Eager: time of the lowered program over that of the original (1: as fast)", fontsize=11)
    return save_figure(figure, path, DPI)


@dataclass(frozen=True)
class _HeatMap:
    """Ratios by workload and (target, size)."""

    lines: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    ratios: dict[tuple[str, tuple[str, str]], float]

    @classmethod
    def of(cls, rows: Sequence[BenchmarkRow]) -> _HeatMap:
        columns = tuple(
            dict.fromkeys(
                (v, r.case.size) for v in dict.fromkeys(r.variant for r in rows) for r in rows if r.variant == v
            )
        )
        found = {(r.case.name, (r.variant, r.case.size)): r.to_baseline.median for r in rows if r.to_baseline}
        return cls(tuple(dict.fromkeys(r.case.name for r in rows)), columns, found)

    def draw(self, axes: Axes) -> None:
        """The colours with their numbers, grouped by target."""
        values = [[self.ratios.get((line, column), math.nan) for column in self.columns] for line in self.lines]
        axes.imshow(values, norm=LogNorm(1 / HOTTEST, HOTTEST), cmap="RdBu_r", aspect="auto")
        for y, line in enumerate(values):
            for x, value in enumerate(line):
                if not math.isnan(value):
                    dark = value > 12 or value < 1 / 12
                    axes.text(x, y, _figure(value), ha="center", va="center", fontsize=6.5, color="w" if dark else "k")
        sizes = [size for _, size in self.columns]
        axes.set_yticks(range(len(self.lines)), self.lines, fontsize=8)
        axes.set_xticks(range(len(sizes)), ["" if size == "whole" else size for size in sizes], fontsize=7, rotation=60)
        axes.tick_params(length=0)
        self._targets(axes)

    def _targets(self, axes: Axes) -> None:
        targets = [target for target, _ in self.columns]
        for target in dict.fromkeys(targets):
            first, last = targets.index(target), len(targets) - 1 - targets[::-1].index(target)
            name = target.replace(" + ", "\n+ ")
            axes.text((first + last) / 2, -0.7, name, ha="center", va="bottom", fontsize=8)
            if first:
                axes.axvline(first - 0.5, color="w", linewidth=3)


def _figure(ratio: float) -> str:
    """Two digits: `1.2`, `35`, `2k`."""
    return f"{ratio / 1000:.0f}k" if ratio >= 1000 else f"{ratio:.0f}" if ratio >= 9.95 else f"{ratio:.1f}"


def roofline(results: BenchmarkResults, rows: Sequence[BenchmarkRow], path: Path) -> Path:
    """How close the compiled programs are to the limits of the machine, at the largest size of each workload: those
    without matrix products by bandwidth of the bytes that must move, the others by their rate of operations."""
    copy, matmul = results.machine["copy"], results.machine["matmul"]
    variants = [v for v in dict.fromkeys(row.variant for row in rows) if "compiled" in v]
    variants = variants or [v for v in dict.fromkeys(row.variant for row in rows) if v == "fused"]
    largest = {row.case.name: row.case.size for row in rows if row.needed}  # rows are sorted by size
    chosen = [r for r in rows if r.needed and r.variant in variants and largest[r.case.name] == r.case.size]
    figure = new_figure(WIDTH, 5.0)
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.3])
    _rates_of_bytes(left, [r for r in chosen if _Point.of(r).intensity <= 1], variants, copy)
    _rates_of_operations(right, [r for r in chosen if _Point.of(r).intensity > 1], variants, matmul, copy)
    _legend(figure, [left, right])
    figure.suptitle("How near to the limits of the machine (lines, measured in the same run)", fontsize=11)
    return save_figure(figure, path, DPI)


def _style(place: int, variant: str) -> dict[str, Any]:
    return {"marker": "osD^v"[place % 5], "s": 20, "color": f"C{place}", "label": variant, "alpha": 0.8}


def _rates_of_bytes(axes: Axes, rows: Sequence[BenchmarkRow], variants: Sequence[str], copy: float) -> None:
    """One line per workload: without matrix products, only bandwidth can be the limit."""
    names = list(dict.fromkeys(row.case.name for row in rows))
    for place, variant in enumerate(variants):
        shown = [row for row in rows if row.variant == variant]
        rates = [_Point.of(row).bandwidth / 1e9 for row in shown]
        axes.scatter(rates, [names.index(row.case.name) for row in shown], **_style(place, variant))
    axes.axvline(copy / 1e9, color="0.4", linewidth=1)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set(title="no matrix products", xlabel="GB/s that had to move (line: copying a large buffer)")
    axes.set_xlim(0)
    axes.grid(True, axis="x", alpha=0.2)


def _rates_of_operations(
    axes: Axes, rows: Sequence[BenchmarkRow], variants: Sequence[str], matmul: float, copy: float
) -> None:
    """The roofline, with the names in a column next to it, in the order of the rates."""
    points = [(row, _Point.of(row)) for row in rows]
    for place, variant in enumerate(variants):
        shown = [point for row, point in points if row.variant == variant]
        axes.scatter([p.intensity for p in shown], [p.rate / 1e9 for p in shown], **_style(place, variant))
    knee = matmul / copy
    widest = max([point.intensity for _, point in points], default=knee) * 1.5
    axes.plot([knee / 5, knee, widest], [matmul / 5e9, matmul / 1e9, matmul / 1e9], color="0.4", linewidth=1)
    axes.annotate("a large matrix product", (knee, matmul / 1e9), fontsize=8, va="bottom")
    axes.set(title="with matrix products", xlabel="operations per byte that must move", ylabel="GFLOP/s")
    axes.set(xscale="log", yscale="log")
    axes.grid(True, which="both", alpha=0.2)
    fastest = {row.case.name: point for row, point in sorted(points, key=lambda each: each[1].rate)}
    for place, (name, point) in enumerate(fastest.items()):
        at = (1.03, (place + 0.5) / len(fastest))
        lead = {"arrowstyle": "-", "color": "0.6", "linewidth": 0.6, "relpos": (0, 0.5)}
        axes.annotate(
            name,
            (point.intensity, point.rate / 1e9),
            xytext=at,
            textcoords="axes fraction",
            fontsize=7,
            va="center",
            arrowprops=lead,
        )


@dataclass(frozen=True)
class _Point:
    """A row as a point: bytes that must move, operations, seconds."""

    needed: int
    operations: int
    seconds: float

    @classmethod
    def of(cls, row: BenchmarkRow) -> _Point:
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


_BARS = 7
"""How many source ops a waterfall shows; the others are one bar."""


def waterfalls(attributions: Sequence[Attribution], path: Path) -> Path:
    """A waterfall from the time of a source program to that of its lowering, by the source ops that added the most."""
    shown = list({one.case.name: one for one in attributions}.values())
    columns = min(2, len(shown))
    lines = -(-len(shown) // columns)
    figure = new_figure(WIDTH, 0.6 + 2.5 * lines)
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes, one in zip(panels, shown):
        _waterfall(axes, one)
    for axes in panels[len(shown) :]:
        axes.set_axis_off()
    variants = " / ".join(dict.fromkeys(one.variant for one in shown))
    figure.suptitle(f"Where lowering to {variants} costs time: eager, node by node (ms)", fontsize=11)
    return save_figure(figure, path, DPI)


def _waterfall(axes: Axes, one: Attribution) -> None:
    added = sorted(
        ((share.label, share.seconds - (share.source_seconds or 0)) for share in one.shares),
        key=lambda item: -abs(item[1]),
    )
    large = [item for item in added[:_BARS] if abs(item[1]) > 0.005 * one.seconds]
    steps, others = large, added[len(large) :]
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
    bars = axes.barh(range(len(names)), [1e3 * v for v in lengths], left=[1e3 * v for v in starts], color=colours)
    first, *changes, last = (1e3 * length for length in lengths)
    axes.bar_label(bars, [f"{first:.3g}", *(f"{v:+.2g}" for v in changes), f"{last:.3g}"], padding=2, fontsize=7)
    axes.set_xlim(0, 1.2e3 * max(start + max(length, 0.0) for start, length in zip(starts, lengths)))
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
