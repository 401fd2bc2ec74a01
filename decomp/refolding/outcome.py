"""The report of `refold`: the calls found and missed, as data and as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
import textwrap
from typing import Any

from decomp.tables import Table


@dataclass(frozen=True, slots=True)
class RestoredCall:
    """A call that was restored."""

    op: str
    """`aten.gelu.default`"""
    node: str
    """The name of its node in the refolded program."""
    nodes: int
    """How many nodes it replaces."""
    by: str
    """How it was found: "provenance", or the name of the search's reading."""
    error: float | None = None
    """How far its values are from those of the region, where both were run."""


@dataclass(frozen=True, slots=True)
class MissedCall:
    """A call that was not restored."""

    op: str
    node: str
    """The node that computes its value."""
    reason: str
    wanted: bool = True
    """False if it was left on purpose: its op is not wanted, or its value comes from elsewhere."""


@dataclass(frozen=True)
class RefoldReport:
    """What `refold` found and missed: `str(report)` shows tables, `as_dict()` returns the data."""

    target: str
    folded: tuple[RestoredCall, ...]
    missed: tuple[MissedCall, ...]
    before: int
    """Calls of the program before refolding."""
    after: int
    seconds: dict[str, float]
    checks: tuple[str, ...]
    """What was verified; empty with `verify=False`."""

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
        """What was verified, or that nothing was."""
        return "; ".join(self.checks) or "nothing (verify=False)"

    def tables(self) -> Iterator[Table]:
        """The tables that are not empty: folded, missed, and left on purpose."""
        if self.folded:
            yield Table(("op", ">folded", ">nodes", "by"), _folded_rows(self.folded), ROWS)
        for title, wanted in (("missed", True), ("left", False)):
            rows = _missed_rows(each for each in self.missed if each.wanted is wanted)
            if rows:
                yield Table((title, ">calls", "first", "why"), rows, ROWS)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


ROWS = 20
"""How many rows of each table are shown."""


def _lines(report: RefoldReport) -> Iterator[str]:
    yield report.headline
    for table in report.tables():
        yield ""
        yield from table.lines("  ")
    yield ""
    yield f"  time      {report.timing}"
    yield from textwrap.wrap(report.verdict, 110, initial_indent="  verified  ", subsequent_indent=" " * 12)


def _folded_rows(folded: Iterable[RestoredCall]) -> list[tuple[str, ...]]:
    calls: Counter[tuple[str, str]] = Counter()
    nodes: Counter[tuple[str, str]] = Counter()
    for each in folded:
        calls[each.op, each.by] += 1
        nodes[each.op, each.by] += each.nodes
    return [(op, str(count), str(nodes[op, by]), by) for (op, by), count in calls.most_common()]


def _missed_rows(missed: Iterable[MissedCall]) -> list[tuple[str, ...]]:
    groups: dict[tuple[str, str], list[MissedCall]] = {}
    for each in missed:
        groups.setdefault((each.op, each.reason), []).append(each)
    return [(op, str(len(nodes)), nodes[0].node, reason) for (op, reason), nodes in groups.items()]
