"""What accuracy costs: the alternatives for an op on a target, at every level, by the error in their certificates and
the number of calls; and which of them are Pareto-optimal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from decomp.errors import ArgumentError
from decomp.figures import new_figure, save_figure
from decomp.rules.accuracy import LEVELS
from decomp.rules.certificate import Certificate, Implementation
from decomp.rules.certificates import identity
from decomp.rules.rules import Rule
from decomp.rules.target import Target
from decomp.samples import samples_of
from decomp.tools.certification.implementations import Lowered, PreferredRule
from decomp.tools.measurement.trials import in_dtype


@dataclass(frozen=True, slots=True)
class FrontEntry:
    """One alternative for an op on a target."""

    rule: str
    level: str
    ulp: float
    """The largest error in float32."""
    own: float | None
    """The error of PyTorch's own kernel; None if that is the reference."""
    cost: Mapping[str, float]
    """Calls, flops and bytes."""

    @property
    def calls(self) -> float:
        """The number of calls."""
        return self.cost.get("calls", float("inf"))

    def beats(self, other: FrontEntry) -> bool:
        """Whether it is better in error or calls, and not worse in the other. A looser level never beats a stricter
        one, as its errors are over fewer inputs."""
        if LEVELS.index(self.level) > LEVELS.index(other.level):
            return False
        mine, theirs = (self.ulp, self.calls), (other.ulp, other.calls)
        return mine != theirs and all(a <= b for a, b in zip(mine, theirs))

    def __str__(self) -> str:
        return f"{self.rule}, {self.level}"


@dataclass(frozen=True, slots=True)
class Front:
    """The alternatives for an op on a target, the most accurate first."""

    op: str
    target: str
    choices: tuple[FrontEntry, ...]

    def beaten_by(self, choice: FrontEntry) -> FrontEntry | None:
        """An alternative that beats this one, or None."""
        return next((other for other in self.choices if other.beats(choice)), None)

    @property
    def best(self) -> tuple[FrontEntry, ...]:
        """The alternatives that no other beats."""
        return tuple(choice for choice in self.choices if self.beaten_by(choice) is None)


def front(rules: Sequence[Rule], target: Target, certificates: Mapping[str, Certificate]) -> Front:
    """The alternatives for one op. Raises `ArgumentError` if none has a certificate for this target."""
    found = [
        FrontEntry(rule.name, way.level, figures.max, figures.own_max, way.cost or _cost(rule, target, way))
        for rule in rules
        for way in _ways(certificates.get(identity(rule)), target.name)
        if (figures := way.values.get("float32")) is not None and not figures.mismatches
    ]
    if not found:
        raise ArgumentError(
            f"no rule for {rules[0].op} has a certificate for {target.name}; decomp certify {rules[0].op.short} "
            f"--to {target.name} measures them"
        )
    return Front(str(rules[0].op), target.name, tuple(sorted(found, key=lambda each: (each.ulp, each.calls))))


def _ways(certificate: Certificate | None, target: str) -> Iterator[Implementation]:
    ways: Iterable[Implementation] = certificate.ways if certificate is not None else ()
    return (way for way in ways if way.name == target and way.verdict == "measured")


def _cost(rule: Rule, target: Target, way: Implementation) -> Mapping[str, float]:
    """The cost of an alternative whose certificate does not have it."""
    lowered = Lowered(rule, target, PreferredRule(rule), way.level)
    for sample in samples_of(rule):
        lowered.measure_cost(in_dtype(sample, torch.float32))
    return lowered.cost


_COLOURS = dict(zip(reversed(LEVELS), ("#1b9e77", "#7570b3", "#d95f02")))


def plot_front(shown: Front, path: Path) -> Path:
    """Plot errors over calls; for each level a line joins the alternatives that no other beats."""
    figure = new_figure(8, 3.6)
    _draw(figure.subplots(), shown)
    return save_figure(figure, path, 150)


def _draw(axis: Any, shown: Front) -> None:
    """One front. Alternatives are numbered, the fewest calls first; one that is the same at several levels is drawn at
    the strictest that it meets."""
    ways: dict[tuple[str, float, float], list[FrontEntry]] = {}
    for choice in sorted(shown.choices, key=lambda each: (each.calls, each.ulp, LEVELS.index(each.level))):
        ways.setdefault((choice.rule, *_place(choice)), []).append(choice)
    for number, (same, *looser) in enumerate(ways.values(), 1):
        colour, (calls, ulp) = _COLOURS[same.level], _place(same)
        levels = ", ".join(each.level for each in (same, *looser))
        filled = colour if shown.beaten_by(same) is None else "none"
        label = f"{number} {same.rule} ({levels}): {same.calls:,g} calls, {same.ulp:.3g} ULP"
        axis.scatter(calls, ulp, s=90, facecolor=filled, edgecolor=colour, zorder=2, label=label)
        axis.annotate(str(number), (calls, ulp), fontsize=7, xytext=(7, 4), textcoords="offset points")
        if same.own is not None:
            axis.plot(calls, max(same.own, _LEAST), marker="_", markersize=14, color="0.5", linestyle="", zorder=1)
    for level, colour in _COLOURS.items():
        best = sorted(_place(choice) for choice in shown.best if choice.level == level)
        if best:
            axis.step(*zip(*best), where="post", color=colour, linewidth=1, zorder=1)
    axis.plot([], [], marker="_", color="0.5", linestyle="", label="PyTorch's own kernel on the same inputs")
    axis.set_yscale("log")
    axis.set_xlabel(f"calls on {shown.target}")
    axis.set_ylabel("largest error in ULP, float32")
    axis.set_title(f"{shown.op} on {shown.target} (hollow: another rule beats it)", fontsize=9)
    axis.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2, frameon=False)


def _place(choice: FrontEntry) -> tuple[float, float]:
    return choice.calls, max(choice.ulp, _LEAST)


_LEAST = 0.25
"""The smallest error drawn at its place; smaller ones, and 0, are drawn here."""
