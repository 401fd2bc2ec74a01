"""What folding found and what it did not, call by call; as data, and as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
import textwrap
from typing import Any


@dataclass(frozen=True, slots=True)
class Folded:
    """A call that stands again."""

    op: str
    """`aten.gelu.default`"""
    node: str
    """Its name in the program that came out."""
    nodes: int
    """How many nodes computed it."""
    by: str
    """How it was known: "provenance", or the spelling that it was found in."""
    error: float | None = None
    """Of the values that it gives, in ULP of those of the region, where both were run."""


@dataclass(frozen=True, slots=True)
class Missed:
    """A call that does not stand again."""

    op: str
    node: str
    """The node that gives its value."""
    reason: str
    wanted: bool = True
    """False where it is to stay as it is: an op that is not asked for, or a value that comes from elsewhere."""


@dataclass(frozen=True)
class RefoldReport:
    """`str(report)` is a table, `as_dict()` the data of it."""

    target: str
    folded: tuple[Folded, ...]
    missed: tuple[Missed, ...]
    before: int
    """Calls of the program that came in."""
    after: int
    seconds: dict[str, float]
    checks: tuple[str, ...]
    """What verification checked; empty with `verify=False`."""

    def as_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        return asdict(self)

    @property
    def headline(self) -> str:
        """`refolded to core_aten: 475 calls became 36; 24 folded, 2 missed`."""
        missed = [each for each in self.missed if each.wanted]
        found = f"{len(self.folded)} folded, {len(missed)} missed"
        return f"refolded to {self.target}: {self.before} calls became {self.after}; {found}"

    @property
    def timing(self) -> str:
        """`31 ms: find 20, fold 4, rebuild 5, verify 2`."""
        stages = ", ".join(f"{stage} {1000 * seconds:.0f}" for stage, seconds in self.seconds.items())
        return f"{1000 * sum(self.seconds.values()):.0f} ms: {stages}"

    @property
    def verdict(self) -> str:
        """Everything that was checked, or that nothing was."""
        return "; ".join(self.checks) or "nothing (verify=False)"

    def tables(self) -> Iterator[tuple[tuple[str, ...], list[tuple[str, ...]]]]:
        """What was folded, what was missed, and what is to stay: titles and rows, where there are any."""
        if self.folded:
            yield ("op", "folded", "nodes", "by"), _folded_rows(self.folded)
        for title, wanted in (("missed", True), ("left", False)):
            rows = _missed_rows(each for each in self.missed if each.wanted is wanted)
            if rows:
                yield (title, "calls", "first", "why"), rows

    def __str__(self) -> str:
        return "\n".join(_lines(self))


ROWS = 20
"""How many lines of each table are shown."""


def _lines(report: RefoldReport) -> Iterator[str]:
    yield report.headline
    for titles, rows in report.tables():
        yield ""
        yield from _table(titles, rows)
    yield ""
    yield f"  time      {report.timing}"
    yield from textwrap.wrap(report.verdict, 110, initial_indent="  verified  ", subsequent_indent=" " * 12)


def _folded_rows(folded: Iterable[Folded]) -> list[tuple[str, ...]]:
    calls: Counter[tuple[str, str]] = Counter()
    nodes: Counter[tuple[str, str]] = Counter()
    for each in folded:
        calls[each.op, each.by] += 1
        nodes[each.op, each.by] += each.nodes
    return [(op, str(count), str(nodes[op, by]), by) for (op, by), count in calls.most_common()]


def _missed_rows(missed: Iterable[Missed]) -> list[tuple[str, ...]]:
    groups: dict[tuple[str, str], list[Missed]] = {}
    for each in missed:
        groups.setdefault((each.op, each.reason), []).append(each)
    return [(op, str(len(nodes)), nodes[0].node, reason) for (op, reason), nodes in groups.items()]


def _table(titles: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    """A title and rows, aligned; numbers to the right."""
    shown = rows[:ROWS]
    widths = [max(len(row[i]) for row in (titles, *shown)) for i in range(len(titles))]
    for row in (titles, *shown):
        cells = [c.rjust(w) if rows[0][i].isdigit() else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths))]
        yield ("  " + "  ".join(cells)).rstrip()
    if len(rows) > ROWS:
        yield f"  and {len(rows) - ROWS} more"
