"""What is promised of a rule: the errors that its certificate measured for this target. A rule without a certificate
promises only that it computes its op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from decomp._library import certificate_of, has_wrong_gradients

UNMEASURED = 256.0
"""ULP for a rule that was not measured: textbook formulas lose as much at large arguments, wrong ones lose more."""
MEASURED = 4.0
"""The least ULP for a rule that was measured, as it was measured on other operands."""


@dataclass(frozen=True)
class Promise:
    """What a rule may be off by."""

    figures: Mapping[str, float] = field(default_factory=dict)
    """The largest error by dtype, in ULP; empty if it was not measured."""
    special_values: bool = False
    """Whether NaN, infinities and the largest numbers are promised to be right."""

    gradients: bool = True
    """Whether PyTorch's own gradients are right, to be compared with."""

    def ulp(self, results: Sequence[torch.Tensor]) -> float:
        """For results of these dtypes."""
        if not self.figures:
            return UNMEASURED
        names = {str(result.dtype).removeprefix("torch.") for result in results}
        found = [self.figures[name] for name in names if name in self.figures]
        return max(MEASURED, 2.0 * max(found or self.figures.values()))


def promise_of(rule: Any, target: str) -> Promise:
    """What is promised of a rule on a target; on one that was not measured, the worst of those that were."""
    certificate = certificate_of(rule) if hasattr(rule, "function") else None
    right = not (hasattr(rule, "op") and has_wrong_gradients(rule.op.short))
    if certificate is None:
        return Promise(gradients=right)
    ways = [way for way in certificate.ways if way.name == target] or list(certificate.ways)
    figures: dict[str, float] = {}
    for way in ways:
        for dtype, measured in way.values.items():
            figures[dtype] = max(figures.get(dtype, 0.0), measured.max)
    clean = certificate.ok and all(way.verdict != "failed" for way in ways)
    return Promise(figures, clean and any(way.name == target for way in ways), right)
