"""The reference for results: the op itself in float64, with the worst points recomputed by mpmath if the op has an
mpmath function; only mpmath if float64 itself is measured. Never float32."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
import importlib.util
from typing import Any

import torch

from decomp.ir.ops import of_function
from decomp.samples import Sample
from decomp.validation.ulp import Exact

MpFunction = Callable[..., Any]
"""From a call's arguments, with mpmath numbers for tensors, to the exact value; None if it has no value."""

PRECISION = 140
"""The precision of mpmath, in bits."""
BUDGET = 1000
"""The most values that mpmath computes for one set of points."""


def mpmath_is_installed() -> bool:
    """Whether float64 can be measured."""
    return importlib.util.find_spec("mpmath") is not None


def mp_function(sample: Sample) -> MpFunction | None:
    """The function of mpmath for the sample's op, from the library's table."""
    if not mpmath_is_installed():
        return None
    from decomp_rules.support import exact

    found: MpFunction | None = exact.function(of_function(sample.overload).op.name)
    return found


@dataclass
class Reference:
    """Exact results of one pointwise call, recomputed by mpmath at the points with the largest errors."""

    sample: Sample
    function: MpFunction | None
    exact: Exact
    known: set[int] = field(default_factory=set)
    """The points given to mpmath, whether or not it had a value."""
    was_wrong: bool = False
    """Whether float64 was wrong at any point."""

    @property
    def exhausted(self) -> bool:
        """Whether the budget of mpmath is used up, or it is not available."""
        return len(self.known) >= BUDGET

    def refined(self, worst: Iterable[int]) -> bool:
        """Recompute these points. Returns whether others should be checked too: if one of these changed significantly,
        or had no value."""
        new = [i for i in worst if i not in self.known][: BUDGET - len(self.known)]
        self.known.update(new)
        changed = unanswered = False
        for i in new:
            value = self.at(i)
            if value is None:
                unanswered = True
                continue
            high, low = value
            if not high:  # a nonzero value that rounds to zero: its sign is not compared
                self._leave_out(i)
                continue
            before = float(self.exact.high[i])
            changed |= abs(high - before) > abs(before) * 2.0**-40
            self.exact.high[i] = high
            if self.exact.low is not None:
                self.exact.low[i] = low
        self.was_wrong |= changed
        return changed or unanswered

    def forget(self, indices: Iterable[int]) -> None:
        """Exclude points that mpmath has not computed from the comparison."""
        for i in indices:
            if i not in self.known:
                self._leave_out(i)

    def _leave_out(self, index: int) -> None:
        if self.exact.unknown is not None:
            self.exact.unknown[index] = True

    def at(self, index: int) -> tuple[float, float] | None:
        """The exact value at a point as the sum of two float64 (both 0 if it underflows); None if mpmath has no
        value."""
        if self.function is None:
            return None
        import mpmath

        try:
            with mpmath.workprec(PRECISION):
                value = self.function(*_arguments(self.sample, index, mpmath.mpf))
                return None if value is None else _split(value, mpmath)
        except (ArithmeticError, ValueError, TypeError, NotImplementedError, mpmath.libmp.NoConvergence):
            return None


def _arguments(sample: Sample, index: int, number: Callable[[float], Any]) -> list[Any]:
    """The positional arguments of a call at one point, and its keyword arguments after them."""

    def at(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        value = leaf.flatten()[index if leaf.dim() else 0].item()
        return number(value) if isinstance(value, float) else value

    point = sample.replaced(at)
    return [*point.args, *point.kwargs.values()]


def _split(value: Any, mpmath: Any) -> tuple[float, float] | None:
    if isinstance(value, mpmath.mpc):
        return None
    high = float(value)
    if abs(high) == float("inf") and mpmath.isfinite(value):
        return high, 0.0  # too large for any float
    if value and not high:
        return 0.0, 0.0
    # mpmath has no negative zero; infinities are left to the op's own kernel.
    return (high, float(value - mpmath.mpf(high))) if high and abs(high) < float("inf") else None
