"""Translation validation: a lowering is run and compared with its source. Each distinct expansion is run once, on
operands of its signature, and compared with the op's own kernel; then the whole program on the example inputs, compared
with the source in float64."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
from dataclasses import dataclass, replace
import functools
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.export import ExportedProgram

from decomp.capture.source_state import source_unchanged
from decomp.derive.decisions import Derived, op_of_node
from decomp.errors import ArgumentError, first_line
from decomp.functionalize.walk import mutates
from decomp.graphs.template import ExpansionTemplate
from decomp.ir.call import call_target, metadata, read_results, select_results
from decomp.ir.effects import EffectTable, recorded_behind
from decomp.ir.module import ProgramGraph
from decomp.ir.op_facts import UNINITIALISED
from decomp.lowering_internals import internals_of
from decomp.metadata.meta_values import on_host
from decomp.proof.correspondence import GradientsDiffer, ValuesDiffer
from decomp.rules.accuracy import LEVELS
from decomp.torch_internals import pytree
from decomp.validation.closeness import (
    Allowance,
    CallReference,
    ErrorJudgement,
    compare_with_reference,
    truth_of,
    widened,
)
from decomp.validation.law_runs import run_laws_of_graphs
from decomp.validation.limits import overflowing
from decomp.validation.normal_forms import CallNormalForm, as_stated, normal_form
from decomp.validation.operand_sets import EDGES, LIMITS, RANDOM, SEEN, SPECIAL, operand_sets
from decomp.validation.operands import NoOperands, from_run, is_pointwise, laid_out, off_kinks
from decomp.validation.promises import Promise, promise_of
from decomp.validation.running_programs import (
    Narrow,
    copies_of,
    forked_random_state,
    run_graph,
    weights_for as _weights,
    without_numbers,
)
from decomp.validation.whole_programs import require_as_captured, whole_programs

if TYPE_CHECKING:
    from decomp.lowering import Lowering


@dataclass(frozen=True)
class ExpansionVerdict:
    """The outcome of measuring one expansion."""

    rule: str
    promise: float = 0.0
    """The allowed error of the rule in ULP, by its certificate."""
    values: float | None = None
    """The largest error in ULP where the op is well-conditioned; None if values were not compared."""
    gradients: float | None = None
    reason: str = ""
    """Why values, or gradients, were not compared."""
    wrong: str = ""
    """The fault of the values or the gradients; empty if both are right."""
    of_gradients: bool = False
    """Whether the gradients are wrong, not the values."""
    inputs: tuple[str, ...] = ()
    """The kinds of operands that it was measured on."""
    of_largest: float = 0.0
    """The error in ULP of the largest element of its result that the rule may cause in a whole program."""


def measure_lowering(
    source: Any, lowered: Any, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
) -> list[str]:
    """Run a lowering, or any two programs, and compare the values. Returns phrases on what was compared. Raises
    `ValuesDiffer` or `GradientsDiffer`, and `ArgumentError` for two plain programs without `args`."""
    internals = internals_of(lowered)
    if internals is None:
        given = example_inputs(source, args, kwargs)
        if given is None:
            raise ArgumentError("two plain programs are compared by running them: pass args=(...)")
        return [whole_programs(source, lowered, *given)]
    given = example_inputs(source, *((args, kwargs) if args is not None or kwargs else internals.example_inputs))
    missing = "there are no example inputs" if given is None else without_numbers(source, *given)
    verdicts = expansions(lowered, given if missing is None else None)
    laws = run_laws_of_graphs(piece.record("simplify") for piece in internals.pieces)
    if given is None or missing is not None:
        return [*laws, _phrase(verdicts), f"the whole program not run, as {missing}"]
    promise = max((verdict.of_largest for verdict in verdicts), default=0.0)
    narrow = Narrow(internals.narrow_source(), internals.request.narrower) if internals.request.narrower else None
    exact = all(decision.level == LEVELS[0] for piece in internals.pieces for _, decision in _derived(piece))
    try:
        whole = whole_programs(
            source, lowered.result, *given, promise, gradients=lowered.trains, narrow=narrow, subnormals=exact
        )
    except ValuesDiffer:
        if not isinstance(source, (fx.GraphModule, ExportedProgram)):
            require_as_captured(source, internals.captured(), *given)
        raise
    return [*laws, _phrase(verdicts), whole]


def example_inputs(source: Any, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The given inputs, or those that the program was captured with, if any."""
    if args is not None or kwargs:
        return tuple(args or ()), dict(kwargs or {})
    found = getattr(source, "example_inputs", None)
    return (tuple(found[0]), dict(found[1])) if found else None


# expansions


def expansions(lowering: Lowering, given: tuple[tuple[Any, ...], dict[str, Any]] | None) -> list[ExpansionVerdict]:
    """Measure each distinct expansion of a lowering that was not measured before, and return the verdicts of all.
    Raises `ValuesDiffer`, `GradientsDiffer`."""
    internals = lowering.internals
    distinct = {d.template: (piece, node, d) for piece in internals.pieces for node, d in _derived(piece)}
    verdicts = internals.verdicts
    fresh = {template: each for template, each in distinct.items() if template not in verdicts}
    with forked_random_state():
        if given is not None and fresh:
            _measure_in_a_run(lowering, given, fresh)
        # What did not occur in the run, in a branch that was not taken
        # or because there are no inputs, is measured on random operands.
        for template, (_, node, decision) in fresh.items():
            if template not in verdicts:
                promise = _promise(lowering, decision)
                verdicts[template] = _verdict(node, decision, promise, None, internals.derived_to_train)
    for template, (_, node, _) in distinct.items():
        _require(verdicts[template], node)
    return [verdicts[template] for template in distinct]


def _derived(piece: ProgramGraph) -> Iterator[tuple[fx.Node, Derived]]:
    return ((node, d) for node, d in (piece.planned.decisions or {}).items() if isinstance(d, Derived))


def _measure_in_a_run(lowering: Lowering, given: Any, fresh: Mapping[ExpansionTemplate, Any]) -> None:
    """Run the functionalized source on the example inputs, and measure each expansion on the operands of its first call
    there."""
    internals = lowering.internals
    planned = internals.pieces[0].planned
    decisions = planned.decisions or {}
    inputs = internals.flat_inputs(*given)
    if inputs is None:
        return

    def visit(node: fx.Node, values: Mapping[fx.Node, Any]) -> None:
        decision = decisions.get(node)
        # An expansion is measured once, at its first call: a model of a
        # hundred equal layers would otherwise be checked a hundred times.
        if isinstance(decision, Derived) and decision.template in fresh and decision.template not in internals.verdicts:
            seen = [laid_out(values[slot], metadata(slot)) for slot in node.all_input_nodes]
            promise = _promise(lowering, decision)
            internals.verdicts[decision.template] = _verdict(node, decision, promise, seen, internals.derived_to_train)

    root = internals.program.root
    # What `decompose` keeps of a program may write to buffers of the model, as batch normalization in training does.
    writes = mutates(planned.graph, root)
    inputs = copies_of(inputs) if writes else inputs
    try:
        with torch.no_grad(), source_unchanged(root, writes_parameters=True) if writes else contextlib.nullcontext():
            run_graph(planned.graph, root, inputs, visit)
    except Exception:  # the source itself fails, which is not the lowering's fault: use random operands
        return


def _promise(lowering: Lowering, decision: Derived) -> Promise:
    """The promise of an expansion at the level of accuracy that it was derived for."""
    return promise_of(decision.rule, lowering.target.name, decision.level)


def _require(verdict: ExpansionVerdict, node: fx.Node) -> None:
    if verdict.wrong:
        kind = GradientsDiffer if verdict.of_gradients else ValuesDiffer
        raise kind(f"rule {verdict.rule}, for {node.name!r}, {verdict.wrong}", None, node)


def _verdict(
    node: fx.Node, decision: Derived, promise: Promise, seen: list[Any] | None, slopes: bool
) -> ExpansionVerdict:
    """Measure one expansion: on operands from a run of the program, on random ones, and on special values; its
    gradients too if requested."""
    rule = str(decision.rule)
    if EffectTable().of(node).most:
        return ExpansionVerdict(rule, reason="random")
    own = op_of_node(node)
    if own is not None and own.short in UNINITIALISED:
        return ExpansionVerdict(rule, reason="uninitialised memory")
    measure = _Measure(node, decision.template, promise)
    slopes, inputs = slopes and _is_recorded(node), []
    for where, choices in operand_sets(node, decision.template, seen, measure.promise):
        judged = measure.on(choices, where, slopes)
        if judged is not None and judged.fault is not None:
            return ExpansionVerdict(rule, wrong=f"{judged.fault}, on {where}", of_gradients=measure.at_slopes)
        inputs += [where] if judged is not None else []
    kinds = tuple(dict.fromkeys(inputs))
    return ExpansionVerdict(
        rule,
        measure.promised,
        measure.values,
        measure.gradients,
        measure.reason,
        inputs=kinds,
        of_largest=measure.of_largest,
    )


def _is_recorded(node: fx.Node) -> bool:
    """Whether gradients are enabled at a call in its graph: where they are off, its expansion may detach."""
    recorded = True
    for each in node.graph.nodes:
        recorded = recorded_behind(each, recorded)
        if each is node:
            break
    return recorded


Function = Callable[[Sequence[Any]], list[torch.Tensor]]
Functions = tuple[Function, Function, Function]
"""The op itself, the op in float64, and the expansion: functions from operands to results, flat."""


class _Measure:
    """Measures one expansion on any operands, and records the largest error."""

    def __init__(self, node: fx.Node, template: ExpansionTemplate, promise: Promise) -> None:
        self.node, self.template, self.promise = node, template, promise
        self.pointwise = is_pointwise(node)
        self.given = _results_wanted(node, template)
        self.values: float | None = None
        self.gradients: float | None = None
        self.promised = self.of_largest = 0.0
        self.reason = "no operands"
        self.at_slopes = False
        self.floor = promise.floor
        self.signs = False
        """Whether results with other signs of vectors are accepted."""
        self.undefined: list[torch.Tensor | None] = []
        """For each result, where integer arithmetic of the op itself overflows."""

    def on(self, choices: Iterator[list[Any]], where: str, slopes: bool) -> ErrorJudgement | None:
        """Measure on the first operands that the op's own kernel accepts; None if it accepts none."""
        special, slopes = where == SPECIAL, slopes and where in (SEEN, RANDOM, EDGES)
        self.floor = max(self.promise.floor, SMALL if where in (EDGES, LIMITS) else 0.0)
        own, wide = (functools.partial(_own, self.node, self.given, wide=wide) for wide in (False, True))
        try:
            within = (_within(self.promise.reach, operands) for operands in choices)
            operands, truth = _accepted(own, wide, within)
        except NoOperands as refused:
            self.reason = str(refused)
            return None
        self.undefined = overflowing(own, operands, truth.own) if where == LIMITS else []
        functions = own, wide, functools.partial(_run_template, self.template)
        self.promised = max(self.promised, self.promise.ulp(truth.own))
        self.of_largest = max(self.of_largest, self.promise.ulp_of_largest(truth.own, self.pointwise))
        judged = self._compared(functions, operands, truth, special, slopes)
        # Only after a fault: a normal form is computed by more calls, and equal results need none.
        form = normal_form(self.node) if judged.fault is not None else None
        if form is not None:
            judged = self._in_normal_form(form, functions, operands, special, slopes) or judged
        self.values = max(self.values or 0.0, judged.ulp)
        return judged

    def _compared(
        self,
        functions: Functions,
        operands: list[Any],
        truth: CallReference,
        special: bool,
        slopes: bool,
        form: CallNormalForm | None = None,
    ) -> ErrorJudgement:
        promise = self.promise.ulp(truth.own)
        zeros = self.promise.signed_zeros and self.pointwise and not self._is_backward()
        allowed = Allowance(max(promise, SPECIAL_ULP) if special else promise, self.floor, signed_zeros=zeros)
        judged = self._judged(functions[2], operands, truth, allowed)
        if judged.fault is None and slopes and not special:
            judged = self._slopes(operands, *functions, form) or judged
        return judged

    def _in_normal_form(
        self, form: CallNormalForm, functions: Functions, operands: list[Any], special: bool, slopes: bool
    ) -> ErrorJudgement | None:
        """Compare results in their normal form, or, if some of them are unused, with other signs; None if they still
        differ."""
        own, wide, mine = (form.of_results(function) for function in functions)
        try:
            truth = truth_of(own, wide, operands)
        except Exception:  # some results are left out
            self.signs = True
            truth = truth_of(functions[0], functions[1], operands, signs=True)
            judged = self._compared(functions, operands, truth, special, slopes)
        else:
            judged = self._compared((own, wide, mine), operands, truth, special, slopes, form)
        return judged if judged.fault is None else None

    def _judged(self, mine: Function, operands: list[Any], truth: CallReference, allowed: Allowance) -> ErrorJudgement:
        try:
            found = as_stated(select_results(self.given, metadata(self.node)), mine(operands), truth.own)
        except Exception as error:  # the op itself ran, so the expansion is at fault
            return ErrorJudgement(float("inf"), f"fails with {type(error).__name__}: {first_line(error)}")
        if self.undefined and len(found) == len(truth.own):
            found = [_but_where(*each) for each in zip(found, truth.own, self.undefined)]
        return compare_with_reference(found, truth, allowed, pointwise=self.pointwise)

    def _slopes(
        self, operands: list[Any], own: Function, wide: Function, mine: Function, form: CallNormalForm | None
    ) -> ErrorJudgement | None:
        """Compare the gradients of the float operands, if the op has any."""
        if not self.promise.gradients or self._is_backward() or any(map(_is_prim, self.template.graph.nodes)):
            return None
        try:
            operands = _in_domain(own, operands) if self.pointwise else operands
            which = differentiable(own, operands)
            gradients: list[Function] = [functools.partial(gradients_of, each, which) for each in (own, wide, mine)]
            if form is not None:
                gradients = [form.of_gradients(each) for each in gradients]
            truth = truth_of(gradients[0], gradients[1], operands, signs=self.signs)
            truth = replace(truth, noise=noise_of(own, which, operands))
        except Exception:  # the op has no gradients
            return None
        if not truth.own:
            return None
        allowed = Allowance(max(GRADIENTS, 2 * self.promise.slopes), self.floor, self.promise.slack)
        judged = self._judged(gradients[2], operands, truth, allowed)
        if judged.fault is not None and not self.promise.kinks:
            noise = truth.noise
            # At a kink, as of `abs` at 0, a subgradient is a choice. Only `exact`
            # promises PyTorch's choice, so others are compared beside the kink.
            smooth = off_kinks(operands)
            truth = replace(truth_of(gradients[0], gradients[1], smooth, signs=self.signs), noise=noise)
            judged = self._judged(gradients[2], smooth, truth, allowed)
        if judged.fault == _NONE_OF.format(len(truth.own)):
            some = any(bool(each.any()) for each in truth.own)  # a gradient of zeros counts as none
            judged = ErrorJudgement(judged.ulp, "none where the op has some") if some else ErrorJudgement(0.0, None)
        self.gradients, self.at_slopes = max(self.gradients or 0.0, judged.ulp), judged.fault is not None
        if judged.fault is not None:
            return ErrorJudgement(judged.ulp, f"has other gradients: {judged.fault}")
        return None

    def _is_backward(self) -> bool:
        """Whether the op is a backward op: PyTorch's own formulas for second gradients are wrong too often."""
        return "backward" in str(self.node.target)


def _but_where(mine: Any, own: Any, undefined: torch.Tensor | None) -> Any:
    """The result, but for elements where the op's own is undefined."""
    if undefined is None or mine.shape != own.shape or mine.dtype != own.dtype:
        return mine
    return torch.where(undefined, own, mine)


SMALL = 2.0**-8
"""Where branches meet, and at the limits of the dtype, errors of smaller results are counted in ULP of this value:
textbook formulas cancel there."""
SPECIAL_ULP = 2.0**16
"""The allowed error in ULP of finite results on special values, where only NaN and infinity matter."""
_NONE_OF = "gives 0 tensors instead of {}"


def _is_prim(node: fx.Node) -> bool:
    """Whether it is one of torch's prims, which have no gradients (torch 2.13)."""
    return str(node.target).startswith("prims.")


def _in_domain(own: Any, operands: list[Any]) -> list[Any]:
    """The operands, mapped into the domain of the op if necessary: between 0 and 1, or above 1. Raises `NoOperands`."""
    changes: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
        lambda t: t,
        # The operands may be outside of the domain of `log`, `acosh` or `atanh`: there, gradients are NaN on both sides
        # and compare equal, whatever the rule does.
        lambda t: 0.1 + 0.8 * torch.sigmoid(t),
        lambda t: 1.1 + t.abs(),
    )
    for change in changes:
        moved: list[Any] = pytree.tree_map(functools.partial(_changed, change), list(operands))
        if all(bool(result.isfinite().all()) for result in own(moved)):
            return moved
    raise NoOperands("it is nowhere defined")


def _within(reach: tuple[float, float], operands: list[Any]) -> list[Any]:
    """The operands, clamped to the range, except infinities."""
    low, high = reach

    def within(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
            return leaf
        return torch.where(leaf.isinf(), leaf, leaf.clamp(low, high))

    return operands if low == -high == -math.inf else pytree.tree_map(within, list(operands))


def _changed(change: Callable[[torch.Tensor], torch.Tensor], operand: Any) -> Any:
    return change(operand) if isinstance(operand, torch.Tensor) and operand.is_floating_point() else operand


GRADIENTS = 256.0
"""The allowed error of gradients in ULP beyond that of the op's own: certificates measure them on fewer points."""


def _accepted(own: Any, wide: Any, choices: Iterator[list[Any]]) -> tuple[list[Any], CallReference]:
    """The first operands that the op's own kernel accepts, and its results for them. Raises `NoOperands`."""
    refusal = "no operands"
    for operands in choices:
        try:
            # Copies: operands of a run belong to the program, and a call may write to them.
            apart = from_run(operands)
            return apart, truth_of(own, wide, apart)
        except NoOperands:
            raise
        except Exception as error:  # the kernel rejects the operands
            refusal = f"the op itself refuses them: {first_line(error)}"
    raise NoOperands(refusal)


def differentiable(call: Any, operands: Sequence[Any]) -> list[int]:
    """Which of a call's results have gradients: those that are only saved for the backward pass have none."""
    with torch.enable_grad():
        results = call(pytree.tree_map(_tracked, list(operands)))
    return [i for i, result in enumerate(results) if result.requires_grad]


def gradients_of(call: Any, which: Sequence[int], operands: Sequence[Any]) -> list[torch.Tensor]:
    """The gradients of a randomly weighted sum of some results for the float operands; empty without such operands."""
    with torch.enable_grad():
        tracked = pytree.tree_map(_tracked, list(operands))
        leaves = [tensor for tensor in pytree.tensors_in(tracked) if tensor.requires_grad]
        results = call(tracked)
        draw = torch.Generator().manual_seed(0)
        pairs = [(results[i], _weights(results[i], draw)) for i in which if i < len(results)]
        pairs = [(result, weights) for result, weights in pairs if result.requires_grad]
        if not pairs or not leaves:
            return []
        found = torch.autograd.grad([t for t, _ in pairs], leaves, [w for _, w in pairs], allow_unused=True)
    # An expansion that does not depend on an operand gives None where PyTorch's formula gives zeros, and the reverse.
    return [torch.zeros_like(leaf) if g is None else g.detach() for g, leaf in zip(found, leaves)]


def noise_of(call: Any, which: Sequence[int], operands: Sequence[Any]) -> list[float]:
    """For each float operand x, the magnitude of the terms that its gradient sums, for results y weighted by w:
    max |w y| / max |x| + max |w|. They cancel in attention to one key, and in a softmax of one element."""
    results, draw = call(operands), torch.Generator().manual_seed(0)
    weighted = [(results[i], _weights(results[i], draw)) for i in which]
    size, weight = (max(map(_largest, each)) for each in zip(*((y * w, w) for y, w in weighted)))
    leaves = [leaf for leaf in pytree.tensors_in(list(operands)) if leaf.is_floating_point() or leaf.is_complex()]
    return [size / largest + weight if (largest := _largest(leaf)) else weight for leaf in leaves]


def _largest(values: torch.Tensor) -> float:
    return float(values.abs().nan_to_num(0.0, 0.0, 0.0).max()) if values.numel() else 0.0


def _tracked(leaf: Any) -> Any:
    differentiable = isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())
    return leaf.detach().clone().requires_grad_() if differentiable else leaf


def _results_wanted(node: fx.Node, template: ExpansionTemplate) -> tuple[int, ...] | None:
    """Which of several results an expansion must return: it may omit unused ones."""
    results: Any = template.graph.output_node().args[0]
    read = read_results(node)
    if read is None or not isinstance(results, (tuple, list)):
        return None
    return tuple(i for i, result in enumerate(results) if result is not None or i in read)


def _own(
    node: fx.Node, given: tuple[int, ...] | None, operands: Sequence[Any], wide: bool = False
) -> list[torch.Tensor]:
    """The results of the op itself at the positions in `given`, flat; empty tensors for missing ones."""
    values = dict(zip(node.all_input_nodes, operands))
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
    if wide:
        args, kwargs = widened((args, kwargs))
    results = select_results(given, call_target(node.target, *on_host(args, kwargs)))
    if given is not None and any(results[i] is None for i in given):
        results = [_nothing(node, i) if i in given and each is None else each for i, each in enumerate(results)]
    return pytree.tensors_in(results)


def _nothing(node: fx.Node, place: int) -> torch.Tensor:
    """Replaces a result that the kernel leaves undefined, such as the workspace for a backward pass that is not run."""
    return torch.empty(0, dtype=getattr(metadata(node)[place], "dtype", None))


def _run_template(template: ExpansionTemplate, operands: Sequence[Any]) -> list[torch.Tensor]:
    """The results of an expansion, flat."""
    return pytree.tensors_in(run_graph(template.graph, template.constants, operands))


def _phrase(verdicts: list[ExpansionVerdict]) -> str:
    """A phrase on how many expansions were measured, and why others were not."""
    done = [v for v in verdicts if v.values is not None]
    parts = [f"{len(done)} of {len(verdicts)} distinct expansions computed"]
    if done:
        most = max(verdict.values or 0.0 for verdict in done)
        parts[0] += f" and compared with the op's own kernel and float64 (at most {most:.3g} ULP)"
        parts.append(f"gradients of {sum(v.gradients is not None for v in done)} of these")
    inputs = Counter(kind for v in verdicts for kind in v.inputs)
    if inputs:
        parts.append("on " + ", ".join(f"{kind} ({count})" for kind, count in inputs.items()))
    left = Counter(v.reason for v in verdicts if v.values is None)
    parts += [f"{count} not computed: {reason}" for reason, count in left.items()]
    return ", ".join(parts)
