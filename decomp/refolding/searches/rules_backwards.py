"""Applies rules backwards: the expansion of a rule is recorded as a pattern, and matches of it become calls of the
rule's op."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import functools
import inspect
from typing import Any

from torch import fx

from decomp.errors import ArgumentError
from decomp.ir.ops import Op
from decomp.patterns.found import Match, NearMiss
from decomp.patterns.matching import find_matches
from decomp.patterns.pattern import Pattern
from decomp.refolding.found import Findings, RegionSearch, WantedCalls
from decomp.refolding.outcome import MissedCall
from decomp.refolding.readings import CallReading
from decomp.refolding.regions import GraphIndex
from decomp.refolding.trials import Runner
from decomp.rules.rules import Rule, Rules


class RulesBackwards(RegionSearch):
    """The search for the ops of some rules in one graph."""

    def __init__(self, around: GraphIndex, runner: Runner, wanted: WantedCalls, rules: Rules) -> None:
        super().__init__(around, runner, wanted)
        self.patterns = dict(_patterns(rules))

    def search(self) -> Findings:
        """Run the search; returns the findings."""
        near: list[NearMiss] = []
        found = find_matches(self.around.graph, self.patterns, owner=self.around.owner, missed=near)
        for match in found:
            self._take(match, self.patterns[match.pattern])
        nearest: dict[tuple[str, fx.Node], NearMiss] = {}
        for miss in near:
            key = (miss.pattern.name, miss.root)
            if key not in nearest or miss.found > nearest[key].found:
                nearest[key] = miss
        for miss in nearest.values():
            self.findings.missed.append(MissedCall(str(self.patterns[miss.pattern].op), miss.root.name, miss.reason))
        return self.findings

    def _take(self, match: Match, rule: Rule) -> None:
        overload, name = _overload(rule.op), str(rule.op)
        if match.outputs[-1].target is overload:
            return  # the op itself, which the pattern can match as well
        args = _arguments(overload, match) if overload is not None else None
        if overload is None or args is None:
            self.findings.missed.append(
                MissedCall(name, match.root.name, "the op does not accept the matched operands")
            )
            return
        found = self.agreeing_call(match.outputs[-1], f"rule {match.pattern.name}", CallReading(overload), args)
        if found is None:
            self.findings.missed.append(
                MissedCall(name, match.root.name, "the op returns other values than its rule here")
            )
        else:
            self.take(found)


def _patterns(rules: Rules) -> Iterator[tuple[Pattern, Rule]]:
    """A pattern for each rule that can be recorded without knowing the operands."""
    for rule in rules:
        try:
            pattern = Pattern.of(_of_free_variables(rule.function), rule.name)
        except ArgumentError:
            continue  # it branches on shapes or dtypes
        if pattern.single:
            yield pattern, rule


def _of_free_variables(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with parameters that have a number as default fixed to it."""
    signature = inspect.signature(function)
    fixed = {name for name, p in signature.parameters.items() if p.default is not p.empty and p.default is not None}
    free = [p for name, p in signature.parameters.items() if name not in fixed]

    @functools.wraps(function)
    def pattern(*args: Any) -> Any:
        return function(**{p.name: arg for p, arg in zip(free, args)})

    vars(pattern)["__signature__"] = signature.replace(parameters=free)
    return pattern


def overloads_of(rules: Rules) -> frozenset[Any]:
    """The overloads of the ops that rules can restore."""
    return frozenset(_overload(rule.op) for rule in rules)


def _overload(op: Op) -> Any:
    packet = op.packet
    if packet is None:
        return None
    names = packet.overloads()
    return getattr(packet, "default" if "default" in names else names[0])


def _arguments(overload: Any, match: Match) -> tuple[Any, ...] | None:
    """The positional arguments of a call of the op, by name if the rule uses the op's names, else in order; None if the
    op does not accept them."""
    parameters = [argument for argument in overload._schema.arguments if not argument.kwarg_only]
    bound = dict(match.bound)
    if not set(bound) <= {argument.name for argument in parameters}:
        bound = dict(zip((argument.name for argument in parameters), bound.values()))
    if len(bound) < len(match.bound):
        return None
    last = max((i for i, argument in enumerate(parameters) if argument.name in bound), default=-1)
    given = []
    for argument in parameters[: last + 1]:
        if argument.name not in bound and not argument.has_default_value():
            return None
        given.append(bound.get(argument.name, argument.default_value))
    return tuple(given)
