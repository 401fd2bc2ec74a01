"""Checks that compilation preserves lowered programs: each implementation of an op on a target is compiled by Inductor
and run on the inputs that certificates measure, and the results are compared with the same program run call by call.
Where bits differ, the compiled results are measured like those of any implementation, and must meet the limits of the
level; NaN, infinities, integers and bools must be the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
import functools

import torch

from decomp.ir.agreement import same_elements
from decomp.ops import aten
from decomp.rules.certificate import AS_EAGER, NOT_COMPILED
from decomp.rules.rules import Rule
from decomp.rules.sources import numbers_in
from decomp.rules.target import Target
from decomp.samples import Sample
from decomp.tools.certification.candidate import MeasuredCandidate
from decomp.tools.certification.implementations import AlreadyLegal, Lowered, NotServed, PreferredRule
from decomp.tools.certification.results import flat
from decomp.tools.measurement.joint_graphs import JointlyCompiled, JointProgram, failure
from decomp.tools.measurement.measuring import Measurement, draws_random_numbers, measured_samples
from decomp.tools.measurement.promotion import LOWERED, integer_trials, promotion_trials, verdict
from decomp.tools.measurement.trials import FAILURES, Inputs, Trial, silenced, trial
from decomp.tools.measurement.undefined import fatal, undefined_of_the_op, watched

TRIED = 4
"""How many sample calls are tried; the first that the implementation takes is compiled."""
TOGETHER = 48
"""The most programs in one graph."""
CALLS_TOGETHER = 900
"""The most calls in one graph."""


@dataclass(frozen=True, slots=True)
class CompiledRun:
    """One run of a program: its inputs, and its results when run call by call."""

    inputs: Inputs
    eager: list[torch.Tensor]


@dataclass(eq=False)
class CompiledCase:
    """One program of an implementation, and the runs on which compiled and eager results are compared."""

    way: Lowered
    what: Trial
    dtype: str
    """The key of the verdict: "float32", "int64"."""
    program: JointProgram
    runs: list[CompiledRun]
    verdict: str = ""

    @property
    def calls(self) -> int:
        """The number of calls of the program."""
        return sum(node.op == "call_function" for node in self.program.module.graph.nodes)

    @functools.cached_property
    def casts(self) -> bool:
        """Whether it casts floats to integers: vectorised and scalar code differ for floats out of range."""
        return any(map(_casts, self.program.module.graph.nodes))

    def judge(self, found: Sequence[list[torch.Tensor]]) -> None:
        """Compare the compiled results of each run with the eager ones, unless they are known to differ."""
        if self.verdict in ("", AS_EAGER):
            self.verdict = self._verdict(found)

    def _verdict(self, found: Sequence[list[torch.Tensor]]) -> str:
        differing = [pair for pair in zip(self.runs, found) if not _same_bits(pair[0].eager, pair[1])]
        excused = [(run, _excused(self.what, run, results)) for run, results in differing]
        left = [pair for pair in excused if not _same_bits(pair[0].eager, pair[1])]
        if not left:
            return AS_EAGER
        return self._measured(left) if self.what.inputs else _of_integers(self, left)

    def _measured(self, differing: Sequence[tuple[CompiledRun, list[torch.Tensor]]]) -> str:
        """The verdict by the errors of both against exact results."""
        if self.what.sample.exact == "shape":
            return AS_EAGER
        eager, compiled = (MeasuredCandidate(self.way) for _ in range(2))
        work = Measurement(self.way.rule, (self.what.sample,), (torch.float32,), 0)
        for run, results in differing:
            bound = ((eager, _constant(run.eager)), (compiled, _constant(results)))
            work.count_values(self.what, run.inputs, bound)
        return _compared(compiled, eager)


@dataclass(eq=False)
class Column:
    """The column of one implementation: a verdict per dtype, and the fingerprints of the compiled programs."""

    way: Lowered
    cases: list[CompiledCase] = field(default_factory=list)
    why_not: str = ""

    @property
    def verdicts(self) -> dict[str, str]:
        """The verdicts by dtype; under "all", why nothing was compiled."""
        found: dict[str, str] = {}
        for case in self.cases:
            if found.get(case.dtype, AS_EAGER) == AS_EAGER:
                found[case.dtype] = case.verdict
        return found or {"all": f"{NOT_COMPILED}: {self.why_not or 'no sample call of real numbers is served'}"}

    @property
    def programs(self) -> tuple[str, ...]:
        """The fingerprints, in order."""
        return tuple(case.program.fingerprint for case in self.cases)


def columns(
    ways: Sequence[tuple[Rule, Target, str]], most_calls: int, seed: int = 0, vectors: bool = False
) -> list[Column]:
    """The column "compiled" of implementations, each a rule, a target and a level. Programs of up to `most_calls` calls
    are compiled, many together: as scalar C++, where integer overflow is undefined; and vectorised, where casts behave
    differently, those that cast floats to integers, or all of them."""
    with torch.random.fork_rng(devices=[]), silenced():
        torch.manual_seed(seed)
        found = [_column(*way, most_calls, seed) for way in ways]
        cases = [case for column in found for case in column.cases]
        for group in _groups(cases):
            _hold(group, vectors=False)
        for group in _groups([case for case in cases if vectors or case.casts]):
            _hold(group, vectors=True)
    return found


# what is compiled


def _column(rule: Rule, target: Target, level: str, most_calls: int, seed: int) -> Column:
    column = Column(Lowered(rule, target, PreferredRule(rule), level))
    for sample in measured_samples(rule)[:TRIED]:
        if torch.Tag.nondeterministic_seeded in sample.tags and draws_random_numbers(sample):
            column.why_not = "it draws random numbers"
            continue
        cases = list(_cases(column.way, sample, seed))
        small = [case for case in cases if case.calls <= most_calls]
        if cases and not small:
            column.why_not = f"{cases[0].calls:,} calls, more than {most_calls}"
        if small:
            column.cases = small
            break
    return column


def _cases(way: Lowered, sample: Sample, seed: int) -> Iterator[CompiledCase]:
    """The programs of an implementation for one sample call: in float32, and with integers."""
    what = trial(sample, torch.float32, numbers_in(way.rule), seed)
    if what is not None:
        yield from _case(way, what, "float32", what.inputs)
    for name, other in promotion_trials(sample, seed):
        if name in LOWERED:
            yield from _case(way, other, name, (Inputs(name, tuple(other.sample.tensors)),))
    of_int32 = [other for other in integer_trials(sample, seed) if other.dtype is torch.int32]
    if of_int32:
        yield from _case(way, of_int32[0], "int32", [Inputs("int32", tuple(w.sample.tensors)) for w in of_int32])


def _case(way: Lowered, what: Trial, dtype: str, inputs: Sequence[Inputs]) -> Iterator[CompiledCase]:
    """The program of a trial, if the implementation takes it, and the runs that succeed."""
    try:
        module = way.program(what.sample)
    except (NotServed, AlreadyLegal, *FAILURES):
        return
    runs = [run for each in inputs if (run := _run(module, each)) is not None]
    if runs and runs[0].eager:
        program = JointProgram(module, runs[0].inputs.tensors, len(runs[0].eager))
        yield CompiledCase(way, what, dtype, program, [run for run in runs if _laid_out(run) == _laid_out(runs[0])])


def _laid_out(run: CompiledRun) -> list[tuple[int, ...]]:
    """The layout of the inputs of a run, for which a program is compiled."""
    return [t.stride() for t in run.inputs.tensors]


def _run(module: torch.fx.GraphModule, inputs: Inputs) -> CompiledRun | None:
    """A run of a program; None if it fails, or would crash the process in compiled code."""

    def function(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        with torch.no_grad():
            return flat(module(*(t.detach().clone() for t in tensors)))

    whole = not any(t.is_floating_point() or t.is_complex() for t in inputs.tensors)
    if whole and fatal(watched(function, inputs.tensors)):
        return None
    try:
        return CompiledRun(inputs, [t.detach().clone() for t in function(inputs.tensors)])
    except Exception:  # any failure: there is nothing to compare
        return None


def _casts(node: torch.fx.Node) -> bool:
    dtype = node.kwargs.get("dtype")
    if node.target is not aten._to_copy.default or not isinstance(dtype, torch.dtype):
        return False
    value = node.all_input_nodes[0].meta.get("val")
    whole = not dtype.is_floating_point and not dtype.is_complex and dtype is not torch.bool
    return whole and isinstance(value, torch.Tensor) and value.is_floating_point()


# compiling


def _groups(cases: Sequence[CompiledCase]) -> Iterator[list[CompiledCase]]:
    """Groups of cases to compile together."""
    group: list[CompiledCase] = []
    for case in cases:
        if group and (len(group) == TOGETHER or sum(c.calls for c in group) + case.calls > CALLS_TOGETHER):
            yield group
            group = []
        group.append(case)
    if group:
        yield group


def _hold(group: Sequence[CompiledCase], vectors: bool) -> None:
    """Compile the programs of a group and compare each; in halves, if they do not compile or run together."""
    by_program: dict[str, list[CompiledCase]] = {}
    for case in group:
        by_program.setdefault(case.program.fingerprint, []).append(case)
    firsts = [cases[0] for cases in by_program.values()]
    try:
        run = JointlyCompiled([case.program for case in firsts], vectors)
        found = _results(run, list(by_program.values()))
    except Exception as error:  # Inductor may raise anything for unsupported programs
        if len(firsts) == 1:
            for case in group:
                case.verdict = case.verdict or f"{NOT_COMPILED}: {failure(error)}"
            return
        middle = len(firsts) // 2
        for half in (firsts[:middle], firsts[middle:]):
            _hold([case for one in half for case in by_program[one.program.fingerprint]], vectors)
        return
    for case in group:
        case.judge(found[case])


def _results(
    run: JointlyCompiled, alike: Sequence[Sequence[CompiledCase]]
) -> dict[CompiledCase, list[list[torch.Tensor]]]:
    """The compiled results of every run. All programs run as often as the one with the most runs, starting over."""
    queues = [[(case, one) for case in cases for one in case.runs] for cases in alike]
    found: dict[CompiledCase, list[list[torch.Tensor]]] = {case: [] for cases in alike for case in cases}
    for turn in range(max(map(len, queues))):
        results = run([queue[turn % len(queue)][1].inputs.tensors for queue in queues])
        for queue, result in zip(queues, results):
            if turn < len(queue):
                found[queue[turn][0]].append(result)
    return found


# judging


def _compared(compiled: MeasuredCandidate, eager: MeasuredCandidate) -> str:
    """The verdict on floats, measured on the same runs: no worse than eager, or within what the level allows."""
    mine, theirs = compiled.result(), eager.result()
    worse = [f"{what}: {said}" for what, said in mine.notes.items() if what not in theirs.notes]
    for dtype, figures in mine.values.items():
        own = theirs.values[dtype]
        if figures.mismatches > own.mismatches:
            worse.append(f"{figures.mismatches - own.mismatches} differ, {figures.examples[0]}")
        elif figures.max > max(mine.allowed(dtype, mine.level), own.max):
            worse.append(f"{figures.max:g} ULP at {figures.worst} where eager has {own.max:g}")
    return worse[0] if worse else AS_EAGER


def _of_integers(case: CompiledCase, differing: Sequence[tuple[CompiledRun, list[torch.Tensor]]]) -> str:
    """The verdict on a run with integers: integers and bools as in eager, floats as close to the op's own as in
    eager."""
    for run, results in differing:
        for mine, theirs in zip(results, run.eager):
            if mine.is_floating_point() or mine.is_complex():
                continue
            wrong = (mine != theirs).flatten().nonzero().flatten().tolist()
            if wrong:
                return f"{len(wrong)} of {mine.numel()} differ, {_example(case.what, run, mine, theirs, wrong[0])}"
        here = Trial(case.what.sample.with_tensors(run.inputs.tensors), case.what.dtype, case.what.pointwise, ())
        said = [verdict(here, _constant(tensors), case.way.level) for tensors in (results, run.eager)]
        if said[0] != "equal" and said[0] != said[1]:
            return said[0]
    return AS_EAGER


def _example(what: Trial, run: CompiledRun, mine: torch.Tensor, theirs: torch.Tensor, at: int) -> str:
    tensors = [t.flatten() for t in run.inputs.tensors]
    inputs = ", ".join(str(t[at if t.numel() > 1 else 0].item()) for t in tensors if t.numel() in (1, mine.numel()))
    values = f"{mine.flatten()[at].item()} instead of {theirs.flatten()[at].item()}"
    return f"{values} at {inputs if what.pointwise else run.inputs.label}"


def _excused(what: Trial, run: CompiledRun, results: list[torch.Tensor]) -> list[torch.Tensor]:
    """Compiled results with integers replaced by the eager ones where the op itself is undefined in C++."""
    if all(t.is_floating_point() or t.is_complex() for t in results):
        return results
    tensors = run.inputs.tensors
    count = max((t.numel() for t in tensors), default=1) if what.pointwise else 0
    excused = undefined_of_the_op(what, tensors, count)

    def without(mine: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
        if mine.is_floating_point() or mine.is_complex() or mine.shape != theirs.shape:
            return mine
        where = excused.view(mine.shape) if mine.numel() == excused.numel() else excused.any()
        return torch.where(where, theirs, mine)

    return [without(*pair) for pair in zip(results, run.eager)]


def _same_bits(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    """Whether results are bitwise equal; all NaNs are equal."""
    return len(one) == len(other) and all(map(same_elements, one, other))


def _constant(results: list[torch.Tensor]) -> Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]:
    return functools.partial(_given, results)


def _given(results: list[torch.Tensor], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return results
