"""Integers, bools and mixed dtypes: a call with such tensors must return PyTorch's dtype and values."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from decomp.ir.dtypes import name_of
from decomp.ir.ops import of_function
from decomp.rules.accuracy import AGAINST_OWN, LEVELS
from decomp.rules.library import range_of
from decomp.samples import Sample
from decomp.tools.certification.results import MismatchedResults, Refused, flat, match_kernel_metadata
from decomp.tools.measurement import points
from decomp.tools.measurement.trials import FAILURES, Function, Trial, is_shell_float, takes
from decomp.validation.ulp import kinds

OTHERS = (torch.int64, torch.int32, torch.uint8, torch.bool)
LOWERED = ("int64",)
"""The dtypes in which targets are measured."""
LARGE = 2.0**20
TOLERANCE = 2.0**-17
"""Relative tolerance for float results, which are measured in ULP elsewhere."""


def promotion_trials(sample: Sample, seed: int = 0) -> Iterator[tuple[str, Trial]]:
    """The call in other dtypes that the op accepts, each with its name: "int64", "float32 with float64"; none for an op
    without float tensors."""
    floats = [i for i, t in enumerate(sample.tensors) if t.is_floating_point() and not is_shell_float(t.dtype)]
    # Kernels of gradients never see integers: smooth_l1_loss_backward of torch 2.13 divides by zero, and crashes.
    if not floats or sample.exact == "shape" or "_backward" in str(sample.overload):
        return
    pointwise = sample.pointwise
    for dtype in OTHERS:
        tensors = _spread(sample, floats, dtype, seed) if pointwise else None
        if tensors is None or not takes(sample.with_tensors(tensors)):
            tensors = _cast(sample, floats, dtype)
        if takes(changed := sample.with_tensors(tensors)):
            yield name_of(dtype), Trial(changed, dtype, pointwise, ())
    if len(floats) > 1:
        for name, dtype in (("float32 with float64", torch.float64), ("float32 with int64", torch.int64)):
            if takes(changed := sample.with_tensors(_cast(sample, floats[1:], dtype))):
                yield name, Trial(changed, dtype, pointwise, ())


def integer_trials(sample: Sample, seed: int = 0) -> Iterator[Trial]:
    """A pointwise call with only integers: on the whole range, and on integers that do not divide by zero. For the
    smallest integer the kernel of `lcm` crashes the process (torch 2.13)."""
    tensors = sample.tensors
    if not sample.pointwise or not tensors or any(t.is_floating_point() or t.is_complex() for t in tensors):
        return
    for dtype in (torch.int64, torch.int32):
        numbers = points.whole_numbers(len(tensors), dtype, seed)
        harmless = points.without_ends(numbers)
        for chosen in (harmless,) if "lcm" in str(sample.overload) else (numbers, harmless):
            changed = sample.with_tensors(n if t.dim() else n[0].clone() for n, t in zip(chosen, tensors))
            if takes(changed):
                yield Trial(changed, dtype, True, ())


def verdict(what: Trial, function: Function, level: str = LEVELS[0]) -> str:
    """ "equal", or how the results of `function` differ from the op's own where the level promises any."""
    try:
        own = flat(what.own(what.sample.tensors))
        found = flat(function(what.sample.tensors))
        found = match_kernel_metadata(found, own, lambda: what.predicted(what.sample.tensors))
        own, found = (what.form(what.sample.tensors, results) for results in (own, found))
    except Refused as refused:
        return f"declines: {refused}"
    except MismatchedResults as mismatch:
        return str(mismatch)
    except Exception as error:  # any exception of a rule is a finding
        return f"fails: {str(error).strip().partition(chr(10))[0]}"
    precision = max((_tolerance(t.dtype) for t in what.sample.tensors if t.is_floating_point()), default=0.0)
    for mine, theirs in zip(found, own):
        differs = _differs(mine, theirs, precision)
        if what.pointwise and theirs.is_floating_point() and bool(differs.any()):
            differs &= ~_as_exact(mine, theirs, what)
        if what.pointwise and theirs.is_floating_point() and bool(differs.any()):
            differs &= ~_as_of_floats(mine, theirs, what, function)
        if what.pointwise and theirs.is_floating_point():
            # For large integers PyTorch's float kernels may be wrong themselves; floats are measured elsewhere.
            low, high = range_of(of_function(what.sample.overload).op.short, level)
            for t in what.sample.tensors:
                promised = (t.double() >= max(low, -LARGE)) & (t.double() <= min(high, LARGE))
                differs &= promised if t.shape == theirs.shape else True
        wrong = differs.flatten().nonzero().flatten()
        if len(wrong):
            at = int(wrong[0])
            inputs = ", ".join(str(t.flatten()[at].item()) for t in what.sample.tensors if t.numel() > at)
            values = f"{mine.flatten()[at].item()} instead of {theirs.flatten()[at].item()}"
            return f"{len(wrong)} of {mine.numel()} differ: {values} at {inputs if what.pointwise else what.sample}"
    return "equal"


def _as_exact(mine: torch.Tensor, theirs: torch.Tensor, what: Trial) -> torch.Tensor:
    """Where the error of a result against float64 is at most twice that of PyTorch's own (which is large for large
    integers), or the result is that of float64 although PyTorch's own overflows."""
    try:
        (exact,) = flat(what.own([t.double() if t.dtype is not torch.bool else t for t in what.sample.tensors]))
    except (*FAILURES, ValueError):
        return torch.zeros_like(mine, dtype=torch.bool)
    rounded = mine == exact.to(mine.dtype)
    close = (mine.double() - exact).abs() <= _tolerance(mine.dtype) * exact.abs()
    right = rounded | (~theirs.isfinite() & mine.isfinite() & close)
    return right | ((mine.double() - exact).abs() <= AGAINST_OWN * (theirs.double() - exact).abs())


def _as_of_floats(mine: torch.Tensor, theirs: torch.Tensor, what: Trial, function: Function) -> torch.Tensor:
    """Where both the rule and the op return bitwise the same for integers as for the same numbers in float: their
    accuracy is then measured in float, in ULP. A rule may need all but the first as integers, such as a degree."""
    default, tensors = torch.get_default_dtype(), what.sample.tensors
    same = torch.zeros_like(mine, dtype=torch.bool)
    if any(t.is_floating_point() or t.is_complex() for t in tensors) or theirs.dtype is not default:
        return same
    for count in {len(tensors), 1}:
        floats = [t.to(default) if i < count else t for i, t in enumerate(tensors)]
        try:
            (again,), (own,) = flat(function(floats)), flat(what.own(floats))
        except Exception:  # an op that requires integers may raise anything; then nothing is known
            continue
        if again.shape == own.shape == mine.shape and again.dtype is own.dtype is default:
            same |= (again == mine) & (own == theirs)
    return same & mine.isfinite() & theirs.isfinite()


def _tolerance(dtype: torch.dtype) -> float:
    return 8 * torch.finfo(dtype).eps if dtype is not torch.float32 else TOLERANCE


def _differs(mine: torch.Tensor, theirs: torch.Tensor, precision: float) -> torch.Tensor:
    """Where two results differ by more than PyTorch's own kernels that round a part to the narrower dtype."""
    if not (mine.is_floating_point() or mine.is_complex()):
        return mine != theirs
    small = (theirs.abs() == 0) | (theirs.abs() < 1e-30)
    scale = 0.0 if small.all() else float(theirs.abs()[theirs.isfinite()].median()) if theirs.isfinite().any() else 0.0
    allowed = max(_tolerance(mine.dtype), precision) * (theirs.abs() + scale)
    far = (mine - theirs).abs() > allowed
    return torch.where(theirs.isfinite() & mine.isfinite(), far, kinds(mine) != kinds(theirs))


def _spread(sample: Sample, floats: list[int], dtype: torch.dtype, seed: int) -> list[torch.Tensor] | None:
    tensors = sample.tensors
    if any(t.dim() == 0 for t in tensors) or len(floats) < len(tensors):
        return None
    found = points.whole_numbers(len(floats), dtype, seed)
    if sample.domain is None:
        return list(found)
    return [t.to(dtype) for t in sample.domain([t.double() for t in found])]


def _cast(sample: Sample, which: list[int], dtype: torch.dtype) -> list[torch.Tensor]:
    """The sample's own values in another dtype, if more than one of them stays distinct as integers."""
    whole = not (dtype.is_floating_point or dtype.is_complex)
    tensors = sample.tensors
    return [
        _whole(t, dtype) if i in which and whole else t.to(dtype) if i in which else t for i, t in enumerate(tensors)
    ]


def _whole(t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype is torch.bool:
        return t > 0
    return (t * 3).round().abs().to(dtype) if not dtype.is_signed else (t * 3).round().to(dtype)
