"""Compares two runs: which figures changed beyond noise.

Absolute times of two runs differ from day to day; ratios within rounds do not. So variants are compared by their ratio
to the first one, and only the first by its time. A figure has changed if the quartiles of the two do not overlap, and
the medians differ by more than a tolerance. Counts (kernels, bytes, memory) and errors have no noise and are compared
exactly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from decomp.tools.benchmarking.records import BenchmarkCase, BenchmarkResults, BenchmarkRow, Spread

TOLERANCE = 0.05
"""The relative difference of the medians below which nothing is reported."""
COUNTS = ("memory", "kernels", "moved")


@dataclass(frozen=True, slots=True)
class SpeedChange:
    """A change in one row."""

    case: BenchmarkCase
    variant: str
    what: str
    """"seconds", "time to <baseline>", a count, "ulp", or "error"."""
    before: str
    after: str
    factor: float | None
    """The ratio of after to before; None if one of them is not a number."""

    @property
    def worse(self) -> bool:
        """Whether it is a regression. For all figures, lower is better."""
        return self.factor is None and bool(self.after) or self.factor is not None and self.factor > 1

    def __str__(self) -> str:
        factor = f" ({self.factor:.2f} ×)" if self.factor is not None else ""
        return f"{self.case}, {self.variant}: {self.what} {self.before or 'none'} -> {self.after or 'none'}{factor}"


def compare_results(before: BenchmarkResults, after: BenchmarkResults) -> list[SpeedChange]:
    """The changes between two runs, the worst first. Rows in only one of them are ignored."""
    rows = {(row.case, row.variant): row for row in before.rows}
    pairs = [(rows[row.case, row.variant], row) for row in after.rows if (row.case, row.variant) in rows]
    found = [change for earlier, later in pairs for change in _changes(earlier, later, before)]
    return sorted(found, key=lambda change: -(change.factor or float("inf")))


def in_both(before: BenchmarkResults, after: BenchmarkResults) -> int:
    """The number of rows in both."""
    return len({(row.case, row.variant) for row in before.rows} & {(row.case, row.variant) for row in after.rows})


def _changes(before: BenchmarkRow, after: BenchmarkRow, results: BenchmarkResults) -> Iterator[SpeedChange]:
    if before.error or after.error:
        if before.error != after.error:
            yield SpeedChange(after.case, after.variant, "error", before.error or "", after.error or "", None)
        return
    baseline = results.of(before.case)[0].variant
    if before.variant == baseline:
        yield from _moved(after, "seconds", before.seconds, after.seconds)
    else:
        what = f"time to {baseline}"
        yield from _moved(after, what, before.to_baseline, after.to_baseline)
    for name in COUNTS:
        yield from _counted(after, name, getattr(before, name), getattr(after, name))
    yield from _counted(after, "ulp", before.ulp, after.ulp)


def _moved(after: BenchmarkRow, what: str, old: Spread | None, new: Spread | None) -> Iterator[SpeedChange]:
    if old is None or new is None:
        return
    apart = new.low > old.high or new.high < old.low
    factor = new.median / old.median
    if apart and abs(factor - 1) > TOLERANCE:
        yield SpeedChange(after.case, after.variant, what, f"{old.median:.3g}", f"{new.median:.3g}", factor)


def _counted(after: BenchmarkRow, what: str, old: float | None, new: float | None) -> Iterator[SpeedChange]:
    if old is None or new is None or old == new:
        return
    factor = new / old if old else None
    if factor is None or abs(factor - 1) > TOLERANCE:
        yield SpeedChange(after.case, after.variant, what, f"{old:,.6g}", f"{new:,.6g}", factor)
