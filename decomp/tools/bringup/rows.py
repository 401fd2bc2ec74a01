"""The rows of a bring-up: what was tried, the verdict, and the primitive at fault."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from decomp.tools.comparing.judging import CallJudgement

GRAVITY = ("crashes", "hangs", "fails", "wrong", "refused", "missing", "blames", "not lowered", "by design", "right")
"""Verdicts, the worst first."""
UNTRIED = ("not lowered", "not tried")
"""Verdicts on rows that were not computed."""
FINE = ("right", "by design", *UNTRIED)
"""Verdicts without a fault."""
EXAMPLES = 4
"""How many problems a row lists."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One difference, and where it is."""

    where: str
    """"float32, NaN planted"; the input of a program."""
    problem: str
    call: str = ""
    """The call, with the dtypes and shapes of its operands."""
    at: str = ""
    expected: str = ""
    got: str = ""
    node: str = ""
    """The node of the program, if any."""
    source: str = ""
    """The source line of the model that created the node."""

    def __str__(self) -> str:
        values = f": {self.got} instead of {self.expected} at {self.at}" if self.at else ""
        node = f" (node {self.node})" if self.node else ""
        line = f"\n  {self.source}" if self.source else ""
        return f"{self.where}: {self.problem}{values} in {self.call or 'the program'}{node}{line}"


def problem_of(found: CallJudgement, where: str, call: str) -> Problem:
    """A faulty judgement as a problem."""
    return Problem(where, found.problem, call, found.at, found.expected, found.got)


@dataclass
class BringUpRow:
    """One primitive, op or model."""

    kind: str
    """"primitive", "op" or "model"."""
    name: str
    verdict: str = "right"
    """"right", "by design" (right except for declared deviations), "wrong", "fails", "refused" (legal, but cannot be
    loaded), "missing", "hangs", "crashes", "blames" (a primitive that it uses is wrong), "not lowered", "not tried"."""
    cases: int = 0
    points: int = 0
    ulp: dict[str, tuple[float, float | None]] = field(default_factory=dict)
    """By dtype: the largest error, that of wrong values included, and PyTorch's own."""
    blames: str = ""
    """The primitive at fault for a wrong op or model."""
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    by_design: list[str] = field(default_factory=list)
    """The backend's declared reasons for differences by design."""
    wrong_cases: int = 0
    seconds: float = 0.0

    @property
    def gravity(self) -> tuple[int, float]:
        """The key by which rows are ordered, the worst first: the verdict, then the largest error."""
        place = GRAVITY.index(self.verdict) if self.verdict in GRAVITY else len(GRAVITY)
        return place, -max((ulp for ulp, _ in self.ulp.values()), default=0.0)

    @property
    def fine(self) -> bool:
        """Whether it has no fault."""
        return self.verdict in FINE

    def count(self, dtype: str, found: CallJudgement) -> None:
        """Add a correct case, and its error in `dtype`."""
        self.cases, self.points = self.cases + 1, self.points + found.points
        self._measure(dtype, found)
        self.notes += [note for note in found.notes if note not in self.notes]
        self.by_design += [reason for reason in found.by_design if reason not in self.by_design]
        if found.by_design and self.verdict == "right":
            self.verdict = "by design"

    def blame(
        self, verdict: str, problem: Problem, blames: str = "", dtype: str = "", found: CallJudgement | None = None
    ) -> None:
        """Add a faulty case, and its error in `dtype`. The first verdict is kept."""
        self.cases, self.wrong_cases = self.cases + 1, self.wrong_cases + 1
        if found is not None:
            self._measure(dtype, found)
        if self.fine:
            self.verdict, self.blames = verdict, blames
        if len(self.problems) < EXAMPLES:
            self.problems.append(problem)

    def _measure(self, dtype: str, found: CallJudgement) -> None:
        if dtype and found.ulp is not None:
            before = self.ulp.get(dtype, (0.0, None))
            own = [each for each in (before[1], found.own) if each is not None]
            self.ulp[dtype] = (max(before[0], found.ulp), max(own, default=None))

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BringUpRow:
        """The row from the result of `to_json`."""
        known = {each.name for each in fields(cls)}
        given = {key: value for key, value in data.items() if key in known}
        given["problems"] = [Problem(**each) for each in data.get("problems", ())]
        given["ulp"] = {dtype: (pair[0], pair[1]) for dtype, pair in data.get("ulp", {}).items()}
        return cls(**given)
