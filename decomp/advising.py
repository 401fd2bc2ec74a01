"""`advise`: which ops a backend should implement next to lower several programs, and what each is good for. Each
program is analysed twice, by jobs that other processes may run: for the ops it lacks, and for how it lowers with the
chosen ops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
import uuid

from typing_extensions import Unpack

from decomp.advice.clauses import DerivationClauses
from decomp.advice.doing import run_jobs
from decomp.advice.jobs import AdviceJob, Answer, Constant, Setting, forget, is_program
from decomp.advice.missing import MissingCapability, MissingDtype, MissingOp, extend_target
from decomp.advice.smallest_sets import MinimalSet, SmallestSets
from decomp.advice.suggestions import (
    count_calls,
    describe_additions,
    describe_replacements,
    dtype_remedies,
    find_replacements,
    join_names,
)
from decomp.errors import ArgumentError, boundary, count_noun
from decomp.figures import place_of_plot
from decomp.ir.dtypes import name_of
from decomp.ir.narrow_calls import NARROWER
from decomp.jobs import Progress
from decomp.rules.keywords import AdviseOptions
from decomp.rules.options import CHECKS, OF_CERTIFY, Options, verb
from decomp.rules.target import Target
from decomp.tables import Table, titled

_MOST_NAMES = 8
"""How many programs one sentence lists; `as_dict` has them all."""
_NARROW = {name_of(wide): name_of(narrow) for wide, narrow in NARROWER.items()}


@dataclass(frozen=True, slots=True)
class Milestone:
    """Ops to implement together, and the programs that they unlock."""

    add: tuple[str, ...]
    unlocks: tuple[str, ...]
    reached: int
    """How many programs lower then, including those that lowered before."""
    dtypes: tuple[str, ...] = ()
    """Those of `add` that are dtypes, not ops."""
    instead: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By op of `add`: others that would do in its place, all else being equal."""


@dataclass(frozen=True, slots=True)
class Saving:
    """An op that is derived now, and the calls that the target would save by implementing it."""

    op: str
    calls: int
    """How many calls it saves, over all programs."""
    programs: int
    """How many programs have fewer calls with it."""


@dataclass(frozen=True)
class Advice:
    """Which ops a target should implement next, for some programs. `str(advice)` is a text, `plot` draws a curve."""

    to: str
    """Name of the target."""
    lowers: tuple[str, ...]
    """The programs that lower to the target now."""
    milestones: tuple[Milestone, ...]
    """The smallest set of ops with which all programs lower that can, in the best order to implement them."""
    smallest: bool
    """Whether no smaller set is known to be enough, by an exact search."""
    at_least: int
    """A lower bound: no set with fewer ops is enough."""
    savings: tuple[Saving, ...]
    """Ops that would shorten the lowered programs, the best first."""
    calls: Mapping[str, int]
    """How many calls each program has when it is lowered with these ops."""
    out_of_reach: Mapping[str, str]
    """The programs that could not be captured, or that no ops would make lowerable, and why."""
    target: Any = field(repr=False, compare=False, default=None)
    """The target with these ops."""

    @property
    def ops(self) -> tuple[str, ...]:
        """The ops to implement, in order."""
        return tuple(op for milestone in self.milestones for op in milestone.add if op not in milestone.dtypes)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes that the target would need in addition."""
        return tuple(dtype for milestone in self.milestones for dtype in milestone.dtypes)

    @property
    def curve(self) -> tuple[tuple[int, int], ...]:
        """Pairs: a number of ops implemented, and how many programs lower then."""
        found = [(0, len(self.lowers))]
        for milestone in self.milestones:
            found.append((found[-1][0] + len(milestone.add), milestone.reached))
        return tuple(found)

    def as_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        return asdict(replace(self, target=None))

    @boundary("Advice.plot")
    def plot(self, path: str | Path) -> Path:
        """Plot the number of programs that lower over the number of ops implemented. Needs matplotlib, of the extra
        `plot`. Returns the path. Raises `ArgumentError` if the file cannot be written, and `PackageMissing`."""
        # Deferred: matplotlib is an optional dependency.
        from decomp.advice.plotting import plot_curve

        return plot_curve(self, place_of_plot(path))

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __repr__(self) -> str:
        return f"<{'; '.join(self._opening())}; print(advice) shows the ops>"

    def _repr_html_(self) -> str:
        steps = [(", ".join(each.add), ", ".join(each.unlocks), each.reached) for each in self.milestones]
        savings = [(each.op, each.calls, each.programs) for each in self.savings]
        out = [*self.out_of_reach.items()]
        return titled(
            "; ".join(self._opening()),
            Table(("implement next", "then lower", ">programs in all"), steps).html(),
            Table(("op that shortens programs", ">calls saved", ">programs"), savings).html(),
            Table(("program out of reach", "why"), out).html(),
        )

    def lines(self) -> list[str]:
        """The advice as text, one fact a line."""
        return [*self._opening(), *self._order(), *self._savings(), *self._programs()]

    def _opening(self) -> Iterator[str]:
        total = len(self.calls) + len(self.out_of_reach)
        yield f"{len(self.lowers)} of {total} programs lower to {self.to} now"
        if self.milestones:
            proof = "no smaller set is" if self.smallest else f"a set of {self.at_least} may be"
            what = "all" if not self.out_of_reach else f"{len(self.calls)} of {total}"
            yield f"{describe_additions(len(self.ops), len(self.dtypes))} for {what}; {proof}"

    def _order(self) -> Iterator[str]:
        for milestone in self.milestones:
            total = len(self.calls) + len(self.out_of_reach)
            lower = f"then {_shorten_names(milestone.unlocks)} lower{'s' if len(milestone.unlocks) == 1 else ''} too"
            yield f"  add {join_names(milestone.add, 'and')}: {lower}, {milestone.reached} of {total}"
            yield from (f"    {describe_replacements(op, others)}" for op, others in milestone.instead.items())
        for dtype in self.dtypes:
            yield from (f"  {line}" for line in dtype_remedies(dtype))
            if dtype in _NARROW:
                yield f"  narrow=True computes in {_NARROW[dtype]} instead of {dtype}, if the target has it"

    def _savings(self) -> Iterator[str]:
        if self.savings:
            yield "with these implemented, more ops that would save calls:"
        for saving in self.savings:
            programs = count_noun(saving.programs, "program")
            yield f"  {saving.op}: {count_calls(saving.calls)} in {programs}"

    def _programs(self) -> Iterator[str]:
        if len(self.calls) > _MOST_NAMES:
            calls = sorted(self.calls.values())
            yield (
                f"the {len(calls)} programs then have {calls[0]:,} to {calls[-1]:,} calls, half of them "
                f"{calls[len(calls) // 2]:,} or fewer"
            )
        elif self.calls:
            yield "the programs then have: " + ", ".join(f"{name} {count_calls(n)}" for name, n in self.calls.items())
        for name, reason in self.out_of_reach.items():
            yield f"out of reach: {name}: {reason}"


def _shorten_names(names: Sequence[str]) -> str:
    """`a, b, c and 37 more`."""
    if len(names) <= _MOST_NAMES:
        return join_names(names, "and")
    return f"{', '.join(names[: _MOST_NAMES - 1])} and {len(names) - _MOST_NAMES + 1} more"


def _require_programs(value: Any) -> None:
    if not isinstance(value, Mapping) or not value or not all(isinstance(key, str) for key in value):
        raise ArgumentError(f"programs must be a dict from name to program, or to (program, args), not {value!r}")


def _require_count(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ArgumentError(f"{name}= must be a number, 0 or more, not {value!r}")


@verb(
    "advise", AdviseOptions, {"without": CHECKS["keep"], "savings": _require_count, "executor": OF_CERTIFY["executor"]}
)
def advise(
    programs: Mapping[str, Any],
    *,
    to: Target,
    without: Iterable[Any] = (),
    savings: int = 5,
    executor: Executor | None = None,
    results: str | Path | None = None,
    progress: Progress | None = None,
    **given: Unpack[AdviseOptions],
) -> Advice:
    """Return the `Advice` on which ops a target should implement next: the smallest set with which all programs lower,
    in the best order, and the ops that would then save the most calls.

    - `programs`: by name, each an `ExportedProgram` or `GraphModule`, a tuple of an `nn.Module` and example inputs, or
      a function without arguments that returns one of these.
    - `without`: ops that you will not implement, which are never advised.
    - `savings`: how many ops to try in each program, those from which most of its calls are derived, and how many
      savings to report.
    - `executor`: any `concurrent.futures.Executor` of processes; by default everything runs in this process. Jobs are
      sent to it if they can be pickled: the program must be a function of a module, and so must the rules and the
      conditions of the target. (PyTorch traces one program at a time in a process, so threads are no faster.) The
      result does not depend on the executor.
    - `results`: a directory where answers are kept by program, so that an interrupted search, or one over more
      programs, resumes. Programs are identified by name there: a name must always mean the same program.
    - `progress(done, total, name)` is called after each job. The other arguments are those of `lower`.

    The set is a minimum hitting set over all derivations that the rules allow (rules are followed even where the target
    lacks what they expand to; calls that differ only in sizes count as one kind). It is confirmed by planning. Raises
    `ArgumentError`, `RuleError`; a program that cannot be captured is listed in `out_of_reach`.
    """
    _require_programs(programs)
    setting = Setting.of(to, Options.of(given))
    # A program and not a function is packed, so that a job is a call of something in either case.
    makers = {name: Constant(each) if is_program(each) else each for name, each in programs.items()}
    search = AdviceSearch(setting, Constant(setting), makers, executor, results, progress, without=without)
    return search.advice(savings)


_NOT_THE_SAME = (
    "results= cannot be used: a rule, a condition or a cost is a function of yours, which may do something else in "
    'the next process\n  to do: give your rules a version, Rules(version="1"), and write the conditions of a target in '
    "its TOML file"
)


class AdviceSearch:
    """The search for advice over some programs."""

    def __init__(
        self,
        setting: Setting,
        making: Callable[[], Setting],
        programs: Mapping[str, Callable[[], Any]],
        executor: Executor | None,
        results: str | Path | None,
        progress: Progress | None,
        versions: Mapping[str, str] = {},
        without: Iterable[Any] = (),
    ) -> None:
        """`making` builds the setting in another process; `versions` are those of programs that can change."""
        self.target, self.programs = setting.matching.target, programs
        self.refused = Target("", without)
        self.executor, self.progress = executor, progress
        self.digest = setting.digest if results is not None else None
        if results is not None and self.digest is None:
            raise ArgumentError(_NOT_THE_SAME)
        self.place = Path(results) if results is not None else None
        self.making, self.run, self.versions = making, uuid.uuid4().hex, versions
        self.out_of_reach: dict[str, str] = {}
        self.found = DerivationClauses()
        self.goals: dict[str, int] = {}
        """By program with blocked calls: the goal that all of them can be lowered."""

    def advice(self, savings: int) -> Advice:
        """Find what all programs lack, choose a set of ops, and lower the programs with it."""
        try:
            self._take_in(self._asked(self.programs, None, 0))
            return self._answered(savings)
        finally:
            # Jobs in this process keep what they captured for the second round, under the number of this run.
            forget(self.run)

    def _asked(
        self, names: Iterable[str], capabilities: tuple[MissingCapability, ...] | None, savings: int
    ) -> dict[str, Answer]:
        asked = self.making, capabilities, savings, self.run
        jobs = [AdviceJob(name, self.programs[name], *asked, self.versions.get(name, "")) for name in names]
        return run_jobs(jobs, self.executor, self.place, self.digest or "", self.progress)

    def _take_in(self, answers: Mapping[str, Answer]) -> None:
        for name, answer in answers.items():
            if answer.lacks is not None:
                number = self.found.include(answer.lacks)
                self.goals[name] = self.found.all_of(map(number, answer.goals))
            if answer.calls is None:
                self.out_of_reach[name] = answer.reason

    def _answered(self, savings: int) -> Advice:
        sets = self.found.sets(
            lambda capability: isinstance(capability, MissingOp) and self.refused.knows(capability.op)
        )
        capabilities = {number: capability for capability, number in self.found.capabilities.items()}
        lowers = tuple(name for name in self.programs if name not in self.out_of_reach)
        # Goals are derived with all ops that may be advised: what is not reachable with all is so with no part of them.
        for name in [name for name, goal in self.goals.items() if not sets.derived([goal], sets.prices)]:
            del self.goals[name]
        reachable = {name: self.goals[name] for name in self.programs if name in self.goals}
        for name in reachable:
            del self.out_of_reach[name]
        chosen, answers = self._basis(sets, capabilities, (*lowers, *reachable), savings)
        for name, answer in answers.items():
            if answer.calls is None:
                self.out_of_reach[name] = f"the ops that were found are not enough: {answer.reason}"
        calls = {name: answer.calls for name, answer in answers.items() if answer.calls is not None}
        milestones = tuple(self._milestones(sets, capabilities, chosen.leaves, reachable, len(lowers)))
        return Advice(
            self.target.name,
            lowers,
            milestones,
            chosen.smallest and self.found.complete,
            chosen.least,
            _best_savings(answers.values(), savings, self.refused),
            {name: calls[name] for name in self.programs if name in calls},
            self.out_of_reach,
            extend_target(self.target, (capabilities[number] for number in chosen.leaves)),
        )

    def _basis(
        self, sets: SmallestSets, capabilities: Mapping[int, MissingCapability], names: Sequence[str], savings: int
    ) -> tuple[MinimalSet, dict[str, Answer]]:
        """The cheapest set that planning confirms to be enough, and the answer of each program with it."""

        def answers(leaves: Iterable[int]) -> dict[str, Answer]:
            # Sorted, as the capabilities are part of the key under which an answer is kept, and a set has no order.
            return self._asked(names, tuple(sorted((capabilities[number] for number in leaves), key=str)), savings)

        def attempt(leaves: Iterable[int]) -> dict[str, Answer] | None:
            found = answers(leaves)
            return found if all(answer.calls is not None for answer in found.values()) else None

        # Planning can refuse a set that derivations allow, since calls that differ only in sizes count as one kind.
        chosen, found = sets.tried(list(self.goals.values()), attempt)
        return chosen, answers(chosen.leaves) if found is None else found

    def _milestones(
        self,
        sets: SmallestSets,
        capabilities: Mapping[int, MissingCapability],
        leaves: frozenset[int],
        reachable: Mapping[str, int],
        reached: int,
    ) -> Iterator[Milestone]:
        """The set in a greedy order: next comes what the program with the fewest missing ops needs; of programs with
        equally few, the one whose ops unlock the most."""
        left, taken, goals = dict(reachable), set[int](), list(reachable.values())
        while left:
            needs = {name: _needs(sets, goal, leaves - taken, taken) for name, goal in left.items()}
            unlocked = {name: _find_unlocked(sets, left, taken | need) for name, need in needs.items()}
            best = min(left, key=lambda name: (len(needs[name]), -len(unlocked[name]), name))
            taken |= needs[best]
            reached += len(unlocked[best])
            left = {name: goal for name, goal in left.items() if name not in unlocked[best]}
            added = {str(capabilities[number]): number for number in needs[best]}
            dtypes = tuple(name for name in sorted(added) if isinstance(capabilities[added[name]], MissingDtype))
            others = {name: find_replacements(added[name], leaves, sets, goals, capabilities) for name in sorted(added)}
            instead = {name: each for name, each in others.items() if each}
            yield Milestone(tuple(others), tuple(unlocked[best]), reached, dtypes, instead)


def _needs(sets: SmallestSets, goal: int, among: frozenset[int], taken: set[int]) -> set[int]:
    """A minimal part of a set with which a program lowers, by dropping each element that it can do without."""
    need = set(among)
    # In a fixed order, so that advice does not depend on hashes.
    for number in sorted(among):
        if sets.derived([goal], taken | need - {number}):
            need.discard(number)
    return need


def _find_unlocked(sets: SmallestSets, left: Mapping[str, int], taken: set[int]) -> list[str]:
    derived = set(sets.derived(list(left.values()), taken))
    return [name for name, goal in left.items() if goal in derived]


def _best_savings(answers: Iterable[Answer], most: int, refused: Target) -> tuple[Saving, ...]:
    """The ops that save the most calls, over all programs."""
    each = [(op, calls) for answer in answers for op, calls in (answer.saved or {}).items() if op not in refused]
    total: dict[str, list[int]] = {}
    for op, calls in each:
        total.setdefault(op, []).append(calls)
    found = [Saving(op, sum(calls), len(calls)) for op, calls in total.items()]
    return tuple(sorted(found, key=lambda saving: (-saving.calls, saving.op))[:most])
