"""Decides whether a result is close enough to the op in float64. The allowed error is the ULP that the rule promises,
plus a multiple of the error of the op's own kernel, plus a multiple of the effect of perturbing the operands in their
last place, because no kernel is more precise than its operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
import functools
from typing import Any

import torch

from decomp.ir.dtypes import name_of
from decomp.torch_internals.pytree import tensors_in, tree_leaves, tree_map
from decomp.validation.ties import TieBreak, Ties
from decomp.validation.ulp import spacing

Call = Callable[[Sequence[Any]], list[torch.Tensor]]
"""Maps operands to the tensors that a call returns, flat."""
# The float64 result is one sample of a rounding error. Another
# order of the same sum may be off by several times as much.
KERNEL_ERROR_FACTOR = 8.0
"""The factor on the op's own error, and on the effect of a perturbation, that a result may be off by."""
# For example sin at 10⁸ in float32, where an operand is only known
# to within 4: two perturbations do not show the range of its values.
BLURRED = 1e5
"""Results that a perturbation changes by more ULP than this are not compared: they are ill-conditioned."""
# Signs are random by element: with a single perturbation, two operands may move together and leave their difference
# unchanged, so that a cancellation does not show.
PERTURBATIONS = 2
"""The number of perturbations of the operands."""


@dataclass(frozen=True)
class ErrorJudgement:
    """The largest error of a result, and whether it is allowed."""

    ulp: float
    """In ULP of the exact value, or of the largest element where the op does not compute element by element."""
    fault: str | None = None
    """The fault, in one clause."""
    error: float = 0.0
    """The absolute error."""


@dataclass(frozen=True)
class CallReference:
    """The reference for a call on some operands: results in float64, and acceptable variations: results for operands
    perturbed in their last place, and other choices among equal elements."""

    own: list[torch.Tensor]
    wide: list[torch.Tensor] | None
    """None if the op does not run in float64."""
    moved: Sequence[list[torch.Tensor]]
    operands: Sequence[Any] = ()
    """The operands, if known."""
    choices: Sequence[TieBreak | None] = ()
    """For results that are indices, which elements are equal; empty for a whole program."""
    perturbed: Callable[[], list[list[torch.Tensor]]] | None = None
    """Computes the variations `moved`, needed only for a result that differs."""
    noise: Sequence[float] = ()
    """For gradients, the magnitude of the terms that they sum: errors are compared with this as well."""


def truth_of(call: Call, wide_call: Call, operands: Sequence[Any], *, signs: bool = False) -> CallReference:
    """Computes the reference for a call; `signs`: also with other signs of vectors. Raises what the op itself raises on
    these operands."""
    # Outside the `try`: if the op itself rejects the operands the caller takes others, and nothing is at fault.
    own = call(operands)
    try:
        with Ties() as ties:
            wide, reals = in_float64(wide_call, operands)
    except Exception:  # the op has no float64 kernel, or mixes dtypes explicitly
        return CallReference(own, None, [])
    # The number and shapes of results may depend on values (`unique`, `nonzero`), which float64 does not round alike.
    if [t.shape for t in wide] != [t.shape for t in own]:
        return CallReference(own, None, [])
    # By identity, since a call may run twice in float64, and a function of a call may leave results out.
    choices = [next((choice for choice in ties.choices if choice.places is each), None) for each in wide]
    others = range(1, 1 + (ties.alternatives if ties.choices or signs else 0))
    # Perturbed runs multiply the time of a check, and most results are close enough without any.
    return CallReference(own, wide, [], operands, choices, functools.partial(_perturbed, wide_call, reals, others))


def _perturbed(wide_call: Call, operands: Sequence[Any], others: Sequence[int]) -> list[list[torch.Tensor]]:
    """The results of the call for operands perturbed in their last place, and with other choices."""
    try:
        moved = [wide_call(widened(_moved(operands, seed))) for seed in range(PERTURBATIONS)]
        for other in others:
            # The operands are not perturbed here: a perturbation would make most of the equal elements different.
            with Ties(other):
                moved.append(wide_call(widened(operands)))
    # A perturbed operand may leave the domain, as a probability
    # above 1. Without perturbations the comparison is just stricter.
    except Exception:  # the kernel rejects them
        return []
    return moved


def in_float64(call: Callable[[Any], Any], operands: Any) -> tuple[Any, Any]:
    """The results of a call in float64, and its operands. If results are still narrower floats, as for integer
    operands, the integers are first converted to floats, rounded as the call rounds them."""
    found = call(widened(operands))
    # PyTorch promotes integers to the default dtype, so that `sqrt` of integers gives float32 in the float64 run too.
    narrow = next((leaf.dtype for leaf in tensors_in(found) if leaf.dtype in _WIDER), None)
    if narrow is None or not any(map(_is_exact, tensors_in(operands))):
        return found, operands
    # First to the narrow dtype: the call rounds a large integer to it before it computes, and a rule does the same.
    reals = tree_map(lambda leaf: leaf.to(narrow) if _is_tensor(leaf) and _is_exact(leaf) else leaf, operands)
    try:
        return call(widened(reals)), reals
    except Exception:  # its integers are indices
        return found, operands


@dataclass(frozen=True)
class Allowance:
    """The allowed error of results."""

    ulp: float
    """In ULP of the exact value, or of the largest element where the op does not compute element by element."""
    floor: float = 0.0
    """If it does, errors of smaller results are counted in ULP of this value."""
    slack: float = 0.0
    """If it does, ε that results may be off by in addition."""
    signed_zeros: bool = False
    """Whether the sign of a zero counts."""


def compare_with_reference(
    found: Sequence[torch.Tensor], truth: CallReference, allowed: Allowance | float, *, pointwise: bool
) -> ErrorJudgement:
    """Compares results with the reference. A plain number as the allowed error is in ULP."""
    allowed = allowed if isinstance(allowed, Allowance) else Allowance(allowed)
    judged = _judge(found, truth, allowed, pointwise)
    if judged.fault is None or truth.perturbed is None:
        return judged
    return _judge(found, replace(truth, moved=truth.perturbed()), allowed, pointwise)


def _judge(found: Sequence[torch.Tensor], truth: CallReference, allowed: Allowance, pointwise: bool) -> ErrorJudgement:
    # Checks that need no tolerance come first, so that broadcasting below cannot hide a wrong shape.
    if len(found) != len(truth.own):
        return ErrorJudgement(float("inf"), f"gives {len(found)} tensors instead of {len(truth.own)}")
    worst = error = 0.0
    for i, (mine, own) in enumerate(zip(found, truth.own)):
        if mine.shape != own.shape or mine.dtype != own.dtype:
            return ErrorJudgement(float("inf"), f"gives {_kind(mine)} instead of {_kind(own)}")
        if mine.numel() == 0:
            continue
        wide = truth.wide[i] if truth.wide is not None else _wide(own)
        moved = [each[i] for each in truth.moved]
        if own.dtype == torch.float4_e2m1fn_x2:  # PyTorch casts it to nothing: its bytes are compared
            mine, own, wide, *moved = (each.view(torch.uint8) for each in (mine, own, wide, *moved))
        choice = truth.choices[i] if truth.choices else None
        one = (
            _exactly(mine, own, wide, moved, choice)
            if _is_exact(own)
            else _closely(
                _parts(mine),
                _parts(own),
                _parts(wide),
                [_parts(each) for each in moved],
                allowed,
                pointwise,
                own.dtype,
                _lost_at_zero(truth.operands, own) if pointwise else None,
            )
        )
        # A gradient that is 0 in exact arithmetic has no relative error:
        # both results are then rounding errors of terms that cancel.
        if one.fault is not None and not (truth.noise and truth.wide and _is_noise(mine, wide, truth.noise[i])):
            return one
        worst, error = max(worst, one.ulp), max(error, one.error)
    return ErrorJudgement(worst, error=error)


def _is_noise(mine: torch.Tensor, wide: torch.Tensor, size: float) -> bool:
    """Whether terms of this magnitude cancel: both results, each in its dtype, are only rounding errors."""
    return all(
        bool((each.abs() <= KERNEL_ERROR_FACTOR * torch.finfo(each.dtype).eps * size).all()) for each in (mine, wide)
    )


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor)


def _is_exact(own: torch.Tensor) -> bool:
    return not (own.is_floating_point() or own.is_complex())


def _exactly(
    mine: torch.Tensor, own: torch.Tensor, wide: torch.Tensor, moved: list[torch.Tensor], choice: TieBreak | None
) -> ErrorJudgement:
    """Compares integers and bools, which must be equal, except where they change with perturbed operands, or are
    indices of equal elements."""
    wrong = mine != own if choice is None else ~choice.allows(mine)
    # An integer result of floats, as of `floor` or `argmax`, jumps where the operand is next to an integer or a tie.
    for other in (wide, *moved) if choice is None else ():
        if other.shape == own.shape and not other.is_complex():
            wrong &= other.to(own.dtype) == own
    if not bool(wrong.any()):
        return ErrorJudgement(0.0)
    at = tuple(wrong.nonzero()[0].tolist())
    return ErrorJudgement(float("inf"), f"gives {mine[at].item()} instead of {own[at].item()} at {list(at)}")


def _closely(
    mine: torch.Tensor,
    own: torch.Tensor,
    wide: torch.Tensor,
    moved: list[torch.Tensor],
    allowed: Allowance,
    pointwise: bool,
    dtype: torch.dtype,
    lost: torch.Tensor | None,
) -> ErrorJudgement:
    real = dtype.to_real() if dtype.is_complex else dtype
    mine64, own64, wide, moved = mine.double(), own.double(), wide.double(), [each.double() for each in moved]
    finite = own64.isfinite() & wide.isfinite()
    wrong = _is_wrong_special(mine64, own64, wide, moved, real) & ~(finite & mine64.isfinite())
    if allowed.signed_zeros:
        wrong |= _is_other_zero(mine64, own64, wide)
    if bool(wrong.any()):
        at = tuple(wrong.nonzero()[0].tolist())
        return ErrorJudgement(float("inf"), f"gives {mine[at].item():g} instead of {own[at].item():g} at {list(at)}")
    sizes = torch.where(finite, wide, 0.0).abs()
    # Relative to float64, not to the op's kernel: otherwise a
    # rule that is more precise than the kernel would be reported.
    error, unit = _zero_unless((mine64 - wide).abs(), finite), spacing(sizes, real)
    slack = _zero_unless((own64 - wide).abs(), finite)
    for each in moved:
        slack = torch.fmax(slack, _zero_unless((each - wide).abs(), finite))
    # A sum of products is accurate to the largest of its terms. In ULP of a small element that cancels, even PyTorch's
    # own kernel is off by any number.
    if not pointwise:
        unit, slack = unit.max().expand_as(unit), slack.max().expand_as(slack)
    elif allowed.floor:
        unit = spacing(sizes.clamp(min=allowed.floor), real)
    beyond: Any = allowed.slack * torch.finfo(real).eps if pointwise else 0.0
    if lost is not None:
        beyond = beyond + torch.where(wide == 0, lost, 0.0)
    # Where the last place of an operand determines all digits of a result, any result is accepted; so is any below the
    # normal numbers.
    error = torch.where((slack > BLURRED * unit) & pointwise, 0.0, error)
    excess = error - (allowed.ulp * unit + KERNEL_ERROR_FACTOR * slack + beyond + torch.finfo(real).tiny)
    # Where the op is ill-conditioned, the error in ULP of the result does not measure the rule.
    ulp = float(torch.where((slack <= 4 * unit) | (not pointwise), error / unit, 0.0).max())
    if bool((excess > 0).any()):
        at = tuple((excess == excess.max()).nonzero()[0].tolist())
        where = f"{mine[at].item():.9g} instead of {wide[at].item():.9g} at {list(at)}"
        off = f"off by {float((error / unit)[at]):.3g} ULP where {allowed.ulp:g} are promised"
        return ErrorJudgement(ulp, f"gives {where}, {off}")
    return ErrorJudgement(ulp, error=float(error.max()))


def _is_wrong_special(
    mine: torch.Tensor, own: torch.Tensor, wide: torch.Tensor, moved: list[torch.Tensor], dtype: torch.dtype
) -> torch.Tensor:
    """Where a result is neither that of the op nor that of float64, all of them in float64."""
    # At special values PyTorch's kernels differ by instruction set and layout: float64's result is accepted too.
    # The float64 result is rounded to the dtype first: an infinity is right where it overflows there.
    rounded = wide.to(dtype).double()
    wrong = _is_other(mine, own) & _is_other(mine, rounded)
    # A perturbed operand that makes a finite result infinite shows that the operand is at the threshold of overflow.
    for each in moved:
        wrong &= each.to(dtype).double().isfinite() == rounded.isfinite()
    return wrong


def _lost_at_zero(operands: Sequence[Any], own: torch.Tensor) -> torch.Tensor | None:
    """The possible error of float64 itself where its result is 0 by cancellation, as for 1 + tanh(x) at -20: one unit
    in the last place of the element's largest operand. None if it cannot be determined from the operands."""
    reals = [
        leaf.abs().double()
        for leaf in tree_leaves(list(operands))
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    ]
    if own.is_complex() or not reals:
        return None
    try:
        # NaN and infinite operands become 0: the element is then compared as special value, and 0 adds no tolerance.
        sizes = [real.nan_to_num(0.0, 0.0).expand(own.shape) for real in reals]
    except RuntimeError:
        return None
    return torch.stack(sizes).amax(0) * torch.finfo(torch.float64).eps


def _is_other(mine: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Where only one of the two is NaN, or mine is an infinity that the other is not."""
    return (mine.isnan() != expected.isnan()) | (mine.isinf() & (mine != expected))


def _is_other_zero(mine: torch.Tensor, own: torch.Tensor, wide: torch.Tensor) -> torch.Tensor:
    """Where all are zero, and the sign of mine is neither that of the op nor that of the op in float64. (A zero that is
    a rounded nonzero value may have either sign.)"""
    negative = [value.signbit() for value in (mine, own, wide)]
    zero = (mine == 0) & (own == 0) & (wide == 0)
    return zero & (negative[0] != negative[1]) & (negative[0] != negative[2])


def _zero_unless(error: torch.Tensor, finite: torch.Tensor) -> torch.Tensor:
    return torch.where(finite & error.isfinite(), error, 0.0)


def _parts(value: torch.Tensor) -> torch.Tensor:
    """Real and imaginary parts side by side."""
    value = value.detach()
    return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value


def _kind(value: torch.Tensor) -> str:
    return f"{name_of(value.dtype)}{list(value.shape)}"


_WIDER = {
    torch.float32: torch.float64,
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex32: torch.complex128,
}


def _wide(value: Any) -> Any:
    return value.to(_WIDER[value.dtype]) if isinstance(value, torch.Tensor) and value.dtype in _WIDER else value


def widened(value: Any) -> Any:
    """The same call with float tensors and float dtypes among the arguments replaced by float64."""
    return tree_map(lambda leaf: _WIDER.get(leaf, leaf) if isinstance(leaf, torch.dtype) else _wide(leaf), value)


def _moved(operands: Sequence[Any], seed: int) -> Any:
    """The operands, each float changed by about one unit in the last place, up or down at random."""
    draw = torch.Generator().manual_seed(seed)

    def moved(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not (leaf.is_floating_point() or leaf.is_complex()):
            return leaf
        eps = torch.finfo(leaf.dtype).eps
        # Relative, so that zeros keep their value and sign; and `nextafter` has no kernel for complex numbers.
        step = 1.0 + eps * (torch.randint(0, 2, leaf.shape, generator=draw) * 2 - 1).double()
        return _wide(leaf) * step.to(leaf.device)

    return tree_map(moved, list(operands))
