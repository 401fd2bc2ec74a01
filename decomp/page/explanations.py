"""The explanations on the page: for each decision why it was made, what the alternatives are and what they cost; for
each rule its text, where it stands and what was measured of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import inspect
from pathlib import Path
import textwrap
from typing import Any

from torch import fx

from decomp.costs.plans import Price, Priced
from decomp.derive.decisions import Blocked, CallPlace, Decision, Derived, ErasedGuard
from decomp.errors import CostError, spell_target
from decomp.ir.call import call_if_bound
from decomp.ir.module import ProgramGraph
from decomp.lowering import Lowering
from decomp.page.contents import CertificateText, DecisionText, MeasuredExpansion, RuleOutcome, RuleText
from decomp.patterns.pattern import Pattern
from decomp.rules.accuracy import LEVELS
from decomp.rules.certificate import AS_WRITTEN, Certificate
from decomp.rules.certificate_text import COLUMNS, circumstances, table, verdict
from decomp.rules.library import certificate_of
from decomp.rules.rules import Rule
from decomp.tables import Table
from decomp.validation.plan_prices import PlanPricing


class RuleTexts:
    """The rules of the page, numbered when they are first named."""

    def __init__(self, target: str) -> None:
        self.found: list[RuleText] = []
        self._target, self._numbers = target, dict[int, int]()

    def number(self, rule: Any) -> int:
        """The number of a rule, or of PyTorch's composite kernel."""
        if id(rule) not in self._numbers:
            self._numbers[id(rule)] = len(self.found)
            self.found.append(self._text(rule))
        return self._numbers[id(rule)]

    def _text(self, rule: Any) -> RuleText:
        if not isinstance(rule, Rule):
            return RuleText(rule.name, rule.name, rule.location, "", 0, "", "", None)
        file, line, text = _source(rule)
        certificate = certificate_of(rule)
        shown = _certificate(certificate, self._target) if certificate is not None else None
        return RuleText(rule.name, str(rule.op), rule.location, file, line, rule.level or "", text, shown)


def _source(rule: Rule) -> tuple[str, int, str]:
    """File, line and text of a rule; empty if it is not a Python function with a source."""
    function = inspect.unwrap(rule.function) if callable(rule.function) else rule.function
    try:
        lines, line = inspect.getsourcelines(function)
    except (OSError, TypeError):
        return "", 0, ""
    return _from_package(function), line, textwrap.dedent("".join(lines))


def _from_package(function: Any) -> str:
    """The path of a function's file from the folder of its package, which says nothing of the machine."""
    parts = Path(inspect.getsourcefile(function) or "").parts
    package = str(getattr(function, "__module__", "")).count(".")
    return "/".join(parts[-package - 1 :])


def _certificate(certificate: Certificate, target: str) -> CertificateText:
    ways = [way for way in certificate.ways if way.name in (target, AS_WRITTEN)]
    titles = tuple(Table(COLUMNS, ()).titles)
    shown = tuple((way.title, tuple(map(tuple, table(way).rows))) for way in ways if way.verdict == "measured")
    return CertificateText(verdict(certificate), certificate.ok, circumstances(certificate), titles, shown)


class DecisionTexts:
    """The decisions of the page, numbered; calls that were decided alike share one."""

    def __init__(self, lowering: Lowering, rules: RuleTexts) -> None:
        self.found: list[DecisionText] = []
        self._lowering, self._rules = lowering, rules
        self._numbers: dict[Any, int] = {}
        self._prices = _prices(lowering)

    def number(self, graph: int, node: fx.Node, piece: ProgramGraph) -> int:
        """The number of the decision for a node of a functional graph; -1 if there was nothing to decide."""
        decision = (piece.planned.decisions or {}).get(node)
        if decision is None:
            return -1
        priced = self._prices.get((graph, node.name))
        op = _op(node)
        key = op, id(decision), id(priced)
        if key not in self._numbers:
            self._numbers[key] = len(self.found)
            self.found.append(self._text(op, node, decision, priced))
        return self._numbers[key]

    def _text(self, op: str, node: fx.Node, decision: Decision, priced: Priced | None) -> DecisionText:
        if isinstance(decision, Derived):
            return self._derived(op, node, decision, priced)
        if isinstance(decision, Blocked):
            return DecisionText("blocked", op, reasons=tuple(_reasons(decision)), alternatives=_passed(decision.tried))
        return DecisionText("proved" if isinstance(decision, ErasedGuard) else "legal", op)

    def _derived(self, op: str, node: fx.Node, decision: Derived, priced: Priced | None) -> DecisionText:
        level = str(priced.chosen.level) if priced is not None else decision.level
        calls = sum(entry.op.startswith("call") for entry in decision.template.entries)
        used = RuleOutcome(str(decision.rule), "", level, calls)
        cheaper: tuple[RuleOutcome, ...] = ()
        if priced is not None:
            used = _at_level(priced.chosen)
            cheaper = tuple(_at_level(price) for price in priced.others)
        passed = _passed(decision.passed_over)
        shown = (*cheaper, *passed, *self._not_tried(node, decision, {each.rule for each in passed}))
        for rule in self._other_rules(node):
            self._rules.number(rule)
        number = self._rules.number(decision.rule)
        measured, certified = self._measured(decision), priced.chosen.ulp if priced is not None else None
        return DecisionText("derived", op, number, level, used, shown, certified, measured)

    def _other_rules(self, node: fx.Node) -> tuple[Rule, ...]:
        """The rules for a call."""
        rules = self._lowering.internals.request.matching.rules
        if isinstance(node.target, Pattern):
            return rules.of_pattern(node.target)
        call = call_if_bound(node)
        return rules.of(call.op) if call is not None else ()

    def _not_tried(self, node: fx.Node, decision: Derived, passed: set[str]) -> Iterator[RuleOutcome]:
        """Rules that were registered after the one that is used, and not tried for that reason."""
        for rule in self._other_rules(node):
            if rule is not decision.rule and str(rule) not in passed:
                why = "not tried: an earlier rule reaches the target"
                if rule.level is not None and LEVELS.index(rule.level) > LEVELS.index(decision.level):
                    why = f"not tried: it is for the level {rule.level}"
                yield RuleOutcome(str(rule), why)

    def _measured(self, decision: Derived) -> MeasuredExpansion | None:
        found = self._lowering.internals.verdicts.get(decision.template)
        if found is None:
            return None
        return MeasuredExpansion(found.values, found.gradients, found.promise, found.reason, found.inputs)


def _op(node: fx.Node) -> str:
    call = call_if_bound(node) if node.op in ("call_function", "call_method") else None
    return str(call.op) if call is not None else spell_target(node.target)


def _prices(lowering: Lowering) -> Mapping[CallPlace, Priced]:
    pricing = lowering.plan.pricing
    try:
        return pricing.by_call() if isinstance(pricing, PlanPricing) else {}
    except CostError:  # a cost model that cannot price the calls of another level: the page has no prices
        return {}


def _at_level(price: Price) -> RuleOutcome:
    error = price.accuracy.removeprefix(" at ")
    unit = " ULP" if error[-1:].isdigit() else ""
    return RuleOutcome(price.rule, "", price.level, price.calls, price.cost, f"{error}{unit}")


def _passed(tried: tuple[tuple[str, str], ...]) -> tuple[RuleOutcome, ...]:
    return tuple(RuleOutcome(rule, why) for rule, why in tried)


def _reasons(blocked: Blocked) -> Iterator[str]:
    if blocked.condition:
        yield f"the target accepts it under a condition: {blocked.condition}"
    if blocked.limitation:
        yield f"cannot be decomposed: {blocked.limitation}"
    if not blocked.condition and not blocked.limitation:
        yield blocked.why()
