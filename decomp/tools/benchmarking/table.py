"""Results as Markdown: the geometric means by variant and size, then one row per case and variant."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
import math

from decomp.tables import Table
from decomp.tools.benchmarking.records import Attribution, BenchmarkResults, BenchmarkRow, Spread
from decomp.tools.benchmarking.workload import PLAIN

SIZES = ("small", "cached", "medium", "large", "huge", "whole")
PAGES = {
    "kept": "what they allocate comes from memory that was used before and is kept.",
    "fresh": "but the C library gives large tensors back and maps them again, so that large buffers cost page faults.",
}
COLUMNS = (
    "variant",
    "time",
    "× fused",
    "× compiled",
    "peak memory",
    "kernels",
    "must move",
    "moves",
    "of limit",
    "ULP max (mean)",
)


def document(results: BenchmarkResults) -> str:
    """The whole document."""
    lines = ["# Primitive against fused", "", *heading(results), "", "## In short", "", *summary(results), ""]
    for case in results.cases():
        lines += [f"## {case}", "", *table(results.of(case)), ""]
    if results.attributions:
        lines += ["## Where the time of a lowered model goes", ""]
        for one in results.attributions:
            lines += [*shares(one), ""]
    return "\n".join(lines).rstrip() + "\n"


def heading(results: BenchmarkResults) -> Iterator[str]:
    """The heading: what was measured, and on which machine."""
    m = results.machine
    yield (
        f"`{results.command}`, seed {results.seed}, torch {m['torch']}, {m['device']}: {m['processor']}, "
        f"{m['threads']} of {m['cores']} cores, {m['vectors']}."
    )
    yield ""
    copy, matmul = m["copy"] / 1e9, m["matmul"] / 1e9
    yield f"Limits measured in this run: copying {copy:.1f} GB/s (read and written), products {matmul:.1f} GFLOP/s."
    yield "Medians; the variants of a case take turns in one run, in a new order each round, warm;"
    yield PAGES[m.get("pages", "fresh")]
    yield "`products` keeps matrix products, convolutions and embeddings."


def summary(results: BenchmarkResults) -> Iterator[str]:
    """Geometric means of the ratios over all cases of a size."""
    yield from _means(results, "time over fused eager", lambda row: row.to_baseline)
    compiled = [row for row in results.rows if "compiled" in row.variant or row.variant.startswith("on ")]
    if compiled:
        yield ""
        yield from _means(results, "time over compiled fused", lambda row: row.to_compiled, compiled)
    if any(row.variant.endswith(PLAIN) for row in results.rows):
        yield ""
        yield from _simplified(results)


def _simplified(results: BenchmarkResults) -> Iterator[str]:
    """Geometric means of the time with simplification over that without, for all cases of a size."""
    plain = {(row.case, row.variant.removesuffix(PLAIN)): row for row in results.rows if row.variant.endswith(PLAIN)}

    def left(row: BenchmarkRow) -> Spread | None:
        other = plain.get((row.case, row.variant))
        if other is None or row.seconds is None or other.seconds is None:
            return None
        ratio = row.seconds.median / other.seconds.median
        return Spread(ratio, ratio, ratio, 1)

    names = {variant for _, variant in plain}
    yield from _means(results, "simplified: time over not", left, [r for r in results.rows if r.variant in names])


def _means(
    results: BenchmarkResults,
    title: str,
    ratio: Callable[[BenchmarkRow], Spread | None],
    rows: Sequence[BenchmarkRow] = (),
) -> Iterator[str]:
    rows = rows or results.rows
    modes = list(dict.fromkeys((row.case.size, row.case.mode) for row in results.rows))
    columns = [(size, mode) for size in SIZES for s, mode in modes if s == size]
    lines = []
    for variant in dict.fromkeys(row.variant for row in rows):
        cells = []
        for column in columns:
            found = [ratio(row) for row in rows if row.variant == variant and (row.case.size, row.case.mode) == column]
            cells.append(_mean([one.median for one in found if one is not None]))
        lines.append((variant, *cells))
    yield from Table((title, *(f">{_column(*each)}" for each in columns)), lines).markdown()


def _column(size: str, mode: str) -> str:
    return {"whole": "models"}.get(size, size) + (", with backward" if "backward" in mode else "")


def _mean(values: Sequence[float]) -> str:
    return f"{geometric_mean(values):.2f} ({len(values)})" if values else ""


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean of positive numbers, at least one."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def table(rows: Sequence[BenchmarkRow]) -> Iterator[str]:
    """One line per variant; with a column "simplified", the time over that without simplification, if there is one."""
    plain = {row.variant.removesuffix(PLAIN): row for row in rows if row.variant.endswith(PLAIN)}
    first, *others = (*COLUMNS, "simplified") if plain else COLUMNS
    saved = [[_saved(row, plain.get(row.variant))] if plain else [] for row in rows]
    lines = [(row.variant, *cells(row), *more) for row, more in zip(rows, saved)]
    yield from Table((first, *(f">{each}" for each in others)), lines).markdown()


def _saved(row: BenchmarkRow, plain: BenchmarkRow | None) -> str:
    """Time and calls relative to the same variant without simplification."""
    if plain is None or row.seconds is None or plain.seconds is None:
        return ""
    calls = f" ({row.nodes:,} of {plain.nodes:,} calls)" if row.nodes is not None and plain.nodes is not None else ""
    return f"{row.seconds.median / plain.seconds.median:.2f}{calls}"


def cells(row: BenchmarkRow) -> list[str]:
    """A row's figures as text, in the order of `COLUMNS` without the first."""
    if row.error is not None:
        return [f"failed: {row.error}", *[""] * (len(COLUMNS) - 2)]
    return [
        _time(row.seconds),
        _ratio(row.to_baseline),
        _ratio(row.to_compiled),
        size_of(row.memory),
        _whole(row.kernels),
        size_of(row.needed),
        size_of(row.moved),
        f"{row.of_limit:.0%}" if row.of_limit is not None else "",
        _error(row),
    ]


def _error(row: BenchmarkRow) -> str:
    if row.ulp is None:
        return "?"
    return "special values differ" if row.ulp >= 1e300 else f"{row.ulp:.3g} ({row.mean_ulp:.2g})"


def _time(spread: Spread | None) -> str:
    if spread is None:
        return ""
    unit, factor = next((u, f) for u, f in (("s", 1), ("ms", 1e3), ("µs", 1e6)) if spread.median * f >= 1 or u == "µs")
    return f"{spread.median * factor:.3g} {unit} ± {(spread.high - spread.low) / 2 / spread.median:.0%}"


def _ratio(spread: Spread | None) -> str:
    return f"{spread.median:.2f}" if spread is not None else ""


def _whole(count: int | None) -> str:
    return f"{count:,}" if count is not None else "?"


def size_of(count: int | None) -> str:
    """Bytes as text."""
    if count is None:
        return "?"
    unit, factor = next((u, f) for u, f in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1)) if count >= f or u == "B")
    return f"{count / factor:.3g} {unit}"


def shares(one: Attribution, most: int = 10) -> Iterator[str]:
    """The costliest source ops of a lowered model, and the rest in one line."""
    yield f"{one.case}, {one.variant}: {one.seconds * 1e3:.3g} ms node by node, fused {one.source_seconds * 1e3:.3g} ms"
    yield ""
    rows = []
    for share in one.shares[:most]:
        factor = f"{share.seconds / share.source_seconds:.1f}" if share.source_seconds else ""
        rows.append((share.label, f"{share.seconds / one.seconds:.0%}", factor, share.calls, share.nodes))
    rest = one.shares[most:]
    if rest:
        share_of = sum(share.seconds for share in rest) / one.seconds
        counts = sum(s.calls for s in rest), sum(s.nodes for s in rest)
        rows.append((f"{len(rest)} others", f"{share_of:.0%}", "", *counts))
    yield from Table(("source op", ">of the time", ">× fused", ">calls", ">nodes"), rows).markdown()
