"""The error statistics of one measurement: results are added call by call, with exact ones and PyTorch's own.
Mismatches (NaN, infinity, large errors) are counted separately from rounding errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import torch

from decomp.rules.certificate import Figures, Mismatch
from decomp.tools.measurement.reference_uncertainty import ReferenceUncertainty
from decomp.tools.measurement.scope import PromisedScope
from decomp.validation.ulp import Exact, deviation, kinds, spacing

EXAMPLES = 3
"""How many mismatches a certificate lists."""
LOOSE = 0.01
"""The relative error above which gradients, and results for planted special values, are wrong."""

Naming = Callable[[int], str]
"""From the index of a result to its input, as text."""


@dataclass(frozen=True)
class MeasuredResult:
    """One result of a call: the candidate's, the exact one, and the op's own."""

    found: torch.Tensor
    exact: Exact
    own: torch.Tensor
    pointwise: bool
    """Whether errors are in ULP of each element, or of the largest."""
    naming: Naming
    loose: bool = False
    """Whether large errors count as mismatches: for gradients and planted special values."""
    signed_zeros: bool = True
    """Whether the sign of zero counts."""
    counted: bool = True
    """Whether rounding errors count, or only mismatches."""
    uncertainty: Callable[[], ReferenceUncertainty | None] | None = None
    """Computes the uncertainty of PyTorch's own result; called only if something seems wrong."""
    groups: torch.Tensor | None = None
    """A group number for each element, by the magnitude of its inputs: PyTorch's own error is the largest in the
    group."""
    unit: torch.Tensor | None = None
    """The unit of errors of a pointwise op, if it is not the ULP of each element."""
    scope: PromisedScope | None = None
    """The scope of the level of accuracy; None if it guarantees everything."""


@dataclass
class Tally:
    """Errors so far."""

    against_own: bool = False
    """Whether the op's own result is the exact one, so that it has no error itself."""
    points: int = 0
    total: float = 0.0
    largest: float = 0.0
    worst: str = ""
    own_points: int = 0
    own_total: float = 0.0
    own_largest: float = 0.0
    mismatches: int = 0
    examples: list[Mismatch] = field(default_factory=list)

    def add(self, results: MeasuredResult) -> None:
        """Add one result."""
        if results.found.numel() == 0:
            return
        if results.found.is_complex():
            results = _of_parts(results)
        if results.found.is_floating_point():
            self._floats(results)
        else:
            wrong = results.found != results.own
            if not results.exact.high.is_floating_point():
                wrong &= results.found != results.exact.high  # the op's own result in float64 is accepted too
            if results.scope is not None:
                wrong &= ~_left_out(results.scope, wrong)
            self._mismatched(wrong, results)
            self.points += int((~wrong).sum())

    def figures(self) -> Figures:
        """The statistics, rounded to three digits, so that certificates can be compared."""
        return Figures(
            points=self.points,
            max=_rounded(self.largest),
            mean=_rounded(self.total / max(self.points, 1)),
            worst=self.worst,
            own_max=None if self.against_own else _rounded(self.own_largest),
            own_mean=None if self.against_own else _rounded(self.own_total / max(self.own_points, 1)),
            mismatches=self.mismatches,
            examples=tuple(self.examples),
        )

    def _floats(self, results: MeasuredResult) -> None:
        unit = _unit(results)
        ours = deviation(results.found, results.exact, unit, signed_zero=results.signed_zeros)
        own = deviation(results.own, results.exact, unit, signed_zero=results.signed_zeros)
        # A result of the same kind as the op's own is accepted, such as NaN where float64 has a number.
        wrong = ours.special & ~_same_kind(results)
        if results.loose:
            wrong |= _far_off(results, unit)
        unknown = results.exact.unknown
        comparable = ~unknown if unknown is not None else torch.ones_like(wrong)
        numbers = torch.ones_like(wrong)
        if results.scope is not None:
            wrong, numbers = _within(results.scope, results, wrong)
            comparable = comparable & ~results.scope.left_out_of(results.exact.high, results.own)
        wrong &= comparable
        uncertainty = results.uncertainty() if results.uncertainty is not None and bool(wrong.any()) else None
        if uncertainty is not None:
            wrong &= ~uncertainty.excuses(results.found, results.own)
            comparable = comparable & ~uncertainty.unknown
        self._mismatched(wrong, results)
        good = ours.error.isfinite() & ~wrong & comparable & numbers
        if not results.counted:
            return
        if bool(good.any()):
            error = torch.where(good, ours.error, 0.0)
            at = int(error.argmax())
            if float(error[at]) > self.largest or not self.worst:
                self.largest, self.worst = float(error[at]), results.naming(at)
            self.points, self.total = self.points + int(good.sum()), self.total + float(error.sum())
        usable = own.error.isfinite() & comparable & numbers
        theirs = torch.where(usable, own.error, 0.0)
        self.own_points, self.own_total = self.own_points + int(usable.sum()), self.own_total + float(theirs.sum())
        self.own_largest = max(self.own_largest, float(theirs.max()))

    def _mismatched(self, wrong: torch.Tensor, results: MeasuredResult) -> None:
        where = wrong.nonzero().flatten().tolist()
        self.mismatches += len(where)
        for index in where[:: max(1, len(where) // EXAMPLES)][: EXAMPLES - len(self.examples)]:
            expected = results.exact.rounded(results.found.dtype) if results.found.is_floating_point() else results.own
            found, wanted = (_number(t[index]) for t in (results.found, expected))
            self.examples.append(Mismatch(results.naming(index), found, wanted))


def _within(scope: PromisedScope, results: MeasuredResult, wrong: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Which results are wrong within the guarantees, and for which the digits are compared: normal numbers. A subnormal
    number may be 0, or any other subnormal number."""
    tiny = torch.finfo(results.found.dtype).tiny
    found, exact = results.found.double(), results.exact.high
    numbers = torch.ones_like(wrong)
    if results.pointwise and not results.loose and not scope.absolute and results.unit is None:
        numbers = ~(exact.abs() < tiny)
        wrong = torch.where(numbers, wrong, ~((found - exact).abs() <= tiny))
    if scope.finite_alone is not None:
        wrong = torch.where(scope.finite_alone, found.isnan() & ~exact.isnan() & ~results.own.isnan(), wrong)
        numbers = numbers & ~scope.finite_alone
    return wrong, numbers


def _left_out(scope: PromisedScope, like: torch.Tensor) -> torch.Tensor:
    """The elements whose digits are not guaranteed."""
    found = torch.zeros_like(like)
    for part in (scope.left_out, scope.finite_alone):
        found = found if part is None else found | part
    return found


_WORST = 8
"""How many of the largest errors of each are looked at again."""


def worst_points(results: MeasuredResult, comparable: Iterable[int] = ()) -> list[int]:
    """Indices of the largest errors of the rule and of the op's own kernel, except those already known."""
    left_out = torch.tensor(list(comparable), dtype=torch.int64)
    indices: set[int] = set()
    for value in (results.found, results.own):
        found = deviation(value, results.exact)
        # NaN and infinities come after large errors: mpmath seldom has a value there.
        error = torch.where(found.special, 1.0, found.error).nan_to_num(-1.0, posinf=1e300)
        if results.scope is not None:
            error = error.masked_fill(_left_out(results.scope, found.special), -1.0)
        error = error.index_fill(0, left_out, -1.0)
        indices.update(error.topk(min(_WORST, error.numel())).indices.tolist())
    return sorted(indices)


def _unit(results: MeasuredResult) -> torch.Tensor | None:
    """The unit of errors: the ULP of each element (None), of the gradient but at least of ε, of the absolute value of
    complex numbers, or of the largest element of the result."""
    size = results.exact.high.abs()
    dtype = results.found.dtype
    if results.pointwise and results.loose:
        return spacing(size.clamp(min=torch.finfo(dtype).eps), dtype)
    if results.pointwise and results.scope is not None and results.scope.absolute and results.unit is None:
        return spacing(size.clamp(min=results.scope.absolute), dtype)
    if results.pointwise:
        return results.unit
    return spacing(torch.where(size.isfinite(), size, 0.0).max().expand(size.shape), dtype)


def _same_kind(results: MeasuredResult) -> torch.Tensor:
    ours, own = kinds(results.found), kinds(results.own)
    if not results.signed_zeros:
        ours, own = ours.clamp(max=4), own.clamp(max=4)
    return ours == own


def _far_off(results: MeasuredResult, unit: torch.Tensor | None) -> torch.Tensor:
    """Where a finite result is far from the exact one, although the op's own is close."""
    info = torch.finfo(results.found.dtype)
    exact = results.exact.high
    difference = (results.found.double() - exact).abs()
    own = _of_group((results.own.double() - exact).abs(), results.groups)
    # Where the op's own formula cancels in float64 too, only ε² remains.
    allowed = exact.abs() * max(LOOSE, 8 * info.eps) + (
        info.eps**2 if results.pointwise else 1024 * info.smallest_normal
    )
    if unit is not None and not results.pointwise:
        allowed = allowed + 64 * unit
    allowed = allowed + (results.scope.slack if results.scope is not None else 0.0)
    finite = results.found.isfinite() & results.own.isfinite() & exact.isfinite()
    return finite & (difference > allowed) & (difference > 4 * own)


def _of_group(error: torch.Tensor, groups: torch.Tensor | None) -> torch.Tensor:
    """The largest finite error in the group of each element."""
    if groups is None or groups.shape != error.shape:
        return error
    largest = torch.zeros(int(groups.max()) + 1 if len(groups) else 0, dtype=error.dtype)
    return largest.scatter_reduce(0, groups, torch.where(error.isfinite(), error, 0.0), "amax")[groups]


def _of_parts(results: MeasuredResult) -> MeasuredResult:
    """Complex results as twice as many real ones, in ULP of the absolute value, as one part may cancel."""

    def parts(t: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(t.resolve_conj().contiguous()).flatten()

    def twice(t: torch.Tensor) -> torch.Tensor:
        return t.repeat_interleave(2)

    naming, high, dtype = results.naming, results.exact.high, results.found.dtype.to_real()
    whole = twice(spacing(torch.where(high.isfinite(), high.abs(), 1.0), dtype))
    # Next to an infinite part, the other part has its own magnitude.
    unit = torch.where(twice(high.isfinite()), whole, spacing(parts(high).nan_to_num(1.0, 1.0, 1.0), dtype))
    unknown = results.exact.unknown
    return replace(
        results,
        found=parts(results.found),
        exact=Exact(parts(high), unknown=None if unknown is None else twice(unknown)),
        own=parts(results.own),
        naming=lambda i: naming(i // 2),
        unit=unit,
        scope=None if results.scope is None else results.scope.of_parts(),
    )


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def _number(value: torch.Tensor) -> str:
    item = value.item()
    return f"{item:.9g}" if isinstance(item, float) else str(item)
