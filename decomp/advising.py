"""`advise`: over several programs, which ops a backend should implement next, and what each is good for. Each program
is asked twice, by jobs that other processes may do: what it lacks, and what comes of it with the ops that were
chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
import uuid

from decomp.advice.alternatives import Alternatives
from decomp.advice.doing import Progress, done
from decomp.advice.jobs import AdviceJob, Answer, Given, Setting, forget, is_program
from decomp.advice.missing import MissingCapability, MissingDtype, MissingOp, extend_target
from decomp.advice.smallest_sets import Chosen, SmallestSets
from decomp.advice.suggestions import avoided, counted, enough, in_the_place, instead_of, listed
from decomp.costs.model import Cost
from decomp.derive.rule_selection import RuleSelection
from decomp.errors import ArgumentError, boundary
from decomp.ir.dtypes import name_of
from decomp.ir.narrow_calls import NARROWER
from decomp.lowering import rules_and_target
from decomp.rules.accuracy import DEFAULT, Accuracy, Policy, Spec
from decomp.rules.options import CHECKS
from decomp.rules.rules import Rules
from decomp.rules.target import Target

_MOST_NAMES = 8
"""So many programs are named in one sentence; `as_dict` has them all."""
_NARROW = {name_of(wide): name_of(narrow) for wide, narrow in NARROWER.items()}


@dataclass(frozen=True, slots=True)
class Milestone:
    """Ops to implement together, and the programs that they unlock."""

    add: tuple[str, ...]
    unlocks: tuple[str, ...]
    reached: int
    """How many programs lower then, with those that lowered before."""
    dtypes: tuple[str, ...] = ()
    """Those of `add` that are dtypes of tensors, and no ops."""
    instead: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By op of `add`, others that would do in its place, with all that is advised beside it as it is."""


@dataclass(frozen=True, slots=True)
class Saving:
    """An op that is derived now, and what it would save if the target knew it."""

    op: str
    calls: int
    """Over all programs, fewer than without it."""
    programs: int
    """In how many of them."""


@dataclass(frozen=True)
class Advice:
    """Which ops a target should know next, for some programs. `str(advice)` is a text, `plot` a picture."""

    to: str
    """Name of the target."""
    lowers: tuple[str, ...]
    """The programs that lower to the target as it is."""
    milestones: tuple[Milestone, ...]
    """The smallest set of ops with which all programs lower that can, in the order in which it pays to implement it."""
    smallest: bool
    """Whether it is proved that no smaller set is enough for them."""
    at_least: int
    """No set with fewer ops is enough."""
    savings: tuple[Saving, ...]
    """Ops that would make the lowered programs shorter, the best first."""
    calls: Mapping[str, int]
    """Of each program when it is lowered with these ops."""
    out_of_reach: Mapping[str, str]
    """The programs that no ops would help, or that could not be captured, and why."""
    target: Any = field(repr=False, compare=False, default=None)
    """The target with these ops."""

    @property
    def ops(self) -> tuple[str, ...]:
        """The ops to implement, in order."""
        return tuple(op for milestone in self.milestones for op in milestone.add if op not in milestone.dtypes)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes that tensors would have to have in addition."""
        return tuple(dtype for milestone in self.milestones for dtype in milestone.dtypes)

    @property
    def curve(self) -> tuple[tuple[int, int], ...]:
        """How many programs lower with so many of the ops."""
        found = [(0, len(self.lowers))]
        for milestone in self.milestones:
            found.append((found[-1][0] + len(milestone.add), milestone.reached))
        return tuple(found)

    def as_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        return asdict(replace(self, target=None))

    def plot(self, path: str | Path) -> Path:
        """Draw the programs that lower against the ops that are implemented. Needs matplotlib, of the extra `plot`.
        Returns the path."""
        # Imported here, for it is an extra.
        from decomp.advice.plotting import plot_curve

        return plot_curve(self, Path(path))

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """The advice, a thought a line."""
        return [*self._opening(), *self._order(), *self._savings(), *self._programs()]

    def _opening(self) -> Iterator[str]:
        total = len(self.calls) + len(self.out_of_reach)
        yield f"{len(self.lowers)} of {total} programs lower to {self.to} as it is"
        if self.milestones:
            proof = "no smaller set is" if self.smallest else f"a set of {self.at_least} may be"
            what = "all" if not self.out_of_reach else f"{len(self.calls)} of {total}"
            yield f"{enough(len(self.ops), len(self.dtypes))} for {what}; {proof}"

    def _order(self) -> Iterator[str]:
        for milestone in self.milestones:
            total = len(self.calls) + len(self.out_of_reach)
            lower = f"then {_few(milestone.unlocks)} lower{'s' if len(milestone.unlocks) == 1 else ''} too"
            yield f"  add {listed(milestone.add, 'and')}: {lower}, {milestone.reached} of {total}"
            yield from (f"    {in_the_place(op, others)}" for op, others in milestone.instead.items())
        for dtype in self.dtypes:
            yield from (f"  {line}" for line in avoided(dtype))
            if dtype in _NARROW:
                yield f"  narrow=True computes in {_NARROW[dtype]} in the place of {dtype}, where the target has it"

    def _savings(self) -> Iterator[str]:
        if self.savings:
            yield "ops that would save calls, once these are there:"
        for saving in self.savings:
            programs = f"{saving.programs} program{'s' if saving.programs > 1 else ''}"
            yield f"  {saving.op}: {counted(saving.calls)} in {programs}"

    def _programs(self) -> Iterator[str]:
        if len(self.calls) > _MOST_NAMES:
            calls = sorted(self.calls.values())
            yield (
                f"the {len(calls)} programs then have {calls[0]:,} to {calls[-1]:,} calls, half of them "
                f"{calls[len(calls) // 2]:,} or fewer"
            )
        elif self.calls:
            yield "the programs then have: " + ", ".join(f"{name} {counted(n)}" for name, n in self.calls.items())
        for name, reason in self.out_of_reach.items():
            yield f"out of reach: {name}: {reason}"


def _few(names: Sequence[str]) -> str:
    """`a, b, c and 37 more`."""
    if len(names) <= _MOST_NAMES:
        return listed(names, "and")
    return f"{', '.join(names[: _MOST_NAMES - 1])} and {len(names) - _MOST_NAMES + 1} more"


def _require_programs(value: Any) -> None:
    if not isinstance(value, Mapping) or not value or not all(isinstance(key, str) for key in value):
        raise ArgumentError(f"programs must be a dict from name to program, or to (program, args), not {value!r}")


def _count(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ArgumentError(f"{name}= must be a number, 0 or more, not {value!r}")


def _pool(name: str, value: Any) -> None:
    if value is not None and not hasattr(value, "submit"):
        raise ArgumentError(f"{name}= must be a concurrent.futures.Executor, not {type(value).__name__}")


@boundary("advise", {**CHECKS, "without": CHECKS["keep"], "savings": _count, "executor": _pool})
def advise(
    programs: Mapping[str, Any],
    *,
    to: Target,
    rules: Rules | Mapping[Any, Any] | None = None,
    keep: Iterable[Any] = (),
    accuracy: Spec = DEFAULT,
    cost: Cost | None = None,
    training: bool | None = None,
    narrow: bool = False,
    without: Iterable[Any] = (),
    savings: int = 5,
    executor: Executor | None = None,
    results: str | Path | None = None,
    progress: Progress | None = None,
) -> Advice:
    """Which ops a target should know next, so that programs are lowered to it: the smallest set that is enough for all
    of them, in the order in which it pays, and the ops that would then save most calls.

    - `programs`: by name, each an `ExportedProgram` or `GraphModule`, a tuple of an `nn.Module` and example inputs, or
      a function without arguments that returns one of these.
    - `without`: ops that you will not implement: none of them is advised.
    - `savings`: in each program so many ops, those that most of its calls are derived from, are tried in the target to
      see what they save; as many are told.
    - `executor`: any `concurrent.futures.Executor` of processes; by default this process does it all. A job travels if
      it can be pickled: the program is a function of a module, and so are the rules and the conditions of the target.
      (PyTorch traces one program at a time in a process, so that threads are no faster.) The result does not depend on
      where it was found.
    - `results`: a directory where answers are kept by program, so that what was broken off, or is asked of more
      programs, goes on from there. A program is known there by its name: it must not change behind it.
    - `progress(done, total, name)` is called when a job is done. The other arguments are those of `lower`.

    The set is a minimum hitting set over all derivations that the rules allow (each rule is followed whatever it needs
    of the target; calls that differ in sizes alone count as one kind), and is planned before it is told. Raises
    `ArgumentError`, `RuleError`; a program that cannot be captured is out of reach.
    """
    _require_programs(programs)
    chosen, target = rules_and_target(to, rules, keep, narrow)
    setting = Setting(RuleSelection(chosen, target, training), Policy(Accuracy.of(accuracy), cost))
    makers = {name: Given(each) if is_program(each) else each for name, each in programs.items()}
    search = AdviceSearch(setting, Given(setting), makers, executor, results, progress, without=without)
    return search.advice(savings)


_NOT_THE_SAME = (
    "results= cannot be used: a rule, a condition or a cost is a function of yours, which may do something else in the "
    'next process\n  to do: give your rules a version, Rules(version="1"), and write the conditions of a target in its '
    "TOML file"
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
        """`making` makes the setting in another process; `versions` are those of programs that may change."""
        self.target, self.programs = setting.matching.target, programs
        self.refused = Target("", without)
        self.executor, self.progress = executor, progress
        self.digest = setting.digest if results is not None else None
        if results is not None and self.digest is None:
            raise ArgumentError(_NOT_THE_SAME)
        self.place = Path(results) if results is not None else None
        self.making, self.run, self.versions = making, uuid.uuid4().hex, versions
        self.out_of_reach: dict[str, str] = {}
        self.found = Alternatives()
        self.goals: dict[str, int] = {}
        """By program that lacks something, what holds if all its blocked calls are reached."""

    def advice(self, savings: int) -> Advice:
        """Ask all programs what they lack, choose, and ask what comes of it."""
        try:
            self._take_in(self._asked(self.programs, None, 0))
            return self._answered(savings)
        finally:
            forget(self.run)

    def _asked(
        self, names: Iterable[str], wishes: tuple[MissingCapability, ...] | None, savings: int
    ) -> dict[str, Answer]:
        asked = self.making, wishes, savings, self.run
        jobs = [AdviceJob(name, self.programs[name], *asked, self.versions.get(name, "")) for name in names]
        return done(jobs, self.executor, self.place, self.digest or "", self.progress)

    def _take_in(self, answers: Mapping[str, Answer]) -> None:
        for name, answer in answers.items():
            if answer.lacks is not None:
                number = self.found.include(answer.lacks)
                self.goals[name] = self.found.all_of(map(number, answer.goals))
            if answer.calls is None:
                self.out_of_reach[name] = answer.reason

    def _answered(self, savings: int) -> Advice:
        sets = self.found.sets(lambda wish: isinstance(wish, MissingOp) and self.refused.knows(wish.op))
        wishes = {number: wish for wish, number in self.found.wishes.items()}
        lowers = tuple(name for name in self.programs if name not in self.out_of_reach)
        for name in [name for name, goal in self.goals.items() if not sets.derived([goal], sets.prices)]:
            del self.goals[name]
        reachable = {name: self.goals[name] for name in self.programs if name in self.goals}
        for name in reachable:
            del self.out_of_reach[name]
        chosen, answers = self._basis(sets, wishes, (*lowers, *reachable), savings)
        for name, answer in answers.items():
            if answer.calls is None:
                self.out_of_reach[name] = f"the ops that were found are not enough: {answer.reason}"
        calls = {name: answer.calls for name, answer in answers.items() if answer.calls is not None}
        milestones = tuple(self._milestones(sets, wishes, chosen.leaves, reachable, len(lowers)))
        return Advice(
            self.target.name,
            lowers,
            milestones,
            chosen.smallest and self.found.complete,
            chosen.least,
            _savings(answers.values(), savings, self.refused),
            {name: calls[name] for name in self.programs if name in calls},
            self.out_of_reach,
            extend_target(self.target, (wishes[number] for number in chosen.leaves)),
        )

    def _basis(
        self, sets: SmallestSets, wishes: Mapping[int, MissingCapability], names: Sequence[str], savings: int
    ) -> tuple[Chosen, dict[str, Answer]]:
        """The cheapest set of which planning says that it is enough, and what each program comes to then."""

        def answers(leaves: Iterable[int]) -> dict[str, Answer]:
            return self._asked(names, tuple(sorted((wishes[number] for number in leaves), key=str)), savings)

        def attempt(leaves: Iterable[int]) -> dict[str, Answer] | None:
            found = answers(leaves)
            return found if all(answer.calls is not None for answer in found.values()) else None

        chosen, found = sets.tried(list(self.goals.values()), attempt)
        return chosen, answers(chosen.leaves) if found is None else found

    def _milestones(
        self,
        sets: SmallestSets,
        wishes: Mapping[int, MissingCapability],
        leaves: frozenset[int],
        reachable: Mapping[str, int],
        reached: int,
    ) -> Iterator[Milestone]:
        """The set in the order in which it pays: next what is needed for the program that needs least; of those that
        need as little, what unlocks most."""
        left, taken, goals = dict(reachable), set[int](), list(reachable.values())
        while left:
            needs = {name: _needs(sets, goal, leaves - taken, taken) for name, goal in left.items()}
            unlocked = {name: _unlocked(sets, left, taken | need) for name, need in needs.items()}
            best = min(left, key=lambda name: (len(needs[name]), -len(unlocked[name]), name))
            taken |= needs[best]
            reached += len(unlocked[best])
            left = {name: goal for name, goal in left.items() if name not in unlocked[best]}
            added = {str(wishes[number]): number for number in needs[best]}
            dtypes = tuple(name for name in sorted(added) if isinstance(wishes[added[name]], MissingDtype))
            others = {name: instead_of(added[name], leaves, sets, goals, wishes) for name in sorted(added)}
            instead = {name: each for name, each in others.items() if each}
            yield Milestone(tuple(others), tuple(unlocked[best]), reached, dtypes, instead)


def _needs(sets: SmallestSets, goal: int, among: frozenset[int], taken: set[int]) -> set[int]:
    """What of a set a program cannot do without."""
    need = set(among)
    for number in sorted(among):
        if sets.derived([goal], taken | need - {number}):
            need.discard(number)
    return need


def _unlocked(sets: SmallestSets, left: Mapping[str, int], taken: set[int]) -> list[str]:
    derived = set(sets.derived(list(left.values()), taken))
    return [name for name, goal in left.items() if goal in derived]


def _savings(answers: Iterable[Answer], most: int, refused: Target) -> tuple[Saving, ...]:
    """The ops that save most, over all programs."""
    each = [(op, calls) for answer in answers for op, calls in (answer.saved or {}).items() if op not in refused]
    total: dict[str, list[int]] = {}
    for op, calls in each:
        total.setdefault(op, []).append(calls)
    found = [Saving(op, sum(calls), len(calls)) for op, calls in total.items()]
    return tuple(sorted(found, key=lambda saving: (-saving.calls, saving.op))[:most])
