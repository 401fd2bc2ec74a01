"""The scope of a level of accuracy: the inputs and results of a call for which it makes guarantees. At the level exact
these are all; at looser ones, normal numbers in the range declared for the op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from decomp.ir.ops import of_function
from decomp.rules.accuracy import ABSOLUTE, GRADIENTS, LEVELS
from decomp.rules.library import range_of
from decomp.tools.measurement.trials import Inputs, Trial

ORDINARY = {torch.float16: 100.0, torch.complex32: 100.0}
"""Numbers up to this magnitude (in other dtypes, up to 10,000) must never become NaN: squares of larger ones overflow
in float16."""
TIES = "with ties"
"""Inputs with equal elements: the gradient of the maximum may go to any of them, or be shared."""
IN_HALF = 4.0
"""At the level fast, the largest magnitude for half types: larger arguments have hardly any fractional digits."""
SMALL = 2.0**-24
"""At the level fast, the smallest nonzero magnitude: the square of its inverse overflows only in float16."""
NEAR_OVERFLOW = 16.0
"""Gradients are compared up to the largest number divided by this."""
TURNS = 2.0**13
"""The largest angle for which trigonometric functions are guaranteed."""
NORMAL = ("subnormal",)
"""Inputs for which looser levels guarantee nothing."""


@dataclass(frozen=True)
class PromisedScope:
    """The guarantees for the results of one call on some inputs."""

    left_out: torch.Tensor | None = None
    """Bool, flat: elements without any guarantee, or None."""
    finite_alone: torch.Tensor | None = None
    """Bool, flat: elements that must only not be NaN."""
    gradient: bool = False
    absolute: float = 0.0
    """Errors of smaller results are counted in ULP of this value."""
    slack: float = 0.0
    """The allowed absolute error of gradients."""
    judged: bool = True
    """Whether anything is guaranteed at all."""

    def for_result(self, count: int) -> PromisedScope:
        """The same for a result of `count` elements: a sum over points without guarantees is excluded."""
        return self._changed(lambda part: part if len(part) == count else part.any().expand(count))

    def of_parts(self) -> PromisedScope:
        """The same for the parts of complex numbers, side by side."""
        return self._changed(lambda part: part.repeat_interleave(2))

    def _changed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> PromisedScope:
        left_out, finite_alone = (None if part is None else change(part) for part in (self.left_out, self.finite_alone))
        return replace(self, left_out=left_out, finite_alone=finite_alone)

    def left_out_of(self, exact: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        """The elements without guarantees, given the results too."""
        found = torch.zeros(exact.shape, dtype=torch.bool) if self.left_out is None else self.left_out
        if not self.gradient:
            return found
        largest = torch.finfo(own.dtype).max / NEAR_OVERFLOW
        return found | ~own.isfinite() | ~(exact.abs() <= largest)


def scope_of(level: str, what: Trial, inputs: Inputs, gradient: bool) -> PromisedScope | None:
    """The scope of a level for a call; None if it guarantees everything."""
    if level == LEVELS[0]:
        return None
    low, high = range_of(of_function(what.sample.overload).op.short, level)
    if level == "fast" and what.dtype in (torch.float16, torch.bfloat16):
        low, high = max(low, -IN_HALF), min(high, IN_HALF)
    if what.dtype.is_complex:  # functions of complex numbers involve trigonometric functions of the imaginary parts
        low, high = max(low, -TURNS), min(high, TURNS)
    floats = [_parts(t) for t in inputs.tensors if t.is_floating_point() or t.is_complex()]
    ordinary = ORDINARY.get(what.dtype, 1e4)
    if not what.pointwise:
        judged = not gradient or inputs.label != TIES
        return _of_whole(level, what, inputs, floats, (low, high), ordinary) if judged else PromisedScope(judged=False)
    count = max((parts.shape[0] for parts in floats), default=0)
    nowhere = torch.zeros(count, dtype=torch.bool)
    left_out, beyond = nowhere.clone(), nowhere.clone()
    for parts in floats:
        size, tiny = parts.abs(), torch.finfo(what.dtype).tiny
        infinite = ~parts.isfinite()
        out = (size > 0) & (size < tiny)
        of_gradient = gradient or what.is_gradient
        if level == "fast" or of_gradient or what.dtype.is_complex:
            out = out | infinite
        if of_gradient:
            out = out | (size > torch.finfo(what.dtype).max / NEAR_OVERFLOW)
        if level == "fast":
            out = out | (size > ordinary) | (size > 0) & (size < SMALL)
        left_out |= out.any(1)
        beyond |= (~infinite & ((parts < low) | (parts > high))).any(1)
    if level == "fast" and not gradient:
        return PromisedScope(left_out, beyond & ~left_out, absolute=ABSOLUTE)
    slack = GRADIENTS[level] * torch.finfo(what.dtype).eps
    return PromisedScope(left_out | beyond, gradient=gradient, slack=slack)


def _of_whole(
    level: str, what: Trial, inputs: Inputs, floats: Sequence[torch.Tensor], reach: tuple[float, float], ordinary: float
) -> PromisedScope:
    """The scope for an op that is not pointwise: all of its results, or none."""
    low, high = reach
    finite = all(bool(parts.isfinite().all()) for parts in floats)
    if inputs.label in NORMAL or not finite and (level == "fast" or what.dtype.is_complex):
        return PromisedScope(judged=False)
    if all(bool(((parts >= low) & (parts <= high) | ~parts.isfinite()).all()) for parts in floats):
        return PromisedScope()
    if level != "fast" or any(bool((parts.abs() > ordinary).any()) for parts in floats):
        return PromisedScope(judged=False)
    return PromisedScope(finite_alone=torch.ones(1, dtype=torch.bool))


def _parts(t: torch.Tensor) -> torch.Tensor:
    """The numbers of a tensor in float64: a row for each element, with real and imaginary part side by side."""
    t = t.detach()
    if t.is_complex():
        return torch.view_as_real(t.resolve_conj()).double().reshape(-1, 2)
    return t.double().reshape(-1, 1)
