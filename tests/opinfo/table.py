"""The verdicts in total: how many of PyTorch's operator and module tests are clean, by target, as a table and as
the files that the README quotes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
import json
from pathlib import Path

import torch

from decomp.records import one_row_a_line
from tests.opinfo.verdict import BLOCKED, CLEAN, DECLARED, FAILED, WRONG

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "benchmarks" / "results"
ORDER = (CLEAN, DECLARED, BLOCKED, WRONG, FAILED)
MOST_USED = frozenset((HERE / "most_used_ops.txt").read_text().split())
"""The 125 operator tests whose ops most of about a hundred models call."""
DEAR = (
    "linalg.",
    "special.",
    "svd",
    "pca_",
    "eig",
    "cholesky",
    "lu",
    "pinverse",
    "geqrf",
    "ormqr",
    "igamma",
    "mvlgamma",
    "polygamma",
    "matrix_exp",
    "masked.",
    "grid_sampler",
    "nn.functional.ctc_loss",
    "nn.functional.grid_sample",
    "norm.nuc",
    "fft.",
    "stft",
    "istft",
)
"""Entries whose cases take seconds each, of ops that models hardly call."""


def one_in(case: str) -> int:
    """Of how many such cases one is drawn, where not all are: few of what is costly or hardly called."""
    if case.startswith(DEAR) or "-complex" in case:
        return 40
    if case.startswith(tuple(f"{entry}-" for entry in MOST_USED)):
        return 3
    if case.startswith("nn."):
        return 8 if case.startswith("nn.functional.") else 5
    return 15


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


Line = tuple[str, int, dict[str, int]]
"""Kind of entries, how many there are, and how many of each status."""


def summary(rows: Iterable[Row]) -> list[Line]:
    """A line for each kind of entries, of the verdicts for one target."""
    own = list(rows)
    kinds = {
        "operators": [row for row in own if not row.is_module],
        "most used": [row for row in own if row.entry in MOST_USED],
        "modules": [row for row in own if row.is_module],
    }
    found = []
    for kind, chosen in kinds.items():
        statuses = list(worst(chosen).values())
        if statuses:
            found.append((kind, len(statuses), {status: statuses.count(status) for status in ORDER}))
    return found


def summaries(rows: list[Row]) -> dict[str, list[Line]]:
    """The lines of each target."""
    return {name: summary(row for row in rows if row.target == name) for name in dict.fromkeys(r.target for r in rows)}


def markdown(table: Mapping[str, Iterable[Line]]) -> str:
    """The table as Markdown: clean in every dtype and capture that was run, the rest by its worst verdict."""
    lines = ["| target | entries | clean | declared | blocked | wrong | failed |", "|---|---|---|---|---|---|---|"]
    for target, kinds in table.items():
        for kind, total, counts in kinds:
            cells = " | ".join(str(counts[status]) for status in ORDER[1:])
            clean = counts[CLEAN]
            lines.append(f"| `{target}` | {total} {kind} | **{clean / total:.1%}** ({clean}) | {cells} |")
    return "\n".join(lines)


def write(rows: list[Row], command: str, into: Path = RESULTS) -> None:
    """Keep the lines of each target that was run, and its verdicts that are not clean, beside the benchmark results;
    what is there of other targets stays."""
    file = into / "rules.json"
    runs = json.loads(file.read_text()) if file.exists() else {}
    for target, lines in summaries(rows).items():
        own = [row for row in rows if row.target == target]
        rest = sorted((row.entry, row.dtype, row.capture, row.status, row.why) for row in own if row.status != CLEAN)
        runs[target] = {"command": command, "torch": torch.__version__, "cases": len(own), "table": lines, "rest": rest}
    file.write_text(one_row_a_line(runs))
    made: dict[tuple[str, str], list[str]] = {}
    for target, run in runs.items():
        made.setdefault((run["torch"], run["command"]), []).append(target)
    said = "; ".join(f"{', '.join(names)}: PyTorch {torch_}, `{made_by}`" for (torch_, made_by), names in made.items())
    head = f"Verdicts on PyTorch's own operator and module tests. {said}.\n\n"
    (into / "rules.md").write_text(head + markdown({target: run["table"] for target, run in runs.items()}) + "\n")
