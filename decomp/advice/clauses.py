"""The derivations by which the blocked calls of a program could reach a target with more ops, as an and-or graph. Each
call is a goal. It follows from its own op, or from everything that the expansion of one of its rules needs; the leaves
are capabilities, ops that the target would have to add."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from decomp.advice.derivability import Derivability
from decomp.advice.missing import MissingCapability, MissingDtype, MissingOp, capability_of, is_advisable
from decomp.advice.smallest_sets import SmallestSets
from decomp.derive.alternatives import Request
from decomp.derive.planner import Planner
from decomp.errors import BindingError, RuleError, spell_target
from decomp.ir.arguments import key
from decomp.ir.call import Call, bound_call, is_free, is_host, is_projection, metadata
from decomp.ir.op_facts import MAYBE_VIEW
from decomp.ir.ops import Op
from decomp.metadata.strides import is_surely_contiguous
from decomp.rules.accuracy import Level, is_accurate_enough
from decomp.rules.declining import Declined
from decomp.rules.requirements import Absent, Needs
from decomp.rules.rules import Rule
from decomp.rules.target import Target

# Rules that never end would otherwise be followed forever.
MAX_KINDS = 2_000
"""How many kinds of calls are followed; any further kind is reached only by adding its own op."""
_MAX_RECURSION = 1
"""How often an op is followed within its own derivation. Once is useful: a grouped convolution expands to one without
groups. Deeper recursion only repeats the same question for more elements."""


@dataclass
class DerivationClauses:
    """Horn clauses over numbered calls and capabilities, collected as calls are followed."""

    clauses: list[tuple[tuple[int, ...], int]] = field(default_factory=list)
    """Pairs (body, head): the head can be derived if everything in the body can."""
    capabilities: dict[MissingCapability, int] = field(default_factory=dict)
    size: int = 0
    """The number of calls and capabilities."""
    complete: bool = True
    """Whether every call was followed."""
    _distinct: set[tuple[tuple[int, ...], int]] = field(default_factory=set)
    kinds: dict[str, int] = field(default_factory=dict)
    """The number of each kind of call."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data, which `include` reads."""
        capabilities = [(number, *capability.row) for capability, number in self.capabilities.items()]
        return {"clauses": self.clauses, "capabilities": capabilities, "kinds": self.kinds, "complete": self.complete}

    def include(self, other: Mapping[str, Any]) -> Callable[[int], int]:
        """Merge the alternatives of another program; returns a function from its numbers to the numbers here. Clauses
        about one kind of call hold for that kind in every program."""
        own: dict[int, int] = {number: self.kind(kind)[0] for kind, number in other["kinds"].items()}
        for number, *row in other["capabilities"]:
            own[number] = self.capability(capability_of(row))

        def known(number: int) -> int:
            if number not in own:
                own[number] = self.number()
            return own[number]

        # In one order, so that equal clauses of two programs are one.
        new = {(tuple(sorted(set(map(known, body)))), known(head)): None for body, head in other["clauses"]}
        for clause in new:
            if clause not in self._distinct:
                self._distinct.add(clause)
                self.clauses.append(clause)
        self.complete &= other["complete"]
        return known

    def kind(self, kind: str) -> tuple[int, bool]:
        """The number of a kind of call, and whether it is new."""
        found = self.kinds.get(kind)
        if found is not None:
            return found, False
        self.kinds[kind] = self.number()
        return self.kinds[kind], True

    def all_of(self, numbers: Iterable[int]) -> int:
        """The number of a new proposition that holds if all of these do."""
        number = self.number()
        self.clauses.append((tuple(numbers), number))
        return number

    def sets(self, refused: Callable[[MissingCapability], bool] = lambda capability: False) -> SmallestSets:
        """A search for the smallest sets of capabilities; of two equally small ones it prefers the more common ops."""
        prices = {number: each.price for each, number in self.capabilities.items() if not refused(each)}
        return SmallestSets(Derivability(self.size, self.clauses), prices)

    def number(self) -> int:
        """A number that is not in use."""
        self.size += 1
        return self.size - 1

    def capability(self, capability: MissingCapability) -> int:
        """The number of a capability."""
        found = self.capabilities.get(capability)
        if found is None:
            found = self.capabilities[capability] = self.number()
        return found


@dataclass
class Exploration:
    """Follows blocked calls through all rules, even those that need ops the target lacks. Calls that differ only in
    sizes and scalar values count as one kind, because the ops that a rule emits hardly ever depend on these. (Rules for
    `reshape` and the like are the exception: where the result is not a view, the target has to copy.)"""

    planner: Planner
    found: DerivationClauses = field(default_factory=DerivationClauses)
    """Receives the clauses."""
    _pending: deque[_Open] = field(default_factory=deque)
    _alone: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """By call: the capabilities that are enough for it without any rule."""

    def goal(self, node: fx.Node) -> int:
        """The number of a blocked call of the program."""
        number = self._number(node, self.planner.request(node).level, ())
        return self.found.number() if number is None else number

    def follow(self) -> DerivationClauses:
        """Collect the alternatives for the goals and for every call that their expansions contain."""
        while self._pending and len(self.found.kinds) <= MAX_KINDS:
            # Breadth first: if the limit ends the search, kinds near the program have been followed.
            self._follow(self._pending.popleft())
        for each in self._pending:
            self._by_itself(each)
        self.found.complete &= not self._pending
        return self.found

    def specialise_for_program(self, goals: Iterable[int]) -> dict[int, int]:
        """Map each goal to the proposition to derive for it, normally the goal itself. If the clauses say that nothing
        is missing though the planner found the call blocked, the call differs from others of its kind, and the target
        has to add its op."""
        known = Derivability(self.found.size, self.found.clauses)
        doubtful = {goal for goal in goals if known.holds(goal) and goal in self._alone}
        return {goal: self.found.all_of(self._alone[goal]) if goal in doubtful else goal for goal in goals}

    def _number(self, node: fx.Node, level: Level, within: tuple[Op, ...]) -> int | None:
        """The number of a call that the target does not know; None for other calls. (The planner's memory is not
        consulted: the answer would depend on what was planned before.)"""
        call = _bound(node)
        if call is None:
            return None
        condition = self.planner.target.why_illegal(call)
        if condition is None:
            return None
        kind = level, condition, node.op, spell_target(node.target), _kind((node.args, node.kwargs)), _strides(call)
        # Text, as kinds of several processes are compared.
        number, is_new = self.found.kind(repr(kind))
        if is_new:
            self._pending.append(_Open(number, node, call, condition, level, within))
        return number

    def _follow(self, each: _Open) -> None:
        self._by_itself(each)
        call, planner = each.call, self.planner
        if each.within.count(call.op) > _MAX_RECURSION:
            return
        request = Request(each.node, planner.memory.signatures.of(each.node), each.level, call=call)
        for rule in planner.rules.of(call.op):
            self._by_rule(each, rule, request)
        for alternative in planner.alternatives.of_composite(request):
            if not isinstance(alternative.expansion, Declined):
                self._by_expansion(each, alternative.expansion.graph, ())

    def _by_itself(self, each: _Open) -> None:
        """The target could add the op itself, or the dtypes that the call uses."""
        target, op = self.planner.target, each.call.op
        dtypes = self._missing_dtypes(each)
        if dtypes:
            self._is_enough(each, *map(MissingDtype, dtypes))
            return
        partly = target.knows(op) and not each.condition
        capability = MissingOp(op, each.call.overload if partly else None, each.condition)
        if is_advisable(op, target):
            self._is_enough(each, capability)

    def _is_enough(self, each: _Open, *capabilities: MissingCapability) -> None:
        self._alone[each.number] = tuple(map(self.found.capability, capabilities))
        self.found.clauses.append((self._alone[each.number], each.number))

    def _missing_dtypes(self, each: _Open) -> list[torch.dtype]:
        """The dtypes that are the only reason for which a call is refused. (Complex dtypes are never advised: the
        target would need complex versions of everything that is computed on pairs of real numbers now.)"""
        dtypes = sorted(self.planner.target.unknown_dtypes(each.call), key=str)
        if not dtypes or any(dtype.is_complex for dtype in dtypes):
            return []
        wider = self.planner.target.with_more_dtypes(dtypes)
        return dtypes if wider.why_illegal(each.call) is None else []

    def _by_rule(self, each: _Open, rule: Rule, request: Request) -> None:
        untrained = rule.forward_only and self.planner.rules.trains
        if each.call.reads_data or untrained or not is_accurate_enough(rule.level, str(request.level)):
            return
        groups = _missing_groups(rule.needs, self.planner.target)
        if groups is None:
            return
        try:
            expansion = self.planner.alternatives.recorded(rule, request)
        except RuleError:  # a rule for other targets, whose calls do not fit these sizes
            return
        if not isinstance(expansion, Declined):
            self._by_expansion(each, expansion.graph, tuple(map(self._any_of, groups)))

    def _any_of(self, group: Sequence[Op]) -> int:
        """The number of a proposition that holds if the target knows one of these ops."""
        capabilities = [self.found.capability(MissingOp(op)) for op in group]
        if len(capabilities) == 1:
            return capabilities[0]
        number = self.found.number()
        self.found.clauses += [((capability,), number) for capability in capabilities]
        return number

    def _by_expansion(self, each: _Open, graph: fx.Graph, needed: tuple[int, ...]) -> None:
        within = (*each.within, each.call.op)
        numbers = (self._number(node, each.level, within) for node in graph.nodes)
        self.found.clauses.append((needed + tuple(n for n in numbers if n is not None), each.number))


@dataclass(frozen=True, slots=True)
class _Open:
    """A call that is still to be followed."""

    number: int
    node: fx.Node
    call: Call
    condition: str
    """The condition under which the target would know the call, if it knows the op."""
    level: Level
    within: tuple[Op, ...]
    """The ops whose derivation contains the call, outermost first."""


def _kind(value: Any) -> Any:
    """The properties on which rules usually branch: dtype and rank of a tensor, type of a number, else the value."""
    if isinstance(value, fx.Node):
        found = metadata(value)
        return (found.dtype, found.ndim) if isinstance(found, torch.Tensor) else type(found)
    return type(value) if type(value) in (int, float, complex) else key(value, _kind)


def _strides(call: Call) -> Any:
    """The non-contiguous strides that decide whether a call is a view or a copy; None for other ops."""
    if call.op.short not in MAYBE_VIEW:
        return None
    odd = [value for value in call.tensors if not is_surely_contiguous(value)]
    return [(tuple(value.shape), value.stride(), getattr(call.meta, "shape", None)) for value in odd]


def _missing_groups(needs: Needs, target: Target) -> list[tuple[Op, ...]] | None:
    """The groups of ops that a rule needs and of which the target has none; None if the rule is for other targets."""
    groups: list[tuple[Op, ...]] = []
    for group in needs:
        known = any(map(target.knows, group))
        if isinstance(group, Absent):
            if known:
                return None
        elif not known:
            advisable = tuple(op for op in group if is_advisable(op, target))
            if not advisable:
                return None
            groups.append(advisable)
    return groups


def _bound(node: fx.Node) -> Call | None:
    if node.op not in ("call_function", "call_method") or is_host(node) or is_projection(node):
        return None
    if isinstance(node.target, OpOverload) and is_free(node.target):
        return None
    try:
        return bound_call(node)
    except BindingError:
        return None
