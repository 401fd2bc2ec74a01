"""Measures one rule: each sample call in each dtype, computed by the rule as written and as lowered to each target, is
compared with exact results and with PyTorch's own. The outcome is the rule's certificate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
import platform

import torch

from decomp.ir.dtypes import name_of
from decomp.rules.accuracy import LEVELS
from decomp.rules.certificate import Certificate
from decomp.rules.certificates import identity, level_of
from decomp.rules.rules import Rule, Rules
from decomp.rules.sources import content_hash, numbers_in
from decomp.rules.target import Target
from decomp.samples import Sample, samples_of
from decomp.tools.certification.candidate import MeasuredCandidate, first_line
from decomp.tools.certification.implementations import (
    AsWritten,
    Lowered,
    PreferredRule,
    rule_takes_call,
    rules_tried_before,
    under_symbolic_sizes,
)
from decomp.tools.certification.results import flat, same_strides
from decomp.tools.measurement import points
from decomp.tools.measurement.comparison import ExactComparison, is_moved_input
from decomp.tools.measurement.differentiation import Derivative, derivative
from decomp.tools.measurement.distributions import disagreement
from decomp.tools.measurement.flushing import flushed_or_none
from decomp.tools.measurement.promotion import LOWERED, integer_trials, promotion_trials, verdict
from decomp.tools.measurement.reference import Reference, mp_function, mpmath_is_installed
from decomp.tools.measurement.reference_uncertainty import of_gradients, of_values
from decomp.tools.measurement.trials import (
    FAILURES,
    HUGE,
    Function,
    Inputs,
    Trial,
    in_dtype,
    silenced,
    transposed,
    trial,
    widened,
)
from decomp.tools.measurement.undefined import undefined
from decomp.validation.ulp import Exact, kinds

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64)
LOWERED_DTYPES = {torch.float32: 4, torch.bfloat16: 1, torch.complex64: 1}
"""By dtype, the number of samples measured on targets: the rules of a derivation are the same in all dtypes."""
MP_POINTS = 400
"""The number of points that mpmath computes for float64."""
SYMBOLIC = 4
"""The number of samples traced with symbolic sizes."""
MOST_SAMPLES = 12
"""The most sample calls of a rule."""
DOCUMENTED = "a formula for what the op is documented to compute"

Bound = Sequence[tuple[MeasuredCandidate, Function]]


def measure_rule(
    rule: Rule,
    targets: Sequence[Target] = (),
    samples: Iterable[object] | None = None,
    dtypes: Sequence[torch.dtype] | None = None,
    seed: int = 0,
    rules: Rules | None = None,
    levels: Sequence[str] = LEVELS,
    device: torch.device | None = None,
) -> Certificate:
    """The certificate of one rule: at its own level, if that is among `levels`, as written and lowered to each target;
    and at looser levels where it is then lowered differently. `device`: where the rule, the op and the op in float64
    run (None: on the CPU); results are compared on the CPU. Raises `ValueError` without samples."""
    with torch.random.fork_rng(devices=[]), silenced():
        torch.manual_seed(seed)
        calls = tuple(replace(sample, device=device) for sample in measured_samples(rule, samples))
        work = Measurement(rule, calls, tuple(dtypes or DTYPES), seed)
        candidates = work.candidates(targets, rules, levels)
        if candidates:
            work.run(candidates)
    return Certificate(
        rule=identity(rule),
        hash=content_hash([rule]),
        torch=torch.__version__.partition("+")[0],
        machine=_machine(device),
        seed=seed,
        domain="; ".join([f"{len(work.samples)} sample calls", *work.domain]),
        reference=work.references,
        ways=tuple(candidate.result() for candidate in candidates),
        level=level_of(rule),
    )


def _machine(device: torch.device | None) -> str:
    """The instruction set of PyTorch's kernels, and their number of threads; or the name of the CUDA device."""
    if device is not None and device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    threads = torch.get_num_threads()
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}, {threads} thread{'s' * (threads > 1)}"


def draws_random_numbers(sample: Sample) -> bool:
    """Whether a call of a random op draws numbers: attention without dropout does not."""
    first, *others = (flat(sample.run()) for _ in range(3))
    return any(not torch.equal(a, b) for other in others for a, b in zip(first, other))


def measured_samples(rule: Rule, given: Iterable[object] | None = None) -> tuple[Sample, ...]:
    """The sample calls to measure a rule on."""
    return samples_of(rule, given)[:MOST_SAMPLES]


def flushed_verdicts(rule: Rule, ways: Sequence[tuple[Target | None, str]], seed: int = 0) -> list[dict[str, str]]:
    """Measure only the column "flushed" of implementations of a rule, each a target (None for the rule as written) and
    a level: the verdicts by dtype, as in `measure_rule`."""
    with torch.random.fork_rng(devices=[]), silenced():
        torch.manual_seed(seed)
        work = Measurement(rule, measured_samples(rule), (torch.float32,), seed)
        first = PreferredRule(rule, None)
        implementations = [
            AsWritten(rule) if target is None else Lowered(rule, target, first, level) for target, level in ways
        ]
        candidates = [MeasuredCandidate(each) for each in implementations]
        work.count_flushed(candidates)
    return [candidate.flushed for candidate in candidates]


@dataclass
class Measurement:
    """The state of one measurement."""

    rule: Rule
    samples: tuple[Sample, ...]
    dtypes: tuple[torch.dtype, ...]
    seed: int
    references: dict[str, str] = field(default_factory=dict)
    domain: dict[str, None] = field(default_factory=dict)
    """Descriptions of the inputs that the rule was measured on."""
    _trials: dict[tuple[int, torch.dtype], Trial | None] = field(default_factory=dict)

    def candidates(
        self, targets: Sequence[Target], rules: Rules | None, levels: Sequence[str]
    ) -> list[MeasuredCandidate]:
        """The implementations of the op. At a looser level than the rule's own there is one only if the lowered program
        differs from that of the stricter level."""
        first, own = PreferredRule(self.rule, rules), level_of(self.rule)
        ways = (
            Lowered(self.rule, target, first, level)
            for level in LEVELS[LEVELS.index(own) :]
            for target in targets
            if level in levels
        )
        lowered = [way for way in ways if way.level == own or self._differs(way)]
        for way in lowered:
            for sample in self.samples[: LOWERED_DTYPES[torch.float32]]:
                way.measure_cost(in_dtype(sample, torch.float32))
        written = [MeasuredCandidate(AsWritten(self.rule))] if own in levels else []
        return [*written, *map(MeasuredCandidate, lowered)]

    def _differs(self, way: Lowered) -> bool:
        """Whether the program at this level differs from that of the next stricter one, for any sample tried."""
        stricter = replace(way, level=LEVELS[LEVELS.index(way.level) - 1])
        tried = ((i, dtype) for dtype in LOWERED_DTYPES for i in range(LOWERED_DTYPES[dtype]) if dtype in self.dtypes)
        trials = (self._trial(*each) for each in tried if each[0] < len(self.samples))
        return any(way.emits(t.sample) != stricter.emits(t.sample) for t in trials if t is not None)

    def _trial(self, index: int, dtype: torch.dtype) -> Trial | None:
        if (index, dtype) not in self._trials:
            self._trials[index, dtype] = trial(self.samples[index], dtype, numbers_in(self.rule), self.seed)
        return self._trials[index, dtype]

    def run(self, candidates: Sequence[MeasuredCandidate]) -> None:
        """Measure everything."""
        for i, sample in enumerate(self.samples):
            if torch.Tag.nondeterministic_seeded in sample.tags and draws_random_numbers(sample):
                self._random(sample, candidates)
                continue
            for dtype in self.dtypes:
                what = self._trial(i, dtype)
                if what is not None:
                    self._in_one_dtype(what, self._candidates_for(dtype, candidates, i))
                if not any(t.is_floating_point() for t in sample.tensors) and dtype is self.dtypes[0]:
                    break  # the same call in every dtype
            self._in_other_dtypes(sample, candidates)
            self._of_integers(sample, candidates)
            self._with_transposed_inputs(sample, candidates)
            if i < SYMBOLIC and _written(candidates):
                self._under_symbolic_sizes(sample, candidates[0])

    def _candidates_for(
        self, dtype: torch.dtype, candidates: Sequence[MeasuredCandidate], index: int
    ) -> Sequence[MeasuredCandidate]:
        if dtype is torch.float64 and not mpmath_is_installed():
            self.references["float64"] = "not measured, for mpmath is not installed"
            return ()
        return candidates if index < LOWERED_DTYPES.get(dtype, 0) else _written(candidates)

    def _in_one_dtype(self, what: Trial, candidates: Sequence[MeasuredCandidate]) -> None:
        tried = ((candidate, candidate.bind_or_note(what)) for candidate in candidates)
        bound = [(candidate, function) for candidate, function in tried if function is not None]
        integers = list(bound)  # candidates that compute with integers
        for inputs in what.inputs if bound else ():
            if what.dtype is torch.float64 and what.pointwise:
                inputs = _fewer_points(inputs)
            if what.dtype is torch.float64 and inputs.label == HUGE:
                continue  # the op's own kernel, the reference, overflows
            if what.dtype is torch.float64 and not what.pointwise and inputs.ill_conditioned:
                continue  # the reference cancels too
            self.domain[_described(what, inputs)] = None
            self.count_values(what, inputs, bound)
            integers = [pair for pair in integers if self._note_undefined(*pair, what, inputs.tensors)]
            trained = inputs.trained and not self.rule.forward_only
            if trained and what.dtype is torch.float32 and what.sample.exact != "shape":
                # Gradients of backward ops are second gradients.
                first = _moderate_points(what, inputs) if what.is_gradient else inputs
                self._derivatives("gradients", what, first, bound)
                # When lowered, second gradients have the same rules as first ones: one target is enough.
                chosen = {(candidate.as_written, candidate.level): (candidate, f) for candidate, f in reversed(bound)}
                second = [pair for pair in bound if pair in chosen.values() and pair[0].level != LEVELS[-1]]
                self._derivatives("second", what, _moderate_points(what, inputs), second)

    def count_flushed(self, candidates: Sequence[MeasuredCandidate]) -> None:
        """Record the verdict of each candidate with subnormal numbers flushed."""
        for i, sample in enumerate(self.samples):
            what = self._trial(i, torch.float32)
            if what is None or torch.Tag.nondeterministic_seeded in sample.tags and draws_random_numbers(sample):
                continue
            tried = ((each, each.try_bind(what)) for each in self._candidates_for(torch.float32, candidates, i))
            bound = [(candidate, function) for candidate, function in tried if not isinstance(function, str)]
            for inputs in what.inputs if bound else ():
                self._note_flushed(what, inputs, bound)

    def _note_flushed(self, what: Trial, inputs: Inputs, bound: Bound) -> None:
        own = flat(what.own(inputs.tensors))
        flushed = flushed_or_none(what, inputs, own)
        if flushed is None:
            return
        for candidate, function in bound:
            found = candidate.results(what, lambda: flat(function(inputs.tensors)), own, inputs.label)
            if found is not None:
                flushed.note(candidate, function, found)

    def count_values(self, what: Trial, inputs: Inputs, bound: Bound) -> None:
        """Add the results of each candidate on some inputs, compared with exact ones."""
        own = flat(what.own(inputs.tensors))
        comparison = self._comparison(what, inputs, what.form(inputs.tensors, own))
        if not what.pointwise:
            sampled = what.sample.tensors
            comparison.moved = is_moved_input(what, what.form(sampled, flat(what.own(sampled))))
        elif what.dtype.is_complex:
            pairs = zip(comparison.own, comparison.exact)
            comparison.exact = [_without_ambiguous(what, inputs, *each) for each in pairs]
        else:
            comparison.find_uncertainty = lambda: of_values(what, inputs, comparison.own)
        flushed = flushed_or_none(what, inputs, own)
        for candidate, function in bound:
            found = candidate.results(what, lambda: flat(function(inputs.tensors)), own, inputs.label)
            if found is not None and what.sample.exact != "shape":
                comparison.count("values", candidate, what.form(inputs.tensors, found))
            if found is not None and flushed is not None:
                flushed.note(candidate, function, found)

    def _comparison(self, what: Trial, inputs: Inputs, own: list[torch.Tensor]) -> ExactComparison:
        """The exact results of a call; `references` records how they were computed."""
        name = name_of(what.dtype)
        function = mp_function(what.sample) if what.pointwise and len(own) == 1 else None
        exact = [Exact(t) for t in widened(own)]
        here = what.sample.with_tensors(inputs.tensors)
        if what.dtype is torch.float64 and function is not None and what.sample.exact == "float64":
            self.references[name] = f"mpmath with 140 bits, at {MP_POINTS} points"
            high = exact[0].high.clone()
            parts = Exact(high, torch.zeros_like(high), torch.zeros_like(high, dtype=torch.bool))
            reference = Reference(here, function, parts)
            reference.refined(range(own[0].numel()))
            return ExactComparison(what, inputs, own, [reference.exact])
        documented = what.sample.documented is not None
        if what.dtype is torch.float64 or what.sample.exact != "float64":
            self.references.setdefault(name, DOCUMENTED if documented else "the op's own kernel")
            return ExactComparison(what, inputs, own, exact, against_own=True)
        try:
            wide = widened(inputs.tensors)
            exact = [Exact(t) for t in what.form(wide, flat(what.wide(wide)))]
        except FAILURES:
            held = DOCUMENTED if documented else "the op's own kernel, for it takes no float64"
            self.references.setdefault(name, held)
            return ExactComparison(what, inputs, own, exact, against_own=True)
        wide_dtype = "complex128" if what.dtype.is_complex else "float64"
        self.references[name] = f"{DOCUMENTED}, in {wide_dtype}" if documented else f"the op in {wide_dtype}"
        if what.dtype.is_complex:
            return ExactComparison(what, inputs, own, exact)
        self.references[name] += ", its worst points by mpmath" if function else ""
        if function is None:
            if inputs.ill_conditioned and not what.pointwise:
                exact = [_without_cancelled(e, inputs) for e in exact]
            return ExactComparison(what, inputs, own, exact)
        exact = [replace(exact[0], unknown=torch.zeros(exact[0].high.shape, dtype=torch.bool))]
        return ExactComparison(what, inputs, own, exact, reference=Reference(here, function, exact[0]))

    def _derivatives(self, kind: str, what: Trial, inputs: Inputs, bound: Bound) -> None:
        """Measure gradients against the op's own in float64, including kinks."""
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
        comparison = ExactComparison(what, inputs, own, held, loose=True)
        if what.pointwise and what.sample.exact == "float64":
            comparison.find_uncertainty = lambda: of_gradients(what, inputs, wanted, own, held)
        for candidate, function in bound:
            place = f"{kind}, {inputs.label}"
            found = candidate.results(what, lambda: wanted.of(function, inputs.tensors), own, place)
            if found is not None:
                comparison.count(kind, candidate, found)

    def _is_smooth(self, what: Trial, inputs: Inputs, wanted: Derivative) -> bool:
        """Whether all inputs and the op's own first gradients are finite: then a NaN in the op's second gradient only
        means that its formula divides 0 by 0."""
        first = wanted.of_order(1).of(what.wide, widened(inputs.tensors)) or []
        numbers = [t for t in (*inputs.tensors, *first) if t.is_floating_point()]
        return all(bool(t.isfinite().all()) for t in numbers)

    def _under_symbolic_sizes(self, sample: Sample, candidate: MeasuredCandidate) -> None:
        for each in (sample, in_dtype(sample, torch.complex64)):
            if not isinstance(candidate.try_bind(Trial(each, torch.float32, False, ())), str):
                found = under_symbolic_sizes(self.rule, each)
                if found is not None:
                    candidate.note("dynamic shapes", found)
                return

    def _random(self, sample: Sample, candidates: Sequence[MeasuredCandidate]) -> None:
        what = Trial(sample, torch.float32, False, ())
        self.domain["random draws"] = None
        for candidate in candidates:
            function = candidate.bind_or_note(what)
            if function is not None:
                try:
                    candidate.note("random", disagreement(function, what.own, sample.tensors, self.seed))
                except Exception as error:  # any exception of a rule is a finding
                    candidate.note("random", first_line(error))

    def _in_other_dtypes(self, sample: Sample, candidates: Sequence[MeasuredCandidate]) -> None:
        for name, what in promotion_trials(sample, self.seed):
            for candidate in candidates if name in LOWERED else _written(candidates):
                function = candidate.try_bind(what)
                if function == "legal" or isinstance(function, str) and not candidate.as_written:
                    continue
                said = function if isinstance(function, str) else verdict(what, function, candidate.level)
                if not isinstance(function, str):
                    self._note_undefined(candidate, function, what, what.sample.tensors)
                # Alternatives take different calls: a decline counts only if the rule takes no sample of the dtype.
                before = candidate.dtypes.get(name, "declines")
                if before.startswith("declines") or not said.startswith(("equal", "decl")):
                    candidate.dtypes[name] = said

    def _of_integers(self, sample: Sample, candidates: Sequence[MeasuredCandidate]) -> None:
        """Note undefined integer arithmetic at the limits of the range."""
        for what in integer_trials(sample, self.seed):
            for candidate in candidates:
                function = candidate.try_bind(what)
                if not isinstance(function, str):
                    self._note_undefined(candidate, function, what, what.sample.tensors)

    def _note_undefined(
        self, candidate: MeasuredCandidate, function: Function, what: Trial, tensors: Sequence[torch.Tensor]
    ) -> bool:
        """Note integer arithmetic that is undefined in C++, unless another rule is tried first for such calls. Returns
        whether there was any integer arithmetic."""
        if what.sample.device is not None:
            return False  # what C++ leaves undefined is measured on the CPU
        found = undefined(function, what, tensors)
        if found and not any(rule_takes_call(rule, what) for rule in rules_tried_before(self.rule)):
            candidate.note("arithmetic", found)
        return found is not None

    def _with_transposed_inputs(self, sample: Sample, candidates: Sequence[MeasuredCandidate]) -> None:
        """Note whether results have the strides of the op's own for transposed inputs: as written, and on the first
        target that is reached, because lowering restores strides in the same way on all."""
        turned = transposed(sample)
        what = Trial(turned, torch.float32, False, ())
        try:
            own = flat(what.own(turned.tensors))
        except FAILURES:
            return
        reached = [candidate for candidate in candidates if candidate.served and not candidate.as_written]
        for candidate in [*_written(candidates), *reached[:1]]:
            function = candidate.try_bind(what)
            if not isinstance(function, str):
                found = candidate.results(what, lambda: flat(function(turned.tensors)), own, "transposed")
                if found is not None:
                    same = same_strides(found, own) or same_strides(found, what.predicted(turned.tensors))
                    candidate.note("strides", "equal" if same else f"differ for {sample}, transposed")


def _written(candidates: Sequence[MeasuredCandidate]) -> Sequence[MeasuredCandidate]:
    """The candidate as written, if it is measured."""
    return [candidate for candidate in candidates if candidate.as_written]


def _without_ambiguous(what: Trial, inputs: Inputs, own: torch.Tensor, exact: Exact) -> Exact:
    """Complex results, marked unknown where PyTorch's kernels (for contiguous inputs, for strided ones, for complex128)
    disagree on infinities, NaN or the sign of zero."""
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


def _without_cancelled(exact: Exact, inputs: Inputs) -> Exact:
    """Exact results, marked unknown where the inputs cancel below the resolution of float64."""
    sizes = [t.abs().max().double() for t in inputs.tensors if t.is_floating_point() and t.numel()]
    if not sizes or not exact.high.is_floating_point() or not exact.high.numel():
        return exact
    lost = exact.high.abs().max() < 2.0**-52 * max(sizes)
    return replace(exact, unknown=torch.ones_like(exact.high, dtype=torch.bool)) if bool(lost) else exact


def _fewer_points(inputs: Inputs) -> Inputs:
    """The first points, which are special values, and every n-th of the others; in total a multiple of the vector
    width, so that PyTorch computes all of them with the same kernel."""
    many = points.COUNT // MP_POINTS - 3

    def thin(t: torch.Tensor) -> torch.Tensor:
        return torch.cat([t[:40], t[40::many]])[: MP_POINTS + 48] if t.numel() == points.COUNT else t

    return replace(inputs, tensors=tuple(map(thin, inputs.tensors)))


def _moderate_points(what: Trial, inputs: Inputs) -> Inputs:
    """The points of moderate magnitude, where second derivatives are meaningful, repeated to replace the others."""
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
