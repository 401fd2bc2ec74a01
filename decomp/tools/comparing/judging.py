"""Judges the results of a backend by exact ones and PyTorch's own, for one call on its actual operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
import math
from typing import Any

import torch

from decomp.ir.agreement import described
from decomp.ir.dtypes import name_of
from decomp.ir.ops import of_function
from decomp.rules.accuracy import AGAINST_OWN_BY_LEVEL, DEFAULT, LIMITS_BY_LEVEL, Level
from decomp.rules.library import samples as library_samples
from decomp.runtime.known_deviations import KnownDeviation
from decomp.runtime.tables import Backend
from decomp.samples import Sample
from decomp.tools.certification.results import flat
from decomp.tools.measurement.tally import MeasuredResult, Tally
from decomp.tools.measurement.trials import FAILURES, in_dtype, widened
from decomp.validation.ulp import NEAR_OVERFLOW, Exact, deviation, kinds, spacing

CONVERSIONS = ("_to_copy", "to", "convert_element_type")
"""Ops that convert numbers: the nearest is the only right one."""
SUMS = 4.0
"""The factor on this for other ops, which may add in another order. Their ULP is that of the largest term of a sum."""
PROGRAMS = 16.0
"""The factor on this for whole programs."""


@dataclass(frozen=True, slots=True)
class CallJudgement:
    """The judgement of one call."""

    problem: str = ""
    """A description of the fault; empty for a right result."""
    at: str = ""
    expected: str = ""
    got: str = ""
    ulp: float | None = None
    """The largest error of float results; of a wrong result it includes the wrong values, infinity for a NaN."""
    own: float | None = None
    """The error of PyTorch's own kernel; None if its result is the reference."""
    points: int = 0
    notes: tuple[str, ...] = ()
    """Differences that do not count as wrong."""
    by_design: tuple[str, ...] = ()
    """The backend's declared reasons for differences by design."""
    pcc: float | None = None
    """Pearson's correlation of the result with PyTorch's, between -1 and 1; the lowest of several results. None if a
    result has another shape, or no numbers."""
    cosine: float | None = None
    """Their cosine similarity."""


@dataclass(frozen=True)
class ExpectedResults:
    """The expected results of a call: PyTorch's own, exact ones, and the magnitude of summed terms."""

    own: Sequence[torch.Tensor]
    exact: Sequence[torch.Tensor]
    mass: Sequence[torch.Tensor]
    pointwise: bool
    against_own: bool
    operands: Sequence[torch.Tensor] = ()
    level: Level = DEFAULT
    """The accuracy that is asked of the results: its limits are allowed, and multiples of PyTorch's own error."""
    converts: bool = False
    """Whether the call converts numbers to another dtype."""


def call_of(function: Any, args: Any, kwargs: Any) -> Sample:
    """A call as a sample: with the behaviour its op leaves unspecified, and without values if it is random."""
    name = of_function(function).op.short if isinstance(function, torch._ops.OpOverload) else ""
    leeways: Any = library_samples().leeways
    made = Sample(function, tuple(args), dict(kwargs), leeway=leeways.leeway_of(name, args, kwargs))
    return replace(made, exact="shape") if torch.Tag.nondeterministic_seeded in made.tags else made


def truth_of(sample: Sample, level: Level = DEFAULT) -> ExpectedResults:
    """The expected results of a call with these tensors. Raises one of `FAILURES` if PyTorch itself fails."""
    own = _formed(sample, _run(sample))
    exact, against_own = _exact(sample, own)
    pointwise = sample.pointwise
    mass = _mass(sample, exact) if not pointwise else exact
    converts = (
        isinstance(sample.overload, torch._ops.OpOverload) and sample.overload.overloadpacket.__name__ in CONVERSIONS
    )
    return ExpectedResults(own, exact, mass, pointwise, against_own, sample.tensors, level, converts)


def _run(sample: Sample) -> list[torch.Tensor]:
    with torch.no_grad():
        return flat(sample.with_tensors(t.detach().clone() for t in sample.tensors).run())


def _formed(sample: Sample, results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return list(results if sample.leeway is None else sample.leeway.results(sample, results))


def _wide(sample: Sample, change: Callable[[torch.Tensor], torch.Tensor] = lambda t: t) -> list[torch.Tensor]:
    """The call in float64 (complex128), on the same values or changed ones."""
    is_complex = any(t.is_complex() for t in sample.tensors)
    wide = in_dtype(sample, torch.complex128 if is_complex else torch.float64)
    return _run(wide.with_tensors(change(t) for t in widened(sample.tensors)))


def _exact(sample: Sample, own: Sequence[torch.Tensor]) -> tuple[Sequence[torch.Tensor], bool]:
    """Exact results, and whether they are PyTorch's own."""
    narrow = any(t.dtype in (torch.float16, torch.bfloat16, torch.float32, torch.complex64) for t in own)
    if sample.exact == "float64" and narrow and sample.tensors:
        try:
            exact = _formed(sample, _wide(sample))
            if [(t.shape, t.is_floating_point()) for t in exact] == [(t.shape, t.is_floating_point()) for t in own]:
                return exact, not any(t.dtype in (torch.float64, torch.complex128) for t in exact)
        except FAILURES:
            pass
    return widened(own), True


def _mass(sample: Sample, exact: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """The results for absolute values of the operands: the magnitude of the summed terms."""
    try:
        found = _wide(sample, lambda t: t.abs() if t.is_floating_point() or t.is_complex() else t)
        return found if [t.shape for t in found] == [t.shape for t in exact] else exact
    except FAILURES:
        return exact


def deviations_of(backend: Backend, sample: Sample) -> tuple[KnownDeviation, ...]:
    """The deviations that a backend declares for the op of a call."""
    return backend.deviations(sample.overload) if isinstance(sample.overload, torch._ops.OpOverload) else ()


def judge_results(backend: Backend | None, sample: Sample, found: Any, level: Level = DEFAULT) -> CallJudgement:
    """Judge a backend's results of a call. Raises one of `FAILURES` if PyTorch itself fails."""
    deviations = deviations_of(backend, sample) if backend is not None else ()
    return judge_against(sample, truth_of(sample, level), found, deviations=deviations)


def judge_against(
    sample: Sample | None,
    truth: ExpectedResults,
    found: Any,
    measured: bool = True,
    times: float = 1.0,
    values: bool = True,
    deviations: Sequence[KnownDeviation] = (),
) -> CallJudgement:
    """The same with known expected results; without `values`, only by dtypes and shapes. `measured`: whether rounding
    errors count, or only large errors. `deviations`: the differences by design."""
    mine = flat(found)
    wrong = _structure(truth.own, mine) if sample is None or sample.leeway is None else _structure(_run(sample), mine)
    if wrong:
        return CallJudgement(wrong, ulp=math.inf)
    if not values or sample is not None and sample.exact == "shape":
        return CallJudgement(points=sum(t.numel() for t in mine))
    if sample is not None:
        mine = _formed(sample, mine)
    pcc, cosine = similarity(mine, truth.own)
    worst = CallJudgement(pcc=pcc, cosine=cosine)
    for i in range(len(mine)):
        one = _one(truth, i, mine[i], measured, times)
        if one.problem and deviations:
            one = _by_design(truth, i, mine[i], measured, times, deviations, one)
        if one.problem and len(mine) > 1:
            one = replace(one, at=f"result {i}, {one.at}")
        if one.problem:
            return replace(one, pcc=pcc, cosine=cosine)
        ulp, own = _larger(worst.ulp, one.ulp), _larger(worst.own, one.own)
        notes = tuple(dict.fromkeys((*worst.notes, *one.notes)))
        by_design = tuple(dict.fromkeys((*worst.by_design, *one.by_design)))
        points = worst.points + one.points
        worst = replace(worst, ulp=ulp, own=own, points=points, notes=notes, by_design=by_design)
    return worst


def similarity(found: Sequence[torch.Tensor], own: Sequence[torch.Tensor]) -> tuple[float | None, float | None]:
    """Pearson's correlation and the cosine similarity of results with PyTorch's, each the lowest of all results, in
    float64. Places where PyTorch has no finite number are left out; a NaN elsewhere gives NaN. Constant results have no
    correlation: then it is 1 if they are equal, and 0 otherwise. None without numbers."""
    pairs = [pair for mine, theirs in zip(found, own) if (pair := _numbers(mine, theirs)) is not None]
    if not pairs:
        return None, None
    cosines = [_cosine(mine, theirs) for mine, theirs in pairs]
    correlations = [_cosine(mine - mine.mean(), theirs - theirs.mean()) for mine, theirs in pairs]
    return _lowest(correlations), _lowest(cosines)


def _lowest(values: Sequence[float]) -> float:
    return math.nan if any(map(math.isnan, values)) else min(values)


def _numbers(mine: torch.Tensor, theirs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    if mine.shape != theirs.shape or mine.is_complex() != theirs.is_complex():
        return None
    parts = [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in (mine, theirs)]
    flats = [t.detach().double().flatten() for t in parts]
    kept = flats[1].isfinite()
    return (flats[0][kept], flats[1][kept]) if bool(kept.any()) else None


def _cosine(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    if torch.equal(mine, theirs):
        return 1.0
    sizes = [float(t.abs().max()) for t in (mine, theirs)]
    if 0.0 in sizes:
        return 0.0
    a, b = (t / size for t, size in zip((mine, theirs), sizes))
    return float((a @ b) / (a.norm() * b.norm()))


def _by_design(
    truth: ExpectedResults,
    i: int,
    found: torch.Tensor,
    measured: bool,
    times: float,
    deviations: Sequence[KnownDeviation],
    plain: CallJudgement,
) -> CallJudgement:
    """The judgement of a wrong result without the elements that differ by design."""
    own, reasons = truth.own[i], []
    has_digits = own.is_floating_point() or own.is_complex()
    unit = spacing(own.abs().double(), own.dtype) if has_digits else torch.ones(own.shape)
    for each in deviations:
        excused = each.excuses(found, own, unit, truth.operands) & (found != own) & ~(found.isnan() & own.isnan())
        if bool(excused.any()):
            found = torch.where(excused, own, found)
            reasons.append(each.reason)
    again = _one(truth, i, found, measured, times)
    return again if again.problem else replace(again, ulp=plain.ulp, by_design=tuple(reasons))


def _larger(a: float | None, b: float | None) -> float | None:
    return max((x for x in (a, b) if x is not None), default=None)


def _structure(own: Sequence[torch.Tensor], found: Sequence[torch.Tensor]) -> str:
    if len(own) != len(found):
        return f"{len(found)} results instead of {len(own)}"
    pairs = [(described(a), described(b)) for a, b in zip(found, own) if (a.shape, a.dtype) != (b.shape, b.dtype)]
    return f"{pairs[0][0]} instead of {pairs[0][1]}" if pairs else ""


def _one(truth: ExpectedResults, i: int, found: torch.Tensor, measured: bool, times: float) -> CallJudgement:
    if found.is_complex():
        # Kernels differ in which part of a complex number is infinite and which is NaN.
        lost = ~found.isfinite() & ~truth.own[i].isfinite()
        found = torch.where(lost, truth.own[i], found)
    if times > 1 and found.dtype is torch.float64 and _is_narrow(truth.operands):
        found = found.float()  # a program that computes in float32 has the precision of float32
        truth = replace(truth, own=[*truth.own[:i], truth.own[i].float(), *truth.own[i + 1 :]])
    whole = _tallied(truth, i, found, measured, times, None)
    if not whole.problem or not truth.pointwise:
        return whole
    normal = _normal(truth, i)
    if normal is None or bool(normal.all()):
        return whole
    rest = _tallied(truth, i, found, measured, times, normal)
    return rest if rest.problem else replace(rest, notes=(*rest.notes, "subnormal numbers are other than PyTorch's"))


def _is_narrow(operands: Sequence[torch.Tensor]) -> bool:
    floats = [t for t in operands if t.is_floating_point()]
    return bool(floats) and all(t.dtype is not torch.float64 for t in floats)


def _normal(truth: ExpectedResults, i: int) -> torch.Tensor | None:
    """Where neither an operand nor the result is subnormal, nor the result a rounded subnormal number; None if operands
    do not have the strides of the result."""
    own = truth.own[i]
    kept = torch.ones(own.numel(), dtype=torch.bool)
    for t in truth.operands:
        if t.numel() not in (1, len(kept)):
            return None
        if t.is_floating_point() or t.is_complex():
            kept &= ~_is_small(t, torch.finfo(t.dtype).tiny)
    if own.is_floating_point() or own.is_complex():
        tiny = torch.finfo(own.dtype).tiny * (1 + torch.finfo(own.dtype).eps)
        kept &= ~(_is_small(own, tiny) | _is_small(truth.exact[i], tiny))
    return kept


def _is_small(t: torch.Tensor, bound: float) -> torch.Tensor:
    """Where the magnitude of a number, or of a part of a complex one, is below `bound` and not 0."""
    parts = torch.view_as_real(t.detach().resolve_conj()) if t.is_complex() else t.detach().unsqueeze(-1)
    return ((parts != 0) & (parts.abs().double() < bound)).any(-1).flatten()


def _tallied(
    truth: ExpectedResults, i: int, found: torch.Tensor, measured: bool, times: float, kept: torch.Tensor | None
) -> CallJudgement:
    own, exact = truth.own[i], truth.exact[i]
    tally = Tally(truth.against_own)
    places = torch.arange(own.numel()) if kept is None else kept.nonzero().flatten()
    flats = [t.detach().resolve_conj().resolve_neg().flatten()[places] for t in (found, own, exact)]
    saturated = _saturated(*flats)
    if saturated is not None:
        problem = f"{int(saturated.sum())} of {own.numel()} values saturate where they overflow"
        judged_as = CallJudgement(problem, ulp=math.inf)
        return _with_example(judged_as, truth, i, found, str(int(places[saturated.nonzero()[0, 0]])))
    is_sum = not truth.pointwise and own.is_floating_point()
    unit = _unit(truth, i, own.dtype, len(places)) if is_sum else None
    tally.add(
        MeasuredResult(
            flats[0],
            Exact(flats[2]),
            flats[1],
            pointwise=truth.pointwise or is_sum and measured,
            naming=lambda index: str(int(places[index])),
            loose=not measured,
            signed_zeros=False,
            counted=measured,
            unit=unit,
        )
    )
    figures = tally.figures()
    notes = ("zeros of the other sign than PyTorch's",) if _signs_differ(flats[0], flats[1], flats[2]) else ()
    own_max = None if truth.against_own else figures.own_max
    is_number = own.is_floating_point() or own.is_complex()
    judged_as = replace(CallJudgement(points=figures.points), ulp=figures.max if is_number else None, own=own_max)
    if figures.mismatches:
        problem = f"{figures.mismatches} of {own.numel()} values wrong"
        if is_number:
            judged_as = replace(judged_as, ulp=_largest_error(flats[0], flats[2], unit))
        return _with_example(replace(judged_as, problem=problem), truth, i, found, figures.examples[0].input)
    if figures.max > _allowed(truth, own.dtype, own_max) * times:
        beside = f", PyTorch's own by {own_max:.3g}" if own_max is not None else ""
        problem = f"off by {figures.max:.3g} ULP{beside}"
        return _with_example(replace(judged_as, problem=problem), truth, i, found, figures.worst)
    return replace(judged_as, notes=notes)


def _saturated(found: torch.Tensor, own: torch.Tensor, exact: torch.Tensor) -> torch.Tensor | None:
    """Where a result is finite that overflows by more than rounding explains; None if nowhere."""
    if not own.is_floating_point():
        return None
    info = torch.finfo(own.dtype)
    wrong = own.isinf() & found.isfinite() & (exact.double().abs() > info.max * (1 + NEAR_OVERFLOW * info.eps))
    return wrong if bool(wrong.any()) else None


def _largest_error(found: torch.Tensor, exact: torch.Tensor, unit: torch.Tensor | None) -> float:
    """The error of the worst value in ULP, infinite for a NaN and the like."""
    if found.is_complex():
        found, exact, unit = torch.view_as_real(found), torch.view_as_real(exact), None
    parts = deviation(found, Exact(exact.double()), unit, signed_zero=False)
    error = parts.error.masked_fill(found.isnan() & exact.isnan(), 0.0)
    return float(f"{float(error.nan_to_num(math.inf).max()):.3g}")


def _unit(truth: ExpectedResults, i: int, dtype: torch.dtype, count: int) -> torch.Tensor | None:
    size = torch.maximum(truth.exact[i].double().abs(), truth.mass[i].double().abs()).flatten()
    size = torch.where(size.isfinite(), size, 0.0)
    return spacing(size.max().expand(count), dtype) if count else None


def _allowed(truth: ExpectedResults, dtype: torch.dtype, own: float | None) -> float:
    if truth.converts and not truth.against_own:
        return 0.5
    level = truth.level if isinstance(truth.level, str) else DEFAULT
    limits = LIMITS_BY_LEVEL[level]
    limit = limits.get(name_of(dtype), limits["float32"]) if isinstance(truth.level, str) else truth.level.ulp
    limit *= (1.0 if truth.pointwise else SUMS) * (SUMS if truth.against_own else 1.0)
    return max(limit, AGAINST_OWN_BY_LEVEL[level] * own if own is not None and math.isfinite(own) else 0.0)


def _signs_differ(found: torch.Tensor, own: torch.Tensor, exact: torch.Tensor) -> bool:
    if not found.is_floating_point():
        return False
    mine, theirs = kinds(found), kinds(own)
    return bool(((mine >= 4) & (theirs >= 4) & (mine != theirs) & (exact == 0)).any())


def _with_example(
    judged: CallJudgement, truth: ExpectedResults, i: int, found: torch.Tensor, place: str
) -> CallJudgement:
    """The position of a wrong result, with the expected and the actual value."""
    own, index = truth.own[i], int(place)
    at = [int(each) for each in torch.unravel_index(torch.tensor(index), own.shape)] if own.dim() else []
    text = f"index {at}" if at else "the only element"
    values = [number(t, index if t.numel() > 1 else 0) for t in truth.operands if t.numel() in (1, own.numel())]
    if truth.pointwise and values and len(values) == len(truth.operands):
        text += f", of {', '.join(values)}"
    return replace(judged, at=text, expected=number(own, index), got=number(found, index))


def number(tensor: torch.Tensor, index: int) -> str:
    """An element as text."""
    value = tensor.detach().flatten()[index].item()
    return f"{value:.9g}" if isinstance(value, float) else str(value)
