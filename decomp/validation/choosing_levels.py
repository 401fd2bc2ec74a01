"""Chooses the cheapest level of accuracy for each op such that the program's error stays within a limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
import math

from decomp.errors import AccuracyError
from decomp.ir.ops import Op
from decomp.rules.accuracy import Accuracy, Level
from decomp.validation.error_budget import LevelChoice, Levels

# Squared errors add up only for errors that are independent. Those of calls on one path are correlated, so the sum can
# come out too small. Sixteen steps reduce the target by 0.8¹⁶, a factor of 36 in the square.
TIGHTER = 0.8
"""The factor on the limit for the next attempt, if the error exceeds the estimate from the sum of squares."""
TRIES = 16


@dataclass(frozen=True)
class Picked:
    """Levels by op, and the error of the program at these."""

    levels: Mapping[Op, Level]
    """The levels of the ops with several alternatives on the target."""
    growth: float
    """The error at these levels, as a multiple of the source program's."""
    allowed: float

    def __str__(self) -> str:
        named = ", ".join(f"{op.short} {level}" for op, level in sorted(self.levels.items(), key=str))
        of = f"{self.growth:.3g} times the program's own, of {self.allowed:g} allowed"
        return f"{of}; picked: {named}" if named else f"{of}; nothing to pick"


def cheapest_levels(levels: Levels, allowed: float, named: Accuracy = Accuracy()) -> Picked:
    """The cheapest levels such that the error at the outputs grows by at most a factor. Each op is measured alone, and
    squared errors are assumed to add up; the picked levels are then run together and checked against the limit. Ops in
    `named` keep their levels. Raises `AccuracyError` if not even the most accurate levels suffice."""
    known = {op: [str(named.level(op))] if named.names(op) else levels.levels(op) for op in levels.nodes}
    choices = {op: [levels.choice(op, level) for level in found] for op, found in known.items() if found}
    # Dominated choices go first: the greedy search then only ever trades cost for accuracy, and its last choice of each
    # op is the most accurate one, which the test for giving up below relies on.
    worthwhile = {op: _worthwhile(found) for op, found in choices.items()}
    bound = allowed * levels.original.size
    target = bound**2
    for _ in range(TRIES):
        picked = _within(worthwhile, target)
        error = levels.error(levels.run({op: choice.level for op, choice in picked.items()}))
        if error.size <= bound:
            several = [op for op, found in choices.items() if any(_differ(found[0], each) for each in found)]
            return Picked({op: picked[op].level for op in several}, growth(error.size, levels), allowed)
        # The most accurate levels still exceed the limit, so a smaller target would pick the same again.
        if all(choice is worthwhile[op][-1] for op, choice in picked.items()):
            break
        target *= TIGHTER
    raise AccuracyError(_too_much(levels, {op: found[-1] for op, found in worthwhile.items()}, allowed))


def _differ(one: LevelChoice, other: LevelChoice) -> bool:
    """Whether two levels lead to different calls: those that do not are measured once."""
    return one.error is not other.error


def growth(error: float, levels: Levels) -> float:
    """An error as a multiple of the source program's."""
    own = levels.original.size
    return error / own if own else 1.0 if error == 0 else math.inf


def _worthwhile(choices: Sequence[LevelChoice]) -> list[LevelChoice]:
    """The choices that are not both costlier and less accurate than another, the cheapest first."""
    found: list[LevelChoice] = []
    for choice in sorted(choices, key=lambda choice: (choice.cost, choice.error.size)):
        if not found or choice.error.size < found[-1].error.size:
            found.append(choice)
    return found


def _within(choices: Mapping[Op, Sequence[LevelChoice]], target: float) -> dict[Op, LevelChoice]:
    """The cheapest choices whose squared errors add up to at most `target`, or else the most accurate. Greedy: starts
    with the cheapest choice of each op, and takes the step with the best gain for its price until the sum is small
    enough."""
    picked = {op: found[0] for op, found in choices.items()}
    while not _square(picked) <= target:
        # All later choices are candidates, not just the next: a step that gains little may be followed by one that
        # gains a lot. This is the greedy heuristic for the multiple-choice knapsack problem (Kellerer, Pferschy and
        # Pisinger, Knapsack Problems, 2004, chapter 11), without its skipping of choices below the convex hull.
        steps = [(op, other) for op, found in choices.items() for other in found[found.index(picked[op]) + 1 :]]
        if not steps:
            break
        op, choice = max(steps, key=lambda step: _gain(picked[step[0]], step[1]))
        picked[op] = choice
    return picked


def _square(picked: Mapping[Op, LevelChoice]) -> float:
    return sum(choice.error.size**2 for choice in picked.values())


def _gain(now: LevelChoice, then: LevelChoice) -> tuple[float, float]:
    """The reduction of the squared error by a step, relative to its price; steps that fix NaN or infinity come
    first."""
    gained = now.error.size**2 - then.error.size**2 if math.isfinite(then.error.size) else 0.0
    # The cost of two choices may be equal; then any gain is free, and the quotient must only be very large.
    return gained / max(then.cost - now.cost, 1e-300), -then.cost


def _too_much(levels: Levels, picked: Mapping[Op, LevelChoice], allowed: float) -> str:
    run = levels.run({op: choice.level for op, choice in picked.items()})
    due = {op: levels.due(op, run) for op in picked}
    worst = sorted(due, key=lambda op: -due[op].size)[:3]
    named = ", ".join(f"{op.short} ({growth(due[op].size, levels):.3g} times)" for op in worst)
    error = growth(levels.error(run).size, levels)
    return (
        f"with the most accurate rules the error of the program is {error:.3g} times its own, and "
        f"{allowed:g} times is allowed\n  most of it comes from {named}\n  to do: allow more, or keep= these ops"
    )
