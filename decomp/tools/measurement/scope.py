"""What a level of accuracy promises: on which inputs and results of a call a rule is judged. At the level exact it is
on all; at looser ones, on normal numbers, and on the range that is stated for the op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from decomp._library import range_of
from decomp.ir.ops import of_function
from decomp.rules.accuracy import LEVELS
from decomp.tools.measurement.trials import Inputs, Trial

ORDINARY = {torch.float16: 100.0, torch.complex32: 100.0}
"""Numbers up to this size, and in other dtypes up to 10,000, are never to become NaN: squares of larger ones overflow
in float16."""
ABSOLUTE = 1 / 4
"""At the level fast, results are as good as those of this size: 64 ULP of it are 16 ε. A textbook formula that cancels
near a zero of the function, or in a tail of it, is off by as much as the terms that it adds."""
GRADIENTS = {"standard": 16.0, "fast": 64.0}
"""ε that gradients may be off by where they pass through 0."""
TIES = "with ties"
"""Inputs some of which are equal: the gradient of the largest may go to any of them, or be shared."""
IN_HALF = 4.0
"""At the level fast, half types are judged up to this size: beyond, an argument has hardly a digit after the point."""
SMALL = 2.0**-24
"""At the level fast, numbers that are not 0 are no smaller: the square of their inverse overflows in no dtype but
float16."""
NEAR_OVERFLOW = 16.0
"""Gradients are judged up to this part of the largest number."""
TURNS = 2.0**13
"""Angles up to which trigonometric functions are promised."""
NORMAL = ("subnormal",)
"""Inputs that no looser level promises anything of."""


@dataclass(frozen=True)
class PromisedScope:
    """What is promised of the results of one call on some inputs."""

    left_out: torch.Tensor | None = None
    """Bool, flat: of which elements nothing is; None if there is no such element."""
    finite_alone: torch.Tensor | None = None
    """Bool, flat: of which elements nothing is but that they are not NaN."""
    gradient: bool = False
    absolute: float = 0.0
    """Errors of smaller results are counted in ULP of this one."""
    slack: float = 0.0
    """What gradients may be off by, absolutely."""
    judged: bool = True
    """Whether anything is promised at all."""

    def for_result(self, count: int) -> PromisedScope:
        """The same for a result of so many elements: one that sums over points of which nothing is promised is left
        out."""
        return self._changed(lambda part: part if len(part) == count else part.any().expand(count))

    def of_parts(self) -> PromisedScope:
        """The same for the parts of complex numbers, side by side."""
        return self._changed(lambda part: part.repeat_interleave(2))

    def _changed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> PromisedScope:
        left_out, finite_alone = (None if part is None else change(part) for part in (self.left_out, self.finite_alone))
        return replace(self, left_out=left_out, finite_alone=finite_alone)

    def left_out_of(self, exact: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        """Of which elements nothing is promised, given the results too."""
        found = torch.zeros(exact.shape, dtype=torch.bool) if self.left_out is None else self.left_out
        if not self.gradient:
            return found
        largest = torch.finfo(own.dtype).max / NEAR_OVERFLOW
        return found | ~own.isfinite() | ~(exact.abs() <= largest)


def scope_of(level: str, what: Trial, inputs: Inputs, gradient: bool) -> PromisedScope | None:
    """What a level promises of a call; None if it promises everything."""
    if level == LEVELS[0]:
        return None
    low, high = range_of(of_function(what.sample.overload).op.short, level)
    if level == "fast" and what.dtype in (torch.float16, torch.bfloat16):
        low, high = max(low, -IN_HALF), min(high, IN_HALF)
    if what.dtype.is_complex:  # functions of complex numbers are trigonometric ones of their imaginary parts
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
    """Of an op that is not pointwise: all of its results, or none."""
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
    """The numbers of a tensor in float64, a row an element, real and imaginary part side by side."""
    t = t.detach()
    if t.is_complex():
        return torch.view_as_real(t.resolve_conj()).double().reshape(-1, 2)
    return t.double().reshape(-1, 1)
