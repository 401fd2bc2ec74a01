"""Runs one primitive, one op or one model on a backend, and returns its row."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
import copy
import logging
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from decomp.errors import Blocker, DecompError, LoadError, NotLowered, first_line
from decomp.ir.call import call_if_bound, calls, metadata
from decomp.ir.dtypes import name_of
from decomp.ir.ops import Op, resolve
from decomp.loading import load as program_of_lowering
from decomp.lowering import Lowering, lower
from decomp.rules.library import samples as library_samples
from decomp.runtime.border import ComplexBoundary
from decomp.runtime.tables import Backend
from decomp.samples import Sample, program_of
from decomp.tools.bringup.blaming import Difference, difference_in, loaded_call
from decomp.tools.bringup.cases import BringUpCase, cases, samples_for
from decomp.tools.bringup.rows import BringUpRow, Problem, problem_of
from decomp.tools.certification.results import flat
from decomp.tools.comparing.judging import (
    PROGRAMS,
    CallJudgement,
    ExpectedResults,
    deviations_of,
    judge_against,
    truth_of,
)
from decomp.tools.comparing.references import (
    copied_tensors,
    expected_results,
    is_random,
    results_in_float64,
    results_in_pytorch,
)
from decomp.tools.comparing.subject import primitive_of
from decomp.tools.measurement.trials import FAILURES, silenced, takes
from decomp.torch_internals import pytree

Tell = Callable[[str], None]
"""Called with each case before it runs, so that a hanging one is known."""
OP_SAMPLES, QUICK_OP_SAMPLES = 4, 1


def primitive(backend: Backend, name: str, quick: bool, tell: Tell) -> BringUpRow:
    """The row of an op of the target, on every legal call of it."""
    row, found = BringUpRow("primitive", name), resolve(name)
    overload = found.overload if found.overload in (found.op.packet.overloads() if found.op.packet else ()) else None
    for case in cases(samples_for(found.op, overload), quick):
        if not _has_dtypes(backend, case.sample):
            continue
        tell(f"{case.label}: {case.sample}")
        _try_case(backend, row, case)
    if not row.cases:
        row.verdict = "not tried"
    return row


def _has_dtypes(backend: Backend, sample: Sample) -> bool:
    """Whether a backend has all dtypes of a call, including its results."""
    if backend.dtypes is None:
        return True
    try:
        named = list(pytree.tree_leaves((sample.args, dict(sample.kwargs))))
        results = flat(sample.with_tensors(t.clone() for t in sample.tensors).run())
    except FAILURES:
        return False
    dtypes = [leaf for leaf in named if isinstance(leaf, torch.dtype)]
    return all(dtype in backend.dtypes for dtype in (*dtypes, *(t.dtype for t in (*sample.tensors, *results))))


def _try_case(backend: Backend, row: BringUpRow, case: BringUpCase) -> None:
    call = str(case.sample)
    try:
        loaded = loaded_call(backend, case.sample)
    except LoadError as error:
        return row.blame("refused", Problem(case.label, f"legal, but {'; '.join(error.problems)}", call))
    except (DecompError, *FAILURES):
        return  # this call cannot be lowered
    for inputs in case.inputs if loaded is not None else ():
        where = case.label if inputs.label in (case.label, "points", "as sampled") else f"{case.label}, {inputs.label}"
        sample = case.sample.with_tensors(inputs.tensors)
        try:
            truth = truth_of(sample)
        except FAILURES:
            continue
        if inputs.label == "huge" and not truth.pointwise and not all(bool(t.isfinite().all()) for t in truth.own):
            continue  # intermediate overflow depends on the order of additions
        try:
            result = loaded.unchecked(*sample.tensors)
            found = judge_against(sample, truth, result, inputs.measured, deviations=deviations_of(backend, sample))
        except Exception as error:  # any exception of a backend's function is a finding
            row.blame("fails", Problem(where, _said(error), call))
            continue
        if found.problem:
            row.blame("wrong", problem_of(found, where, call), dtype=_dtype_of(case.label), found=found)
        else:
            row.count(_dtype_of(case.label) if inputs.measured and not inputs.ill_conditioned else "", found)


def _said(error: Exception) -> str:
    cause = error.__cause__ or error
    return f"{type(cause).__name__}: {first_line(cause)}"


def _dtype_of(label: str) -> str:
    """The dtype in which a case measures errors; empty for mixed dtypes."""
    dtype = label.partition(",")[0]
    return "" if " with " in dtype else dtype


def _first_dtype(truth: ExpectedResults) -> str:
    return name_of(truth.own[0].dtype) if truth.own else ""


def op(backend: Backend, name: str, quick: bool, broken: Container[str], tell: Tell) -> BringUpRow:
    """The row of an op of the library, lowered to the backend's primitives."""
    row, samples = BringUpRow("op", name), samples_for(Op(name), None)
    for sample in samples[: QUICK_OP_SAMPLES if quick else OP_SAMPLES]:
        if takes(sample):
            tell(str(sample))
            _try_program(backend, row, *program_of(sample), str(sample), broken, sample)
    if not row.cases and row.verdict == "right":
        row.verdict = "not tried"
    return row


def model(
    backend: Backend,
    name: str,
    made: tuple[nn.Module, Any],
    broken: Container[str],
    tell: Tell,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> BringUpRow:
    """The row of a whole model, lowered to the backend's primitives with these options."""
    row = BringUpRow("model", name)
    tell(name)
    module, args = made
    if isinstance(args, Mapping):
        module, args = _ByName(module, tuple(args)), tuple(args.values())
    args = tuple(args) if isinstance(args, (tuple, list)) else (args,)
    try:
        with torch.no_grad():
            copy.deepcopy(module)(*copied_tensors(args))
    except Exception as error:  # a model may raise anything
        row.blame("fails", Problem("in PyTorch", f"{type(error).__name__}: {first_line(error)}", name))
        return row
    _try_program(backend, row, module, args, name, broken, None, options)
    if not row.cases and row.verdict == "right":
        said = row.notes[0] if row.notes else "its results cannot be compared"
        row.blame("fails", Problem("in PyTorch", said, name))
    return row


class _ByName(nn.Module):
    """A model that takes its inputs by name."""

    def __init__(self, module: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.module, self.names = module, names

    def forward(self, *values: Any) -> Any:
        return self.module(**dict(zip(self.names, values)))


def sample_model(name: str) -> tuple[nn.Module, Any]:
    """One of the library's sample models, by name."""
    found: tuple[nn.Module, Any] = library_samples().model(name)
    return found


def _try_program(
    backend: Backend,
    row: BringUpRow,
    module: Any,
    args: Sequence[Any],
    call: str,
    broken: Container[str],
    sample: Sample | None,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Lower a program, run it, and find the primitive at fault if it is wrong."""
    original = copy.deepcopy(module)
    try:
        with silenced():
            how = {"training": False, "verify": False, **options}
            lowering = lower(module, to=backend.target, args=copied_tensors(tuple(args)), **how)
    except NotLowered as error:
        if not row.cases:
            row.verdict = "not lowered"
        row.notes += [note for note in map(_lacking, error.blockers) if note not in row.notes]
        return
    except (DecompError, *FAILURES) as error:
        row.notes.append(f"cannot be lowered: {first_line(error)}")
        return
    if row.verdict == "not lowered":
        row.verdict = "right"
    names = (primitive_of(backend, each) for each in calls(lowering.result))
    used = next((name for name in names if name in broken), None)
    if used is not None:
        return row.blame("blames", Problem("not run", f"{used} hangs or crashes", call), used)
    unknown = _unknown_dtypes(backend, lowering)
    if unknown:
        row.notes.append(f"{backend.name} has no {', '.join(unknown)}")
        return
    try:
        loaded = backend.load(lowering)
    except LoadError as error:
        known = (call_if_bound(node) for node in error.nodes if node.op == "call_function")
        first = next((primitive_of(backend, each) for each in known if each is not None), "")
        problem = Problem("loading", "; ".join(error.problems), call)
        return row.blame("blames" if first else "refused", problem, first)
    _run_program(backend, row, lowering, loaded, original, args, call, sample)


def _lacking(blocker: Blocker) -> str:
    """Why an op is not lowered, without a search for what to add to the target."""
    because = blocker.limitation or (f"legal under a condition: {blocker.condition}" if blocker.condition else "")
    tried = sorted(blocker.tried, key=lambda pair: "is for targets that know" in pair[1])
    return f"{blocker.op} is not reached: {because or ' '.join(tried[0] if tried else ('no rule is for it',))}"


def _unknown_dtypes(backend: Backend, lowering: Lowering) -> list[str]:
    """The dtypes of a program that a backend does not have."""
    border = ComplexBoundary.of(lowering.result.graph, backend)
    inside = (node for node in lowering.result.graph.nodes if node not in border and node.op != "output")
    values = (t for node in inside for t in pytree.tensors_in(metadata(node)))
    known = backend.dtypes
    found = {lowering.target.narrower.get(t.dtype, t.dtype) for t in values}
    return sorted(name_of(dtype) for dtype in found if known is not None and dtype not in known)


def _run_program(
    backend: Backend,
    row: BringUpRow,
    lowering: Lowering,
    loaded: Any,
    original: Any,
    args: Sequence[Any],
    call: str,
    sample: Sample | None,
) -> None:
    problem: Problem | None = None
    try:
        results = flat(loaded.unchecked(*copied_tensors(tuple(args))))
    except Exception as error:  # any exception of a backend's function is a finding
        problem = Problem("as a whole", _said(error), call)
    if problem is None:
        try:
            if sample is not None and sample.exact == "shape" or is_random(lowering.result.graph):
                found = judge_shapes(lowering, args, results)
                if found.problem:
                    return row.blame("wrong", problem_of(found, "as a whole", call))
                return row.count("", found)
            truth = _truth(lowering, original, args, sample)
            found = judge_against(sample, truth, results, times=PROGRAMS)
        except FAILURES:
            return  # PyTorch itself fails
        if not found.problem:
            return row.count(_first_dtype(truth), found)
        problem = problem_of(found, "as a whole", call)
    by_design: list[str] = []
    difference = _blamed(backend, lowering, args, call, by_design)
    if difference is not None:
        row.blame("blames", difference.problem, difference.primitive)
    elif by_design:
        row.count("", CallJudgement(by_design=tuple(dict.fromkeys(by_design))))
    else:
        row.blame("wrong" if problem.at or problem.expected else "fails", problem)


def _blamed(
    backend: Backend, lowering: Lowering, args: Sequence[Any], call: str, by_design: list[str]
) -> Difference | None:
    try:
        return difference_in(backend, lowering, args, f"in {call}", by_design)
    except Exception as error:  # then nothing is known of its primitives
        logging.getLogger(__name__).debug("%s: %s", call, error)
        return None


def judge_shapes(lowering: Lowering, args: Sequence[Any], found: Sequence[torch.Tensor]) -> CallJudgement:
    """Judge the results of a random program by PyTorch's, except for their values."""
    own = _in_pytorch(lowering, args)
    return judge_against(None, ExpectedResults(own, own, own, False, True), found, values=False)


def _in_pytorch(lowering: Lowering, args: Sequence[Any]) -> list[torch.Tensor]:
    """The results of a lowered program."""
    return results_in_pytorch(program_of_lowering(lowering, None, None, None).root, args)


def _truth(lowering: Lowering, original: Any, args: Sequence[Any], sample: Sample | None) -> ExpectedResults:
    """The expected results of a program. They are not in normal form."""
    own = _in_pytorch(lowering, args)
    if sample is None:
        return expected_results(own, results_in_float64(original, args))
    first = truth_of(sample)
    formed = own if sample.leeway is None else list(sample.leeway.results(sample, own))
    return ExpectedResults(formed, first.exact, first.mass, False, first.against_own, first.operands)
