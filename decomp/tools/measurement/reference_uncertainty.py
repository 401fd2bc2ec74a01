"""Where PyTorch's own result is uncertain: its kernels for contiguous and strided inputs disagree, or its gradient
cancels or jumps between neighbouring floats. Computed only where a rule seems to be wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch

from decomp.tools.certification.results import flat
from decomp.tools.measurement.differentiation import Derivative
from decomp.tools.measurement.trials import FAILURES, Function, Inputs, Trial, widened
from decomp.validation.ulp import Exact, kinds, spacing

NARROW = 1e-4
"""First gradients that differ by more than this at neighbouring floats are at a kink, where PyTorch's choice counts."""
STEPS = (-4, -1, 1, 4)
"""The neighbours of a float to try, in units in the last place."""
FAR = (2.0**200, 2.0**202, 2.0**204)
"""Numbers that replace infinities, different for each argument: if two choices agree, there is a limit."""


@dataclass(frozen=True)
class ReferenceUncertainty:
    """The uncertainty of one result, by element, as flat tensors."""

    unknown: torch.Tensor
    """Where any result is accepted."""
    own_is_wrong: torch.Tensor
    """Where PyTorch's own number is wrong: any finite number is accepted, and NaN or infinity if PyTorch has one."""
    low: torch.Tensor
    high: torch.Tensor
    """Results from `low` to `high` are accepted too; NaN if there is no such range."""

    def excuses(self, found: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        """Where `found` is accepted."""
        value, margin = found.double(), 0.01 * torch.fmax(self.low.abs(), self.high.abs())
        margin = margin.nan_to_num(0.0, 0.0, 0.0)
        between = (value >= self.low - margin) & (value <= self.high + margin)
        rounded = (value == self.low.to(found.dtype)) | (value == self.high.to(found.dtype))
        return self.unknown | between | rounded | (self.own_is_wrong & (found.isfinite() | ~own.isfinite()))


def of_values(what: Trial, inputs: Inputs, own: Sequence[torch.Tensor]) -> list[ReferenceUncertainty] | None:
    """The uncertainty of the values of a pointwise call on real numbers; None if the op fails."""
    try:
        strided = what.form(inputs.tensors, flat(what.own(_strided(inputs.tensors))))
        limits = _limits(what.wide, what, inputs)
    except FAILURES:
        return None
    found = []
    for mine, other, limit in zip(own, strided, limits):
        nowhere = torch.zeros(mine.shape, dtype=torch.bool)
        unknown = kinds(mine) != kinds(other) if mine.is_floating_point() else nowhere
        limit = torch.where(mine.isnan(), limit, float("nan"))
        found.append(_flat(ReferenceUncertainty(unknown, nowhere, limit, limit)))
    return found


def of_gradients(
    what: Trial, inputs: Inputs, wanted: Derivative, own: Sequence[torch.Tensor], exact: Sequence[Exact]
) -> list[ReferenceUncertainty] | None:
    """The uncertainty of first or second gradients of a pointwise call, in float32; None if the op fails."""
    wide = widened(inputs.tensors)
    try:
        strided = wanted.of(what.own, _strided(inputs.tensors)) or []
        first = _first(what, inputs, wanted, wide) if wanted.order > 1 else []
        near = [g for tensors in _neighbours(inputs.tensors, wide) if (g := wanted.of(what.wide, tensors)) is not None]
        limits = _limits(lambda tensors: wanted.of(what.wide, tensors) or [], what, inputs)
    except FAILURES:
        return None
    # Where the first gradient is not finite, in float64 or in the op's own dtype, the second is meaningless.
    lost = torch.stack([~g.isfinite() for g in first]).any(0) if first else None
    outside, infinite, size = _around(what, inputs)
    sources = [t for t in wide if t.is_floating_point()]
    found = []
    for i, (mine, true) in enumerate(zip(own, exact)):
        number, value = mine.double(), true.high
        unknown = (kinds(mine).clamp(max=4) != kinds(strided[i]).clamp(max=4)) if strided else mine != mine
        if lost is not None and lost.shape == unknown.shape:
            unknown = unknown | lost
        if wanted.order > 1:
            unknown = unknown | _divided(mine, value, sources)
        if outside is not None and outside.shape == unknown.shape:
            unknown = unknown | outside | (infinite & mine.isnan())
        eps = torch.finfo(mine.dtype).eps
        other = _finiteness(mine) != _finiteness(value.to(mine.dtype))
        own_is_wrong = other | ((number - value).abs() > 0.5 * value.abs() + eps**2)
        around = torch.stack([value, *(g[i] for g in near)])
        low, high = _least(around), _greatest(around)
        if wanted.order == 1:
            narrow = high - low <= NARROW * value.abs().clamp(min=1.0)
            low, high = (torch.where(narrow, side, float("nan")) for side in (low, high))
        if wanted.order == 1 or size is not None:
            # Differences below the rounding error of the value; for second derivatives even more.
            unresolved = (eps * size / sources[i].abs()).clamp(max=1e-6) if size is not None else torch.zeros(())
            if wanted.order > 1:
                far = torch.stack(sources).abs().amax(0)
                unresolved = unresolved / torch.where(far == 0, 1.0, far)
            low, high = torch.fmin(low, value - unresolved), torch.fmax(high, value + unresolved)
        limit = limits[i] if i < len(limits) else torch.full_like(value, float("nan"))
        at_infinity = mine.isnan() & ~limit.isnan()
        low, high = (torch.where(at_infinity, limit, side) for side in (low, high))
        found.append(_flat(ReferenceUncertainty(unknown, own_is_wrong, low, high)))
    return found


def _first(what: Trial, inputs: Inputs, wanted: Derivative, wide: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The op's own first gradients, in float64 and as called."""
    once = wanted.of_order(1)
    return [*(once.of(what.wide, wide) or []), *(once.of(what.own, inputs.tensors) or [])]


def _divided(own: torch.Tensor, exact: torch.Tensor, sources: Sequence[torch.Tensor]) -> torch.Tensor:
    """Where a second gradient of finite numbers is NaN: its formula divides 0 by 0."""
    finite = torch.stack(torch.broadcast_tensors(*(t.isfinite() for t in sources))).all(0)
    missing = own.isnan() & exact.isnan()
    return missing & finite if finite.shape == missing.shape else torch.zeros_like(missing)


def _around(what: Trial, inputs: Inputs) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """Where the op's own value is NaN although no argument is, where an argument is infinite and none is NaN, and the
    magnitude of the value; None if arguments and results differ in shape."""
    floats = [t for t in inputs.tensors if t.is_floating_point()]
    values = what.form(inputs.tensors, flat(what.own(inputs.tensors)))
    if len({t.shape for t in (*floats, *values)}) != 1 or not values[0].is_floating_point():
        return None, None, None
    missing = torch.stack([t.isnan() for t in floats]).any(0)
    infinite = torch.stack([t.isinf() for t in floats]).any(0) & ~missing
    return values[0].isnan() & ~missing, infinite, values[0].double().abs()


def groups(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """A number for each point, equal for points with equal signs and exponents; None unless tensors have the same
    shape."""
    floats = [t for t in tensors if t.is_floating_point()]
    if not floats or len({t.shape for t in floats}) > 1:
        return None
    key = torch.zeros(floats[0].numel(), dtype=torch.int64)
    for t in floats:
        _, exponent = torch.frexp(t.detach().double().flatten())
        key = key * 8192 + 2 * (exponent.long() + 2048) + torch.signbit(t.detach()).flatten()
    return torch.unique(key, return_inverse=True)[1]


def _finiteness(t: torch.Tensor) -> torch.Tensor:
    """The kind of each value: finite, NaN, or which infinity."""
    return kinds(t).clamp(max=4) % 4


def _flat(uncertainty: ReferenceUncertainty) -> ReferenceUncertainty:
    return ReferenceUncertainty(*(getattr(uncertainty, field.name).flatten() for field in fields(uncertainty)))


def _strided(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The same values with a stride of 2, for which PyTorch uses other kernels."""
    return [torch.stack([t, t], -1)[..., 0] if t.dim() else t for t in tensors]


def _neighbours(tensors: Sequence[torch.Tensor], wide: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """The arguments in float64, one of them changed by a few steps of its own dtype."""
    found = []
    for i, t in enumerate(tensors):
        if t.is_floating_point() and t.dim():
            step = spacing(wide[i], t.dtype)
            found += [[w + step * k if j == i else w for j, w in enumerate(wide)] for k in STEPS]
    return found


def _limits(function: Function, what: Trial, inputs: Inputs) -> list[torch.Tensor]:
    """Float64 results with infinities replaced by large numbers, where two choices of these agree; NaN elsewhere."""
    wide = widened(inputs.tensors)
    infinite = [t.isinf() for t in wide if t.is_floating_point() and t.dim()]
    shapes = {t.shape for t in infinite}
    if what.dtype is torch.float64 or len(shapes) != 1:
        return [torch.full(r.shape, float("nan"), dtype=torch.float64) for r in flat(function(wide))]
    (shape,) = shapes
    here = torch.stack(infinite).any(0)
    tries = []
    for sizes in (FAR, FAR[::-1]):
        large = [
            torch.where(t.isinf(), t.sign() * sizes[i % len(sizes)], t) if t.is_floating_point() else t
            for i, t in enumerate(wide)
        ]
        tries.append(flat(function(large)))
    found = []
    for one, other in zip(*tries):
        one, other = one.double(), other.double()
        largest = torch.finfo(what.dtype).max
        one, other = (torch.where(t.abs() > largest, t.sign() * float("inf"), t) for t in (one, other))
        agree = (one == other) | ((one - other).abs() <= 1e-6 * one.abs())
        known = agree & here if one.shape == shape else torch.zeros(one.shape, dtype=torch.bool)
        found.append(torch.where(known, one, float("nan")))
    return found


def _least(around: torch.Tensor) -> torch.Tensor:
    return torch.where(around.isnan(), float("inf"), around).amin(0)


def _greatest(around: torch.Tensor) -> torch.Tensor:
    return torch.where(around.isnan(), -float("inf"), around).amax(0)
