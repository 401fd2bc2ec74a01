"""Compares the results of a call with exact ones and with PyTorch's own, for any number of candidates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
import functools

import torch

from decomp.tools.certification.candidate import MeasuredCandidate
from decomp.tools.measurement.reference import Reference
from decomp.tools.measurement.reference_uncertainty import ReferenceUncertainty, groups
from decomp.tools.measurement.scope import PromisedScope, scope_of
from decomp.tools.measurement.tally import MeasuredResult, worst_points
from decomp.tools.measurement.trials import HUGE, Inputs, Trial, may_overflow
from decomp.validation.ulp import Exact, deviation, kinds

ROUNDS = 12
"""The most rounds in which mpmath recomputes the worst points, until none changes."""
DOUBTFUL = 16.0
"""From this many ULP an error is doubted once float64 was found wrong."""


@dataclass
class ExactComparison:
    """One call on one set of inputs: its exact results, and those of the op itself."""

    what: Trial
    inputs: Inputs
    own: Sequence[torch.Tensor]
    exact: Sequence[Exact]
    against_own: bool = False
    loose: bool = False
    """Whether only large errors count as wrong, as for gradients."""
    reference: Reference | None = None
    moved: Sequence[bool] = ()
    """Which results are moved values of the inputs: for these the sign of zero counts. For sums it depends on their
    order."""
    find_uncertainty: Callable[[], Sequence[ReferenceUncertainty] | None] | None = None
    """Computes the uncertainty of PyTorch's own results."""
    _scopes: dict[str, PromisedScope | None] = field(default_factory=dict, repr=False)

    @functools.cached_property
    def _uncertainties(self) -> Sequence[ReferenceUncertainty] | None:
        return self.find_uncertainty() if self.find_uncertainty is not None else None

    @functools.cached_property
    def _depends_on_order(self) -> bool:
        """Whether the order of additions decides what overflows: it does in the op's own kernel, or would in others."""
        own_overflows = not all(map(_is_kind_of, self.own, self.exact))
        return own_overflows or any(bool(t.any()) for t in may_overflow(self.what.own, self.inputs, self.own))

    @functools.cached_property
    def _groups(self) -> torch.Tensor | None:
        return groups(self.inputs.tensors) if self.loose and self.what.pointwise else None

    def count(self, kind: str, candidate: MeasuredCandidate, found: Sequence[torch.Tensor]) -> None:
        """Add the results of one candidate to its tally."""
        scope = self._scope(candidate.level)
        if scope is not None and not scope.judged:
            return
        tally = candidate.tally(kind, self.what.dtype, self.against_own)
        if self.inputs.label == HUGE and self._depends_on_order:
            return
        for i, (mine, own, exact) in enumerate(zip(found, self.own, self.exact)):
            results = self._results(mine, own, exact, scope, bool(self.moved and self.moved[i]))
            if self.find_uncertainty is not None and not mine.is_complex():
                results = replace(results, uncertainty=functools.partial(self._uncertainty, i))
            if self.reference is not None and exact is self.reference.exact:
                _refine(self.reference, results)
            tally.add(results)

    def _uncertainty(self, index: int) -> ReferenceUncertainty | None:
        return self._uncertainties[index] if self._uncertainties is not None else None

    def _scope(self, level: str) -> PromisedScope | None:
        """The promise of the level for this call."""
        if level not in self._scopes:
            self._scopes[level] = scope_of(level, self.what, self.inputs, self.loose)
        return self._scopes[level]

    def _results(
        self, found: torch.Tensor, own: torch.Tensor, exact: Exact, scope: PromisedScope | None, moved: bool
    ) -> MeasuredResult:
        parts = (None if part is None else part.flatten() for part in (exact.high, exact.low, exact.unknown))
        loose = self.loose or not self.inputs.measured
        return MeasuredResult(
            found.detach().flatten(),
            Exact(*parts),
            own.detach().flatten(),
            pointwise=self.what.pointwise and found.numel() > 1,
            naming=self._name,
            loose=loose,
            groups=self._groups,
            signed_zeros=scope is None and not loose and (moved or self.what.pointwise and not self.what.is_gradient),
            counted=self.inputs.measured,
            scope=None if scope is None else scope.for_result(found.numel()),
        )

    def _name(self, index: int) -> str:
        """The input of a result, as text."""
        if not self.what.pointwise:
            return self.inputs.label
        numbers = []
        for t in self.inputs.tensors:
            value = t.flatten()[index if t.numel() > 1 else 0].item()
            numbers.append(f"{value:.9g}" if isinstance(value, float) else str(value))
        return ", ".join(numbers)


def is_moved_input(what: Trial, results: Sequence[torch.Tensor]) -> list[bool]:
    """Which results are moved values of the inputs."""
    inputs = [_parts(t) for t in what.sample.tensors if t.is_floating_point() or t.is_complex()]
    there = torch.cat(inputs) if inputs else torch.zeros(0)
    found = []
    for result in results:
        values = _parts(result)
        found.append(bool(torch.isin(values[values.isfinite() & (values != 0)], there.to(values.dtype)).all()))
    return found


def _parts(t: torch.Tensor) -> torch.Tensor:
    t = torch.view_as_real(t.resolve_conj()) if t.is_complex() else t
    return t.detach().double().flatten()


def _is_kind_of(own: torch.Tensor, exact: Exact) -> bool:
    """Whether the op's own result is finite and infinite where the exact one is, with errors of less than half of
    it."""
    if not own.is_floating_point():
        return True
    if bool(((own.double() - exact.high).abs() > 0.5 * exact.high.abs() + torch.finfo(own.dtype).eps).any()):
        return False
    return bool(torch.equal(kinds(own).clamp(max=4), kinds(exact.rounded(own.dtype)).clamp(max=4)))


def _refine(reference: Reference, results: MeasuredResult) -> None:
    """Recompute the worst points by mpmath. `results` shares memory with the exact values, so it sees the changes."""
    for _ in range(ROUNDS):
        if not reference.refined(worst_points(results, reference.known)):
            if reference.exhausted and reference.was_wrong:
                break
            return
    # float64 was wrong in each round: points far from it that mpmath has not computed are unknown.
    for found in (results.found, results.own):
        far = (deviation(found, results.exact).error > DOUBTFUL).nonzero().flatten().tolist()
        reference.forget(far)
