"""Planning: for each node of a program, whether the target knows it, which rules take it there, or why none does.
Decisions are made once a signature; which of the alternatives is taken is decided in one place, `Planner._choose`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from decomp.derive.expansion import COMPOSITE, GUARDS, NO_COMPOSITE, Composite, Expansion, expand, expand_composite
from decomp.derive.other_sizes import OtherSizes
from decomp.derive.planning_memory import Memory
from decomp.derive.rewriter import flatten
from decomp.derive.stride_propagation import StridePropagation, changed_strides
from decomp.errors import Blocker, MetadataMissing, NotPortable, RuleCycle, RuleError, source_line, spelled
from decomp.graphs.template import Stamp
from decomp.graphs.tracing import without_guards
from decomp.ir.accounting import is_structure
from decomp.ir.binding import BindingError
from decomp.ir.call import Call, bound_call, call_if_bound, is_free, is_host, is_projection, metadata
from decomp.ir.effects import MARKS, Effect, is_proved, of_callable
from decomp.ir.op_facts import KERNEL_STRIDES
from decomp.ir.ops import Op, of_function
from decomp.ir.respelling import canonical
from decomp.ir.signature import Key
from decomp.metadata.fake_stride_fixes import kernel_value
from decomp.rules.costs import Cost as Cost, price
from decomp.rules.requirements import lacking
from decomp.rules.rules import Declined, Rule, Rules
from decomp.rules.target import Everything, Target
from decomp.torch_internals.fakes import FakeTensorMode

Tried = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Keep:
    """The node stays as it is: the target knows it, or it is no tensor op."""


@dataclass(frozen=True, slots=True)
class Proved:
    """The node goes: it asserts what its metadata proves."""


@dataclass(frozen=True, slots=True, eq=False)
class Derived:
    """The node is replaced by an expansion."""

    rule: Rule | Composite
    stamp: Stamp
    passed_over: Tried = ()
    """Alternatives that were asked before, with the reason of each."""
    results: Any = None
    """The metadata of what the expansion gives, where any of it has different strides than the call gives."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """No alternative reaches the target."""

    op: str
    tried: Tried = ()
    condition: str | None = None
    limitation: str | None = None
    """Why it cannot be done in principle, where that is declared: for the op itself, or for one that it leads to."""
    telling: str | None = None
    """The reason of the last alternative that is meant for calls of this form, and for this target."""

    def why(self) -> str:
        """The reason in one clause."""
        if self.condition:
            return f"{self.op} is legal only if {self.condition}"
        if self.limitation and not self.tried:
            return f"{self.op}: {self.limitation}"
        if not self.tried:
            return f"no rule for {self.op}"
        return f"{self.op}: {self.reason}"

    @property
    def reason(self) -> str | None:
        """Of the reasons why alternatives did not serve, the one that says most."""
        return self.telling or (self.tried[-1][1] if self.tried else None)

    def after(self, what: str, reason: str, limitation: str | None = None) -> Blocked:
        """The same after one more thing was tried."""
        tried = (*self.tried, (what, reason))
        return Blocked(self.op, tried, self.condition, self.limitation or limitation, self.telling or reason)


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why an expansion does not reach the target."""

    reason: str
    limitation: str | None = None
    meant: bool = True
    """Whether the rule is meant for calls of this form, and for this target."""


Decision = Keep | Derived | Blocked | Proved
PINS = "holds at some of the sizes that are dynamic only"
_SIZES = "compute from x.shape instead of numbers, or decomp.decline(...) before; or lower with fixed sizes"
_COMPOSITE = 1 << 20
"""The place of PyTorch's composite kernel among the alternatives: after all rules."""
KEEP, PROVED = Keep(), Proved()


class Planner:
    """Decides node by node. One planner serves one program and its sub-programs."""

    def __init__(
        self, rules: Rules, target: Target, dialect: str, mode: FakeTensorMode | None, cost: Cost | None = None
    ) -> None:
        self.rules, self.target, self.dialect, self.mode, self.cost = rules, target, dialect, mode, cost
        self.everywhere = isinstance(target, Everything)
        """Whether rules apply wherever one matches, and not only to what the target does not know."""
        # What was chosen by cost is good for this program: the next one may come with another function.
        self.memory: Memory = rules.memory.setdefault((target, dialect), Memory()) if cost is None else Memory()
        self.symbolic = Memory(signatures=self.memory.signatures)
        self._other_sizes = OtherSizes(mode.shape_env) if mode is not None and mode.shape_env is not None else None
        self.runs = 0
        """How often a rule was run."""
        self._path: list[tuple[Key, Op, int]] = []
        self._floor = 1 << 30
        self._contextual = False

    def decide(self, node: fx.Node) -> Decision:
        """What becomes of `node`."""
        if node.op not in ("call_function", "call_method"):
            return KEEP
        sure = self.memory.sure.get(node.target)
        if sure is None:
            sure = self.memory.sure[node.target] = self._surely_kept(node)
        if sure:
            return KEEP
        key, slots, symbolic = self.memory.signatures.of(node)
        memory = self.symbolic if symbolic else self.memory
        found = memory.decisions.get(key)
        return found if found is not None else self._decided(node, key, slots, memory)

    def _surely_kept(self, node: fx.Node) -> bool:
        """Whether every call of this target stays, whatever its arguments: it is looked up once a target."""
        target = node.target
        if isinstance(target, torch._ops.HigherOrderOperator):
            return self.everywhere or is_structure(target)
        if not isinstance(target, OpOverload):
            return node.op == "call_function" and self._surely_kept_function(target)
        if is_free(target):
            return self.everywhere or Effect.ASSERTION not in of_callable(target).kinds
        spelling = of_function(target)
        if self.everywhere:
            return not self.rules.of(spelling.op)
        if canonical(target) is not target:
            self.memory.aliases.add(target)
        return self.target.surely_legal(spelling.op, spelling.overload)

    def _surely_kept_function(self, function: Any) -> bool:
        """The same for a function of the torch dialect. The rules of `decompose` may want any call of it."""
        if not of_callable(function).kinds.isdisjoint(MARKS):
            return True
        spelling = of_function(function)
        if self.everywhere or spelling.op.packet is None or spelling.inplace:
            return False
        return self.target.surely_legal(spelling.op, spelling.overload)

    def _decided(self, node: fx.Node, key: Key, slots: list[fx.Node], memory: Memory) -> Decision:
        outer, self._contextual = self._contextual, False
        floor, self._floor = self._floor, 1 << 30
        depth = len(self._path)
        try:
            decision = self._decide(node, key, slots, memory)
            # A failure that a circle through an outer call caused says nothing about this call alone.
            # Nor is the cheapest of what the circle left the cheapest of all.
            cut = self._floor < depth and (isinstance(decision, Blocked) or self.cost is not None)
            if not self._contextual and not cut:
                memory.decisions[key] = decision
        finally:
            self._contextual = self._contextual or outer
            self._floor = min(floor, self._floor if self._floor < depth else 1 << 30)
        return decision

    def _decide(self, node: fx.Node, key: Key, slots: list[fx.Node], memory: Memory) -> Decision:
        if is_proved(node):
            return PROVED
        if is_host(node) or is_projection(node) or isinstance(node.target, OpOverload) and is_free(node.target):
            return KEEP
        try:
            call = bound_call(node)
        except BindingError as error:
            return self._unbound(node, key, slots, memory, str(error))
        if call is None:
            return KEEP
        if self.everywhere:
            return self._everywhere(node, call, key, slots, memory)
        why = self.target.why_illegal(call)
        self._contextual = self._contextual or call.looked_around
        if why is None:
            return KEEP
        return self._choose(node, call, key, slots, memory, why, 0)

    def _unbound(self, node: fx.Node, key: Key, slots: list[fx.Node], memory: Memory, reason: str) -> Decision:
        """A call that fits no schema: PyTorch itself may still run it."""
        if self.everywhere:
            return KEEP
        name = spelled(node.target)
        derived = self._composite(node, key, slots, memory, Blocked(name)) if self.rules.composites else None
        return derived if isinstance(derived, Derived) else Blocked(name, ((name, reason),))

    def _everywhere(self, node: fx.Node, call: Call, key: Key, slots: list[fx.Node], memory: Memory) -> Decision:
        if not self.rules.of(call.op):
            return KEEP
        if any(op == call.op for _, op, _ in self._path):
            self._cycle(call)
        decision = self._choose(node, call, key, slots, memory, "", 0)
        if isinstance(decision, Blocked):
            self._not_silently(call, decision, node)
        return decision if isinstance(decision, Derived) else KEEP

    def _not_silently(self, call: Call, decision: Blocked, node: fx.Node) -> None:
        """Raise `RuleError` where a rule would serve the call if it knew shapes, or if sizes were those of the example:
        it is not left silently."""
        for rule, (_, reason) in zip(self.rules.of(call.op), decision.tried):
            if reason.endswith("; pass args="):
                problem = reason.removesuffix("; pass args=")
                raise MetadataMissing(rule, problem, "pass example inputs: args=(...)", node)
            if reason.startswith((GUARDS, PINS)):
                raise RuleError(rule, reason, _SIZES, node)

    def _cycle(self, call: Call) -> None:
        ops = [str(op) for _, op, _ in self._path]
        circle = " → ".join([*ops[ops.index(str(call.op)) :], str(call.op)])
        rule = self.rules.of(self._path[-1][1])[self._path[-1][2]]
        raise RuleCycle(rule, f"is part of a circle: {circle}", "drop one of these rules, or let it emit other ops")

    def _choose(
        self, node: fx.Node, call: Call, key: Key, slots: list[fx.Node], memory: Memory, why: str, start: int
    ) -> Decision:
        """The first alternative, in order of registration, whose expansion reaches the target whole; with costs, the
        cheapest of all that do. The price of a derivation is that of the calls it ends in, so that the cheapest ways of
        the calls that an expansion makes are part of its own cheapest way."""
        tried: list[tuple[str, str]] = []
        telling: str | None = None
        reaching: list[tuple[float, Rule, Stamp]] = []
        limitation = self.rules.limitation(call, self.target)
        alternatives = self.rules.of(call.op)
        for i in range(start, len(alternatives)):
            rule = alternatives[i]
            reached = self._way(rule, i, node, call, key, slots, memory)
            if isinstance(reached, Obstacle):
                tried.append((str(rule), reached.reason))
                limitation = limitation or reached.limitation
                telling = reached.reason if reached.meant else telling
            elif self.cost is None:
                return _derived(rule, reached, tuple(tried), node)
            else:
                reaching.append((self._price(reached), rule, reached))
        if reaching:
            least, rule, stamp = min(reaching, key=lambda way: way[0])
            dearer = [(str(r), f"costs {price:g}, not {least:g}") for price, r, _ in reaching if r is not rule]
            return _derived(rule, stamp, (*tried, *dearer), node)
        blocked = Blocked(str(call.op), tuple(tried), why or None, limitation, telling)
        if self.rules.composites and not self.everywhere:
            return self._composite(node, key, slots, memory, blocked)
        return blocked

    def _way(
        self, rule: Rule, index: int, node: fx.Node, call: Call, key: Key, slots: list[fx.Node], memory: Memory
    ) -> Stamp | Obstacle:
        """What one alternative comes to."""
        if call.reads_data:
            return Obstacle("takes a number, and is given a tensor, whose value only the running program has")
        lacks = lacking(rule.needs, self.target)
        if lacks is not None:
            return Obstacle(f"is for targets that know {lacks}", meant=False)
        expansion = self._expansion(rule, call, node, key, slots, memory)
        if isinstance(expansion, Declined):
            return Obstacle(expansion.reason, meant=expansion.meant)
        return self.reached(expansion, key, call.op, index, metadata(node))

    def _price(self, stamp: Stamp) -> float:
        """What the calls of a flat expansion cost."""
        assert self.cost is not None
        calls = (node for node in stamp.graph.nodes if node.op.startswith("call"))
        bound = (call_if_bound(node) for node in calls if not is_host(node) and not is_projection(node))
        return price(self.cost, (call for call in bound if call is not None))

    def _composite(
        self, node: fx.Node, key: Key, slots: list[fx.Node], memory: Memory, blocked: Blocked
    ) -> Derived | Blocked:
        """PyTorch's own composite kernel, for a call that no rule takes to the target."""
        expansion = expand_composite(node, slots, self._mode(slots, memory))
        expansion = self._for_all_sizes(expansion, node, slots, memory)
        if isinstance(expansion, Declined):
            return blocked if expansion is NO_COMPOSITE else blocked.after(COMPOSITE, expansion.reason)
        self.runs += 1
        reached = self.reached(expansion, key, Op(blocked.op), _COMPOSITE, metadata(node))
        if isinstance(reached, Stamp):
            return _derived(expansion.rule, reached, blocked.tried, node)
        return blocked.after(COMPOSITE, reached.reason, reached.limitation)

    def _mode(self, slots: list[fx.Node], memory: Memory) -> FakeTensorMode | None:
        """The fake mode to run in: the program's own where sizes are symbolic; none where metadata is missing."""
        if self.mode is None or any(metadata(slot) is None for slot in slots):
            return None
        return self.mode if memory is self.symbolic else self.memory.mode

    def _expansion(
        self, rule: Rule, call: Call, node: fx.Node, key: Key, slots: list[fx.Node], memory: Memory
    ) -> Expansion | Declined:
        found = memory.expansions.get((rule, key))
        if found is None:
            bound: Any = call
            try:
                found = expand(rule, bound, node, slots, self._mode(slots, memory), self._dialect(node))
            except RuleError as error:
                raise error.at(node) from error.__cause__
            self.runs += isinstance(found, Expansion)
            found = self._for_all_sizes(found, node, slots, memory)
            memory.expansions[(rule, key)] = found
        return found

    def _for_all_sizes(
        self, found: Expansion | Declined, node: fx.Node, slots: list[fx.Node], memory: Memory
    ) -> Expansion | Declined:
        """The expansion, unless it holds at the sizes of the example only."""
        if memory is not self.symbolic or self._other_sizes is None or isinstance(found, Declined):
            return found
        why_not = self._other_sizes.why_not(found.graph, node, slots)
        return found if why_not is None else Declined(f"{PINS}: {why_not}")

    def _dialect(self, node: fx.Node) -> str:
        """How a rule for this call is recorded: what PyTorch's own kernels left in a torch graph is ATen already."""
        return "aten" if isinstance(node.target, OpOverload) else self.dialect

    def reached(self, expansion: Expansion, key: Key, op: Op, index: int, expected: Any) -> Stamp | Obstacle:
        """The expansion lowered in turn, flat; or why it does not reach the target."""
        if len(self._path) > 60:
            return Obstacle("leads into a recursion deeper than 60 rules")
        self._path.append((key, op, index))
        try:
            propagation = StridePropagation(expansion.graph, expected=expected)
            decisions: dict[fx.Node, Decision] = {}
            for node in propagation.nodes():
                if node in propagation.lost:
                    return Obstacle(f"emits {node.target}, which {propagation.lost[node]}")
                decision = decisions[node] = self._inner(node, op, index)
                if isinstance(decision, Blocked):
                    return _obstacle(decision, op)
                self.relay(propagation, node, decision)
            derived = {propagation.current(node): each for node, each in decisions.items() if isinstance(each, Derived)}
            with without_guards(self.mode):
                return flatten(replace(expansion, graph=propagation.graph), derived)
        finally:
            self._path.pop()

    def relay(self, propagation: StridePropagation, node: fx.Node, decision: Decision) -> None:
        """Where what takes the place of `node` has other strides than were captured, re-trace what depends on them."""
        results = decision.results if isinstance(decision, Derived) else self._as_kernels_give(node)
        if results is not None:
            with without_guards(self.mode):
                propagation.strides_changed(node, results)
            self.memory.signatures.forget(propagation.current(node))

    def _as_kernels_give(self, node: fx.Node) -> Any:
        """The true metadata of a call that stays, where what was recorded is known to be wrong; else None."""
        name = self.memory.laid_out.get(node.target)
        if name is None:
            own = _op_of(node)
            name = own.short if own is not None and own.short in KERNEL_STRIDES else ""
            self.memory.laid_out[node.target] = name
        recorded = metadata(node) if name else None
        call = call_if_bound(node) if recorded is not None else None
        if call is None:
            return None
        with without_guards(self.mode):
            true = kernel_value(KERNEL_STRIDES[name], fx.map_arg(call.arguments, metadata), recorded)
        return None if true is recorded else true

    def _inner(self, node: fx.Node, op: Op, index: int) -> Decision:
        """What becomes of a call that a rule for `op` made."""
        if node.op not in ("call_function", "call_method") or self.memory.sure.get(node.target):
            return KEEP
        if self.everywhere:
            own = None if is_host(node) or is_projection(node) else _op_of(node)
            return KEEP if own == op else self.decide(node)
        key, slots, symbolic = self.memory.signatures.of(node)
        for depth, (outer, _, _) in enumerate(self._path):
            if outer == key:
                return self._again(node, key, slots, symbolic, depth, index)
        return self.decide(node)

    def _again(self, node: fx.Node, key: Key, slots: list[fx.Node], symbolic: bool, depth: int, index: int) -> Decision:
        """A call that is being lowered already: a rule may wrap its own op, which the next alternatives then serve."""
        call = call_if_bound(node)
        why = self.target.why_illegal(call) if call is not None else ""
        if why is None:
            return KEEP
        if call is not None and depth == len(self._path) - 1 and index < _COMPOSITE:
            memory = self.symbolic if symbolic else self.memory
            return self._choose(node, call, key, slots, memory, why, index + 1)
        self._floor = min(self._floor, depth)
        name = str(call.op) if call is not None else spelled(node.target)
        circle = " → ".join([*(str(op) for _, op, _ in self._path[depth:]), name])
        return Blocked(name, ((name, f"leads back to itself: {circle}"),))


def _derived(rule: Rule | Composite, stamp: Stamp, passed_over: Tried, node: fx.Node) -> Derived:
    return Derived(rule, stamp, passed_over, changed_strides(stamp.graph, metadata(node)))


def _obstacle(blocked: Blocked, op: Op) -> Obstacle:
    """What stands in the way of an expansion of `op` that needs a blocked call."""
    if blocked.op == str(op):
        return Obstacle(blocked.reason or blocked.why(), blocked.limitation)
    if not blocked.tried:
        return Obstacle(f"emits {blocked.why()}", blocked.limitation)
    return Obstacle(f"emits {blocked.op}, which {blocked.why()}", blocked.limitation)


def _op_of(node: fx.Node) -> Op | None:
    call = call_if_bound(node)
    return call.op if call is not None else None


@dataclass(frozen=True)
class Plan:
    """A decision for every node of a program. `str(plan)` is a table."""

    target: str
    entries: tuple[tuple[fx.Node, Decision], ...]

    def __iter__(self) -> Iterator[tuple[fx.Node, Decision]]:
        return iter(self.entries)

    def __reduce__(self) -> tuple[Any, ...]:
        raise NotPortable(
            "a Plan cannot be pickled: it holds nodes of your program\n  to do: pickle str(plan), or plan.blockers"
        )

    def __copy__(self) -> Plan:
        return self

    def __deepcopy__(self, memo: Any) -> Plan:
        return self

    @property
    def legal(self) -> list[fx.Node]:
        """Calls that the target knows as they are."""
        return [n for n, d in self.entries if isinstance(d, Keep) and n.op.startswith("call") and not is_host(n)]

    @property
    def derived(self) -> dict[fx.Node, Derived]:
        """Calls that rules take to the target."""
        return {node: d for node, d in self.entries if isinstance(d, Derived)}

    @property
    def blocked(self) -> dict[fx.Node, Blocked]:
        """Calls that do not reach the target."""
        return {node: d for node, d in self.entries if isinstance(d, Blocked)}

    @property
    def blockers(self) -> tuple[Blocker, ...]:
        """What blocks, one entry an op and reason, with every node."""
        groups: dict[Any, list[fx.Node]] = {}
        for node, decision in self.blocked.items():
            groups.setdefault(decision, []).append(node)
        return tuple(
            Blocker(b.op, tuple(n.name for n in nodes), _first_line(nodes), b.tried, b.condition, b.limitation)
            for b, nodes in groups.items()
        )

    @property
    def complete(self) -> bool:
        """Whether every call reaches the target."""
        return not self.blocked

    def __str__(self) -> str:
        lines = [
            f"plan for {self.target}: {len(self.legal)} calls legal, {len(self.derived)} derived, "
            f"{len(self.blocked)} blocked"
        ]
        counts: dict[tuple[str, str], int] = {}
        for node, derived in self.derived.items():
            name = str(_op_of(node) or spelled(node.target))
            counts[name, str(derived.rule)] = counts.get((name, str(derived.rule)), 0) + 1
        common_first = sorted(counts.items(), key=lambda item: -item[1])
        lines += [f"  {count:5d} × {op} by {rule}" for (op, rule), count in common_first]
        for blocker in self.blockers:
            lines += [f"  {line}" for line in blocker.lines()]
        return "\n".join(lines)


def _first_line(nodes: list[fx.Node]) -> str | None:
    return next((line for node in nodes if (line := source_line(node))), None)
