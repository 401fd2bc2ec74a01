"""The smallest set of ops and dtypes that a target must add for a program to lower: found among the alternatives of its
blocked calls, and confirmed by planning the program again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch import fx

from decomp.advice.clauses import DerivationClauses, Exploration
from decomp.advice.missing import MissingCapability, MissingDtype, extend_target
from decomp.advice.smallest_sets import MinimalSet, SmallestSets
from decomp.costs.model import calls_in
from decomp.derive.decisions import Blocked, Decision, Derived, Legal, PlannedProgram
from decomp.derive.pipeline import plan_program
from decomp.derive.planner import Planner
from decomp.derive.rule_selection import RuleSelection
from decomp.derive.session import resumed_session
from decomp.former_names import former_name
from decomp.ir.call import is_host, is_projection
from decomp.ir.dtypes import name_of
from decomp.ir.module import Module
from decomp.rules.accuracy import Policy
from decomp.rules.target import Target

_MAX_ALTERNATIVES = 3
"""How many alternatives are reported for each blocked op."""


@dataclass(frozen=True, slots=True)
class Addition:
    """One op, or one dtype, of a suggested set."""

    op: str
    """The op as written in a list of ops; `sum on more calls` if the target knows it under a condition; or the name of
    a dtype."""
    needed_by: tuple[str, ...]
    """The blocked ops that cannot be lowered without it."""
    instead: tuple[str, ...] = ()
    """Other ops that could replace it, the rest of the set being unchanged; with the current condition, where the
    target knows them under one."""
    is_dtype: bool = False


@dataclass(frozen=True, slots=True)
class OptionOutcome:
    """The effect of an option of `lower`, which may make additions unnecessary."""

    blocked: int
    """How many ops stay blocked if the target adds nothing."""
    calls: int | None
    """How many calls the lowered program has then; None if something stays blocked."""

    @property
    def effect(self) -> str:
        """What the option does, as a clause that begins with it."""
        raise NotImplementedError

    @property
    def is_enough(self) -> bool:
        """Whether the whole program lowers with the option and no additions."""
        return self.calls is not None

    def __str__(self) -> str:
        if self.calls is not None:
            return f"{self.effect}: all lower, to {count_calls(self.calls)}"
        return f"{self.effect}: {self.blocked} op{'s stay' if self.blocked > 1 else ' stays'} blocked"


@dataclass(frozen=True, slots=True)
class NarrowingOutcome(OptionOutcome):
    """The effect of `narrow=True`, which may make the dtypes of a suggested set unnecessary."""

    dtypes: tuple[tuple[str, str], ...]
    """Each wide dtype, and the one that replaces it."""

    @property
    def effect(self) -> str:
        """`narrow=True computes in int32 instead of int64`."""
        return f"narrow=True computes {' and '.join(f'in {narrow} instead of {wide}' for wide, narrow in self.dtypes)}"


@dataclass(frozen=True, slots=True)
class InferenceOutcome(OptionOutcome):
    """The effect of `training=False`, which needs no ops that only gradients need."""

    @property
    def effect(self) -> str:
        """The clause."""
        return "training=False, for a program that is not trained"


@dataclass(frozen=True, slots=True)
class SuggestedStage:
    """A part of a suggested set; stages are in the best order to implement them."""

    add: tuple[str, ...]
    reached: int
    """How many of the blocked ops lower once this stage and all before it are implemented."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """The requirements of one blocked op."""

    op: str
    """For example `aten.gelu`."""
    count: int
    """How many calls of it are blocked."""
    needs: tuple[tuple[str, ...], ...]
    """The smallest sets of ops that are each enough for all these calls, smallest first."""
    reason: str = ""
    """Why no set is enough, if none is."""

    def __str__(self) -> str:
        """`aten.gelu (12 calls) needs full and erf; or tanh, full and exp`."""
        calls = f" ({count_calls(self.count)})" if self.count > 1 else ""
        if not self.needs:
            return f"{self.op}{calls}: {self.reason}"
        return f"{self.op}{calls} needs {'; or '.join(join_names(each, 'and') for each in self.needs)}"


@dataclass(frozen=True)
class Suggestion:
    """The ops and dtypes that a target must add for a program to lower to it. `str(suggestion)` is the advice;
    `suggestion.target` is the target with the additions."""

    to: str
    """Name of the target."""
    additions: tuple[Addition, ...]
    """The smallest set that is enough for every op that can be lowered at all; empty if nothing is blocked."""
    stages: tuple[SuggestedStage, ...]
    requirements: tuple[Requirement, ...]
    """The requirements of each blocked op, those with most calls first."""
    smallest: bool
    """Whether the search proved that no smaller set is enough."""
    at_least: int
    """A lower bound: no set with fewer ops is enough."""
    calls: int | None
    """How many calls the lowered program has then; None if something stays blocked."""
    target: Any = field(repr=False, compare=False, default=None)
    """The target with the additions."""
    narrower: NarrowingOutcome | None = None
    """The effect of `narrow=True` without the additions; given if it is enough, or if the additions have a dtype for
    which there is a narrower one."""
    untrained: InferenceOutcome | None = None
    """The effect of `training=False` without the additions; given if fewer ops are blocked then."""

    ways = former_name("Suggestion.ways", "requirements")

    @property
    def ops(self) -> tuple[str, ...]:
        """The ops to add."""
        return tuple(addition.op for addition in self.additions if not addition.is_dtype)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes to add."""
        return tuple(addition.op for addition in self.additions if addition.is_dtype)

    @property
    def out_of_reach(self) -> tuple[Requirement, ...]:
        """The blocked ops that no addition unblocks."""
        return tuple(each for each in self.requirements if not each.needs)

    def as_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        return asdict(replace(self, target=None))

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """The advice as text, one fact a line."""
        if not self.requirements:
            return [f"{self.to} has all that the program needs"]
        options = [outcome for outcome in (self.narrower, self.untrained) if outcome is not None]
        # An option costs nothing to implement, so it comes before any op.
        enough = [f"no op need be added: {outcome}" for outcome in options if outcome.is_enough]
        fewer = [f"  {outcome}" for outcome in options if not outcome.is_enough]
        dtypes = (f"  {line}" for dtype in self.dtypes for line in dtype_remedies(dtype))
        return [*enough, *self._headline(), *self._stages(), *self._instead(), *dtypes, *fewer, "", *self._ways()]

    def in_other_dtypes(self) -> list[str]:
        """What to do to compute in dtypes that the target has, the easiest first."""
        is_narrow = self.narrower is not None and self.narrower.is_enough
        lines = ["compute in the dtypes of the target: narrow=True"] if is_narrow else []
        if {"float16", "bfloat16"} & {*self.dtypes}:
            lines.append("compute in float32: model.float(), with float32 inputs")
        return lines

    def _headline(self) -> Iterator[str]:
        blocked = len(self.requirements) - len(self.out_of_reach)
        if self.additions:
            proof = "no smaller set is" if self.smallest else f"a set of {self.at_least} may be"
            what = "the blocked op" if len(self.requirements) == 1 else f"all {len(self.requirements)} blocked ops"
            if self.out_of_reach:
                what = f"{blocked} of {len(self.requirements)} blocked ops"
            yield f"{describe_additions(len(self.ops), len(self.dtypes))} for {what} on {self.to}; {proof}"
        else:
            ops = [each.op for each in self.requirements]
            itself = "itself" if len(ops) == 1 else "themselves"
            keep = "{" + ", ".join(f'"{op.removeprefix("aten.")}"' for op in ops) + "}"
            yield f"no op added to {self.to} would help but {join_names(ops, 'and')} {itself}"
            yield f"  if your backend runs {join_names(ops, 'and')}: keep={keep}, or target | {keep}"

    def _stages(self) -> Iterator[str]:
        total, last = len(self.requirements), len(self.stages) - 1
        for i, stage in enumerate(self.stages):
            lower = "all lower" if stage.reached == total else f"{stage.reached} of {total} blocked ops lower"
            calls = f", to {count_calls(self.calls)}" if i == last and self.calls is not None else ""
            yield f"  add {join_names(stage.add, 'and')}: {lower}{calls}"

    def _instead(self) -> Iterator[str]:
        for addition in self.additions:
            if addition.instead:
                yield f"  {describe_replacements(addition.op, addition.instead)}"

    def _ways(self) -> Iterator[str]:
        """The blocked ops, grouped by the addition that they need."""
        shown = set[str]()
        for addition in self.additions:
            mine = [each for each in self.requirements if each.op in addition.needed_by and each.op not in shown]
            if mine:
                yield f"without {addition.op}:"
                yield from (f"  {each}" for each in mine)
                shown |= {each.op for each in mine}
        rest = [each for each in self.requirements if each.op not in shown]
        if rest and shown:
            yield "others:"
        yield from (f"  {each}" for each in rest)


@dataclass(frozen=True)
class SuggestionSearch:
    """Computes the suggestion for the plan of one program, on demand."""

    program: Module
    matching: RuleSelection
    policy: Policy

    def __call__(self) -> Suggestion:
        """The smallest additions to the target of the plan."""
        with resumed_session(self.program, self.matching.rules):
            # Planned again: a failed lowering keeps nothing of its plan.
            return _SuggestionSearch(self, plan_program(self.program, self.matching, self.policy)).suggestion()

    def calls_with(self, capabilities: Iterable[MissingCapability], goals: Iterable[str]) -> int | None:
        """How many calls the program has on the extended target; None if one of the goals stays blocked."""
        blocked, calls = self._on(extend_target(self.matching.target, capabilities))
        return None if blocked & set(goals) else calls

    def narrower(self, capabilities: Iterable[MissingCapability]) -> NarrowingOutcome | None:
        """The outcome with narrow dtypes, if the program lowers then, or one of the capabilities is a dtype that has a
        narrower one; else None."""
        known = self.matching.target
        wide = [each.dtype for each in capabilities if isinstance(each, MissingDtype)]
        if known.dtypes is None or known.narrower and not wide:
            return None
        target = known if known.narrower else known.narrowed()
        pairs = [(each, narrow) for each, narrow in target.narrower.items() if each in wide or not wide]
        if not wide:
            reasons = self._reasons()
            # Only dtypes that block something now; others would be narrowed for nothing.
            pairs = [pair for pair in pairs if f"one is {name_of(pair[0])}" in reasons]
        if not pairs:
            return None
        blocked, calls = self._on(target)
        if blocked and not wide:
            return None
        dtypes = tuple((name_of(each), name_of(narrow)) for each, narrow in pairs)
        return NarrowingOutcome(len(blocked), None if blocked else calls, dtypes)

    def untrained(self, blocked: int) -> InferenceOutcome | None:
        """The outcome without gradients, if fewer ops are blocked than now."""
        if not self.matching.specialise_for_program(self.program).rules.trains:
            return None
        left, calls = self._planned(replace(self.matching, training=False))
        return InferenceOutcome(len(left), None if left else calls) if len(left) < blocked else None

    def _reasons(self) -> str:
        """Why calls are blocked on the target now."""
        blockers = plan_program(self.program, self.matching, self.policy).plan.blockers
        return "\n".join(line for blocker in blockers for line in blocker.lines())

    def _on(self, target: Target) -> tuple[set[str], int]:
        return self._planned(replace(self.matching, target=target))

    def _planned(self, matching: RuleSelection) -> tuple[set[str], int]:
        """The ops that are blocked, and the calls of the lowered program."""
        planned = plan_program(self.program, matching, self.policy)
        return {decision.op for decision in planned.plan.blocked.values()}, count_planned_calls(planned)


class _SuggestionSearch:
    """The search for one suggestion."""

    def __init__(self, asked: SuggestionSearch, planned: PlannedProgram) -> None:
        self.asked = asked
        matching, program = asked.matching.specialise_for_program(asked.program), asked.program
        planner = Planner(matching, program, asked.policy)
        exploration = Exploration(planner)
        self.calls: dict[str, int] = {}
        """How many calls of each op are blocked."""
        self.reasons: dict[str, str] = {}
        self.goals: dict[str, int] = {}
        """By op: the proposition that all its blocked calls lower."""
        bodies: dict[str, set[int]] = {}
        for node, decision in iterate_blocked(planned):
            self.calls[decision.op] = self.calls.get(decision.op, 0) + 1
            self.reasons.setdefault(decision.op, decision.limitation or decision.why())
            if node.op in ("call_function", "call_method"):
                bodies.setdefault(decision.op, set()).add(exploration.goal(node))
        self.found: DerivationClauses = exploration.follow()
        numbers = exploration.specialise_for_program({number: None for body in bodies.values() for number in body})
        self.goals.update({op: self.found.all_of(map(numbers.__getitem__, body)) for op, body in bodies.items()})
        self.capabilities = {number: capability for capability, number in self.found.capabilities.items()}
        self.sets = self.found.sets()

    def suggestion(self) -> Suggestion:
        requirements = sorted((self._requirement(op) for op in self.calls), key=lambda each: -each.count)
        reachable = [each.op for each in requirements if each.needs]
        goals = [self.goals[op] for op in reachable]
        chosen, calls = self.sets.tried(goals, lambda leaves: self._calls_with(leaves, reachable))
        # By name, so that the advice does not depend on the order of rules.
        stages, numbers = self._stages(sorted(chosen.leaves, key=lambda n: str(self.capabilities[n])), goals)
        additions = tuple(self._addition(number, chosen, goals, reachable) for number in numbers)
        added = [self.capabilities[number] for number in numbers]
        return Suggestion(
            self.asked.matching.target.name,
            additions,
            stages,
            tuple(requirements),
            chosen.smallest and self.found.complete,
            chosen.least,
            calls if len(reachable) == len(requirements) else None,
            extend_target(self.asked.matching.target, added),
            self.asked.narrower(added),
            self.asked.untrained(len(self.calls)),
        )

    def _calls_with(self, leaves: Iterable[int], ops: Sequence[str]) -> int | None:
        return self.asked.calls_with((self.capabilities[number] for number in leaves), ops)

    def _requirement(self, op: str) -> Requirement:
        """The smallest sets for one op: each further one avoids an op of each set before it."""
        goal = self.goals.get(op)
        found: list[frozenset[int]] = []
        without: set[int] = set()
        while goal is not None and len(found) < _MAX_ALTERNATIVES:
            chosen = self.sets.search([goal], without)
            if chosen is None or not chosen.leaves:
                break
            found.append(chosen.leaves)
            # The next set avoids the op that fewest shipped targets have: a user's target most likely has the others.
            without.add(min(chosen.leaves - without, key=self._commonness))
        needs = tuple(self._names(leaves) for leaves in found)
        return Requirement(op, self.calls[op], needs, "" if needs else self.reasons[op])

    def _addition(self, number: int, chosen: MinimalSet, goals: Sequence[int], ops: Sequence[str]) -> Addition:
        rest = chosen.leaves - {number}
        kept = set(self.sets.derived(goals, rest))
        needed_by = tuple(op for op, goal in zip(ops, goals) if goal not in kept)
        capability = self.capabilities[number]
        others = find_replacements(number, chosen.leaves, self.sets, goals, self.capabilities)
        return Addition(str(capability), needed_by, others, isinstance(capability, MissingDtype))

    def _stages(self, numbers: Sequence[int], goals: Sequence[int]) -> tuple[tuple[SuggestedStage, ...], list[int]]:
        """The set in an order that unblocks most ops earliest; ops that are useless alone are in one stage."""
        stages, taken = list[SuggestedStage](), list[int]()
        while len(taken) < len(numbers):
            batch, gained = self._next([number for number in numbers if number not in taken], taken, goals)
            taken += batch
            stages.append(SuggestedStage(tuple(self.capabilities[number].explained for number in batch), gained))
        return tuple(stages), taken

    def _next(self, left: Sequence[int], taken: Sequence[int], goals: Sequence[int]) -> tuple[list[int], int]:
        """The smallest batch of the remaining ops that reaches more goals, found greedily, and the number reached."""
        reached = len(self.sets.derived(goals, taken))
        batch: list[int] = []
        while len(batch) < len(left):
            rest = [number for number in left if number not in batch]
            gains = {n: len(self.sets.derived(goals, [*taken, *batch, n])) for n in rest}
            best = max(rest, key=lambda n: (gains[n], self._demand(n, goals), -n))
            batch.append(best)
            if gains[best] > reached:
                return batch, gains[best]
        return batch, reached

    def _demand(self, number: int, goals: Sequence[int]) -> int:
        """How many goals have a cut with this op: the op that most goals need goes first."""
        # Cuts that the search has met: a cheap measure, which only breaks ties.
        return sum(any(number in cut for cut in self.sets.cuts.get(goal, ())) for goal in goals)

    def _commonness(self, number: int) -> tuple[float, str]:
        return self.capabilities[number].usual, str(self.capabilities[number])

    def _names(self, numbers: Iterable[int]) -> tuple[str, ...]:
        return tuple(sorted(str(self.capabilities[number]) for number in numbers))


def find_replacements(
    number: int,
    leaves: frozenset[int],
    sets: SmallestSets,
    goals: Sequence[int],
    capabilities: Mapping[int, MissingCapability],
) -> tuple[str, ...]:
    """The capabilities that could each replace one of a set, the others being unchanged; common ops first."""
    others, rest = sets.prices.keys() - leaves, leaves - {number}
    found = [capabilities[each] for each in others if len(sets.derived(goals, {*rest, each})) == len(goals)]
    found.sort(key=lambda capability: (-capability.usual, str(capability)))
    return tuple(capability.explained for capability in found[:_MAX_ALTERNATIVES])


def iterate_blocked(planned: PlannedProgram) -> Iterator[tuple[fx.Node, Blocked]]:
    """The blocked calls of a program, with the reasons."""
    return ((node, each) for _, node, each in planned.decisions if isinstance(each, Blocked))


def count_planned_calls(planned: PlannedProgram) -> int:
    """The number of calls of the lowered program, given its plan."""
    return sum(_calls(node, decision) for _, node, decision in planned.decisions)


def _calls(node: fx.Node, decision: Decision) -> int:
    if isinstance(decision, Derived):
        return sum(1 for _ in calls_in(decision.template.graph))
    kept = isinstance(decision, Legal) and node.op.startswith("call")
    return int(kept and not (is_host(node) or is_projection(node)))


def describe_additions(ops: int, dtypes: int) -> str:
    """`3 more ops and 1 more dtype are enough`."""
    more = [f"{n} more {what}{'s' if n > 1 else ''}" for n, what in ((ops, "op"), (dtypes, "dtype")) if n]
    return f"{join_names(more, 'and')} {'is' if ops + dtypes == 1 else 'are'} enough"


def dtype_remedies(dtype: str) -> Iterator[str]:
    """Remedies for a dtype that a target lacks."""
    if dtype == "float64":
        yield "model.float() and float32 inputs avoid float64; if only a rule uses it, accuracy='fast' may too"
    elif dtype in ("float16", "bfloat16"):
        yield f"model.float() avoids {dtype}"


def describe_replacements(op: str, others: Sequence[str]) -> str:
    """`instead of full: clone or fill`."""
    return f"instead of {op}: {join_names(others, 'or')}"


def count_calls(calls: int) -> str:
    """`3 calls`."""
    return f"{calls:,} call{'s' if calls != 1 else ''}"


def join_names(items: Sequence[str], last: str) -> str:
    """`a, b and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} {last} {items[-1]}"
