"""The cost of a plan, and its cost at other levels of accuracy, planned on the same program; each with the error from
the committed certificates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from decomp.costs.counting import CALLS
from decomp.costs.model import Cost, calls_in, price_of_calls, price_of_graph, unit_of
from decomp.costs.plans import PlanCosts, Price, Priced
from decomp.derive.decisions import CallPlace, Decision, Derived, Legal, PlannedProgram, op_of_node
from decomp.derive.pipeline import plan_program
from decomp.derive.rule_selection import RuleSelection
from decomp.derive.session import resumed_session
from decomp.errors import spell_target
from decomp.ir.accounting import calls_for_target
from decomp.ir.call import call_if_bound, metadata
from decomp.ir.dtypes import name_of
from decomp.ir.module import Module
from decomp.rules.accuracy import LEVELS, Accuracy, Policy
from decomp.rules.library import certificate_of
from decomp.rules.rules import Rule
from decomp.torch_internals.pytree import tensors_in


@dataclass(frozen=True)
class PlanPricing:
    """Prices the plan of one program; other levels are planned on demand."""

    planned: PlannedProgram
    program: Module
    matching: RuleSelection
    policy: Policy

    def __call__(self) -> PlanCosts:
        """The costs of the plan. Raises `CostError`."""
        others, cost, own = self._at_each_level(), self.cost, dict(_decisions(self.planned))
        groups: dict[tuple[str, str, str], dict[CallPlace, fx.Node]] = {}
        for place, (node, decision) in own.items():
            if isinstance(decision, Derived):
                groups.setdefault(self._key(node, decision), {})[place] = node
        target = self.matching.target.name
        priced = [_priced(key, nodes, own, others, target, cost) for key, nodes in groups.items()]
        graphs = dict.fromkeys(node.graph for node, _ in own.values())
        counted = {node for graph in graphs for node in calls_for_target(graph)}
        kept = [node for node, decision in own.values() if isinstance(decision, Legal) and node in counted]
        legal = price_of_calls(cost, (call for call in map(call_if_bound, kept) if call is not None))
        costliest_first = tuple(sorted(priced, key=lambda each: -each.chosen.cost))
        aim = self.policy.aim(self.matching.target.costs)
        return PlanCosts(target, repr(cost), costliest_first, legal, unit_of(cost), len(kept), aim)

    def by_call(self) -> Mapping[CallPlace, Priced]:
        """The price of each derived call, and those of the same call at other levels. Calls that are decided alike
        share one. Raises `CostError`."""
        others, own, target = self._at_each_level(), dict(_decisions(self.planned)), self.matching.target.name
        known: dict[Any, Priced] = {}
        found: dict[CallPlace, Priced] = {}
        for place, (node, decision) in own.items():
            if isinstance(decision, Derived):
                key = self._key(node, decision)
                alike = [decided[place][1] for decided in (own, *others.values()) if place in decided]
                # By the identity of decisions: a plan shares one among calls
                # of equal signature, and pricing graphs is the costly part.
                shared = *key, *map(id, alike)
                if shared not in known:
                    known[shared] = _priced(key, {place: node}, own, others, target, self.cost)
                found[place] = known[shared]
        return found

    @property
    def cost(self) -> Cost:
        """The cost model: that of the lowering, else that of the target, else the number of calls."""
        return self.policy.cost or self.matching.target.costs or CALLS

    def _key(self, node: fx.Node, decision: Derived) -> tuple[str, str, str]:
        """What a table of costs groups calls by: op, rule, level."""
        op = op_of_node(node)
        level = self.policy.accuracy.level(op) if op is not None else self.policy.accuracy.default
        return str(op or spell_target(node.target)), str(decision.rule), str(level)

    def _at_each_level(self) -> dict[str, Decided]:
        # So that plans at other levels reuse the rules that were run for the first.
        with resumed_session(self.program, self.matching.rules):
            return {level: self._at(level) for level in LEVELS}

    def _at(self, level: str) -> Decided:
        policy = replace(self.policy, accuracy=Accuracy(level))
        if policy == self.policy:
            return dict(_decisions(self.planned))
        return dict(_decisions(plan_program(self.program, self.matching, policy)))


Decided = Mapping[CallPlace, tuple[fx.Node, Decision]]


def _decisions(planned: PlannedProgram) -> Iterator[tuple[CallPlace, tuple[fx.Node, Decision]]]:
    return (((i, node.name), (node, decision)) for i, node, decision in planned.decisions)


def _priced(
    key: tuple[str, str, str],
    nodes: Mapping[CallPlace, fx.Node],
    own: Decided,
    others: Mapping[str, Decided],
    target: str,
    cost: Cost,
) -> Priced:
    op, _, level = key
    chosen = _price(level, nodes, own, target, cost)
    assert chosen is not None
    found = [_price(other, nodes, decided, target, cost) for other, decided in others.items() if other != level]
    apart: list[Price] = []
    for each in found:
        # Levels that lead to the same calls would be rows of a table that tell nothing.
        known = {(price.rule, price.calls, price.cost) for price in (chosen, *apart)}
        if each is not None and (each.rule, each.calls, each.cost) not in known:
            apart.append(each)
    return Priced(op, len(nodes), chosen, tuple(apart))


def _price(level: str, nodes: Mapping[CallPlace, fx.Node], decided: Decided, target: str, cost: Cost) -> Price | None:
    """The price of some calls in a plan at some level; None if one of them is not derived there."""
    found = [decided[place][1] for place in nodes if place in decided]
    derived = [decision for decision in found if isinstance(decision, Derived)]
    if len(derived) < len(nodes):
        return None
    rules = dict.fromkeys(decision.rule for decision in derived)
    calls = sum(sum(1 for _ in calls_in(decision.template.graph)) for decision in derived)
    cost_of_all = sum(price_of_graph(cost, decision.template.graph) for decision in derived)
    errors = [certified_error(decision, target, node) for decision, node in zip(derived, nodes.values())]
    known = [error for error in errors if error is not None]
    # One expansion without a certificate makes the largest error unknown, not smaller.
    ulp, own = max(known) if known and len(known) == len(errors) else (None, None)
    return Price(level, ", ".join(map(str, rules)), calls, cost_of_all, ulp, own)


def certified_error(derived: Derived, target: str, node: fx.Node) -> tuple[float, float] | None:
    """The largest error in the certificate of the rule for the dtype of a call's result, and that of PyTorch's own
    kernel, or -1 if that is the reference; None where the rule was not measured."""
    certificate = certificate_of(derived.rule) if isinstance(derived.rule, Rule) else None
    way = certificate.way(target, derived.level) if certificate is not None else None
    floats = [t.dtype for t in tensors_in(metadata(node)) if t.is_floating_point() or t.is_complex()]
    dtype = name_of(floats[0] if floats else torch.float32)
    figures = way.values.get(dtype) if way is not None and way.verdict == "measured" else None
    if figures is None:
        return None
    return figures.max, -1.0 if figures.own_max is None else figures.own_max
