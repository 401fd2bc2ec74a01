"""Explains one op: its rules, and how sample calls of it are lowered to a target, or why they are blocked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from decomp.derive.decisions import LEGAL, Blocked, Decision, Derived, Plan
from decomp.errors import spell_target
from decomp.lowering import plan
from decomp.rules.options import Options
from decomp.rules.target import Target
from decomp.samples import Sample, program_of


@dataclass
class DerivationStep:
    """A rule of a derivation: the rules that expand its calls, and how many calls of the target it emits itself."""

    rules: dict[str, DerivationStep] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Route:
    """How one call is lowered to a target."""

    call: str
    """`aten.mm.default(float32[4, 4], float32[4, 4])`"""
    verdict: str
    """"legal", "derived" or "blocked"."""
    derivation: DerivationStep
    reasons: tuple[str, ...]
    """For a blocked call, why; for a derived one, why earlier alternatives were not used."""
    cost: float = 0.0
    """What the calls that it becomes cost; of a call that the target knows, 0."""


def routes(samples: Iterable[Sample], target: Target, options: Options) -> list[Route]:
    """The route of each sample call, in order."""
    return [_route(sample, target, options) for sample in samples]


def _route(sample: Sample, target: Target, options: Options) -> Route:
    module, tensors = program_of(sample)
    the_plan = plan(module, to=target, args=tensors, options=options)
    decision = next((each for node, each in the_plan.entries if node.target is sample.overload), None)
    decision = decision or _of_others(the_plan)
    return Route(str(sample), *_judged(decision), decision.price if isinstance(decision, Derived) else 0.0)


def _of_others(the_plan: Plan) -> Decision:
    """Where calls on pairs of real numbers have taken the place of the call: what stops them, or how they are
    derived."""
    made = [each for node, each in the_plan.entries if node.op.startswith("call")]
    for kind in (Blocked, Derived):
        found = next((each for each in made if isinstance(each, kind)), None)
        if found is not None:
            return found
    return LEGAL


def _judged(decision: Decision) -> tuple[str, DerivationStep, tuple[str, ...]]:
    if isinstance(decision, Blocked):
        condition = [f"the target accepts it under a condition: {decision.condition}"] if decision.condition else []
        tried = [f"tried {rule}: {reason}" for rule, reason in decision.tried]
        return "blocked", DerivationStep(), tuple(condition + (tried or ["no rule is registered for it"]))
    if isinstance(decision, Derived):
        passed = tuple(f"skipped {rule}: {reason}" for rule, reason in decision.passed_over)
        return "derived", _derivation(decision), passed
    return "legal", DerivationStep(), ()


def _derivation(decision: Derived) -> DerivationStep:
    """The rules of a derivation as a tree, with the calls that each rule emits."""
    root = DerivationStep()
    for entry in decision.template.entries:
        if entry.op != "call_function":
            continue
        step = root
        for rule in entry.chain:
            step = step.rules.setdefault(str(rule), DerivationStep())
        name = spell_target(entry.target)
        step.calls[name] = step.calls.get(name, 0) + 1
    return root
