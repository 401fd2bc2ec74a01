"""Comparing the results of a call with the exact ones and with PyTorch's own, for any number of ways to compute it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from decomp.certification.courses import Course
from decomp.certification.reference import Reference
from decomp.certification.tally import Results, worst_points
from decomp.certification.trials import Inputs, Trial
from decomp.numerics import Exact, deviation

ROUNDS = 12
"""How often the worst points are computed anew by mpmath, until none changes."""
DOUBTFUL = 16.0
"""ULP from which on an error is doubted where float64 has proved to be wrong."""


@dataclass
class Comparison:
    """One call on one set of inputs: what is right, and what the op itself gives."""

    what: Trial
    inputs: Inputs
    own: Sequence[torch.Tensor]
    exact: Sequence[Exact]
    against_own: bool = False
    loose: bool = False
    """Whether only what is far off is wrong: of gradients."""
    reference: Reference | None = None

    def count(self, kind: str, course: Course, found: Sequence[torch.Tensor]) -> None:
        """Add what one way gives to its tally."""
        tally = course.tally(kind, self.what.dtype, self.against_own)
        for mine, own, exact in zip(found, self.own, self.exact):
            results = self._results(mine, own, exact)
            if self.reference is not None and exact is self.reference.exact:
                _refine(self.reference, results)
            tally.add(results)

    def _results(self, found: torch.Tensor, own: torch.Tensor, exact: Exact) -> Results:
        parts = (None if part is None else part.flatten() for part in (exact.high, exact.low, exact.unknown))
        return Results(
            found.detach().flatten(),
            Exact(*parts),
            own.detach().flatten(),
            pointwise=self.what.pointwise and found.numel() > 1,
            naming=self._name,
            loose=self.loose or not self.inputs.measured,
            counted=self.inputs.measured,
        )

    def _name(self, index: int) -> str:
        """The input that gave a result."""
        if not self.what.pointwise:
            return self.inputs.label
        numbers = []
        for t in self.inputs.tensors:
            value = t.flatten()[index if t.numel() > 1 else 0].item()
            numbers.append(f"{value:.9g}" if isinstance(value, float) else str(value))
        return ", ".join(numbers)


def _refine(reference: Reference, results: Results) -> None:
    """Let mpmath have the last word on the points that look worst. `results` sees what it says: they share memory."""
    for _ in range(ROUNDS):
        if not reference.refined(worst_points(results)):
            return
    # float64 was wrong each time: where results are far from it, and mpmath has not looked, nothing is known.
    for found in (results.found, results.own):
        far = (deviation(found, results.exact).error > DOUBTFUL).nonzero().flatten().tolist()
        reference.forget(far)
