"""The result of a comparison: a row for each call of the program, and what is wrong with the whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
import math
from typing import Any

from decomp.errors import count_noun
from decomp.tables import Table, titled

GRAVITY = ("fails", "wrong", "noted", "by design", "right", "not judged")
"""Verdicts on a call, the worst first. "noted": only subnormal numbers or signs of zeros differ."""
WRONG = GRAVITY[:2]
VERDICTS = {
    "wrong": "a call is wrong on its own operands",
    "compiled": "each call is right where its result is read, and the program is wrong where none is",
    "drift": "each call is right on its own operands, and the results are wrong: errors add up",
    "lowering": "the backend does what the program says, and the program is not the model",
    "not compared": "nothing was compared",
    "right": "all calls and results are right",
}
"""Verdicts on a program, the worst first."""
MOST = 4
"""How many calls a text lists."""
ROWS = 12
"""How many rows the table has, or up to three times as many wrong calls."""


@dataclass(frozen=True, slots=True)
class ComparedCall:
    """One call of a program, as the backend made it, on its own operands."""

    node: str
    primitive: str
    """The op that the backend computed."""
    op: str
    """The op of the source program that it comes from."""
    module: str
    """The module of the model that makes the call; empty if unknown."""
    source: str
    """The line of the model; empty if the capture did not record it."""
    call: str
    """The call, with the dtypes and shapes of its operands."""
    verdict: str
    """One of `GRAVITY`."""
    problem: str = ""
    at: str = ""
    expected: str = ""
    got: str = ""
    ulp: float | None = None
    """The largest error in ULP, infinite for a NaN or another shape; None for results that are no floats."""
    own: float | None = None
    """The error of PyTorch's own kernel on the same operands; None if that is the reference."""
    pcc: float | None = None
    """Pearson's correlation with PyTorch's result on the same operands."""
    cosine: float | None = None
    """The cosine similarity with it."""
    so_far: float | None = None
    """Pearson's correlation with the value in a run of the whole program in PyTorch: all errors up to here count."""
    alone: str = ""
    """Of a wrong call: "wrong" or "right" where the backend makes only this call, on the same operands. "right" points
    to what ran before: a buffer that is used twice, memory that is not initialised."""
    notes: tuple[str, ...] = ()
    file: str = ""
    """The script that makes this call again, on the saved operands."""

    @property
    def is_wrong(self) -> bool:
        """Whether the backend is at fault."""
        return self.verdict in WRONG

    def lines(self) -> Iterator[str]:
        """The call as text of several lines."""
        values = f": {self.got} instead of {self.expected} at {self.at}" if self.at else ""
        place = f" in {self.module}" if self.module else ""
        yield f"{self.node} = {self.call}"
        if self.source:
            yield f"  {self.source}"
        yield f"  of {self.op}{place}"
        said = self.problem or ", ".join(self.notes)
        if said:
            yield f"  {said}{values}"
        elif self.ulp is not None:
            beside = f", PyTorch's own by {self.own:.3g}" if self.own is not None else ""
            yield f"  off by {self.ulp:.3g} ULP{beside}"
        if self.pcc is not None and self.cosine is not None:
            yield f"  PCC {number(self.pcc)}, cosine {number(self.cosine)}"
        if self.alone == "right":
            yield "  right when it is the only call: what ran before matters (a shared buffer, uninitialised memory)"
        if self.file:
            yield f"  again: python {self.file}"


@dataclass(frozen=True)
class Comparison:
    """How a program on a backend compares with PyTorch. `str(comparison)` is a text."""

    backend: str
    verdict: str
    """One of `VERDICTS`."""
    calls: tuple[ComparedCall, ...]
    """The calls that were compared, in the order of the program."""
    problem: str = ""
    """What is wrong with the results of the program."""
    pcc: float | None = None
    """Pearson's correlation of the results with those of PyTorch."""
    cosine: float | None = None
    ulp: float | None = None
    """The largest error of the results in ULP of the largest element."""
    piece: tuple[str, ...] = ()
    """The nodes of the shortest piece of the program that is wrong on its own operands, found by bisection."""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether something was compared, and nothing is wrong."""
        return self.verdict == "right"

    @property
    def first(self) -> ComparedCall | None:
        """The first call at fault, in the order of the program. If none is wrong and the results are, the first whose
        result differs in subnormal numbers or in signs of zeros."""
        if self.verdict != "wrong":
            return None
        wrong = [call for call in self.calls if call.is_wrong]
        return (wrong or [call for call in self.calls if call.verdict == "noted"])[0]

    @property
    def rows(self) -> tuple[ComparedCall, ...]:
        """The calls by gravity: the wrong ones first, then those with the largest errors."""
        return tuple(sorted(self.calls, key=lambda call: (GRAVITY.index(call.verdict), -(call.ulp or 0.0))))

    @property
    def culprits(self) -> dict[str, int]:
        """The primitives at fault, with the number of wrong calls, in the order of the program."""
        found: dict[str, int] = {}
        for call in self.calls:
            if call.is_wrong:
                found[call.primitive] = found.get(call.primitive, 0) + 1
        return found

    @property
    def headline(self) -> str:
        """A summary in one line."""
        first, culprits = self.first, self.culprits
        if first is not None:
            place = f" in {first.module}" if first.module else ""
            names = ", ".join(culprits) or first.primitive
            count = f"{max(1, sum(culprits.values()))} of {count_noun(len(self.calls), 'call')}"
            verb = "is" if len(culprits) < 2 else "are"
            return f"{self.backend}: {names} {verb} wrong: {count}, first {first.node}{place}"
        said = VERDICTS[self.verdict]
        if self.verdict == "right":
            compared = f"{count_noun(len(self.calls), 'call')} and the results are" if self.calls else "the results are"
            said = f"{compared} right" + ("" if self.calls else "; calls are compared only if they are not")
        if self.verdict == "compiled" and self.piece:
            said += f", from {self.piece[0]} to {self.piece[-1]} ({count_noun(len(self.piece), 'call')})"
        return f"{self.backend}: {said}"

    def __str__(self) -> str:
        return "\n".join([self.headline, *self.lines()])

    def __repr__(self) -> str:
        return f"<{self.headline}; print(comparison) shows why>"

    def _repr_html_(self) -> str:
        return titled(self.headline, *self.lines(), self.table.html())

    @property
    def table(self) -> Table:
        """The calls by gravity; all that are wrong are shown, and a few more."""
        wrong = sum(row.is_wrong for row in self.rows)
        columns = ("verdict", "call", ">ULP", ">PyTorch", ">PCC", ">cosine", ">so far", "module")
        return Table(columns, list(map(_cells, self.rows)), min(max(ROWS, wrong), 3 * ROWS))

    def lines(self) -> Iterator[str]:
        """What is wrong: the results, the first call of each primitive at fault, or the largest errors."""
        if self.problem:
            similar = f", PCC {number(self.pcc)}, cosine {number(self.cosine)}" if self.pcc is not None else ""
            yield f"the results: {self.problem}{similar}"
        for call in self.shown():
            yield from call.lines()

    def shown(self) -> tuple[ComparedCall, ...]:
        """The calls that a text describes: the first of each primitive at fault, or those with the largest errors."""
        if self.verdict == "drift":
            return self.rows[:MOST]
        wrong = {call.primitive: call for call in reversed(self.calls) if call.is_wrong}
        found = [call for call in self.calls if wrong.get(call.primitive) is call]
        return tuple(found or ([self.first] if self.first is not None else []))[:MOST]

    def with_files(self, files: Mapping[str, str]) -> Comparison:
        """The same with the scripts of some calls, by node."""
        return replace(self, calls=tuple(replace(each, file=files.get(each.node, "")) for each in self.calls))

    def as_dict(self) -> dict[str, Any]:
        """Plain data. A number that is not finite is a text, as JSON has none."""
        head = {key: value for key, value in asdict(self).items() if key != "calls"}
        found = {"headline": self.headline, "ok": self.ok, **head, "calls": [asdict(call) for call in self.rows]}
        plain: dict[str, Any] = _plain(found)
        return plain


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def number(value: float | None) -> str:
    """A similarity as text: 0.99996, or 1-2e-9 where it is closer to 1."""
    if value is None:
        return "-"
    rest = 1 - value
    return f"1-{rest:.0e}".replace("e-0", "e-") if 1e-12 < rest < 1e-5 else f"{value:.5g}"


def error(ulp: float | None) -> str:
    """An error in ULP as text; "-" where it was not measured."""
    return "-" if ulp is None else f"{ulp:.2g}".replace("e+0", "e")


def _cells(row: ComparedCall) -> tuple[str, ...]:
    similar = map(number, (row.pcc, row.cosine, row.so_far))
    return (row.verdict, row.node, error(row.ulp), error(row.own), *similar, row.module)
