"""The numeric half of a score: how many primitives, ops and models a backend computes right, by its bring-up, and which
primitive is to blame for the others."""

from __future__ import annotations

from collections.abc import Sequence

from decomp.tools.bringup.report import BringUp, count_verdicts
from decomp.tools.bringup.rows import UNTRIED, BringUpRow
from decomp.tools.scoring.records import Figure, Lack, ScoreHalf, ordered

UNITS = {
    "primitive": "primitives of the backend",
    "op": "ops of the library, lowered to them",
    "model": "sample models, lowered to them",
}
"""By kind of row: what a figure counts."""
NOT_LOWERED = "they do not reach the target, which the structural half counts, or have no sample call"


def numeric(report: BringUp) -> ScoreHalf:
    """The numeric half, from a bring-up."""
    figures = tuple(_of_kind(report, kind) for kind in UNITS)
    return ScoreHalf(figures, count_verdicts(report.rows))


def _of_kind(report: BringUp, kind: str) -> Figure:
    rows = report.of(kind)
    tried = [row for row in rows if row.verdict not in UNTRIED]
    wrong = [row for row in tried if not row.fine]
    lacks = _primitives(wrong, report.rows) if kind == "primitive" else _blamed(wrong)
    untried = tuple(row.name for row in rows if row.verdict in UNTRIED)
    right = len(tried) - len(wrong)
    return Figure(f"{kind}s", UNITS[kind], right, len(tried), ordered(lacks), untried, NOT_LOWERED if untried else "")


def _primitives(wrong: Sequence[BringUpRow], rows: Sequence[BringUpRow]) -> list[Lack]:
    """Each wrong primitive, for the ops and models that are wrong because of it."""
    waiting: dict[str, list[str]] = {}
    for row in rows:
        if row.verdict == "blames":
            waiting.setdefault(row.blames, []).append(row.name)
    short = {row.name: row.name.removeprefix("aten.") for row in wrong}
    return [Lack((short[row.name],), 1, tuple(waiting.get(short[row.name], ())), row.verdict) for row in wrong]


def _blamed(wrong: Sequence[BringUpRow]) -> list[Lack]:
    """The wrong ops or models by the primitive at fault; those without one by what happens."""
    groups: dict[tuple[str, str], list[str]] = {}
    for row in wrong:
        groups.setdefault((row.blames, "" if row.blames else row.verdict), []).append(row.name)
    return [
        Lack((blamed,) if blamed else (), len(names), tuple(names), verdict)
        for (blamed, verdict), names in groups.items()
    ]
