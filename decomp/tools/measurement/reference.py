"""What results are held against: the op itself in float64, its worst points computed anew by mpmath where a function of
mpmath is known for the op; mpmath alone where float64 is what is measured. Never float32."""

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
"""From the arguments of a call, tensors replaced by mpmath numbers, to the exact value; None where it has no word."""

PRECISION = 140
"""The precision of mpmath, in bits."""
BUDGET = 1000
"""How many values mpmath computes at most for one set of points."""


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
    """The points that mpmath was asked for, with or without a value."""
    was_wrong: bool = False
    """Whether float64 was, anywhere."""

    @property
    def exhausted(self) -> bool:
        """Whether mpmath is not asked any more."""
        return len(self.known) >= BUDGET

    def refined(self, worst: Iterable[int]) -> bool:
        """Compute these points anew. Returns whether others are to be looked at: one of these changed so much that it
        matters, or had no answer."""
        new = [i for i in worst if i not in self.known][: BUDGET - len(self.known)]
        self.known.update(new)
        changed = unanswered = False
        for i in new:
            value = self.at(i)
            if value is None:
                unanswered = True
                continue
            high, low = value
            if not high:  # it rounds to zero but is none: its sign only tells where it came from
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
        """Leave points out that mpmath has not computed: they are compared with nothing."""
        for i in indices:
            if i not in self.known:
                self._leave_out(i)

    def _leave_out(self, index: int) -> None:
        if self.exact.unknown is not None:
            self.exact.unknown[index] = True

    def at(self, index: int) -> tuple[float, float] | None:
        """The exact value at a point as the sum of two float64, both 0 of one below them; None where mpmath has no
        word."""
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
        return high, 0.0  # what no float is large enough for
    if value and not high:
        return 0.0, 0.0
    # mpmath has no negative zero, and leaves infinities to the op's own kernel.
    return (high, float(value - mpmath.mpf(high))) if high and abs(high) < float("inf") else None
