"""Decisions of planning: a node is kept, erased, replaced by an expansion, or blocked. A plan has a decision for every
node of a program, together with the graphs that contain them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from decomp.cache.portable import Record
from decomp.costs.plans import PlanCosts
from decomp.derive.expansion import Composite
from decomp.derive.planning_memory import PlanningMemory
from decomp.errors import Blocker, CostError, NotPortable, TargetError, count_noun, source_line, spell_target
from decomp.former_names import former_name
from decomp.graphs.template import ExpansionTemplate
from decomp.ir.accounting import calls_for_target
from decomp.ir.aliases import spelling_of, view_chain
from decomp.ir.call import call_if_bound, metadata
from decomp.ir.module import Module
from decomp.ir.op_facts import READS_MEMORY
from decomp.ir.ops import Op
from decomp.metadata.symbolic_sizes import SYMBOLIC, has_fixed_sizes, same_size
from decomp.patterns.fusing import PatternFusion, PatternUse
from decomp.rules.accuracy import LEVELS
from decomp.rules.declining import Declined
from decomp.rules.rules import Rule
from decomp.tables import Table, titled

if TYPE_CHECKING:
    from decomp.advice.suggestions import Suggestion
    from decomp.breakdown.accounts import ProgramAccount
    from decomp.breakdown.layers import Layers

CallPlace = tuple[int, str]
"""A call of a program: the number of its graph, and its name there."""
Tried = tuple[tuple[str, str], ...]
"""Alternatives that were tried, with the reason why each was not chosen."""


@dataclass(frozen=True, slots=True)
class Legal:
    """The node stays: its call is legal, or it is not a tensor op."""


@dataclass(frozen=True, slots=True)
class ErasedGuard:
    """The node is erased: it is an assertion implied by its metadata."""


@dataclass(frozen=True, slots=True, eq=False)
class Derived:
    """The node is replaced by an expansion."""

    rule: Rule | Composite
    template: ExpansionTemplate
    passed_over: Tried = ()
    """Alternatives that were not chosen."""
    results: Any = None
    """The metadata of the expansion's results, if their strides differ from those of the call's."""
    price: float = 0.0
    """The total cost of the expansion's calls, where alternatives compete by cost."""
    level: str = LEVELS[0]
    """The accuracy at which it was derived."""

    stamp = former_name("Derived.stamp", "template")


@dataclass(frozen=True, slots=True)
class Blocked:
    """No alternative reaches the target."""

    op: str
    tried: Tried = ()
    condition: str | None = None
    """Why the call is illegal, if the target has the op under a condition."""
    limitation: str | None = None
    """The declared limitation, of the op itself or of one that it leads to, because of which no lowering exists."""
    best_reason: str | None = None
    """The reason of the last alternative that is applicable to calls of this form and to this target."""
    needs_metadata: bool = False
    """Whether an alternative, or a call it leads to, could not be tried because the program has no metadata."""

    @classmethod
    def because(cls, op: str, reason: str, needs_metadata: bool = False) -> Blocked:
        """A call for which no alternative is tried."""
        return cls(op, ((op, reason),), best_reason=reason, needs_metadata=needs_metadata)

    def why(self) -> str:
        """The reason in one clause."""
        # The condition first: it is what the user can change in a call, where a rule or a limitation is not.
        if self.condition:
            return f"{self.op} is legal under a condition: {self.condition}"
        # Where rules were tried, what they lack is more useful than that no lowering exists in general.
        if self.limitation and not self.tried:
            return f"{self.op}: {self.limitation}"
        if self.best_reason is None:
            return f"no rule for {self.op}" + (" applies" if self.tried else "")
        return f"{self.op}: {self.best_reason}"

    def _which(self) -> str:
        """The reason as a relative clause after the name of the op."""
        if self.condition:
            return f"which is legal under a condition: {self.condition}"
        if self.limitation and not self.tried:
            return f"which cannot be decomposed: {self.limitation}"
        if self.best_reason is None:
            return "for which no rule applies" if self.tried else "for which there is no rule"
        # A reason that names the next missing op continues the sentence, so that chains of rules read as one.
        chained = self.best_reason.startswith("needs ")
        return f"which {self.best_reason}" if chained else f"whose rule declines: {self.best_reason}"

    def after(self, what: str, declined: Declined) -> Blocked:
        """The same, after one more alternative has declined."""
        return replace(
            self,
            tried=(*self.tried, (what, declined.reason)),
            # The first one that was met: it is about the op itself, later ones are about what an alternative leads to.
            limitation=self.limitation or declined.limitation,
            best_reason=declined.reason if declined.applicable else self.best_reason,
            needs_metadata=self.needs_metadata or declined.needs_metadata,
        )

    def as_declined(self, op: Op) -> Declined:
        """Why a rule for `op` that makes this blocked call is declined."""
        if self.op == str(op):
            itself = self.why() if self.condition or self.limitation else f"needs {self.op} itself"
            reason = self.best_reason or itself
        else:
            reason = f"needs {self.op}, {self._which()}"
        return Declined(reason, needs_metadata=self.needs_metadata, limitation=self.limitation)


Decision = Legal | Derived | Blocked | ErasedGuard
LEGAL, ERASED_GUARD = Legal(), ErasedGuard()


def record_of(decision: Decision) -> Record | None:
    """The part of a decision that is kept on disk, if any."""
    # Legality is asked of the target at once, and reasons of blocked calls are for people: neither is worth a record.
    if not isinstance(decision, Derived):
        return None
    return Record(decision.rule, decision.template, decision.passed_over, decision.results, decision.price)


def decision_of(record: Record, level: str) -> Derived:
    """The decision for a record from disk."""
    return Derived(record.rule, record.template, record.passed_over, record.results, record.price, level)


@dataclass(frozen=True)
class Plan:
    """A decision for every node of a program. `str(plan)` is a table."""

    target: str
    entries: tuple[tuple[fx.Node, Decision], ...]
    pricing: Callable[[], PlanCosts] | None = field(default=None, repr=False, compare=False)
    """Computes its costs."""
    patterns: tuple[PatternUse, ...] = ()
    """The uses of rules for patterns, by graph."""
    suggesting: Callable[[], Suggestion] | None = field(default=None, repr=False, compare=False)
    """Finds the ops that would complete the plan."""
    accounting: Callable[[], ProgramAccount] | None = field(default=None, repr=False, compare=False)
    """Computes what the program consists of."""
    notes: tuple[str, ...] = ()
    """Further decisions: where complex numbers enter and leave, on a target without them."""

    def __repr__(self) -> str:
        return f"<plan to {self.target}: {self._counted}; print(plan) shows them>"

    @property
    def _counted(self) -> str:
        legal = count_noun(len(self.legal), "call")
        return f"{legal} legal, {len(self.derived)} derived, {len(self.blocked)} blocked"

    def __iter__(self) -> Iterator[tuple[fx.Node, Decision]]:
        return iter(self.entries)

    def __reduce__(self) -> tuple[Any, ...]:
        raise NotPortable(
            "a Plan cannot be pickled: it holds nodes of your program\n  to do: pickle str(plan), or plan.blockers"
        )

    # Its nodes are those of the user's program. A deep copy would
    # copy that program, and its nodes would be found in none.
    def __copy__(self) -> Plan:
        return self

    def __deepcopy__(self, memo: Any) -> Plan:
        return self

    @property
    def legal(self) -> list[fx.Node]:
        """Calls that are legal on the target, without those that a target need not have, such as parts of results."""
        graphs = dict.fromkeys(node.graph for node, _ in self.entries)
        counted = {node for graph in graphs for node in calls_for_target(graph)}
        # The count is that of reports, so that one number means the same everywhere.
        return [node for node, decision in self.entries if isinstance(decision, Legal) and node in counted]

    @property
    def derived(self) -> dict[fx.Node, Derived]:
        """Calls that rules lower to the target."""
        return {node: d for node, d in self.entries if isinstance(d, Derived)}

    @property
    def blocked(self) -> dict[fx.Node, Blocked]:
        """Calls that cannot be lowered to the target."""
        return {node: d for node, d in self.entries if isinstance(d, Blocked)}

    @property
    def blockers(self) -> tuple[Blocker, ...]:
        """The blocked calls, grouped by op and reason."""
        groups: dict[Any, list[fx.Node]] = {}
        for node, decision in self.blocked.items():
            # A decision is a frozen value, so that calls that are blocked alike are one entry.
            groups.setdefault(decision, []).append(node)
        return tuple(
            Blocker(
                b.op,
                tuple(node.name for node in nodes),
                _first_line(nodes),
                b.tried,
                b.condition,
                b.limitation,
                b.needs_metadata,
            )
            for b, nodes in groups.items()
        )

    @property
    def complete(self) -> bool:
        """Whether every call can be lowered to the target."""
        return not self.blocked

    def costs(self) -> PlanCosts:
        """The costs of the plan, by source op and rule, and those at other levels of accuracy, which are planned on
        demand. Raises `CostError`."""
        if self.pricing is None:
            raise CostError("the costs of this plan are unknown: it was not made by decomp.plan or decomp.lower")
        return self.pricing()

    def account(self) -> ProgramAccount:
        """The calls of the program and those that they become before they are simplified, with modules and costs: what
        `layers` and `decomp.results.Methods` sum up. Raises `CostError`."""
        if self.accounting is None:
            raise CostError("the calls of this plan are unknown: it was not made by decomp.plan or decomp.lower")
        return self.accounting()

    def layers(self) -> Layers:
        """What each layer will cost before it is simplified: calls, weights, operations, bytes; repeated blocks are one
        row. Raises `CostError`, and `ArgumentError` for a program without module paths."""
        return self.account().layers()

    def suggest(self) -> Suggestion:
        """The smallest set of additional ops that would complete the plan; what each blocked op needs, and its
        lowering. Raises `TargetError` for a plan that was not made for a program."""
        if self.suggesting is None:
            raise TargetError("the program of this plan is unknown: it was not made by decomp.plan or decomp.lower")
        return self.suggesting()

    @property
    def headline(self) -> str:
        """`plan for tinygrad: 12 calls legal, 24 derived, 0 blocked`."""
        return f"plan for {self.target}: {self._counted}"

    def _repr_html_(self) -> str:
        priced = self.costs().derived if self.pricing is not None else ()
        rows = [(each.count, each.op, each.chosen.rule, str(each)) for each in priced]
        blocked = [(each.op, ", ".join(each.nodes), "; ".join(each.lines()[1:])) for each in self.blockers]
        return titled(
            self.headline,
            *(self.costs().summary() if self.pricing is not None else ()),
            *self.notes,
            Table((">uses", "op", "rule", "calls and error, also at other levels"), rows).html(),
            Table(("blocked", "at", "why"), blocked).html(),
        )

    def __str__(self) -> str:
        lines = [self.headline]
        if self.pricing is not None:
            lines += [f"  {line}" for line in self.costs().summary()]
        lines += [*(f"  {note}" for note in self.notes), *self._pattern_lines()]
        if self.pricing is not None:
            lines += [f"  {line}" for line in self.costs().lines()]
        for blocker in self.blockers:
            lines += [f"  {line}" for line in blocker.lines()]
        if self.blocked and self.suggesting is not None:
            lines.append("  plan.suggest() lists the ops that would complete it")
        return "\n".join(lines)

    def _pattern_lines(self) -> Iterator[str]:
        """A line for each rule for a pattern, with reasons why it was not applied."""
        by_rule: dict[str, list[PatternUse]] = {}
        for use in self.patterns:
            by_rule.setdefault(use.rule, []).append(use)
        for rule, uses in by_rule.items():
            taken = [match for use in uses for match in use.taken]
            missed = [miss for use in uses for miss in use.missed]
            if taken or missed:
                calls = sum(len(match.nodes) for match in taken)
                counted = f"{len(taken)} matches applied, {calls} calls" if taken else "not applied"
                yield f"  pattern {rule}: {counted}"
                yield from (f"    not at {miss.root.name}: {miss.reason}" for miss in missed[:_SHOWN])
                if len(missed) > _SHOWN:
                    yield f"    and not at {len(missed) - _SHOWN} other places"
            else:
                yield f"  pattern {rule}: no match"
                yield f"    {_closest(uses)}"


def _closest(uses: Sequence[PatternUse]) -> str:
    """The closest miss of a pattern without a match, and why it is not a match."""
    found = [use.closest() for use in uses]
    places = [each for each in found if not isinstance(each, str)]
    if not places:
        return str(found[0])
    best = max(places, key=lambda miss: miss.found)
    calls = len(best.pattern.calls)
    return f"closest at {best.root.name}, {best.found} of {calls} calls: {best.reason}"


_SHOWN = 4
"""How many reasons why a pattern was not applied a plan shows."""


def _first_line(nodes: list[fx.Node]) -> str | None:
    return next((line for node in nodes if (line := source_line(node))), None)


def op_of_node(node: fx.Node) -> Op | None:
    """The op that a node calls; None if it calls none, or its arguments match no schema."""
    call = call_if_bound(node)
    return call.op if call is not None else None


def add_pattern_reasons(decisions: dict[fx.Node, Decision], fused: PatternFusion) -> dict[fx.Node, Decision]:
    """The decisions; those for blocked calls also list the patterns that were tried, with reasons."""
    reasons = fused.reasons()
    if not reasons:
        return decisions
    found = dict(decisions)
    # Not for derived calls: that a pattern was not used there is in the plan's own lines about patterns.
    for node, decision in decisions.items():
        if isinstance(decision, Blocked):
            tried = [(name, Declined(reason, applicable=False)) for name, reason in reasons.get(node.name, ())]
            found[node] = functools.reduce(lambda blocked, each: blocked.after(*each), tried, decision)
    return found


def decide_left_complex(decision: Decision, node: fx.Node, refused: str | None) -> Decision:
    """The decision for a call that stays complex, with the reason why it is not computed on pairs of real numbers."""
    # Not every call that stays complex is refused by the target: one that only moves complex values may be legal.
    if refused is None:
        return decision
    if isinstance(decision, Blocked):
        return decision.after(REAL_PAIRS, Declined(refused))
    reason = f"takes or returns complex numbers, which the target lacks: {refused}"
    return Blocked.because(spell_target(node.target), reason)


REAL_PAIRS = "pairs of real numbers"


def require_whole_operand(decision: Decision, node: fx.Node) -> Decision:
    """The decision for a call that may access memory outside of its operand (`as_strided`): with dynamic sizes this
    cannot be excluded, so it is derived only if the operand is as large as the tensor of which it is a view."""
    if not isinstance(decision, Derived) or spelling_of(node).op.short not in READS_MEMORY:
        return decision
    # Sizes and offset of `as_strided` may be symbols as well.
    operand, *others = node.all_input_nodes
    value = metadata(operand)
    fixed = has_fixed_sizes(value) and not any(isinstance(metadata(other), SYMBOLIC) for other in others)
    if value is None or fixed:
        return decision
    # The chain ends at the tensor that owns the memory; strides of views in between do not matter.
    tensors = [value for each in view_chain(operand) if isinstance(value := metadata(each), torch.Tensor)]
    is_whole = same_size(tensors[0].numel(), tensors[-1].numel())
    return decision if is_whole else Blocked.because(spell_target(node.target), OUTSIDE_OPERAND)


OUTSIDE_OPERAND = "with dynamic sizes it may access memory outside of its input, which is a view"


@dataclass(frozen=True)
class PlannedProgram:
    """A program with a decision for each of its calls."""

    module: Module
    """Functional graphs with decisions: callers come before the bodies that they call."""
    plan: Plan
    memory: PlanningMemory
    """The planning memory for this pair of rules and target."""
    runs: int
    """How many times a rule was run."""
    traced: bool = False
    """Whether expansions say what became of each call inside them."""

    @property
    def decisions(self) -> Iterator[tuple[int, fx.Node, Decision]]:
        """Every decision, with the number of its graph."""
        for i, own in enumerate(self.module.graphs.values()):
            for node, decision in (own.decisions or {}).items():
                yield i, node, decision
