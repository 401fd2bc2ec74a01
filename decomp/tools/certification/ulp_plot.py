"""Plots of errors over inputs: the rule on the left, PyTorch's own kernel on the right, one dot per input."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import math
from pathlib import Path
from typing import Any

import torch

from decomp.errors import ArgumentError
from decomp.figures import new_figure, save_figure
from decomp.rules.certificates import level_of
from decomp.rules.rules import Rule
from decomp.rules.sources import numbers_in
from decomp.rules.target import Target
from decomp.tools.certification.implementations import AlreadyLegal, AsWritten, Lowered, NotServed, PreferredRule
from decomp.tools.certification.results import flat
from decomp.tools.measurement.comparison import ROUNDS
from decomp.tools.measurement.measuring import measured_samples
from decomp.tools.measurement.reference import Reference, mp_function
from decomp.tools.measurement.trials import FAILURES, Function, Trial, trial, widened
from decomp.validation.ulp import Exact, deviation

Errors = tuple[str, torch.Tensor, torch.Tensor]
"""Title, inputs, errors in ULP."""


def plot_errors(rules: Sequence[Rule], targets: Sequence[Target], path: Path) -> Path:
    """Plot the errors in float32 of each rule of one argument, as written and lowered to each target, next to those of
    PyTorch's own kernel. Raises `ValueError` if there is no such rule."""
    rows = [row for rule in rules if (row := list(_errors(rule, targets)))]
    if not rows:
        raise ArgumentError("only rules of pointwise ops with one float argument can be plotted")
    columns = max(map(len, rows))
    figure = new_figure(5 * columns, 3.2 * len(rows))
    axes = figure.subplots(len(rows), columns, sharey=True, squeeze=False)
    for row, drawn in zip(axes, rows):
        for axis, errors in zip(row, drawn):
            _draw(axis, *errors)
        for axis in row[len(drawn) :]:
            axis.set_visible(False)
    return save_figure(figure, path, 150)


def _draw(axis: Any, title: str, inputs: torch.Tensor, errors: torch.Tensor) -> None:
    axis.scatter(inputs.tolist(), errors.clamp(min=1e-2).tolist(), s=2, linewidths=0, alpha=0.5, rasterized=True)
    axis.set_xscale("symlog", linthresh=1e-3)
    inexact = inputs[errors > 0].abs()
    reach = float(inexact.max()) * 4 if len(inexact) else 10.0
    step = max(1, math.ceil((math.log10(reach) + 2) / 3))  # three ticks on each side have room
    powers = range(-2 if step < 4 else step, 39, step)
    ticks = [10.0**power for power in powers if 10.0**power <= reach]
    axis.set_xticks([*(-tick for tick in reversed(ticks)), 0.0, *ticks])
    axis.set_xlim(-reach, reach)
    axis.set_yscale("log")
    axis.axhline(0.5, color="0.6", linewidth=0.8)
    axis.set_title(title, fontsize=9)
    axis.set_xlabel("input")
    axis.set_ylabel("ULP")


def _errors(rule: Rule, targets: Sequence[Target]) -> Iterator[Errors]:
    found = ((s, trial(s, torch.float32, numbers_in(rule))) for s in measured_samples(rule))
    what = next((t for _, t in found if t is not None and t.pointwise and len(t.inputs[0].tensors) == 1), None)
    if what is None:
        return
    tensors = what.inputs[0].tensors
    own = flat(what.own(tensors))[0]
    exact = Exact(flat(what.wide(widened(tensors)))[0])
    ours = [(f"{rule.name}, {name}", flat(function(tensors))[0]) for name, function in _functions(rule, targets, what)]
    if not ours:
        return
    reference = Reference(what.sample, mp_function(what.sample), exact)
    for title, result in (*ours, ("PyTorch", own)):
        for _ in range(ROUNDS):
            worst = deviation(result, exact).error.nan_to_num(-1.0).topk(8).indices.tolist()
            if not reference.refined(worst):
                break
        error = deviation(result, exact).error
        fine = error.isfinite() & tensors[0].isfinite()
        yield title, tensors[0][fine], error[fine]


def _functions(rule: Rule, targets: Sequence[Target], what: Trial) -> Iterator[tuple[str, Function]]:
    first, level = PreferredRule(rule), level_of(rule)
    ways: list[AsWritten | Lowered] = [AsWritten(rule), *(Lowered(rule, target, first, level) for target in targets)]
    for way in ways:
        try:
            yield way.name, way.bind(what)
        except (AlreadyLegal, NotServed, *FAILURES):
            continue
