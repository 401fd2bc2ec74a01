"""The rows of a bring-up: what was tried, how it came out, and what is to blame."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from decomp.tools.bringup.judging import CallJudgement

UNTRIED = ("not lowered", "not tried")
"""Verdicts on what was not computed."""
FINE = ("right", "by design", *UNTRIED)
"""Verdicts that find nothing amiss."""
EXAMPLES = 4
"""How many problems a row names."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One difference: where it is, and what is known of it."""

    where: str
    """"float32, NaN planted"; the input of a program."""
    problem: str
    call: str = ""
    """With the dtypes and shapes of its operands."""
    at: str = ""
    expected: str = ""
    got: str = ""
    node: str = ""
    """In the program, if it was found in one."""
    source: str = ""
    """The line of the model that made it."""

    def __str__(self) -> str:
        values = f": {self.got} instead of {self.expected} at {self.at}" if self.at else ""
        node = f" (node {self.node})" if self.node else ""
        line = f"\n  {self.source}" if self.source else ""
        return f"{self.where}: {self.problem}{values} in {self.call or 'the program'}{node}{line}"


def problem_of(found: CallJudgement, where: str, call: str, node: str = "", source: str = "") -> Problem:
    """What was judged wrong, as a problem."""
    return Problem(where, found.problem, call, found.at, found.expected, found.got, node, source)


@dataclass
class BringUpRow:
    """One primitive, op or model."""

    kind: str
    """"primitive", "op" or "model"."""
    name: str
    verdict: str = "right"
    """"right", "by design" (right but for what the backend states), "wrong", "fails", "refused" (legal, yet it cannot
    be loaded), "missing", "hangs", "crashes", "blames" (a primitive that it uses is wrong), "not lowered", "not
    tried"."""
    cases: int = 0
    points: int = 0
    ulp: dict[str, tuple[float, float | None]] = field(default_factory=dict)
    """By dtype: the largest error, and PyTorch's own."""
    blames: str = ""
    """The primitive that a wrong op or model uses."""
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    by_design: list[str] = field(default_factory=list)
    """The reasons, as the backend states them, why results differ."""
    wrong_cases: int = 0
    seconds: float = 0.0

    @property
    def fine(self) -> bool:
        """Whether nothing is amiss with it."""
        return self.verdict in FINE

    def count(self, dtype: str, found: CallJudgement) -> None:
        """Add one case that is right, and its error in `dtype`."""
        self.cases, self.points = self.cases + 1, self.points + found.points
        if dtype and found.ulp is not None:
            before = self.ulp.get(dtype, (0.0, None))
            own = [each for each in (before[1], found.own) if each is not None]
            self.ulp[dtype] = (max(before[0], found.ulp), max(own, default=None))
        self.notes += [note for note in found.notes if note not in self.notes]
        self.by_design += [reason for reason in found.by_design if reason not in self.by_design]
        if found.by_design and self.verdict == "right":
            self.verdict = "by design"

    def blame(self, verdict: str, problem: Problem, blames: str = "") -> None:
        """Add one case that is not. The first verdict stands."""
        self.cases, self.wrong_cases = self.cases + 1, self.wrong_cases + 1
        if self.fine:
            self.verdict, self.blames = verdict, blames
        if len(self.problems) < EXAMPLES:
            self.problems.append(problem)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BringUpRow:
        """Read what `to_json` wrote."""
        known = {each.name for each in fields(cls)}
        given = {key: value for key, value in data.items() if key in known}
        given["problems"] = [Problem(**each) for each in data.get("problems", ())]
        given["ulp"] = {dtype: (pair[0], pair[1]) for dtype, pair in data.get("ulp", {}).items()}
        return cls(**given)
