"""The promise of a rule: the errors that its certificate measured for this target. A rule without a certificate
promises only that it computes its op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
import math
from typing import Any

import torch

from decomp.ir.dtypes import name_of
from decomp.rules.accuracy import ABSOLUTE, DEFAULT, GRADIENTS, LEVELS, LIMITS_BY_LEVEL
from decomp.rules.library import certificate_of, shipped
from decomp.rules.rules import identity_for_detach

UNMEASURED = 256.0
"""ULP for a rule without a certificate: textbook formulas are this far off at large arguments, wrong ones further."""
MEASURED = 4.0
"""The least ULP for a rule with a certificate, as that was measured on other operands."""
MOST_OF_LARGEST = 4096.0
"""The most ULP of the largest element that are allowed in a result, whatever a certificate says of small elements."""


@dataclass(frozen=True)
class Promise:
    """The allowed error of a rule."""

    figures: Mapping[str, float] = field(default_factory=dict)
    """The largest error by dtype, in ULP; empty without a certificate."""
    slopes: float = 0.0
    """The largest error of gradients in float32, in ULP, if measured."""
    special_values: bool = False
    """Whether results for NaN, infinities and the largest numbers are promised to be correct."""
    subnormals: bool = False
    """Whether results for subnormal numbers are, at least as one of these or 0."""
    signed_zeros: bool = False
    """For pointwise ops: whether the sign of a zero is."""
    gradients: bool = True
    """Whether PyTorch's own gradients are correct, and so can be the reference."""
    reach: tuple[float, float] = (-math.inf, math.inf)
    """The smallest and the largest operand for which this holds."""
    floor: float = 0.0
    """For pointwise ops: errors of smaller results are counted in ULP of this value."""
    slack: float = 0.0
    """For pointwise ops: ε that gradients may be off by, whatever their magnitude."""
    kinks: bool = True
    """Whether gradients are those of the op where it is not smooth, as between equal maxima."""
    level: str = DEFAULT
    """The level of accuracy that it is for."""

    def ulp(self, results: Sequence[torch.Tensor]) -> float:
        """The allowed error for results of these dtypes."""
        if not self.figures:
            return UNMEASURED
        names = {name_of(result.dtype) for result in results}
        found = [self.figures[name] for name in names if name in self.figures]
        # Twice the certified error: it is the largest of a sample of operands, not a bound.
        return max(MEASURED, 2.0 * max(found or self.figures.values()))

    def ulp_of_largest(self, results: Sequence[torch.Tensor], pointwise: bool) -> float:
        """The allowed error in ULP of the largest element. A pointwise op may be millions of ULP off in a tail, as
        PyTorch's own kernels are; where its results are large, it has the error of its level."""
        allowed = min(self.ulp(results), MOST_OF_LARGEST)
        if not pointwise or not self.figures:
            return allowed
        limits = LIMITS_BY_LEVEL[self.level]
        return min(allowed, 2.0 * max(limits.get(name_of(result.dtype), MEASURED) for result in results))


def promise_of(rule: Any, target: str, level: str = DEFAULT) -> Promise:
    """The promise of a rule on a target at a level of accuracy; for a target that was not measured, the worst of those
    that were. If the level has no measurement of its own, calls of the rule may still be lowered differently than when
    it was measured: then the promise is that of the level."""
    certificate = certificate_of(rule) if hasattr(rule, "function") else None
    right = not (hasattr(rule, "op") and shipped().has_wrong_gradients(rule.op.short))
    reach = shipped().range_of(rule.op.short, level) if hasattr(rule, "op") else (-math.inf, math.inf)
    # It copies its operand, so values are exact, and its gradient is that of the identity where `detach` has none.
    if getattr(rule, "function", None) is identity_for_detach:
        return Promise({"float32": 0.0}, special_values=True, gradients=False, level=level)
    floor, slack = ABSOLUTE if level == "fast" else 0.0, GRADIENTS.get(level, 0.0)
    kinks = level == LEVELS[0]
    if certificate is None:
        exact = level == LEVELS[0]
        return Promise({}, 0.0, False, exact, exact, right, reach, floor, slack, kinks, level)
    names = [way.name for way in certificate.ways if way.name == target] or [way.name for way in certificate.ways]
    ways = [way for name in names if (way := certificate.way(name, level)) is not None]
    figures: dict[str, float] = {}
    for way in ways:
        for dtype, measured in way.values.items():
            most = measured.max if way.level == level else max(measured.max, LIMITS_BY_LEVEL[level][dtype])
            figures[dtype] = max(figures.get(dtype, 0.0), most)
    clean = certificate.ok and level != LEVELS[-1] and all(way.verdict != "failed" for way in ways)
    slopes = max((way.gradients["float32"].max for way in ways if "float32" in way.gradients), default=0.0)
    special = clean and target in names
    exact = special and level == LEVELS[0]
    return Promise(figures, slopes, special, exact, exact, right, reach, floor, slack, kinks, level)
