"""The error of a lowered program against float64, by op: the error at the outputs due to the calls of one op, next to
that of PyTorch's own kernels, at each level of accuracy, with its cost."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
import functools
import math

import torch
from torch import fx

from decomp.capture.frontends import all_inputs
from decomp.costs.counting import CALLS
from decomp.costs.model import Cost, calls_in, price_of_calls, price_of_graph
from decomp.derive.decisions import Blocked, CallPlace, Decision, Derived, PlannedProgram, op_of_node
from decomp.derive.pipeline import CaptureRequest, plan_program
from decomp.derive.rule_selection import RuleSelection
from decomp.errors import AccuracyError, NotLowered, spell_target
from decomp.graphs.template import ExpansionTemplate
from decomp.ir.call import call_if_bound
from decomp.ir.module import Module
from decomp.ir.ops import Op
from decomp.rules.accuracy import LEVELS, Accuracy, Level, Policy
from decomp.validation.error_sources import Experiment, Traced
from decomp.validation.running_programs import without_numbers


@dataclass(frozen=True)
class Error:
    """The error at the outputs, as one vector: each output in units of the root mean square of its exact values, so
    that all have equal weight."""

    parts: tuple[torch.Tensor, ...] = field(repr=False)
    broken: bool
    """Whether there is a NaN or an infinity where the exact value is finite."""

    @classmethod
    def of(cls, found: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> Error:
        """The error of some outputs, without positions where the exact value is not finite."""
        pairs = [(_real(a), _real(b)) for a, b in zip(found, exact) if _has_numbers(b)]
        parts: list[torch.Tensor] = []
        broken = False
        for mine, theirs in pairs:
            # Infinite values in the exact result have no error that could be added
            # up; a NaN where the exact value is finite is recorded as broken.
            known = theirs.isfinite()
            right, wrong = theirs[known], (mine.double() - theirs)[known]
            broken |= not bool(wrong.isfinite().all())
            # The root mean square and not the largest value: one outlier
            # would make the errors of all other elements look small.
            scale = math.sqrt(float(right.square().sum()) / max(right.numel(), 1)) or 1.0
            # Scaled such that the inner product of two parts sums to
            # the mean over outputs, whatever their numbers of elements.
            parts.append(wrong.nan_to_num(0.0, 0.0, 0.0) / (scale * math.sqrt(max(wrong.numel(), 1) * len(pairs))))
        return cls(tuple(parts), broken)

    @functools.cached_property
    def size(self) -> float:
        """The root mean square of the relative error, over all outputs; infinity if something is broken."""
        return math.inf if self.broken else math.sqrt(self.dot(self))

    def dot(self, other: Error) -> float:
        """The inner product of two errors."""
        return sum(float((mine * theirs).sum()) for mine, theirs in zip(self.parts, other.parts))


def _real(value: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value


def _has_numbers(value: torch.Tensor) -> bool:
    return bool(value.numel()) and bool(value.is_floating_point() or value.is_complex())


@dataclass(frozen=True)
class LevelChoice:
    """The calls of one op at one level of accuracy."""

    level: Level
    calls: int
    """The number of calls of the target that they expand to."""
    cost: float
    error: Error = field(repr=False)
    """The error at the outputs due to these calls alone."""
    rules: tuple[str, ...]
    """The rules that expand them; none for an op of the target."""


class Levels:
    """A program planned at several levels of accuracy, and run to find the cost and the error of each op at each."""

    def __init__(
        self,
        plans: Mapping[Level, PlannedProgram],
        inputs: Sequence[object],
        cost: Cost,
        seed: int = 0,
        narrower: Collection[torch.dtype] = (),
    ) -> None:
        """`plans`: the plans of one program, by level. `narrower`: wide dtypes that occur only at the boundary, as the
        program computes in narrow ones. Raises `AccuracyError` if nothing that it returns can have an error."""
        self.plans, self.cost = plans, cost
        self.experiment = Experiment(next(iter(plans.values())).module, inputs, seed)
        self._as_it_is = self.experiment.traced({})
        self.original = Error.of(self._as_it_is.outputs, self.experiment.exact)
        """The error of the source program in PyTorch."""
        _require_errors(self._as_it_is.outputs, narrower)
        self.nodes: dict[Op, dict[CallPlace, fx.Node]] = {}
        """By op, its calls that depend on inputs."""
        for place, node in self.experiment.calls():
            self.nodes.setdefault(_op_of(node), {})[place] = node
        self._decisions = {level: _decisions(planned) for level, planned in plans.items()}
        self._errors: dict[object, Error] = {}
        self._traced: dict[Level, Traced] = {}

    def require(self, accuracy: Accuracy, target: str) -> None:
        """Raise `NotLowered` unless each call can be lowered at the requested level."""
        for op in self.nodes:
            level = str(accuracy.level(op))
            if level not in self.levels(op):
                raise NotLowered(target, self.plans[level].plan.blockers)

    @property
    def random(self) -> tuple[str, ...]:
        """The ops that draw random numbers."""
        return self._named(self.experiment.random)

    @property
    def unknown(self) -> tuple[str, ...]:
        """The ops without a float64 kernel."""
        return self._named(self.experiment.own_only)

    def _named(self, places: Collection[CallPlace]) -> tuple[str, ...]:
        nodes = (
            node
            for i, graph in enumerate(self.experiment.graphs)
            for node in graph.graph.nodes
            if (i, node.name) in places
        )
        return tuple(dict.fromkeys(str(_op_of(node)) for node in nodes))

    def levels(self, op: Op) -> list[Level]:
        """The levels at which each call of an op can be lowered to the target."""
        return [
            level
            for level, decisions in self._decisions.items()
            if not any(isinstance(decisions.get(place), Blocked) for place in self.nodes[op])
        ]

    def choice(self, op: Op, level: Level) -> LevelChoice:
        """The calls of an op at a level."""
        derived = self._derived(op, level)
        templates = {place: d.template if (d := derived.get(place)) is not None else None for place in self.nodes[op]}
        rules = tuple(dict.fromkeys(str(d.rule) for d in derived.values()))
        calls = sum(len(list(calls_in(each.graph))) if each is not None else 1 for each in templates.values())
        cost = sum(self._price(self.nodes[op][place], template) for place, template in templates.items())
        return LevelChoice(level, calls, cost, self._error(op, level), rules)

    def own(self, op: Op) -> Error:
        """The error that is due to PyTorch's own kernels for an op."""
        return self.due(op, self._as_it_is)

    def run(self, levels: Mapping[Op, Level]) -> Traced:
        """A run of the program with each op at its level."""
        templates = {place: d.template for op, level in levels.items() for place, d in self._derived(op, level).items()}
        return self.experiment.traced(templates)

    def error(self, traced: Traced) -> Error:
        """The error of a run."""
        return Error.of(traced.outputs, self.experiment.exact)

    def due(self, op: Op, traced: Traced) -> Error:
        """The part of a run's error that is due to the calls of an op."""
        errors = {place: traced.errors.get(place, ()) for place in self.nodes[op]}
        wrong = any(each is not None for results in errors.values() for call in results for each in call)
        # Without any error the run in float64 is the one already made, and for most ops of a program that saves a run.
        found = self.experiment.with_errors(errors) if wrong else self.experiment.exact
        return Error.of(found, self.experiment.exact)

    def _derived(self, op: Op, level: Level) -> dict[CallPlace, Derived]:
        found = {place: self._decisions[level].get(place) for place in self.nodes[op]}
        return {place: decision for place, decision in found.items() if isinstance(decision, Derived)}

    def _error(self, op: Op, level: Level) -> Error:
        """Measured once for all levels with the same expansions."""
        templates = {place: decision.template for place, decision in self._derived(op, level).items()}
        # Levels often share an expansion. Templates are compared by what they call and by which rules, as plans may
        # hold equal ones as different objects.
        key = op, tuple((place, *((each.target, each.chain) for each in t.entries)) for place, t in templates.items())
        if key not in self._errors:
            self._errors[key] = self.due(op, self._at(level))
        return self._errors[key]

    def _at(self, level: Level) -> Traced:
        """A run with all ops at one level."""
        if level not in self._traced:
            self._traced[level] = self.run(dict.fromkeys(self.nodes, level))
        return self._traced[level]

    def _price(self, node: fx.Node, template: ExpansionTemplate | None) -> float:
        if template is not None:
            return price_of_graph(self.cost, template.graph)
        call = call_if_bound(node)
        return price_of_calls(self.cost, [call]) if call is not None else 0.0


def levels_of(
    program: Module, matching: RuleSelection, source: CaptureRequest, policy: Policy, seed: int = 0
) -> Levels:
    """A captured program at each level of accuracy, and at the policy's levels, on its example inputs. Raises
    `AccuracyError`."""
    inputs, cost, accuracy = _inputs(program, source), policy.cost, policy.accuracy
    known = dict.fromkeys((*LEVELS, accuracy.default, *(level for _, level in accuracy.by_op)))
    plans = {level: plan_program(program, matching, replace(policy, accuracy=Accuracy(level))) for level in known}
    return Levels(plans, inputs, cost or matching.target.costs or CALLS, seed, matching.target.narrower)


def _inputs(program: Module, source: CaptureRequest) -> list[object]:
    args, kwargs = source.args, source.kwargs
    if args is None and kwargs is None:
        args, kwargs = getattr(source.model, "example_inputs", None) or (None, None)
    if args is None and kwargs is None:
        raise AccuracyError("the error of a program is measured by running it: pass args=(...)")
    missing = without_numbers(source.model, args or (), kwargs or {})
    if missing is not None:
        remedy = "give the model its weights and pass inputs with values, or choose levels by accuracy="
        raise AccuracyError(f"the error of a program is measured by running it, and {missing}: {remedy}")
    found = all_inputs(program, tuple(args or ()), dict(kwargs or {}))
    if found is None:
        raise AccuracyError("the program does not accept these inputs: pass args= (and kwargs=) as in a call")
    return found


def _decisions(planned: PlannedProgram) -> dict[CallPlace, Decision]:
    return {(i, node.name): decision for i, node, decision in planned.decisions}


def _op_of(node: fx.Node) -> Op:
    return op_of_node(node) or Op(spell_target(node.target))


def _require_errors(outputs: Sequence[torch.Tensor], narrower: Collection[torch.dtype]) -> None:
    """Raise `AccuracyError` unless the program returns floats narrower than float64."""
    floats = [each for each in outputs if _has_numbers(each)]
    if not floats:
        raise AccuracyError("the program returns no floats, so it has no error to measure")
    if all(each.dtype in {torch.float64, torch.complex128}.difference(narrower) for each in floats):
        raise AccuracyError("the program computes in float64, and there is no more exact reference")
