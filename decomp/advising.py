"""`advise`: over several programs, which ops a backend should implement next, and what each is good for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import fx

from decomp.advice.alternatives import Alternatives, Exploration, Wish, is_advisable, with_wishes
from decomp.advice.smallest_sets import Chosen, SmallestSets
from decomp.advice.suggestions import blocked_in, calls_of, counted, listed
from decomp.capture.frontends import Program
from decomp.costs.model import Cost
from decomp.derive.decisions import Derived
from decomp.derive.exclusive import captured, undisturbed
from decomp.derive.matching import Matching
from decomp.derive.pipeline import Planned, Source, plan_program
from decomp.derive.planner import Planner
from decomp.errors import ArgumentError, DecompError, boundary, first_line
from decomp.ir.ops import Op
from decomp.lowering import rules_and_target
from decomp.rules.accuracy import DEFAULT, Accuracy, Policy, Spec
from decomp.rules.options import CHECKS
from decomp.rules.rules import Rule, Rules
from decomp.rules.target import Target


@dataclass(frozen=True, slots=True)
class Milestone:
    """Ops to implement together, and the programs that they unlock."""

    add: tuple[str, ...]
    unlocks: tuple[str, ...]
    reached: int
    """How many programs lower then, with those that lowered before."""


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
        return tuple(op for milestone in self.milestones for op in milestone.add)

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
        if self.ops:
            proof = "no smaller set is" if self.smallest else f"a set of {self.at_least} may be"
            what = "all" if not self.out_of_reach else f"{len(self.calls)} of {total}"
            yield f"{len(self.ops)} more op{'s are' if len(self.ops) > 1 else ' is'} enough for {what}; {proof}"

    def _order(self) -> Iterator[str]:
        for milestone in self.milestones:
            total = len(self.calls) + len(self.out_of_reach)
            unlocks = ", ".join(milestone.unlocks)
            yield f"  add {listed(milestone.add, 'and')}: {milestone.reached} of {total}, with {unlocks}"

    def _savings(self) -> Iterator[str]:
        if self.savings:
            yield "ops that would save calls, once these are there:"
        for saving in self.savings:
            programs = f"{saving.programs} program{'s' if saving.programs > 1 else ''}"
            yield f"  {saving.op}: {counted(saving.calls)} in {programs}"

    def _programs(self) -> Iterator[str]:
        if self.calls:
            yield "the programs then have: " + ", ".join(f"{name} {counted(n)}" for name, n in self.calls.items())
        for name, reason in self.out_of_reach.items():
            yield f"out of reach: {name}: {reason}"


@dataclass
class _Asked:
    """A program that advice is asked about."""

    name: str
    program: Program
    planned: Planned
    goal: int | None = None
    """What holds if all its blocked calls are reached; None if none is blocked."""


def _require_programs(value: Any) -> None:
    if not isinstance(value, Mapping) or not value or not all(isinstance(key, str) for key in value):
        raise ArgumentError(f"programs must be a dict from name to program, or to (program, args), not {value!r}")


def _count(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ArgumentError(f"{name}= must be a number, 0 or more, not {value!r}")


@boundary("advise", {**CHECKS, "savings": _count})
def advise(
    programs: Mapping[str, Any],
    *,
    to: Target,
    rules: Rules | Mapping[Any, Any] | None = None,
    keep: Iterable[Any] = (),
    accuracy: Spec = DEFAULT,
    cost: Cost | None = None,
    savings: int = 5,
    progress: Callable[[str], None] | None = None,
) -> Advice:
    """Which ops a target should know next, so that programs are lowered to it: the smallest set that is enough for all
    of them, in the order in which it pays, and the ops that would then save most calls.

    - `programs`: by name, each an `ExportedProgram` or `GraphModule`, or a tuple of an `nn.Module` and example inputs.
    - `savings`: how many ops, of those that most calls are derived from, are tried in the target to see what they save.
    - `progress(text)` is called before each step. The other arguments are those of `lower`.

    The set is a minimum hitting set over all derivations that the rules allow (each rule is followed whatever it needs
    of the target; calls that differ in sizes alone count as one kind), and is planned before it is told. Raises
    `ArgumentError`, `RuleError`; a program that cannot be captured is out of reach.
    """
    _require_programs(programs)
    chosen, target = rules_and_target(to, rules, keep)
    matching, policy = Matching(chosen, target), Policy(Accuracy.of(accuracy), cost)
    search = _Search(matching, policy, progress or (lambda text: None))
    for name, program in programs.items():
        search.look_at(name, program)
    return search.advice(savings)


class _Search:
    """The search for advice over some programs."""

    def __init__(self, matching: Matching, policy: Policy, say: Callable[[str], None]) -> None:
        self.matching, self.policy, self.say = matching, policy, say
        self.asked: list[_Asked] = []
        self.out_of_reach: dict[str, str] = {}
        self.found = Alternatives()

    def look_at(self, name: str, given: Any) -> None:
        """Plan a program, and follow what blocks it."""
        self.say(f"planning {name}")
        model, args = given if isinstance(given, tuple) else (given, None)
        kwargs = args if isinstance(args, Mapping) else None
        source = Source(model, () if kwargs is not None else args, kwargs, fx.Tracer, None)
        try:
            with captured(source, self.matching) as program:
                asked = _Asked(name, program, plan_program(program, self.matching, self.policy))
                asked.goal = self._goal(asked)
        except DecompError as error:
            self.out_of_reach[name] = first_line(error)
            return
        self.asked.append(asked)

    def _goal(self, asked: _Asked) -> int | None:
        blocked = list(blocked_in(asked.planned))
        if not blocked:
            return None
        program = asked.program
        planner = Planner(
            self.matching.rules, self.matching.target, program.dialect, program.mode, self.policy
        )
        exploration = Exploration(planner, self.found)
        calls = [node for node, _ in blocked if node.op in ("call_function", "call_method")]
        numbers = {exploration.goal(node) for node in calls}
        if len(calls) < len(blocked):
            numbers.add(self.found.number())  # a module or region that no op of a target stands for
        exploration.follow()
        return self.found.all_of(numbers)

    def advice(self, savings: int) -> Advice:
        self.say("looking for the smallest set of ops")
        sets = self.found.sets()
        wishes = {number: wish for wish, number in self.found.wishes.items()}
        wanting = [asked for asked in self.asked if asked.goal is not None]
        reachable = [asked for asked in wanting if sets.derived([asked.goal], sets.prices)]  # type: ignore[list-item]
        for asked in wanting:
            if asked not in reachable:
                self.out_of_reach[asked.name] = next(d.limitation or d.why() for _, d in blocked_in(asked.planned))
        chosen, planned = self._basis(sets, wishes, reachable)
        target = with_wishes(self.matching.target, (wishes[number] for number in chosen.leaves))
        calls = {name: calls_of(each) for name, each in planned.items()}
        lowers = tuple(asked.name for asked in self.asked if asked.goal is None)
        milestones = tuple(self._milestones(sets, wishes, chosen.leaves, reachable, len(lowers)))
        return Advice(
            self.matching.target.name, lowers, milestones, chosen.smallest and self.found.complete, chosen.least,
            tuple(self._savings(target, planned, savings)), calls, self.out_of_reach, target,
        )  # fmt: skip

    def _basis(
        self, sets: SmallestSets, wishes: Mapping[int, Wish], reachable: Sequence[_Asked]
    ) -> tuple[Chosen, dict[str, Planned]]:
        """The cheapest set of which planning says that it is enough, and what it makes of each program."""
        names = {asked.name for asked in reachable}
        goals = [asked.goal for asked in reachable if asked.goal is not None]

        def lowered(leaves: Iterable[int]) -> dict[str, Planned]:
            return self._lowered(with_wishes(self.matching.target, (wishes[number] for number in leaves)))

        def enough(leaves: Iterable[int]) -> dict[str, Planned] | None:
            found = lowered(leaves)
            return found if names <= found.keys() else None

        chosen, planned = sets.tried(goals, enough)
        if planned is None:
            planned = lowered(chosen.leaves)
            for name in names - planned.keys():
                self.out_of_reach[name] = "the ops that were found are not enough: plan it alone to see why"
        return chosen, planned

    def _lowered(self, target: Target) -> dict[str, Planned]:
        """The programs that a target lowers."""
        found: dict[str, Planned] = {}
        for asked in self.asked:
            self.say(f"planning {asked.name} for the target as it would be")
            with undisturbed(asked.program, self.matching.rules):
                planned = plan_program(asked.program, Matching(self.matching.rules, target), self.policy)
            if not planned.plan.blocked:
                found[asked.name] = planned
        return found

    def _milestones(
        self, sets: SmallestSets, wishes: Mapping[int, Wish], leaves: frozenset[int], reachable: Sequence[_Asked],
        reached: int,
    ) -> Iterator[Milestone]:
        """The set in the order in which it pays: next what is needed for the program that needs least; of those that
        need as little, what unlocks most."""
        left, taken = list(reachable), set[int]()
        while left:
            needs = {asked.name: self._needs(sets, asked, leaves - taken, taken) for asked in left}
            unlocked = {name: self._unlocked(sets, left, taken | need) for name, need in needs.items()}
            best = min(left, key=lambda asked: (len(needs[asked.name]), -len(unlocked[asked.name]), asked.name)).name
            taken |= needs[best]
            reached += len(unlocked[best])
            left = [asked for asked in left if asked.name not in unlocked[best]]
            yield Milestone(tuple(sorted(str(wishes[n]) for n in needs[best])), tuple(unlocked[best]), reached)

    def _needs(self, sets: SmallestSets, asked: _Asked, among: frozenset[int], taken: set[int]) -> set[int]:
        """What of a set a program cannot do without."""
        need = set(among)
        for number in sorted(among):
            if sets.derived([asked.goal], taken | need - {number}):  # type: ignore[list-item]
                need.discard(number)
        return need

    def _unlocked(self, sets: SmallestSets, left: Sequence[_Asked], taken: set[int]) -> list[str]:
        goals = [asked.goal for asked in left if asked.goal is not None]
        derived = set(sets.derived(goals, taken))
        return [asked.name for asked in left if asked.goal in derived]

    def _savings(self, target: Target, planned: Mapping[str, Planned], most: int) -> Iterator[Saving]:
        """Ops that are derived now, tried in the target: those first from which most calls come."""
        emitted: Counter[Op] = Counter()
        for graph in (graph for each in planned.values() for graph in each.graphs):
            for decision in graph.decisions.values():
                emitted.update(_emitters(decision) if isinstance(decision, Derived) else ())
        tried = [op for op, _ in emitted.most_common() if is_advisable(op, target) and not target.knows(op)][:most]
        found = []
        for op in tried:
            self.say(f"trying {op}")
            now = self._lowered(target | Target("", [op]))
            saved = [calls_of(planned[name]) - calls_of(now[name]) for name in planned.keys() & now.keys()]
            if sum(saved) > 0:
                found.append(Saving(str(Wish(op)), sum(saved), len([each for each in saved if each])))
        yield from sorted(found, key=lambda saving: -saving.calls)


def _emitters(derived: Derived) -> Iterator[Op]:
    """For each call of an expansion, the ops from which it comes."""
    for entry in derived.stamp.entries:
        if entry.op.startswith("call"):
            yield from dict.fromkeys(rule.op for rule in entry.chain if isinstance(rule, Rule))
