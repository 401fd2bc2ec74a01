"""The implementations of a sample's op by one rule: the rule as written, on PyTorch's own kernels, and the program
lowered to a target. Also the rule's behaviour with symbolic sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import contextlib
from dataclasses import dataclass, field, replace
import functools
import logging
from typing import Any

import torch
from torch import fx

from decomp import costs
from decomp.costs import total
from decomp.derive.decisions import Blocked, Derived
from decomp.derive.expansion import Site, expand
from decomp.derive.other_sizes import OtherSizes
from decomp.errors import DecompError, RuleError
from decomp.ir.binding import BindingError, bind_function
from decomp.ir.call import bound_call, kind_of, metadata
from decomp.ir.schema import Bound
from decomp.lowering import Lowering, lower
from decomp.metadata.fakes import new_mode
from decomp.rules.accuracy import LEVELS
from decomp.rules.certificate import AS_WRITTEN
from decomp.rules.certificates import level_of
from decomp.rules.declining import Declined
from decomp.rules.library import library
from decomp.rules.rules import Rule, Rules
from decomp.rules.target import Target
from decomp.samples import Sample, program_of
from decomp.tools.measurement.trials import FAILURES, Function, Trial
from decomp.torch_internals.fakes import FakeTensorMode


class NotServed(Exception):
    """The implementation does not take this call; the message says why."""


@dataclass
class AsWritten:
    """The rule, run on real tensors."""

    rule: Rule
    name: str = AS_WRITTEN
    used: list[Rule] = field(default_factory=list)
    cost: Mapping[str, float] = field(default_factory=dict)

    @property
    def level(self) -> str:
        """The rule's own level."""
        return level_of(self.rule)

    def bind(self, trial: Trial) -> Function:
        """The rule as a function of the trial's tensors. Raises `NotServed`."""
        _raise_if_declined(self._run(trial.sample, trial.sample.tensors))
        return lambda tensors: self._run(trial.sample, tensors)

    def _run(self, sample: Sample, tensors: Sequence[torch.Tensor]) -> Any:
        call = sample.with_tensors(t if t.requires_grad else t.clone() for t in tensors).on_its_device()
        try:
            bound = bind_function(call.overload, call.args, call.kwargs, kind_of)
        except BindingError as error:
            return Declined(f"the call is not one of its op: {error}")
        if bound.op != self.rule.op:
            return Declined(f"the call is one of {bound.op}")
        accepted = self.rule.accept(bound)
        if isinstance(accepted, Declined):
            return accepted
        return sample.to_cpu(self.rule.on_accepted(*accepted[0], **accepted[1]))


def _raise_if_declined(result: Any) -> None:
    if isinstance(result, Declined):
        raise NotServed(result.reason)


class AlreadyLegal(Exception):
    """The op is legal in the target."""


@dataclass
class Lowered:
    """The rule's expansion, fully lowered to a target at a level of accuracy."""

    rule: Rule
    target: Target
    rules: PreferredRule
    level: str = LEVELS[0]
    used: list[Rule] = field(default_factory=list)
    """The rules of all derivations so far."""
    cost: Mapping[str, float] = field(default_factory=dict)
    """The costs of the first program in float32."""

    @property
    def name(self) -> str:
        """The target's."""
        return self.target.name

    def bind(self, trial: Trial) -> Function:
        """The lowered program as a function of the trial's tensors. Raises `NotServed`, `Legal`."""
        lowering, rules = self._derived(trial.sample)
        own = self.rules.own
        found = (self.rule if rule is own else rule for rule in rules if isinstance(rule, Rule))
        self.used = list(dict.fromkeys([*self.used, self.rule, *found]))
        sample = trial.sample

        def run(tensors: Sequence[torch.Tensor]) -> Any:
            # Constants of the program do not require gradients, even if the originals do.
            call = sample.with_tensors(t if t.requires_grad else t.clone() for t in tensors)
            return sample.to_cpu(lowering.result(*call.on_its_device().tensors))

        return run

    def measure_cost(self, sample: Sample) -> None:
        """Record the costs of the lowered program of a sample call, if it is the first that the rule takes."""
        if not self.cost:
            with contextlib.suppress(NotServed, AlreadyLegal, *FAILURES):
                result = self._derived(sample)[0].result
                self.cost = {name: total(result, cost) for name, cost in COSTS.items()}

    def emits(self, sample: Sample) -> Any:
        """A comparable form of the lowered program of a sample call; None if the rule does not take the call."""
        try:
            graph = self._derived(sample)[0].result.graph
        except (NotServed, AlreadyLegal, *FAILURES):
            return None
        places = {node: i for i, node in enumerate(graph.nodes)}
        return [(node.op, node.target, fx.map_arg((node.args, node.kwargs), _numbered(places))) for node in graph.nodes]

    def program(self, sample: Sample) -> fx.GraphModule:
        """The lowered program of a sample call. Raises `NotServed`, `Legal`."""
        found: fx.GraphModule = self._derived(sample)[0].result
        return found

    def _derived(self, sample: Sample) -> tuple[Lowering, list[Any]]:
        """The lowered program of a call, and the rules of its derivation. Raises `NotServed`, `Legal`."""
        for rules in self.rules.at(self.level):
            lowering, decision = self._lowered(sample, rules)
            if isinstance(decision, Derived) and decision.rule is self.rule:
                return lowering, _rules_in(decision)
            on_pairs = [
                chain
                for piece in lowering.internals.pieces
                for chain in piece.chains.values()
                if lowering.plan.notes and chain and chain[0] in (self.rule, self.rules.own)
            ]
            if on_pairs:
                return lowering, [rule for chain in on_pairs for rule in chain]
        if isinstance(decision, Blocked):
            raise NotServed(next((why for name, why in decision.tried if name == str(self.rule)), decision.why()))
        if not isinstance(decision, Derived):
            raise AlreadyLegal
        if decision.rule not in (self.rule, self.rules.own):
            reason = dict(decision.passed_over).get(str(self.rule), "another rule is asked first")
            raise NotServed(reason)
        return lowering, _rules_in(decision)

    def _lowered(self, sample: Sample, rules: Rules) -> tuple[Lowering, Any]:
        module, tensors = program_of(sample.on_its_device())
        try:
            lowering = lower(
                module,
                to=self.target,
                args=tensors,
                rules=rules,
                accuracy=self.level,
                verify=False,
                partial=True,
                training=False if self.rule.forward_only else None,
            )
        except DecompError as error:
            raise NotServed(str(error).strip().partition("\n")[0]) from error
        decisions = [d for node, d in lowering.plan.entries if node.target is sample.overload]
        return lowering, decisions[0] if decisions else None


def _rules_in(decision: Derived) -> list[Any]:
    return [rule for entry in decision.template.entries for rule in entry.chain]


COSTS = {"calls": costs.calls, "flops": costs.flops, "bytes": costs.bytes}
"""The costs in a certificate."""


def _numbered(places: Mapping[fx.Node, int]) -> Any:
    return lambda node: f"%{places[node]}"


class PreferredRule:
    """The library with one rule preferred over the others of its op, regardless of cost."""

    def __init__(self, rule: Rule, given: Rules | None = None) -> None:
        rules = library() if given is None else given | library()
        self.rule = rule
        alternatives = rules.of(rule.op)
        # If it is first already, plans are reused.
        is_first = bool(alternatives) and alternatives[0] is rule
        self._in_order = rules if is_first else _with_first(rule, rules, without=rule)
        # A rule without a level is used before all rules that have one.
        self.own = rule if rule.level is None else replace(rule, level=None)
        self._rules = rules

    def at(self, level: str) -> tuple[Rules, ...]:
        """The rules to lower with: the library's own, in case they choose the rule anyway, so that plans are reused;
        then with this rule before its alternatives."""
        return (self._in_order,) if level == LEVELS[0] else (self._rules, self._without_rivals)

    @functools.cached_property
    def _without_rivals(self) -> Rules:
        return _with_first(self.own, self._rules, without=self.rule)


def _with_first(rule: Rule, rules: Rules, without: Rule) -> Rules:
    return Rules([rule, *(other for other in rules if other is not without)], composites=rules.composites)


def rules_tried_before(rule: Rule) -> list[Rule]:
    """The rules of the library that are tried before this one on every target."""
    alternatives = list(library().of(rule.op))
    before = alternatives[: alternatives.index(rule)] if rule in alternatives else []
    return [other for other in before if not other.needs]


def rule_takes_call(rule: Rule, what: Trial) -> bool:
    """Whether a rule computes a call."""
    try:
        AsWritten(rule).bind(what)
    except Exception:  # any exception means no
        return False
    return True


def under_symbolic_sizes(rule: Rule, sample: Sample) -> str | None:
    """The verdict on the rule with symbolic sizes: "traces", or the fault; None if the op itself does not trace."""
    from decomp.torch_internals.sizes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    if _reads_batch_sizes(sample):
        return None
    sample = replace(sample.on_its_device(), device=None)
    mode = new_mode(ShapeEnv())
    baked = _baked_sizes(sample)

    def symbolic(t: torch.Tensor, is_weight: bool) -> Any:
        # Equal sizes get the same symbol, as in most programs; those of weights are static.
        sizes = [DimDynamic.STATIC if is_weight or size in baked else DimDynamic.DUCK for size in t.shape]
        context = StatelessSymbolicContext(dynamic_sizes=sizes)
        return mode.from_tensor(t.detach(), symbolic_context=context)

    module, tensors = program_of(sample)
    try:
        fakes = [symbolic(t, i in sample.parameters) for i, t in enumerate(tensors)]
        with mode, torch.no_grad():
            result = sample.with_tensors(fakes).run()
    except Exception:  # an exception of the op is not the rule's fault
        return None
    return _expanded(rule, module.graph, fakes, result, mode)


def _reads_batch_sizes(sample: Sample) -> bool:
    """Whether the op is one of packed sequences: it reads the memory of its arguments, which fake tensors lack, and
    crashes the process (torch 2.13)."""
    schema = getattr(sample.overload, "_schema", None)
    return schema is not None and any(argument.name == "batch_sizes" for argument in schema.arguments)


def _baked_sizes(sample: Sample) -> set[int]:
    """Sizes of the forward call that a backward op takes as numbers: those of its tensors cannot be symbolic."""
    if not isinstance(sample.overload, torch._ops.OpOverload) or "_backward" not in str(sample.overload):
        return set()
    names = [argument.name for argument in sample.overload._schema.arguments]
    given = {**dict(zip(names, sample.args)), **sample.kwargs}
    lists = [value for name, value in given.items() if "size" in name and isinstance(value, (list, tuple))]
    return {size for sizes in lists for size in sizes}


def _expanded(rule: Rule, graph: fx.Graph, fakes: list[Any], result: Any, mode: FakeTensorMode) -> str | None:
    inputs = graph.find_nodes(op="placeholder")
    for node, fake in zip(inputs, fakes):
        node.meta["val"] = fake
    call_node = next(node for node in graph.nodes if node.op == "call_function")
    call_node.meta["val"] = result
    guards = len(mode.shape_env.guards)
    log = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    level = log.level
    log.setLevel(logging.CRITICAL)  # torch 2.13 logs a refused guard before it raises
    try:
        call = bound_call(call_node)
        tensor_args = [node for node in inputs if metadata(node) is not None]
        dialect = "aten" if isinstance(call_node.target, torch._ops.OpOverload) else "torch"
        found = None
        if call is not None:
            bound = Bound(call.op, call.overload, call.arguments, call.inplace, call.given)
            found = expand(rule, bound, Site(call_node, tensor_args, mode, dialect))
    except RuleError as error:
        return error.problem
    except (DecompError, *FAILURES) as error:
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    finally:
        log.setLevel(level)
    if found is None:
        return None
    if isinstance(found, Declined):
        return f"declines: {found.reason}"
    pinned = OtherSizes(mode.shape_env).why_not(found.graph, call_node, tensor_args)
    if pinned is not None:
        return f"holds at some sizes only: {pinned}"
    return "traces" if len(mode.shape_env.guards) == guards else "adds a guard on sizes"
