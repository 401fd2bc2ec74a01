"""What accuracy costs: the ways to compute an op on a target, at every level, by the error that their certificates
measured and the calls that they come to; and which of them no other beats in both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from decomp.errors import ArgumentError
from decomp.rules.accuracy import LEVELS
from decomp.rules.rules import Rule
from decomp.rules.target import Target
from decomp.samples import samples_of
from decomp.tools.certification.certificate import Certificate, Way
from decomp.tools.certification.implementations import AskedFirst, Lowered, identity
from decomp.tools.measurement.trials import in_dtype
from decomp.tools.writing import whole


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to compute an op on a target."""

    rule: str
    level: str
    ulp: float
    """The largest error in float32."""
    own: float | None
    """That of PyTorch's own kernel; None if that is what was compared with."""
    cost: Mapping[str, float]
    """Calls, flops and bytes."""

    @property
    def calls(self) -> float:
        """How many calls it comes to."""
        return self.cost.get("calls", float("inf"))

    def beats(self, other: Choice) -> bool:
        """Whether it is better in one of both, and no worse in the other. A looser level beats no stricter
        one: its errors are over fewer inputs."""
        if LEVELS.index(self.level) > LEVELS.index(other.level):
            return False
        mine, theirs = (self.ulp, self.calls), (other.ulp, other.calls)
        return mine != theirs and all(a <= b for a, b in zip(mine, theirs))

    def __str__(self) -> str:
        return f"{self.rule}, {self.level}"


@dataclass(frozen=True, slots=True)
class Front:
    """The ways to compute an op on a target, the most accurate first."""

    op: str
    target: str
    choices: tuple[Choice, ...]

    def beaten_by(self, choice: Choice) -> Choice | None:
        """A way that is more accurate and no longer, or shorter and no less accurate."""
        return next((other for other in self.choices if other.beats(choice)), None)

    @property
    def best(self) -> tuple[Choice, ...]:
        """Those that none beats."""
        return tuple(choice for choice in self.choices if self.beaten_by(choice) is None)


def front(rules: Sequence[Rule], target: Target, certificates: Mapping[str, Certificate]) -> Front:
    """The ways of the rules of one op. Raises `ArgumentError` where none has a certificate for this target."""
    found = [
        Choice(rule.name, way.level, figures.max, figures.own_max, way.cost or _cost(rule, target, way))
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


def _ways(certificate: Certificate | None, target: str) -> Iterator[Way]:
    ways: Iterable[Way] = certificate.ways if certificate is not None else ()
    return (way for way in ways if way.name == target and way.verdict == "measured")


def _cost(rule: Rule, target: Target, way: Way) -> Mapping[str, float]:
    """What a way comes to whose certificate does not say so."""
    lowered = Lowered(rule, target, AskedFirst(rule), way.level)
    for sample in samples_of(rule):
        lowered.measure_cost(in_dtype(sample, torch.float32))
    return lowered.cost


def plot_fronts(fronts: Sequence[Front], path: Path) -> Path:
    """Draw errors against calls, a picture an op; a line joins the ways that none beats."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(fronts), figsize=(5 * len(fronts), 3.6), squeeze=False, layout="constrained")
    for axis, shown in zip(axes[0], fronts):
        for level in dict.fromkeys(choice.level for choice in shown.choices):
            those = [choice for choice in shown.choices if choice.level == level]
            axis.scatter([each.calls for each in those], [max(each.ulp, 0.25) for each in those], label=level, zorder=2)
        for choice in shown.choices:
            where = choice.calls, max(choice.ulp, 0.25)
            axis.annotate(choice.rule, where, fontsize=6, xytext=(3, 3), textcoords="offset points")
        best = sorted((choice.calls, max(choice.ulp, 0.25)) for choice in shown.best)
        axis.step(*zip(*best), where="post", color="0.6", linewidth=0.8, zorder=1)
        axis.set_yscale("log")
        axis.set_xlabel(f"calls on {shown.target}")
        axis.set_ylabel("largest error in ULP, float32")
        axis.set_title(shown.op, fontsize=9)
        axis.legend(fontsize=7)
    with whole(path) as unfinished:
        figure.savefig(unfinished, dpi=150)
    pyplot.close(figure)
    return path
