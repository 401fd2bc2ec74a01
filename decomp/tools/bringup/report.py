"""The report of a bring-up, as data and as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
import json
from pathlib import Path
import re
from typing import Any

from decomp.errors import ArgumentError, boundary
from decomp.files import naming_file, path_of_user, place_of_user, write_atomically
from decomp.records import one_row_a_line
from decomp.tables import Table, folded, paragraph, titled
from decomp.tools.bringup.rows import FINE, UNTRIED, BringUpRow, Problem

KINDS = ("primitive", "op", "model")
MOST = 8
"""How many reasons for ops that are not lowered a report lists."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """A row that differs from an earlier report."""

    kind: str
    name: str
    before: str
    after: str
    better: bool | None
    """None if it is neither better nor worse."""

    def __str__(self) -> str:
        word = {True: "better", False: "worse", None: "changed"}[self.better]
        return f"{word}: {self.kind} {self.name}: {self.before}, now {self.after}"


@dataclass(frozen=True)
class BringUp:
    """The results of a backend on its primitives, the library's ops, and models. `str(report)` is a text."""

    backend: str
    target: str
    rows: tuple[BringUpRow, ...]
    quick: bool = False
    seconds: float = 0.0
    torch: str = ""

    @property
    def ok(self) -> bool:
        """Whether something was computed, and nothing is wrong."""
        return self.reached and all(row.fine for row in self.rows)

    @property
    def reached(self) -> bool:
        """Whether anything was computed: False if no op and no model can be lowered."""
        return any(row.verdict not in UNTRIED for row in self.rows)

    def of(self, kind: str) -> tuple[BringUpRow, ...]:
        """The rows of one kind: "primitive", "op" or "model"."""
        return tuple(row for row in self.rows if row.kind == kind)

    def row(self, kind: str, name: str) -> BringUpRow:
        """One row. Raises `LookupError`."""
        for row in self.of(kind):
            if name in (row.name, row.name.removeprefix("aten.")):
                return row
        raise LookupError(f"no {kind} {name}")

    @property
    def culprits(self) -> dict[str, int]:
        """The primitives at fault, with the number of ops and models that are wrong because of each; the worst
        first."""
        own = {_short(row.name): 0 for row in self.of("primitive") if not row.fine}
        blamed = Counter(row.blames for row in self.rows if row.verdict == "blames")
        found = own | blamed
        return dict(sorted(found.items(), key=lambda pair: (-pair[1], pair[0])))

    @property
    def by_design(self) -> dict[str, list[str]]:
        """The observed differences by design: primitives by declared reason."""
        found: dict[str, list[str]] = {}
        for row in self.of("primitive"):
            for reason in row.by_design:
                found.setdefault(reason, []).append(_short(row.name))
        return found

    @property
    def headline(self) -> str:
        """A summary in one line."""
        parts = []
        for kind in KINDS:
            rows = [row for row in self.of(kind) if row.verdict not in UNTRIED]
            if rows:
                right, but = sum(row.fine for row in rows), sum(row.verdict == "by design" for row in rows)
                stated = f" ({but} but for what is by design)" if but else ""
                parts.append(f"{right} of {len(rows)} {kind}s right{stated}")
        left = [sum(row.verdict == "not lowered" for row in self.of(kind)) for kind in KINDS]
        said = [f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in zip(KINDS, left) if count]
        rest = [f"{' and '.join(said)} not reached by what {self.target} has"] if said else []
        return f"{self.backend}: {'; '.join([', '.join(parts) or 'nothing was computed', *rest])}"

    def _not_reached(self) -> Iterator[str]:
        """Why ops and models are not lowered, the most frequent reason first."""
        waiting: dict[str, list[str]] = {}
        models = {row.name for row in self.of("model")}
        for row in sorted(self.rows, key=lambda row: row.kind != "model"):
            if row.verdict == "not lowered":
                for note in row.notes:
                    waiting.setdefault(note, []).append(_short(row.name))
        order = sorted(waiting.items(), key=lambda pair: (pair[1][0] not in models, -len(pair[1])))
        for note, names in order[:MOST]:
            shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
            yield f"not lowered: {shown}: {note}"

    def compare(self, old: BringUp) -> list[RowChange]:
        """The rows that differ from `old`, regressions first."""
        before = {(row.kind, row.name): row for row in old.rows}
        changes = [
            change
            for row in self.rows
            if (row.kind, row.name) in before and (change := _change(before[row.kind, row.name], row)) is not None
        ]
        return sorted(changes, key=lambda change: (change.better is not False, change.better is None, change.name))

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        head = {"backend": self.backend, "target": self.target, "quick": self.quick, "torch": self.torch}
        head |= {"seconds": self.seconds, "ok": self.ok, "headline": self.headline}
        return {**head, "culprits": self.culprits, "rows": [row.to_json() for row in self.rows]}

    @boundary("BringUp.save")
    def save(self, path: str | Path) -> Path:
        """Write it to a file: HTML for `.html`, otherwise JSON. Returns the path. Raises `ArgumentError` if the file
        cannot be written."""
        from decomp.tools.bringup.page import page_of

        path = place_of_user(path, "save", "report.html")
        text = page_of(self) if path.suffix == ".html" else one_row_a_line(self.as_dict())
        with naming_file(path, "save: cannot write"), write_atomically(path) as unfinished:
            unfinished.write_text(text, encoding="utf-8")
        return path

    @classmethod
    @boundary("BringUp.load")
    def load(cls, path: str | Path) -> BringUp:
        """Read a report that was saved as JSON. Raises `ArgumentError` if it cannot be read, or is malformed."""
        path = path_of_user(path, "load")
        with naming_file(path, "cannot read"):
            text = path.read_text(encoding="utf-8")
        try:
            return cls.from_dict(json.loads(text))
        except (ValueError, KeyError, TypeError) as error:
            raise ArgumentError(f"{path} is not a bring-up report: save one with report.save(path)") from error

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> BringUp:
        """The report from the result of `as_dict`."""
        rows = tuple(map(BringUpRow.from_json, data["rows"]))
        return cls(data["backend"], data["target"], rows, data["quick"], data["seconds"], data["torch"])

    def __str__(self) -> str:
        return "\n".join([self.headline, *self.lines()])

    def __repr__(self) -> str:
        return f"<{self.headline}; print(report) shows what is wrong>"

    def _repr_html_(self) -> str:
        lines = folded("what is wrong, in words", *map(paragraph, self.lines())) if not self.ok else ""
        return titled(self.headline, self.primitives.html(), self.others.html(), lines)

    @property
    def primitives(self) -> Table:
        """The primitives by gravity."""
        rows = sorted(self.of("primitive"), key=lambda row: row.gravity)
        blamed = self.culprits
        cells = [
            (name, verdict_of(row), row.cases, blamed.get(name, 0) or "", _errors(row))
            for name, row in ((_short(row.name), row) for row in rows)
        ]
        return Table(("primitive", "verdict", ">cases", ">blamed", "ULP / PyTorch"), cells)

    @property
    def others(self) -> Table:
        """The ops and models that are not right, by gravity."""
        wrong = sorted(
            (row for row in (*self.of("model"), *self.of("op")) if not row.fine), key=lambda row: row.gravity[0]
        )
        rows = [(_short(row.name), verdict_of(row), row.cases) for row in wrong]
        return Table(("op or model", "verdict", ">cases"), rows, 30)

    def lines(self) -> Iterator[str]:
        """All faults, by primitive, and then those without a primitive at fault."""
        culprits = self.culprits
        missing = [_short(row.name) for row in self.of("primitive") if row.verdict == "missing"]
        unblamed = [name for name in missing if not culprits.get(name)]
        if unblamed:
            yield f"no function implements {', '.join(unblamed)}"
        for row in self.of("primitive"):
            if not row.fine and _short(row.name) not in unblamed:
                count = culprits.get(_short(row.name), 0)
                because = f"; to blame in {counted_as(count)}" if count else ""
                yield f"{_short(row.name)}: {verdict_of(row)}{because}"
                yield from (f"  {line}" for problem in _different(row)[:2] for line in str(problem).splitlines())
        own = {_short(row.name) for row in self.of("primitive") if not row.fine}
        for name, count in culprits.items():
            if name not in own:
                first = next(row for row in self.rows if row.blames == name and row.verdict == "blames")
                tried = any(_short(row.name) == name for row in self.of("primitive"))
                yield f"{name}: wrong in {counted_as(count)}{', though right on its own samples' if tried else ''}"
                yield from (f"  {line}" for line in str(first.problems[0]).splitlines())
        for row in self.rows:
            if row.kind != "primitive" and not row.fine and row.verdict != "blames":
                found = row.problems[:1] and row.problems[0].where != "in PyTorch"
                yield f"{row.kind} {_short(row.name)}: {verdict_of(row)}" + (
                    ", though the primitives that it uses are right" if found else " before the backend is asked"
                )
                yield from (f"  {line}" for problem in row.problems[:1] for line in str(problem).splitlines())
        yield from self._not_reached()
        for reason, names in self.by_design.items():
            yield f"by design: {', '.join(names)}: {reason}"


def _errors(row: BringUpRow) -> str:
    """`float32 0.6/0.6`: the largest error in ULP by dtype, beside PyTorch's own."""
    own = {dtype: "-" if own is None else f"{own:.2g}" for dtype, (_, own) in row.ulp.items()}
    return ", ".join(
        f"{dtype} {ulp:.2g}/{own[dtype]}" for dtype, (ulp, _) in row.ulp.items() if ulp or row.ulp[dtype][1]
    )


def _different(row: BringUpRow) -> list[Problem]:
    """The problems of a row without repetitions: only the first of the same error on other values."""
    found: dict[tuple[str, str], Problem] = {}
    for each in row.problems:
        found.setdefault((re.sub(r"\d[\d.e+]*", "0", each.problem), each.call), each)
    return list(found.values())


def counted_as(count: int) -> str:
    """A number of ops and models as text."""
    return "1 op or model" if count == 1 else f"{count} ops and models"


def verdict_of(row: BringUpRow) -> str:
    """The verdict of a row as text, with the number of cases."""
    if row.verdict == "missing":
        return "no function implements it"
    if row.verdict == "blames":
        return f"wrong because of {row.blames}"
    if row.verdict in ("wrong", "fails", "refused") and row.cases:
        return f"{row.verdict} in {row.wrong_cases} of {row.cases} cases"
    return row.verdict


def _change(before: BringUpRow, after: BringUpRow) -> RowChange | None:
    if before.verdict != after.verdict or before.blames != after.blames:
        better = after.fine if before.fine != after.fine else None
        return RowChange(after.kind, _short(after.name), verdict_of(before), verdict_of(after), better)
    for dtype, (ulp, _) in after.ulp.items():
        was = before.ulp.get(dtype, (ulp, None))[0]
        if ulp > max(2 * was, was + 0.5) or was > max(2 * ulp, ulp + 0.5):
            words = (f"{was:.3g} ULP in {dtype}", f"{ulp:.3g}")
            return RowChange(after.kind, _short(after.name), *words, ulp < was)
    if before.wrong_cases != after.wrong_cases:
        words = verdict_of(before), verdict_of(after)
        return RowChange(after.kind, _short(after.name), *words, after.wrong_cases < before.wrong_cases)
    return None


def _short(name: str) -> str:
    return name.removeprefix("aten.")


def count_verdicts(rows: Iterable[BringUpRow]) -> dict[str, int]:
    """How many rows have each verdict, good ones last."""
    found = Counter(row.verdict for row in rows)
    return dict(sorted(found.items(), key=lambda pair: (pair[0] in FINE, -pair[1])))
