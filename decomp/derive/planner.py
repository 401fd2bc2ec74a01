"""The planner: for each node, whether its call is legal on the target, which rules lower it, or why none does.

A decision is made once per signature and level of accuracy. Deciding an illegal call runs its rules; each
recorded expansion is a graph of calls, which are decided recursively (`reach`). A derivation reaches the target if all
calls that it ends in are legal. `Planner._choose` is where every choice between alternatives begins. A recursion that
comes back to a signature that is already being derived tries the remaining alternatives there, or is blocked; decisions
that depend on such a cycle are not memoised, as they hold only in their context."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
import functools
import math
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from decomp import cache_directory
from decomp.cache.expansions import ExpansionCache, Segment
from decomp.cache.fingerprints import Origins
from decomp.costs.model import is_additive, is_value
from decomp.derive.alternatives import (
    AFTER_ALL_RULES,
    Alternative,
    Alternatives,
    ComplexCalls,
    Context,
    DecisionDependencies,
    Derivation,
    Request,
)
from decomp.derive.branch_and_bound import BranchAndBound, CostLimit, least_price, price_of_node, price_of_template
from decomp.derive.decisions import ERASED_GUARD, LEGAL, Blocked, Decision, Derived, decision_of, op_of_node, record_of
from decomp.derive.example_sizes import ExampleSizes
from decomp.derive.expansion import Composite, Expansion
from decomp.derive.planning_memory import PlanningMemory, StateWatch
from decomp.derive.rewriter import flatten
from decomp.derive.rule_selection import RuleSelection
from decomp.derive.stride_propagation import StridePropagation, changed_strides
from decomp.errors import RuleCycle, ShapeUnknown
from decomp.graphs.template import ExpansionTemplate
from decomp.graphs.tracing import without_guards
from decomp.ir.accounting import is_structure
from decomp.ir.binding import BindingError
from decomp.ir.byte_floats import has_byte_floats, missing_kernel
from decomp.ir.call import (
    Call,
    bound_call,
    call_if_bound,
    is_free,
    is_host,
    is_projection,
    is_surely_legal,
    metadata,
    select_results,
)
from decomp.ir.effects import MARKS, Effect, is_discharged_assertion, of_callable
from decomp.ir.module import Module
from decomp.ir.op_facts import KERNEL_STRIDES
from decomp.ir.ops import of_function
from decomp.ir.respelling import canonical
from decomp.metadata.fake_stride_fixes import kernel_value
from decomp.patterns.pattern import Pattern
from decomp.rules.accuracy import LEVELS, Level, Policy, Within
from decomp.rules.declining import Declined
from decomp.rules.rules import Rule
from decomp.rules.target import MatchAllTarget, OpenCondition
from decomp.type_conversion.pair_recording import PairRecorder

DEPTH_LIMIT = 60
"""The limit of nested derivations: rules that keep producing new signatures never end."""


class Planner:
    """Decides node by node. One planner is used for one program with its bodies."""

    def __init__(self, matching: RuleSelection, program: Module, policy: Policy, traced: bool = False) -> None:
        """`traced`: whether expansions say what became of each call inside them, which costs time and memory."""
        self.rules, self.target, self.mode, self.policy = matching.rules, matching.target, program.mode, policy
        rules, target, mode, dialect = self.rules, self.target, self.mode, program.dialect
        self.traced, self.everywhere = traced, isinstance(target, MatchAllTarget)
        """Whether rules apply wherever one matches, not only to calls that are illegal on the target."""
        self.cost = policy.cost or target.costs
        # Choices made by a user-defined cost function are valid for this program only: the next one may pass another.
        # An expansion depends on the default dtype: a rule that writes `torch.full(shape, 0.5)` gets it from there.
        how = dialect, target.narrower.get(torch.int64), torch.get_default_dtype()
        # By value: equal targets share decisions. A cost that is not a frozen value may answer otherwise the next time.
        key = (target, how, rules.trains, self.cost, policy.cost is not None, traced) if is_value(self.cost) else None
        self.memory = PlanningMemory.within(rules.memory, how, key)
        if self.memory.origins is None:
            self.memory.origins = Origins.of(rules, target)
        self.origins = self.memory.origins
        # In `decompose` a composite kernel would expand every op that no rule matches, which nobody asked for.
        composites = rules.composites and not self.everywhere
        self.alternatives = Alternatives(rules, target, dialect, mode, self.memory, composites)
        own_rules = len(rules.origins.own) if rules.origins is not None else 0
        env = mode.shape_env if mode is not None else None
        # Without a backed symbol there is no example to take sizes from; unbacked ones have no value before run time.
        self._example = ExampleSizes(env, self.memory.fakes) if env is not None and env.backed_var_to_val else None
        self._watch = StateWatch(self.origins.own, own_rules, (self.memory, self.alternatives.symbolic))
        self.pairs = PairRecorder(ComplexCalls(self.alternatives))
        """Records complex calls on pairs of real numbers."""
        # Expansions on disk do not say what became of the calls inside them.
        is_kept = key is not None and mode is not None and not self.everywhere and not traced
        self.kept = self._kept(dialect) if is_kept else None
        """Decisions of other processes, on disk."""

    def close(self) -> None:
        """Planning has ended: write decisions to disk."""
        if self.kept is not None:
            self.kept.close()
        self._watch.close()

    def decide(
        self, node: fx.Node, context: Context = (), basis: DecisionDependencies | None = None, limit: float = math.inf
    ) -> Decision:
        """The decision for `node`, which is in the program itself or in an expansion; `basis` then has the dependencies
        of the call for which the expansion was recorded."""
        if node.op not in ("call_function", "call_method"):
            return LEGAL
        # Most calls of a lowered program are legal whatever their arguments: no signature is computed for these.
        if node.target not in self.memory.sure:
            self.memory.sure[node.target] = self._surely_kept(node)
        if self._is_sure(node):
            return LEGAL
        # Calls of an expansion inherit the level of the rule, not that of their own op: accuracy={"exp": "fast"} is
        # about the program's own `exp`, and not about one inside of an exact softmax.
        level = context[-1].level if context else self._level(node)
        request = Request(node, self.memory.signatures.of(node), level, context, limit=limit)
        return self._decide(request, basis or DecisionDependencies())

    def _decide(self, request: Request, basis: DecisionDependencies) -> Decision:
        """The decision for a request, memoised."""
        memory, key = self.alternatives.memory_for(request.signature.symbolic), (request.signature.key, request.level)
        found = memory.decision(key)
        if found is not None:
            basis.is_own |= key in memory.own.decisions
            return found
        kept = self._from_disk(request)
        if kept is None:
            return self._new_decision(request, basis)
        memory.decisions[key] = kept
        return kept

    def _kept(self, dialect: str) -> ExpansionCache | None:
        place = cache_directory.directory()
        if place is None:
            return None
        if self.memory.segment is None:
            name = self.origins.name(self.rules, self.target, dialect, self.cost)
            self.memory.segment = Segment(name, self.rules)
        return ExpansionCache(self.memory.segment, place, self.memory.fakes, Composite, self.mode)

    def _from_disk(self, request: Request) -> Decision | None:
        """The decision of another process for a call. A random sample of these is also decided here, to confirm
        them."""
        if self.kept is None or not request.may_be_kept(self.kept.depth):
            return None
        found = self.kept.find(*request.disk_key)
        if found is None:
            return None
        # A changed dependency that the fingerprint misses would go unnoticed: samples are decided again, and compared.
        # The place where a wrong fingerprint would show; `SHARE` in cache/expansions.py says how many are drawn.
        if self.kept.is_drawn():
            runs, decision = self.alternatives.runs, self._new_decision(request, DecisionDependencies())
            if not self.kept.confirm(found, *request.disk_key, record_of(decision)):
                return decision
            self.alternatives.runs = runs
        # Respelling needs the aliases that this process has not seen, as it did not run the rule.
        self.memory.met(found.template.graph)
        return decision_of(found, str(request.level))

    def price(self, node: fx.Node, frozen: Collection[fx.Node] = ()) -> float | str:
        """The price of a call on the target, given its `frozen` operands; or why it cannot be lowered."""
        decision = self.decide(node)
        if isinstance(decision, Blocked):
            return decision.why()
        if isinstance(decision, Derived):
            return price_of_template(self.cost, decision.template, [each in frozen for each in node.all_input_nodes])
        # In `decompose` LEGAL means that no rule applied. A pattern cannot stay: no backend has it.
        if isinstance(node.target, Pattern):
            return "its rule declines"
        return price_of_node(self.cost, node) if node.op.startswith("call") else 0.0

    def spec(self, node: fx.Node) -> int:
        """An integer identifying the metadata of a value: equal for equal metadata."""
        return self.memory.signatures.spec(node)

    def request(self, node: fx.Node) -> Request:
        """A request for a node of the program itself."""
        return Request(node, self.memory.signatures.of(node), self._level(node))

    def _level(self, node: fx.Node) -> Level:
        """The accuracy required for a node of the program itself."""
        accuracy = self.policy.accuracy
        # A match replaces calls of several ops, and must be at least as accurate as each was to be.
        if isinstance(node.target, Pattern) and not accuracy.uniform:
            return self._strictest(node.target)
        own = None if accuracy.uniform else op_of_node(node)
        return accuracy.default if own is None else accuracy.level(own)

    def _strictest(self, pattern: Pattern) -> Level:
        """The strictest accuracy required for any call of a pattern."""
        ops = [op for node in pattern.calls if (op := op_of_node(node)) is not None]
        levels = [self.policy.accuracy.level(op) for op in ops]
        known = [level for level in levels if isinstance(level, str)]
        # One of the calls has a limit in ULP instead of a level, and the two cannot be compared.
        if len(known) < len(levels) or not known:
            return self.policy.accuracy.default
        return min(known, key=LEVELS.index)

    def _is_sure(self, node: fx.Node) -> bool:
        """Whether a call is known to stay from its target and the dtypes of its tensors alone."""
        return is_surely_legal(node, self.memory.sure.get(node.target, False))

    def _surely_kept(self, node: fx.Node) -> bool | frozenset[torch.dtype]:
        """Whether every call of this target stays, regardless of its arguments, or the dtypes for which it does;
        computed once per target."""
        target = node.target
        # Control flow and regions only run their bodies, which are lowered; flex_attention computes, and is asked.
        if isinstance(target, torch._ops.HigherOrderOperator):
            return self.everywhere or is_structure(target)
        if not isinstance(target, OpOverload):
            return node.op == "call_function" and self._surely_kept_function(target)
        # An assertion that metadata proves is erased, which needs a decision for each call.
        if is_free(target):
            return self.everywhere or Effect.ASSERTION not in of_callable(target).kinds
        spelling = of_function(target)
        if self.everywhere:
            return not self.rules.of(spelling.op)
        if canonical(target) is not target:
            self.memory.aliases.add(target)
        return self.target.sure(spelling.op, spelling.overload)

    def _surely_kept_function(self, function: Any) -> bool:
        """The same for a function of the torch dialect. In `decompose` rules may match any call of it."""
        if not of_callable(function).kinds.isdisjoint(MARKS):
            return True
        spelling = of_function(function)
        # Without an ATen op there is no schema by which the target could say
        # that all calls are legal; an in-place spelling does more than its op.
        if self.everywhere or spelling.op.packet is None or spelling.inplace:
            return False
        return self.target.surely_legal(spelling.op, spelling.overload)

    def _new_decision(self, request: Request, outer: DecisionDependencies) -> Decision:
        depth = len(request.context)
        decision = self._decision(request)
        # A failure by a cycle through an outer call, or the cheapest of what it left, is only valid in this context.
        # A derivation found without comparing prices is the first that reaches the target, and is one in any context.
        matters = isinstance(decision, Blocked) or self._by_cost(request.level)
        cut = request.basis.cycle_depth < depth and matters
        if not request.basis.depends_on_context and not cut:
            self._remember(request, decision)
        outer.add(request.basis, depth)
        return decision

    def _remember(self, request: Request, decision: Decision) -> None:
        """Memoise the decision for a call, and note it for other processes if it is valid there."""
        memory, key = self.alternatives.memory_for(request.signature.symbolic), (request.signature.key, request.level)
        # Kept apart, so that a change of what the user's functions read drops these and no others.
        known = memory.own if request.basis.is_own else memory
        # Not a decision: with a higher limit there may be one. That the limit was too low is worth keeping.
        if request.basis.beyond_limit:
            known.at_least[key] = max(request.limit, known.at_least.get(key, 0.0))
            return
        known.decisions[key] = decision
        record = record_of(decision)
        # Never a decision in which a user's function had a part: its source says nothing of what it reads.
        if self.kept and record and known is memory and request.may_be_kept(self.kept.depth):
            self.kept.note(*request.disk_key, record)

    def _decision(self, request: Request) -> Decision:
        node = request.node
        if is_discharged_assertion(node):
            return ERASED_GUARD
        if is_host(node) or is_projection(node) or isinstance(node.target, OpOverload) and is_free(node.target):
            return LEGAL
        try:
            call = bound_call(node)
        except BindingError as error:
            return self._unbound(request, error)
        if call is None:
            return LEGAL
        if self.everywhere:
            return self._wherever_a_rule_matches(request, call)
        # Legality before rules: a call that the target has is kept even if a rule for it is cheaper by the cost model.
        why = self._why_illegal(call, request)
        return LEGAL if why is None else self._choose(replace(request, call=call, condition=why))

    def _why_illegal(self, call: Call, request: Request) -> str | None:
        """Why the target rejects a call; None if it is legal."""
        why = self.target.why_illegal(call)
        request.basis.depends_on_context |= call.looked_around
        request.basis.is_own |= call.op in self.origins.own_ops
        return why

    def _unbound(self, request: Request, error: BindingError) -> Decision:
        """A call that matches no schema: PyTorch itself may still run it."""
        if self.everywhere:
            return LEGAL
        # With `call=None` no rule is tried, as arguments have no names; only PyTorch's composite kernel is.
        derived = self._choose(request)
        name = str(request.op)
        needs_metadata = isinstance(error, ShapeUnknown)
        return derived if isinstance(derived, Derived) else Blocked.because(name, str(error), needs_metadata)

    def _wherever_a_rule_matches(self, request: Request, call: Call) -> Decision:
        request = replace(request, call=call)
        if not self.alternatives.serving(request):
            return LEGAL
        # In `decompose` a rule that emits its own op keeps that call; a longer cycle has no such natural end.
        if any(derivation.op == call.op for derivation in request.context):
            self._refuse_cycle(call, request.context)
        decision = self._choose(request)
        if isinstance(decision, Blocked):
            self._refuse_silence(request)
        return decision if isinstance(decision, Derived) else LEGAL

    def _refuse_silence(self, request: Request) -> None:
        """Raise `RuleError` if a rule would apply to the call if shapes were known, or sizes were static: such a call
        is not skipped silently."""
        for rule in self.alternatives.serving(request):
            declined = self.alternatives.declined(rule, request)
            if declined is not None and declined.error is not None:
                raise declined.error.at(request.node)

    def _refuse_cycle(self, call: Call, context: Context) -> None:
        ops = [str(derivation.op) for derivation in context]
        circle = " → ".join([*ops[ops.index(str(call.op)) :], str(call.op)])
        rule = self.rules.of(context[-1].op)[context[-1].place]
        raise RuleCycle(rule, f"is part of a cycle: {circle}", "drop one of these rules, or let it emit other ops")

    def _choose(self, request: Request) -> Derived | Blocked:
        """The first alternative whose expansion reaches the target completely; where several compete, the cheapest.
        The price of a derivation is that of the calls it ends in, so the cheapest derivation of an expansion consists
        of the cheapest derivations of its calls."""
        request.basis.is_own |= request.op in self.origins.own_ops or isinstance(request.node.target, Pattern)
        blocked = self._before_any_alternative(request)
        if isinstance(request.level, Within):
            return self._cheapest_within(request.level, request, blocked)
        chosen = self._chosen_at_example(request)
        if chosen is not None:
            return chosen
        for group in self._groups(request):
            found = self._cheapest(group, request, blocked)
            if isinstance(found, Derived):
                return found
            blocked = found
            # With a higher limit the earlier group would come first: a later one must not be chosen in its place.
            if request.basis.beyond_limit:
                break
        return blocked

    def _chosen_at_example(self, request: Request) -> Derived | None:
        """The derivation of a call with symbolic sizes by the rule that is chosen at the sizes of the example, if that
        rule reaches the target here, too; the other rules are then not recorded under symbolic sizes."""
        # `first` is set inside a cycle, where the decision at fixed sizes would start at the first alternative again.
        if self._example is None or not request.signature.symbolic or request.first or request.call is None:
            return None
        rules = self.alternatives.serving(request)
        # With one rule there is nothing to choose, and the detour would record it twice.
        compete = len(rules) > 1 and self._competes(rules[0], request)
        node = self._example.call(request.node, request.signature) if compete else None
        if node is None:
            return None
        basis = DecisionDependencies()
        fixed = self._decide(Request(node, self.memory.signatures.of(node), request.level), basis)
        request.basis.is_own |= basis.is_own
        # At fixed sizes PyTorch's composite kernel was chosen, or nothing was.
        if not isinstance(fixed, Derived) or fixed.rule not in rules:
            return None
        own = DecisionDependencies()
        alternative = self.alternatives.by_rule(rules.index(fixed.rule), request)
        found = self._derive(alternative, replace(request, basis=own))
        # It holds at the sizes of the example only: all rules compete under symbols, as without an example.
        if not isinstance(found, Derived):
            return None
        # Only now: what a rule that was not taken depended on must not keep the decision from being memoised.
        request.basis.add(own, len(request.context) + 1)
        return replace(found, passed_over=fixed.passed_over)

    def _groups(self, request: Request) -> Iterator[list[Alternative]]:
        """The alternatives, in order of registration, in groups that compete by cost."""
        # Rules without a level stand where they were registered: one cannot be passed over for being costlier, nor
        # can a levelled rule behind it be taken before it.
        group: list[Alternative] = []
        for alternative in self.alternatives.of_rules(request):
            if self._competes(alternative.rule, request):
                group.append(alternative)
                continue
            if group:
                yield group
            yield [alternative]
            group = []
        if group:
            yield group
        # PyTorch's own kernel is for calls that no rule lowers to the target.
        yield from ([alternative] for alternative in self.alternatives.of_composite(request))

    def _competes(self, rule: Rule | None, request: Request) -> bool:
        """Whether a rule competes with others by cost: with a cost model all do, otherwise those with a level, except
        at the level "exact"."""
        by_level = rule is not None and rule.level is not None and request.level != "exact"
        return by_level or self.policy.cost is not None

    def _cheapest(self, group: list[Alternative], request: Request, blocked: Blocked) -> Derived | Blocked:
        """The cheapest of some alternatives; of equal prices the most accurate, then the first. The most promising is
        tried first, and those that cannot be cheaper are pruned."""
        # A peak of memory, for instance, is no sum: the parts of an expansion may cost more than the whole.
        prunes = len(group) > 1 and is_additive(self.cost)
        search = BranchAndBound(group, functools.partial(self._lower_bound, request.basis) if prunes else None, request)
        beyond = False
        # Each alternative has dependencies of its own: those of a loser must not keep the winner from being memoised,
        # unless the loser's price decided.
        for alternative, least in search:
            own = DecisionDependencies()
            found = self._derive(alternative, replace(request, basis=own, limit=search.limit))
            search.result(alternative, found)
            beyond |= own.beyond_limit
            request.basis.is_own |= own.is_own
            # One that failed although its bound was below the winner's price would have won without its failure.
            if isinstance(found, Derived) or search.winner is None or least < search.price:
                request.basis.add(own, len(request.context) + 1)
        request.basis.beyond_limit = search.winner is None and (beyond or search.left_out)
        return search.outcome(blocked)

    def _cheapest_within(self, limit: Within, request: Request, blocked: Blocked) -> Derived | Blocked:
        """The cheapest derivation by a rule at any level whose error is within the limit; PyTorch's own kernel for
        calls that no rule lowers."""
        best, nearest = None, math.inf
        for alternative, level, error in self.alternatives.within(request):
            if error > limit.ulp:
                nearest = min(nearest, error)
                continue
            found = self._derive(alternative, replace(request, level=level))
            if isinstance(found, Declined):
                blocked = blocked.after(alternative.name, found)
                continue
            # `_derive` leaves it 0 at level "exact", at which nothing competes; here derivations of all levels do.
            found = replace(found, price=price_of_template(self.cost, found.template))
            best = found if best is None or found.price < best.price else best
        if best is not None:
            return best
        # A rule exists, and is not accurate enough. PyTorch's kernel has no certificate: taking it would hide that.
        for alternative in self.alternatives.of_composite(request) if nearest == math.inf else ():
            found = self._derive(alternative, request)
            if isinstance(found, Derived):
                return found
        if nearest < math.inf:
            enough = f"max_ulp={{{request.op.short!r}: {math.ceil(nearest)}}}"
            blocked = blocked.after("max_ulp=", Declined(f"the most accurate rule has {nearest:g} ULP: {enough}"))
        return blocked

    def _derive(self, alternative: Alternative, request: Request) -> Derived | Declined:
        """The outcome of one alternative."""
        expansion = alternative.expansion
        if isinstance(expansion, Declined):
            return expansion
        template = self.reach(expansion, request, alternative.place)
        if isinstance(template, Declined):
            return template
        price = price_of_template(self.cost, template) if self._by_cost(request.level) else 0.0
        # `Alternatives.within` yields the limit itself as the level of a rule without a certificate.
        level = LEVELS[0] if isinstance(request.level, Within) else request.level
        return Derived(expansion.rule, template, (), changed_strides(template.graph, request.expected), price, level)

    def _by_cost(self, level: Level) -> bool:
        """Whether alternatives compete by cost."""
        return self.policy.cost is not None or level != "exact"

    def _lower_bound(self, basis: DecisionDependencies, graph: fx.Graph, level: Level) -> tuple[float, int]:
        """A lower bound of the price of an expansion's calls, and the number of calls whose price is unknown until they
        are lowered."""
        calls = [node for node in graph.nodes if node.op.startswith("call")]
        known = [self._known_price(node, level, basis) for node in calls]
        least = sum(least_price(self.cost, calls[i]) if price is None else price for i, price in enumerate(known))
        return least, known.count(None)

    def _known_price(self, node: fx.Node, level: Level, basis: DecisionDependencies) -> float | None:
        if self._is_sure(node):
            return price_of_node(self.cost, node)
        signature = self.memory.signatures.of(node)
        memory, key = self.alternatives.memory_for(signature.symbolic), (signature.key, level)
        decision = memory.decision(key)
        basis.is_own |= key in memory.own.decisions or key in memory.own.at_least
        if decision is not None:
            return self._price_of(decision, node)
        # Not 0: a bound from an abandoned search prunes this alternative before it is derived at all.
        return memory.own.at_least.get(key, memory.at_least.get(key))

    def _price_of(self, decision: Decision, node: fx.Node) -> float:
        """The price of a decision for a call."""
        if isinstance(decision, Derived):
            return decision.price
        return price_of_node(self.cost, node) if decision is LEGAL and node.op.startswith("call") else 0.0

    def _before_any_alternative(self, request: Request) -> Blocked:
        limitation = self.rules.limitation(request.call, self.target) if request.call is not None else None
        return Blocked(
            str(request.op),
            condition=request.condition or None,
            limitation=limitation,
            needs_metadata=isinstance(request.condition, OpenCondition),
        )

    def reach(self, expansion: Expansion, request: Request, place: int) -> ExpansionTemplate | Declined:
        """The expansion with its calls lowered recursively, flattened; or why it does not reach the target, or exceeds
        the limit."""
        if len(request.context) > DEPTH_LIMIT:
            return Declined(f"leads into a recursion deeper than {DEPTH_LIMIT} rules")
        # The key is what ends cycles: the same op at other sizes is progress, as in a product that is split in halves.
        context = (*request.context, Derivation(request.signature.key, request.op, place, request.level))
        cost_limit = CostLimit.of(request.limit, expansion.graph, self.cost, self._is_sure)
        propagation = StridePropagation(
            expansion.graph, expected=select_results(request.signature.read, request.expected)
        )
        decisions: dict[fx.Node, Decision] = {}
        in_bytes = not self.everywhere and has_byte_floats(request.node)
        for node in propagation.nodes():
            if node in propagation.strides_unsatisfiable:
                return Declined(f"emits {node.target}, which {propagation.strides_unsatisfiable[node]}")
            limit = cost_limit.left_for(node)
            decision = decisions[node] = self._decide_inside(node, context, request.basis, limit)
            if isinstance(decision, Blocked):
                return decision.as_declined(request.op)
            if in_bytes and decision is LEGAL and (why := missing_kernel(node, self.target.dtypes or ())) is not None:
                return Declined(why)
            if request.limit < math.inf and not cost_limit.affords(self._price_of(decision, node)):
                request.basis.beyond_limit = True
                return cost_limit.declined()
            self.propagate(propagation, node, decision)
        # Decisions were made for nodes of the source; stride propagation may have replaced these by copies.
        derived = {propagation.current(node): each for node, each in decisions.items() if isinstance(each, Derived)}
        # Flattening computes metadata of symbolic sizes; a guard that it added would narrow the user's program.
        with without_guards(self.mode):
            return flatten(expansion.copied(propagation.graph, propagation.current), derived, self.traced)

    def propagate(self, propagation: StridePropagation, node: fx.Node, decision: Decision) -> None:
        """If the strides of the replacement for `node` differ from the captured ones, re-trace its users."""
        results = decision.results if isinstance(decision, Derived) else self.kernel_strides(node)
        if results is not None:
            with without_guards(self.mode):
                propagation.strides_changed(node, results)
            self.memory.signatures.forget(propagation.current(node))

    def kernel_strides(self, node: fx.Node) -> Any:
        """The metadata of a kept call's results as its kernel lays them out, if the recorded one is known to be wrong;
        else None."""
        name = self.memory.laid_out.get(node.target)
        if name is None:
            own = op_of_node(node)
            name = own.short if own is not None and own.short in KERNEL_STRIDES else ""
            self.memory.laid_out[node.target] = name
        recorded = metadata(node) if name else None
        call = call_if_bound(node) if recorded is not None else None
        if call is None:
            return None
        with without_guards(self.mode):
            true = kernel_value(KERNEL_STRIDES[name], fx.map_arg(call.arguments, metadata), recorded)
        return None if true is recorded else true

    def _decide_inside(self, node: fx.Node, context: Context, basis: DecisionDependencies, limit: float) -> Decision:
        """The decision for a call inside an expansion."""
        if node.op not in ("call_function", "call_method") or self._is_sure(node):
            return LEGAL
        if self.everywhere:
            own = None if is_host(node) or is_projection(node) else op_of_node(node)
            # A rule of `decompose` that emits its own op, such as
            # `gelu` by `gelu(approximate="tanh")`, meant that call.
            return LEGAL if own == context[-1].op else self.decide(node, context, basis, limit)
        signature = self.memory.signatures.of(node)
        for depth, derivation in enumerate(context):
            # The same signature is being derived further out: following the same rule again would recurse without end.
            if derivation.key == signature.key:
                call = call_if_bound(node)
                request = Request(node, signature, derivation.level, context, call, limit=limit, basis=basis)
                return self._try_next_alternative(request, depth)
        return self.decide(node, context, basis, limit)

    def _try_next_alternative(self, request: Request, depth: int) -> Decision:
        """A call with a signature that is already being derived at this depth: a rule may wrap its own op, for which
        the alternatives after it are then tried."""
        call, context = request.call, request.context
        why = self._why_illegal(call, request) if call is not None else ""
        if why is None:
            return LEGAL
        # Only the rule that made the call directly is passed over. Further out, starting again behind an outer rule
        # would choose for a call that is still being derived.
        if call is not None and depth == len(context) - 1 and context[-1].place < AFTER_ALL_RULES:
            return self._choose(replace(request, condition=why, first=context[-1].place + 1))
        # The least depth: a failure is valid in every context that contains the outermost derivation it came back to.
        request.basis.cycle_depth = min(request.basis.cycle_depth, depth)
        circle = " → ".join([*(str(derivation.op) for derivation in context[depth:]), str(request.op)])
        return Blocked.because(str(request.op), f"leads back to itself: {circle}")
