"""Finds the primitive at fault in a wrong program: its calls run one by one, each compared with PyTorch on the same
operands, and the first that differs is reported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from decomp.errors import first_line, source_line, spell_target
from decomp.ir.call import Call, call_if_bound, metadata, substituted
from decomp.loading import load as program_of_lowering
from decomp.lowering import Lowering
from decomp.metadata.fakes import new_mode
from decomp.runtime.loaded import Loaded
from decomp.runtime.tables import Backend
from decomp.samples import Sample, program_of
from decomp.tools.bringup.judging import call_of, judge_results
from decomp.tools.bringup.rows import Problem, problem_of
from decomp.tools.measurement.trials import FAILURES
from decomp.torch_internals import pytree


@dataclass(frozen=True)
class Difference:
    """The first call of a program that is wrong."""

    primitive: str
    problem: Problem
    first: bool = False
    """Whether the first call of the program raised, as functions that emit into a graph do outside of one."""


class _Culprit(Exception):
    def __init__(self, difference: Difference) -> None:
        self.difference = difference


def primitive_of(backend: Backend, call: Call) -> str:
    """The primitive of a call, as the target lists it: with the overload if it lists only that one."""
    exact = f"{call.op}.{call.overload}"
    return (exact if exact in set(backend.target) else str(call.op)).removeprefix("aten.")


def _name_of(backend: Backend, node: fx.Node) -> str:
    call = call_if_bound(node)
    return primitive_of(backend, call) if call is not None else spell_target(node.target)


def difference_in(
    backend: Backend,
    lowering: Lowering,
    loaded: Any,
    inputs: Sequence[Any],
    where: str,
    by_design: list[str] | None = None,
) -> Difference | None:
    """The first call that is wrong on its own operands; None if all are right. Reasons of calls that differ by design
    are added to `by_design`."""
    by_design = [] if by_design is None else by_design
    if isinstance(loaded, Loaded):
        try:
            found = _walk_and_compare(backend, loaded, inputs, where, by_design)
            if found is None or not found.first:
                return found
        except _Unreadable:
            pass  # its functions emit into a graph: there are no intermediate values to read
    return _compare_one_by_one(backend, lowering, inputs, where, by_design)


class _Unreadable(Exception):
    """Intermediate values of a backend cannot be read."""


def _walk_and_compare(
    backend: Backend, loaded: Loaded, inputs: Sequence[Any], where: str, by_design: list[str]
) -> Difference | None:
    moved = [backend.from_torch(value) if isinstance(value, torch.Tensor) else value for value in inputs]
    state = [leaf.value for leaf in loaded.leaves if leaf.kind != "input"]
    steps = {step.node: step for step in loaded.steps}
    order = [step.node for step in loaded.steps if step.primitive]
    done = 0

    def visit(node: fx.Node, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        nonlocal done
        done += 1
        step = steps.get(node)
        if step is None:
            return
        values: dict[fx.Node, Any] = {}
        _pair((step.args, dict(step.kwargs)), (args, dict(kwargs)), values)
        sample = _call(backend, node, values)
        if sample is not None:
            _hold(backend, sample, _read(backend, result), node, where, by_design)

    try:
        loaded.walk(*state, *moved, visit=visit)
    except _Culprit as found:
        return found.difference
    except _Unreadable:
        raise
    except Exception as error:  # any exception of a backend's function is a finding
        node = order[done] if done < len(order) else order[-1]
        said = f"{type(error).__name__}: {first_line(error)}"
        problem = Problem(where, said, _shown(node), node=node.name, source=source_line(node) or "")
        return Difference(_name_of(backend, node), problem, done == 0)
    return None


def _shown(node: fx.Node) -> str:
    """A call with the known properties of its operands."""
    args, kwargs = substituted(node.args, metadata), substituted(node.kwargs, metadata)
    return str(Sample(node.target, tuple(args), kwargs))


def _call(backend: Backend, node: fx.Node, values: Mapping[fx.Node, Any]) -> Sample | None:
    """The call of a node on its actual operands, as tensors; None if PyTorch has no such call."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return None

    def value_of(operand: fx.Node) -> Any:
        found = values[operand]
        return _read(backend, found) if isinstance(metadata(operand), (torch.Tensor, list, tuple)) else found

    try:
        return call_of(node.target, substituted(node.args, value_of), substituted(node.kwargs, value_of))
    except KeyError:
        return None  # an operand that is not passed to the function


def _read(backend: Backend, value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_read(backend, each) for each in value]
    try:
        found = backend.to_torch(value)
    except Exception as error:
        raise _Unreadable from error
    if not isinstance(found, torch.Tensor):
        raise _Unreadable
    return found.clone()


def _hold(backend: Backend, sample: Sample, found: Any, node: fx.Node, where: str, by_design: list[str]) -> None:
    """Raise `_Culprit` if a result of a call is wrong."""
    try:
        verdict = judge_results(backend, sample, found)
    except FAILURES:
        return  # PyTorch has no result for these operands
    by_design += [f"{_name_of(backend, node)}: {reason}" for reason in verdict.by_design]
    if verdict.problem:
        problem = problem_of(verdict, where, str(sample), node.name, source_line(node) or "")
        raise _Culprit(Difference(_name_of(backend, node), problem))


def _pair(pattern: Any, value: Any, found: dict[fx.Node, Any]) -> None:
    """Collects the value of each node."""
    if isinstance(pattern, fx.Node):
        found[pattern] = value
    elif isinstance(pattern, (list, tuple)):
        for each, item in zip(pattern, value):
            _pair(each, item, found)
    elif isinstance(pattern, dict):
        for key, each in pattern.items():
            _pair(each, value[key], found)


class _CallRecorder(fx.Interpreter):
    """Runs a program in PyTorch, and records each call with its operands."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.calls: list[tuple[fx.Node, Sample]] = []

    def run_node(self, n: fx.Node) -> Any:
        if n.op == "call_function" and isinstance(n.target, torch._ops.OpOverload):
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            args, kwargs = copied_tensors((args, kwargs))
            if call_if_bound(n) is not None and isinstance(metadata(n), (torch.Tensor, list, tuple)):
                self.calls.append((n, call_of(n.target, args, kwargs)))
        return super().run_node(n)


def copied_tensors(value: Any) -> Any:
    """Nested arguments with a copy of each tensor."""
    return pytree.tree_map(lambda x: x.detach().clone() if isinstance(x, torch.Tensor) else x, value)


def _compare_one_by_one(
    backend: Backend, lowering: Lowering, inputs: Sequence[Any], where: str, by_design: list[str]
) -> Difference | None:
    """Run each call as a separate program, on its operands in PyTorch."""
    recorder = _CallRecorder(program_of_lowering(lowering, None, None, None).root)
    with torch.no_grad():
        recorder.run(*inputs)
    for node, sample in recorder.calls:
        for problem in _alone(backend, node, sample, where, by_design):
            return Difference(_name_of(backend, node), problem)
    return None


def _alone(backend: Backend, node: fx.Node, sample: Sample, where: str, by_design: list[str]) -> Iterator[Problem]:
    try:
        found = loaded_call(backend, sample)
        result = found.unchecked(*sample.tensors) if found is not None else None
    except Exception as error:
        said = f"{type(error).__name__}: {first_line(error)}"
        yield Problem(where, said, str(sample), node=node.name, source=source_line(node) or "")
        return
    if result is None:
        return
    try:
        _hold(backend, sample, result, node, where, by_design)
    except _Culprit as difference:
        yield difference.difference.problem


def loaded_call(backend: Backend, sample: Sample) -> Any:
    """A loaded program with only this call; None if the call is not legal in the target. Raises `LoadError`."""
    module, tensors = program_of(sample)
    mode, rest = new_mode(), iter(tensors)
    nodes = list(module.graph.nodes)
    for node in nodes:
        if node.op == "placeholder":
            node.meta["val"] = mode.from_tensor(next(rest).detach())
    call_node = nodes[-2]
    try:
        with mode, torch.no_grad():
            call_node.meta["val"] = sample.with_tensors(n.meta["val"] for n in nodes if n.op == "placeholder").run()
    except FAILURES:
        call_node.meta["val"] = sample.run()
    call = call_if_bound(call_node)
    legal = call is not None and backend.target.why_illegal(call) is None
    return backend.load(module) if legal else None
