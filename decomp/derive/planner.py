"""Planning: for each node of a program, whether the target knows it, which rules take it there, or why none does.
A decision is made once a signature. `Planner._choose` is the one place where one of the candidates is taken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from decomp.derive.candidates import AFTER_ALL_RULES, Basis, Candidate, Candidates, Context, Derivation, Request
from decomp.derive.decisions import KEEP, PROVED, Blocked, Decision, Derived, Tried, op_of_node
from decomp.derive.expansion import Expansion
from decomp.derive.planning_memory import Memory
from decomp.derive.rewriter import flatten
from decomp.derive.stride_propagation import StridePropagation, changed_strides
from decomp.errors import RuleCycle, ShapeUnknown
from decomp.graphs.template import Stamp
from decomp.graphs.tracing import without_guards
from decomp.ir.accounting import is_structure
from decomp.ir.binding import BindingError
from decomp.ir.call import Call, bound_call, call_if_bound, is_free, is_host, is_projection, metadata, those_at
from decomp.ir.effects import MARKS, Effect, is_proved, of_callable
from decomp.ir.op_facts import KERNEL_STRIDES
from decomp.ir.ops import of_function
from decomp.ir.respelling import canonical
from decomp.ir.signature import Signature
from decomp.metadata.fake_stride_fixes import kernel_value
from decomp.rules.costs import Cost, price_of_graph
from decomp.rules.rules import Declined, Rules
from decomp.rules.target import Everything, OpenCondition, Target
from decomp.torch_internals.fakes import FakeTensorMode

DEEPEST = 60
"""Derivations within derivations: rules that lead further into new signatures each time never end."""


class Planner:
    """Decides node by node. One planner serves one program and its sub-programs."""

    def __init__(
        self, rules: Rules, target: Target, dialect: str, mode: FakeTensorMode | None, cost: Cost | None = None
    ) -> None:
        self.rules, self.target, self.mode, self.cost = rules, target, mode, cost
        self.everywhere = isinstance(target, Everything)
        """Whether rules apply wherever one matches, and not only to what the target does not know."""
        # What was chosen by cost is good for this program: the next one may come with another function.
        self.memory: Memory = rules.memory.setdefault((target, dialect), Memory()) if cost is None else Memory()
        composites = rules.composites and not self.everywhere
        self.candidates = Candidates(rules, target, dialect, mode, self.memory, composites)

    def decide(self, node: fx.Node, context: Context = (), basis: Basis | None = None) -> Decision:
        """What becomes of `node`, which stands in the program itself, or in an expansion; `basis` is then that of the
        call which this is for."""
        if node.op not in ("call_function", "call_method"):
            return KEEP
        sure = self.memory.sure.get(node.target)
        if sure is None:
            sure = self.memory.sure[node.target] = self._surely_kept(node)
        if sure:
            return KEEP
        signature = self.memory.signatures.of(node)
        found = self.candidates.memory_for(signature.symbolic).decisions.get(signature.key)
        return found if found is not None else self._decide_anew(node, signature, context, basis or Basis())

    def request(self, node: fx.Node) -> Request:
        """A request for a node of the program itself."""
        return Request(node, self.memory.signatures.of(node))

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

    def _decide_anew(self, node: fx.Node, signature: Signature, context: Context, outer: Basis) -> Decision:
        request = Request(node, signature, context)
        decision = self._decision(request)
        # A failure that a cycle through an outer call caused says nothing about this call alone.
        # Nor is the cheapest of what the cycle left the cheapest of all.
        cut = request.basis.cycle_depth < len(context) and (isinstance(decision, Blocked) or self.cost is not None)
        if not request.basis.depends_on_context and not cut:
            self.candidates.memory_for(signature.symbolic).decisions[signature.key] = decision
        outer.add(request.basis, len(context))
        return decision

    def _decision(self, request: Request) -> Decision:
        node = request.node
        if is_proved(node):
            return PROVED
        if is_host(node) or is_projection(node) or isinstance(node.target, OpOverload) and is_free(node.target):
            return KEEP
        try:
            call = bound_call(node)
        except BindingError as error:
            return self._unbound(request, error)
        if call is None:
            return KEEP
        if self.everywhere:
            return self._wherever_a_rule_matches(request, call)
        why = self.target.why_illegal(call)
        request.basis.depends_on_context |= call.looked_around
        return KEEP if why is None else self._choose(replace(request, call=call, condition=why))

    def _unbound(self, request: Request, error: BindingError) -> Decision:
        """A call that fits no schema: PyTorch itself may still run it."""
        if self.everywhere:
            return KEEP
        derived = self._choose(request)
        name = str(request.op)
        needs_metadata = isinstance(error, ShapeUnknown)
        return derived if isinstance(derived, Derived) else Blocked.because(name, str(error), needs_metadata)

    def _wherever_a_rule_matches(self, request: Request, call: Call) -> Decision:
        if not self.rules.of(call.op):
            return KEEP
        if any(derivation.op == call.op for derivation in request.context):
            self._refuse_cycle(call, request.context)
        request = replace(request, call=call)
        decision = self._choose(request)
        if isinstance(decision, Blocked):
            self._refuse_silence(request)
        return decision if isinstance(decision, Derived) else KEEP

    def _refuse_silence(self, request: Request) -> None:
        """Raise `RuleError` where a rule would serve the call if it knew shapes, or if sizes were those of the example:
        it is not left silently."""
        for rule in self.rules.of(request.op):
            declined = self.candidates.declined(rule, request)
            if declined is not None and declined.error is not None:
                raise declined.error.at(request.node)

    def _refuse_cycle(self, call: Call, context: Context) -> None:
        ops = [str(derivation.op) for derivation in context]
        circle = " → ".join([*ops[ops.index(str(call.op)) :], str(call.op)])
        rule = self.rules.of(context[-1].op)[context[-1].place]
        raise RuleCycle(rule, f"is part of a circle: {circle}", "drop one of these rules, or let it emit other ops")

    def _choose(self, request: Request) -> Derived | Blocked:
        """The first candidate, in order of registration, whose expansion reaches the target whole; with costs, the
        cheapest of all that do. The price of a derivation is that of the calls it ends in, so that the cheapest
        derivations of the calls that an expansion makes are part of its own cheapest one."""
        blocked = self._before_any_candidate(request)
        reaching: list[tuple[float, Derived]] = []
        for candidate in self.candidates.of(request):
            if reaching and candidate.rule is None:
                break  # PyTorch's own kernel is for calls that no rule takes to the target
            derived = self._derive(candidate, request, blocked.tried)
            if isinstance(derived, Declined):
                derived = derived if candidate.rule is not None else replace(derived, applicable=False)
                blocked = blocked.after(candidate.name, derived)
            elif self.cost is None or candidate.rule is None:
                return derived
            else:
                reaching.append((_price(self.cost, derived.stamp), derived))
        return _cheapest(reaching, blocked) if reaching else blocked

    def _derive(self, candidate: Candidate, request: Request, passed_over: Tried) -> Derived | Declined:
        """What one candidate comes to."""
        expansion = candidate.expansion
        if isinstance(expansion, Declined):
            return expansion
        stamp = self.reach(expansion, request, candidate.place)
        if isinstance(stamp, Declined):
            return stamp
        return Derived(expansion.rule, stamp, passed_over, changed_strides(stamp.graph, request.expected))

    def _before_any_candidate(self, request: Request) -> Blocked:
        limitation = self.rules.limitation(request.call, self.target) if request.call is not None else None
        return Blocked(
            str(request.op),
            condition=request.condition or None,
            limitation=limitation,
            needs_metadata=isinstance(request.condition, OpenCondition),
        )

    def reach(self, expansion: Expansion, request: Request, place: int) -> Stamp | Declined:
        """The expansion lowered in turn, flat; or why it does not reach the target."""
        if len(request.context) > DEEPEST:
            return Declined(f"leads into a recursion deeper than {DEEPEST} rules")
        context = (*request.context, Derivation(request.signature.key, request.op, place))
        propagation = StridePropagation(expansion.graph, expected=those_at(request.signature.read, request.expected))
        decisions: dict[fx.Node, Decision] = {}
        for node in propagation.nodes():
            if node in propagation.lost:
                return Declined(f"emits {node.target}, which {propagation.lost[node]}")
            decision = decisions[node] = self._decide_inside(node, context, request.basis)
            if isinstance(decision, Blocked):
                return decision.as_declined(request.op)
            self.propagate(propagation, node, decision)
        derived = {propagation.current(node): each for node, each in decisions.items() if isinstance(each, Derived)}
        with without_guards(self.mode):
            return flatten(replace(expansion, graph=propagation.graph), derived)

    def propagate(self, propagation: StridePropagation, node: fx.Node, decision: Decision) -> None:
        """Where the strides of what stands for `node` are not the captured ones, re-trace what depends on them."""
        results = decision.results if isinstance(decision, Derived) else self._true_results(node)
        if results is not None:
            with without_guards(self.mode):
                propagation.strides_changed(node, results)
            self.memory.signatures.forget(propagation.current(node))

    def _true_results(self, node: fx.Node) -> Any:
        """The true metadata of a call that stays, where what was recorded is known to be wrong; else None."""
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

    def _decide_inside(self, node: fx.Node, context: Context, basis: Basis) -> Decision:
        """What becomes of a call that an expansion makes."""
        if node.op not in ("call_function", "call_method") or self.memory.sure.get(node.target):
            return KEEP
        if self.everywhere:
            own = None if is_host(node) or is_projection(node) else op_of_node(node)
            return KEEP if own == context[-1].op else self.decide(node, context, basis)
        signature = self.memory.signatures.of(node)
        for depth, derivation in enumerate(context):
            if derivation.key == signature.key:
                call = call_if_bound(node)
                return self._try_next_alternative(Request(node, signature, context, call, basis=basis), depth)
        return self.decide(node, context, basis)

    def _try_next_alternative(self, request: Request, depth: int) -> Decision:
        """A call that is being lowered already, in the derivation at this depth: a rule may wrap its own op, which the
        next alternatives then serve."""
        call, context = request.call, request.context
        why = self.target.why_illegal(call) if call is not None else ""
        if why is None:
            return KEEP
        if call is not None and depth == len(context) - 1 and context[-1].place < AFTER_ALL_RULES:
            return self._choose(replace(request, condition=why, first=context[-1].place + 1))
        request.basis.cycle_depth = min(request.basis.cycle_depth, depth)
        circle = " → ".join([*(str(derivation.op) for derivation in context[depth:]), str(request.op)])
        return Blocked.because(str(request.op), f"leads back to itself: {circle}")


def _price(cost: Cost, stamp: Stamp) -> float:
    """What the calls of a flat expansion cost."""
    return price_of_graph(cost, stamp.graph)


def _cheapest(reaching: list[tuple[float, Derived]], blocked: Blocked) -> Derived:
    """The first of the cheapest; the others are told with their prices."""
    least, cheapest = min(reaching, key=lambda each: each[0])
    dearer = [(str(each.rule), f"costs {price:g}, not {least:g}") for price, each in reaching if each is not cheapest]
    return replace(cheapest, passed_over=(*blocked.tried, *dearer))
