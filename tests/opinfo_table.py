"""What the verdicts come to: how many of PyTorch's operator and module tests are clean, by target, as a table and as
the files that the README quotes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
import json
from pathlib import Path

import torch

from tests.opinfo_verdict import BLOCKED, CLEAN, DECLARED, FAILED, WRONG

HERE = Path(__file__).parent
RESULTS = HERE.parent / "benchmarks" / "results"
ORDER = (CLEAN, DECLARED, BLOCKED, WRONG, FAILED)
MOST_USED = frozenset((HERE / "most_used_ops.txt").read_text().split())
"""The 125 operator tests whose ops most of about a hundred models call."""


@dataclass(frozen=True)
class Row:
    """The verdict on one entry, dtype, capture and target."""

    entry: str
    dtype: str
    capture: str
    target: str
    status: str
    why: str = ""

    @property
    def is_module(self) -> bool:
        """Whether this is one of the module tests."""
        return self.capture in ("training", "evaluated")


def worst(rows: Iterable[Row]) -> dict[str, str]:
    """The worst status of each entry."""
    found: dict[str, str] = {}
    for row in rows:
        found[row.entry] = max(found.get(row.entry, CLEAN), row.status, key=ORDER.index)
    return found


def summary(rows: list[Row]) -> list[tuple[str, str, int, dict[str, int]]]:
    """Target, kind of entries, how many there are, and how many of each status."""
    found = []
    for target in dict.fromkeys(row.target for row in rows):
        own = [row for row in rows if row.target == target]
        kinds = {
            "operators": [row for row in own if not row.is_module],
            "most used": [row for row in own if row.entry in MOST_USED],
            "modules": [row for row in own if row.is_module],
        }
        for kind, chosen in kinds.items():
            statuses = list(worst(chosen).values())
            if statuses:
                counts = {status: statuses.count(status) for status in ORDER}
                found.append((target, kind, len(statuses), counts))
    return found


def markdown(rows: list[Row]) -> str:
    """The table as Markdown: clean in every dtype and capture that was run, the rest by its worst verdict."""
    lines = ["| target | entries | clean | declared | blocked | wrong | failed |", "|---|---|---|---|---|---|---|"]
    for target, kind, total, counts in summary(rows):
        cells = " | ".join(str(counts[status]) for status in ORDER[1:])
        lines.append(f"| `{target}` | {total} {kind} | **{counts[CLEAN] / total:.1%}** ({counts[CLEAN]}) | {cells} |")
    return "\n".join(lines)


def write(rows: list[Row], command: str) -> None:
    """Keep the table, and every verdict that is not clean, beside the benchmark results."""
    head = f"Verdicts on PyTorch {torch.__version__}'s own operator and module tests, made by `{command}`.\n\n"
    (RESULTS / "rules.md").write_text(head + markdown(rows) + "\n")
    unclean = sorted((r.target, r.entry, r.dtype, r.capture, r.status, r.why) for r in rows if r.status != CLEAN)
    kept = {"command": command, "torch": torch.__version__, "cases": len(rows), "table": summary(rows), "rest": unclean}
    (RESULTS / "rules.json").write_text(json.dumps(kept, indent=0) + "\n")
