"""Measuring one rule: each sample call in each dtype, computed as written and as lowered to each target, held against
the exact results and against PyTorch's own. What comes out is the rule's certificate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
import contextlib
from dataclasses import dataclass, field, replace
import logging
import platform

import torch

from decomp.rules.rules import Rule, Rules
from decomp.rules.target import Target
from decomp.samples import Sample, samples_of
from decomp.tools.certification.certificate import Certificate
from decomp.tools.certification.courses import Course, first_line
from decomp.tools.certification.results import flat, same_strides
from decomp.tools.certification.sources import content_hash, numbers_in
from decomp.tools.certification.ways import (
    AsWritten,
    Lowered,
    asked_before,
    asked_first,
    identity,
    serves,
    under_symbolic_sizes,
)
from decomp.tools.measurement import points
from decomp.tools.measurement.comparison import Comparison, moved
from decomp.tools.measurement.differentiation import Derivative, derivative
from decomp.tools.measurement.distributions import disagreement
from decomp.tools.measurement.doubt import of_gradients, of_values
from decomp.tools.measurement.promotion import LOWERED, integer_trials, promotion_trials, verdict
from decomp.tools.measurement.reference import Reference, mp_function, mpmath_is_installed
from decomp.tools.measurement.trials import FAILURES, Function, Inputs, Trial, in_dtype, transposed, trial, widened
from decomp.tools.measurement.undefined import undefined
from decomp.validation.ulp import Exact, kinds

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64)
LOWERED_DTYPES = {torch.float32: 4, torch.bfloat16: 1, torch.complex64: 1}
"""Targets are measured in these, on so many of the samples: what the rules on the way do, they do in every dtype."""
MP_POINTS = 400
"""How many points mpmath computes for float64."""
SYMBOLIC = 4
"""So many samples are traced with symbolic sizes."""
MOST_SAMPLES = 12
"""Sample calls beyond so many are left out."""
DOCUMENTED = "a formula for what the op is documented to compute"

Bound = Sequence[tuple[Course, Function]]


def measured(
    rule: Rule,
    targets: Sequence[Target] = (),
    samples: Iterable[object] | None = None,
    dtypes: Sequence[torch.dtype] | None = None,
    seed: int = 0,
    rules: Rules | None = None,
) -> Certificate:
    """The certificate of one rule: as written, and lowered to each target. Raises `ValueError` without samples."""
    with torch.random.fork_rng(devices=[]), _silent("torch._subclasses.fake_tensor"):
        torch.manual_seed(seed)
        work = _Measurement(rule, measured_samples(rule, samples), tuple(dtypes or DTYPES), seed)
        first = asked_first(rule, rules) if targets else Rules()
        courses = [Course(AsWritten(rule)), *(Course(Lowered(rule, target, first)) for target in targets)]
        work.run(courses)
    return Certificate(
        rule=identity(rule),
        hash=content_hash([rule]),
        torch=torch.__version__.partition("+")[0],
        machine=_machine(),
        seed=seed,
        domain="; ".join([f"{len(work.samples)} sample calls", *work.domain]),
        reference=work.references,
        ways=tuple(course.way() for course in courses),
    )


def _machine() -> str:
    """The instruction set that PyTorch's kernels were chosen for, and how many threads they run on."""
    threads = torch.get_num_threads()
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}, {threads} thread{'s' * (threads > 1)}"


def _draws(sample: Sample) -> bool:
    """Whether a call of a random op is random: attention without dropout is not."""
    if sample.documented is None:
        return True
    one, other = flat(sample.run()), flat(sample.run())
    return any(not torch.equal(a, b) for a, b in zip(one, other))


@contextlib.contextmanager
def _silent(logger: str) -> Iterator[None]:
    """PyTorch tells at length of each op that does not run on fake tensors, which is a finding here."""
    log = logging.getLogger(logger)
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def measured_samples(rule: Rule, given: Iterable[object] | None = None) -> tuple[Sample, ...]:
    """The sample calls that a rule is measured on."""
    return samples_of(rule, given)[:MOST_SAMPLES]


@dataclass
class _Measurement:
    """The state of one measurement."""

    rule: Rule
    samples: tuple[Sample, ...]
    dtypes: tuple[torch.dtype, ...]
    seed: int
    references: dict[str, str] = field(default_factory=dict)
    domain: dict[str, None] = field(default_factory=dict)
    """What was measured on, in words."""

    def run(self, courses: Sequence[Course]) -> None:
        """Measure everything."""
        numbers = numbers_in(self.rule)
        for i, sample in enumerate(self.samples):
            if torch.Tag.nondeterministic_seeded in sample.tags and _draws(sample):
                self._random(sample, courses)
                continue
            for dtype in self.dtypes:
                what = trial(sample, dtype, numbers, self.seed)
                if what is not None:
                    self._in_one_dtype(what, self._concerned(dtype, courses, i))
                if not any(t.is_floating_point() for t in sample.tensors) and dtype is self.dtypes[0]:
                    break  # the same call in every dtype
            self._in_other_dtypes(sample, courses)
            self._of_integers(sample, courses)
            self._laid_out_otherwise(sample, courses)
            if i < SYMBOLIC:
                self._under_symbolic_sizes(sample, courses[0])

    def _concerned(self, dtype: torch.dtype, courses: Sequence[Course], index: int) -> Sequence[Course]:
        if dtype is torch.float64 and not mpmath_is_installed():
            self.references["float64"] = "not measured, for mpmath is not installed"
            return ()
        return courses if index < LOWERED_DTYPES.get(dtype, 0) else courses[:1]

    def _in_one_dtype(self, what: Trial, courses: Sequence[Course]) -> None:
        bound = [(course, function) for course in courses if (function := course.bound(what)) is not None]
        whole = list(bound)  # which compute with integers
        for inputs in what.inputs if bound else ():
            if what.dtype is torch.float64 and what.pointwise:
                inputs = _thinned(inputs)
            if what.dtype is torch.float64 and inputs.label == "huge":
                continue  # where its own kernel overflows, it is no reference
            if what.dtype is torch.float64 and not what.pointwise and inputs.ill_conditioned:
                continue  # where it cancels itself
            self.domain[_described(what, inputs)] = None
            self._values(what, inputs, bound)
            whole = [(course, run) for course, run in whole if self._watch(course, run, what, inputs.tensors)]
            if inputs.trained and what.dtype is torch.float32 and what.sample.exact != "shape":
                # The gradients of gradients are second ones.
                first = _moderate(what, inputs) if what.is_gradient else inputs
                self._derivatives("gradients", what, first, bound)
                # Lowered, second gradients go the way of first ones: one target shows whether there are any.
                self._derivatives("second", what, _moderate(what, inputs), bound[:2])

    def _values(self, what: Trial, inputs: Inputs, bound: Bound) -> None:
        own = flat(what.own(inputs.tensors))
        comparison = self._comparison(what, inputs, what.form(inputs.tensors, own))
        if not what.pointwise:
            sampled = what.sample.tensors
            comparison.moved = moved(what, what.form(sampled, flat(what.own(sampled))))
        elif what.dtype.is_complex:
            comparison.exact = [_doubtful(what, inputs, *each) for each in zip(comparison.own, comparison.exact)]
        else:
            comparison.asked = lambda: of_values(what, inputs, comparison.own)
        for course, function in bound:
            found = course.results(what, lambda: flat(function(inputs.tensors)), own, inputs.label)
            if found is not None and what.sample.exact != "shape":
                comparison.count("values", course, what.form(inputs.tensors, found))

    def _comparison(self, what: Trial, inputs: Inputs, own: list[torch.Tensor]) -> Comparison:
        """The exact results of a call, and how they were come by."""
        name = str(what.dtype).removeprefix("torch.")
        function = mp_function(what.sample) if what.pointwise and len(own) == 1 else None
        exact = [Exact(t) for t in widened(own)]
        here = what.sample.with_tensors(inputs.tensors)
        if what.dtype is torch.float64 and function is not None and what.sample.exact == "float64":
            self.references[name] = f"mpmath with 140 bits, at {MP_POINTS} points"
            high = exact[0].high.clone()
            parts = Exact(high, torch.zeros_like(high), torch.zeros_like(high, dtype=torch.bool))
            reference = Reference(here, function, parts)
            reference.refined(range(own[0].numel()))
            return Comparison(what, inputs, own, [reference.exact])
        documented = what.sample.documented is not None
        if what.dtype is torch.float64 or what.sample.exact != "float64":
            self.references.setdefault(name, DOCUMENTED if documented else "the op's own kernel")
            return Comparison(what, inputs, own, exact, against_own=True)
        try:
            wide = widened(inputs.tensors)
            exact = [Exact(t) for t in what.form(wide, flat(what.wide(wide)))]
        except FAILURES:
            held = DOCUMENTED if documented else "the op's own kernel, for it takes no float64"
            self.references.setdefault(name, held)
            return Comparison(what, inputs, own, exact, against_own=True)
        wide_dtype = "complex128" if what.dtype.is_complex else "float64"
        self.references[name] = f"{DOCUMENTED}, in {wide_dtype}" if documented else f"the op in {wide_dtype}"
        if what.dtype.is_complex:
            return Comparison(what, inputs, own, exact)
        self.references[name] += ", its worst points by mpmath" if function else ""
        if function is None:
            if inputs.ill_conditioned and not what.pointwise:
                exact = [_resolved(e, inputs) for e in exact]
            return Comparison(what, inputs, own, exact)
        exact = [replace(exact[0], unknown=torch.zeros(exact[0].high.shape, dtype=torch.bool))]
        return Comparison(what, inputs, own, exact, reference=Reference(here, function, exact[0]))

    def _derivatives(self, kind: str, what: Trial, inputs: Inputs, bound: Bound) -> None:
        """Measure gradients against the op's own in float64, kinks and all."""
        what = what.slope
        try:
            wanted = derivative(what, 1 if kind == "gradients" else 2)
            own = wanted.of(what.own, inputs.tensors) if wanted is not None else None
            exact = wanted.of(what.wide, widened(inputs.tensors)) if wanted is not None else None
        except FAILURES:
            return  # the op itself has none
        if wanted is None or own is None or exact is None:
            return
        exact = exact if what.sample.exact == "float64" else list(widened(own))
        held = [Exact(t) for t in exact]
        if kind == "second" and not what.pointwise and self._is_smooth(what, inputs, wanted):
            held = [Exact(t, unknown=t.isnan()) for t in exact]
        comparison = Comparison(what, inputs, own, held, loose=True)
        if what.pointwise and what.sample.exact == "float64":
            comparison.asked = lambda: of_gradients(what, inputs, wanted, own, held)
        for course, function in bound:
            place = f"{kind}, {inputs.label}"
            found = course.results(what, lambda: wanted.of(function, inputs.tensors), own, place)
            if found is not None:
                comparison.count(kind, course, found)

    def _is_smooth(self, what: Trial, inputs: Inputs, wanted: Derivative) -> bool:
        """Whether all numbers and the op's own first gradients are finite: a second one that is NaN says nothing, but
        that its formula divides 0 by 0."""
        first = wanted.of_order(1).of(what.wide, widened(inputs.tensors)) or []
        numbers = [t for t in (*inputs.tensors, *first) if t.is_floating_point()]
        return all(bool(t.isfinite().all()) for t in numbers)

    def _under_symbolic_sizes(self, sample: Sample, course: Course) -> None:
        for each in (sample, in_dtype(sample, torch.complex64)):
            if not isinstance(course.attempt(Trial(each, torch.float32, False, ())), str):
                found = under_symbolic_sizes(self.rule, each)
                if found is not None:
                    course.note("dynamic shapes", found)
                return

    def _random(self, sample: Sample, courses: Sequence[Course]) -> None:
        what = Trial(sample, torch.float32, False, ())
        self.domain["random draws"] = None
        for course in courses:
            function = course.bound(what)
            if function is not None:
                try:
                    course.note("random", disagreement(function, what.own, sample.tensors, self.seed))
                except Exception as error:  # whatever a rule raises is a finding
                    course.note("random", first_line(error))

    def _in_other_dtypes(self, sample: Sample, courses: Sequence[Course]) -> None:
        for name, what in promotion_trials(sample, self.seed):
            for course in courses if name in LOWERED else courses[:1]:
                function = course.attempt(what)
                if function == "legal" or isinstance(function, str) and not course.as_written:
                    continue
                said = function if isinstance(function, str) else verdict(what, function)
                if not isinstance(function, str):
                    self._watch(course, function, what, what.sample.tensors)
                # Alternatives serve different calls: a decline counts only if no sample of the dtype is served.
                if course.dtypes.get(name, "declines").startswith("declines") or not said.startswith(("equal", "decl")):
                    course.dtypes[name] = said

    def _of_integers(self, sample: Sample, courses: Sequence[Course]) -> None:
        """What the ways count on where integers are at the ends of their range."""
        for what in integer_trials(sample, self.seed):
            for course in courses:
                function = course.attempt(what)
                if not isinstance(function, str):
                    self._watch(course, function, what, what.sample.tensors)

    def _watch(self, course: Course, function: Function, what: Trial, tensors: Sequence[torch.Tensor]) -> bool:
        """Note what it counts on that has no value in C++, unless it is never asked. Whether there was any integer
        arithmetic to look at."""
        found = undefined(function, what, tensors)
        if found and not any(serves(rule, what) for rule in asked_before(self.rule)):
            course.note("arithmetic", found)
        return found is not None

    def _laid_out_otherwise(self, sample: Sample, courses: Sequence[Course]) -> None:
        """Whether results lie in memory as the op's own do, for arguments that do not lie in order; as written, and on
        the first target that is reached, for the framework sees to it on all."""
        turned = transposed(sample)
        what = Trial(turned, torch.float32, False, ())
        try:
            own = flat(what.own(turned.tensors))
        except FAILURES:
            return
        reached = [course for course in courses[1:] if course.served]
        for course in [courses[0], *reached[:1]]:
            function = course.attempt(what)
            if not isinstance(function, str):
                found = course.results(what, lambda: flat(function(turned.tensors)), own, "transposed")
                if found is not None:
                    same = same_strides(found, own) or same_strides(found, what.predicted(turned.tensors))
                    course.note("strides", "equal" if same else f"differ for {sample}, transposed")


def _doubtful(what: Trial, inputs: Inputs, own: torch.Tensor, exact: Exact) -> Exact:
    """Complex results, unknown where PyTorch contradicts itself on what is infinite, NaN, or a negative zero: its
    kernel for numbers side by side, that for others, and that for complex128."""
    gaps = [torch.stack([t, t], -1)[..., 0] if t.dim() else t for t in inputs.tensors]
    apart = what.form(inputs.tensors, flat(what.own(gaps)))
    others = [t for t in apart if t.shape == own.shape and t.dtype is own.dtype]
    if not own.is_complex():
        return exact
    unknown = kinds(own) != kinds(exact.rounded(own.dtype))
    arguments = [t for t in inputs.tensors if t.shape == own.shape and (t.is_complex() or t.is_floating_point())]
    if arguments:
        unbounded = ~torch.stack([t.isfinite() for t in arguments]).all(0)
        unknown |= own.real.isnan() & own.imag.isnan() & unbounded
    for other in others if len(apart) == 1 else ():
        unknown |= kinds(own) != kinds(other)
    return replace(exact, unknown=unknown)


def _resolved(exact: Exact, inputs: Inputs) -> Exact:
    """Exact results, unknown where all that is left of the inputs is what float64 rounds away of them."""
    sizes = [t.abs().max().double() for t in inputs.tensors if t.is_floating_point() and t.numel()]
    if not sizes or not exact.high.is_floating_point() or not exact.high.numel():
        return exact
    lost = exact.high.abs().max() < 2.0**-52 * max(sizes)
    return replace(exact, unknown=torch.ones_like(exact.high, dtype=torch.bool)) if bool(lost) else exact


def _thinned(inputs: Inputs) -> Inputs:
    """The first points, which are special values, and evenly many of the others; so many in all that the vector unit
    has no rest."""
    many = points.COUNT // MP_POINTS - 3

    def thin(t: torch.Tensor) -> torch.Tensor:
        return torch.cat([t[:40], t[40::many]])[: MP_POINTS + 48] if t.numel() == points.COUNT else t

    return replace(inputs, tensors=tuple(map(thin, inputs.tensors)))


def _moderate(what: Trial, inputs: Inputs) -> Inputs:
    """Points where second derivatives mean something, again in place of the others."""
    floats = [t for t in inputs.tensors if t.is_floating_point() and t.numel() > 1]
    if not what.pointwise or not floats:
        return inputs
    keep = torch.stack([points.moderate(t) for t in floats]).all(0)
    there = keep.flatten().nonzero().flatten()
    if not len(there):
        return inputs
    places = torch.arange(keep.numel())
    chosen = torch.where(keep.flatten(), places, there[places % len(there)])
    new = [t.flatten()[chosen].reshape(t.shape) if t.numel() == keep.numel() else t for t in inputs.tensors]
    return replace(inputs, tensors=tuple(new))


def _described(what: Trial, inputs: Inputs) -> str:
    if not what.pointwise:
        return inputs.label
    count = sum(t.numel() == points.COUNT and t.dtype is what.dtype for t in what.inputs[0].tensors)
    if what.dtype in (torch.float16, torch.bfloat16) and count == 1:
        return "all 65,536 values of 16 bits"
    kind = {1: "points", 2: "pairs", 3: "triples"}.get(count, "tuples")
    return f"{points.COUNT:,} {'complex ' if what.dtype.is_complex else ''}{kind} over the whole domain"
