"""Results with memory of their own. A rule may return its input (a product along a dimension of size one), which does
not matter inside a program; but a caller may write to the result of an op that returns new memory, and must not thereby
write an input, or values that the rule's ops saved for the backward pass. And where no gradients are recorded, an input
may require a gradient that the result of the op does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from decomp.derive.expansion import Expansion
from decomp.functionalize.gradients import GradientSources, depends_on
from decomp.functionalize.writes import can_require_grad
from decomp.graphs.rewrite import Rewrite
from decomp.graphs.template import ExpansionTemplate, InnerCall
from decomp.graphs.tracing import without_guards
from decomp.ir.aliases import is_same_tensor, is_view_on_meta, requires_on_meta, spelling_of, view_bases, view_chain
from decomp.ir.arguments import nodes_in
from decomp.ir.call import metadata
from decomp.ir.effects import recorded_behind
from decomp.ir.op_facts import SAVES_ITS_RESULT
from decomp.ir.ops import of_function
from decomp.ops import aten

if TYPE_CHECKING:
    from decomp.derive.decisions import Decision, Derived
    from decomp.derive.planner import Planner


def separate_results(graph: fx.Graph, decisions: dict[fx.Node, Decision], planner: Planner) -> None:
    """Make expansions copy results that leave the program, and are new memory by the op's contract, if they would
    return an input or a tensor saved for the backward pass. If the target cannot copy, and in `decompose`, they are
    left unchanged."""
    if planner.everywhere:
        return
    for node in _leaving(graph):
        template = getattr(decisions.get(node), "template", None)
        # A view of an operand by contract: callers know that writing to it writes the operand.
        if template is None or view_bases(node):
            continue
        given = _results_of_inputs(template.graph)
        # Composite ops may return their operand without saying so
        # (`aten.dropout` in evaluation); callers saw that, too.
        if given and not _gives_argument(node):
            _call_on_results(aten.clone.default, given, node, decisions, planner)
        # If the op itself saves its result, as `exp` does, PyTorch refuses a write to it, too.
        elif planner.rules.trains and spelling_of(node).op.short not in SAVES_ITS_RESULT:
            _call_on_results(aten.clone.default, _results_saved(template.graph), node, decisions, planner)


def detach_results(graph: fx.Graph, decisions: dict[fx.Node, Decision], planner: Planner, recorded: bool) -> None:
    """Make expansions detach results that are inputs, where no gradients are recorded and the op returns a new tensor.
    `recorded`: whether gradients are recorded at the beginning of the graph."""
    # In order, as markers switch gradients on and off between the nodes.
    for node in graph.nodes:
        recorded = recorded_behind(node, recorded)
        template = getattr(decisions.get(node), "template", None)
        if template is None or recorded or any(is_same_tensor(node, base) for base in view_bases(node)):
            continue
        given = [each for each in _results_of_inputs(template.graph) if can_require_grad(metadata(each))]
        _call_on_results(aten.detach.default, given, node, decisions, planner)


def connect_results(
    graph: fx.Graph, decisions: dict[fx.Node, Decision], planner: Planner, tracks: GradientSources, recorded: bool
) -> None:
    """Make results of expansions depend, with a gradient of zero, on operands that may require a gradient and on which
    those of the op depend, such as `copysign` on its sign: they then require a gradient as well."""
    if planner.everywhere or not planner.rules.trains or planner.mode is None:
        return
    for node in graph.nodes:
        recorded = recorded_behind(node, recorded)
        template = getattr(decisions.get(node), "template", None)
        # Where gradients are off, the op's result requires none.
        if template is None or not recorded:
            continue
        slots = tuple(i for i, given in enumerate(node.all_input_nodes) if tracks.may_require_grad(given))
        # By expansion and operands: running the op on meta tensors for
        # each of many equal calls would take longer than planning.
        known = planner.memory.connected.get((template, slots))
        if known is None:
            known = planner.memory.connected[template, slots] = _connect_operands(node, decisions[node], slots, planner)
        if known is not template:
            derived: Any = decisions[node]
            decisions[node] = replace(derived, template=known)


def _connect_operands(node: fx.Node, derived: Any, slots: Sequence[int], planner: Planner) -> ExpansionTemplate:
    """The expansion of a call whose operands at `slots` may require a gradient, with its results connected to these."""
    template: ExpansionTemplate = derived.template
    lacking = _unconnected(node, template.graph, slots)
    if not lacking:
        return template
    rewrite = Rewrite.of(template.graph)
    for each in template.graph.nodes:
        if each.op == "output":
            calls = _calls_through(rewrite, template)
            for result, operands in lacking:
                for operand in operands:
                    rewrite.values[result] = _add_dependence(rewrite, result, operand)
        rewrite.copy(each)
    if planner.kept is not None:
        planner.kept.depth = 1  # for the calls that are added
    connected = Expansion(derived.rule, rewrite.graph, dict(template.constants), calls)
    made = planner.reach(connected, planner.request(node), 0)
    return made if isinstance(made, ExpansionTemplate) else template


def _unconnected(node: fx.Node, graph: fx.Graph, slots: Sequence[int]) -> list[tuple[fx.Node, list[fx.Node]]]:
    """The results of an expansion of `node` that autograd does not see depend on operands on which those of the op
    depend; each with these operands."""
    operands, found = graph.find_nodes(op="placeholder"), []
    results = list(nodes_in(graph.output_node().args[0]))
    if isinstance(metadata(node), (tuple, list)) and len(results) != len(metadata(node)):
        # Unread results were left out, so that positions no longer say which result of the op is which.
        return []
    # 8-bit floats are skipped: they have no arithmetic with which to connect them.
    for place, result in enumerate(results):
        if not can_require_grad(metadata(result)) or metadata(result).dtype.itemsize == 1:
            continue
        reached = depends_on(result)
        lacking = [
            operands[i]
            for i in slots
            if operands[i] not in reached and not _is_of_another(node, i, place) and _requires_by(node, i, place)
        ]
        found += [(result, lacking)] if lacking else []
    return found


def _is_of_another(node: fx.Node, slot: int, place: int) -> bool:
    """Whether an operand of an op on lists is not among the elements, one of each list, of which it computes the result
    at `place`: autograd says of all results that they require a gradient, and passes none to other elements."""
    if not spelling_of(node).op.short.startswith("_foreach_"):
        return False
    given = [arg[place] if isinstance(arg, (list, tuple)) else arg for arg in (*node.args, *node.kwargs.values())]
    return node.all_input_nodes[slot] not in given


def _requires_by(node: fx.Node, slot: int, place: int) -> bool:
    """Whether a result of the op requires a gradient if only the operand at `slot` does."""
    with torch.enable_grad():
        found = requires_on_meta(node, node.all_input_nodes[slot])
    return place < len(found) and found[place]


def _add_dependence(rewrite: Rewrite, result: fx.Node, operand: fx.Node) -> fx.Node:
    """`result` − 0, with a 0 that depends on `operand`. (−0 − 0 is −0.)"""
    # Its gradient with respect to its operand is zero in every formula, and `mul` by 0 would make NaN of infinities.
    zero = _add_call(rewrite, aten.fill.Scalar, (rewrite.values[operand], 0), result)
    if metadata(zero).shape != metadata(result).shape:
        # A sum broadcasts to any shape, whatever the shapes of operand and result.
        zero = _add_call(rewrite, aten.sum.default, (zero,), result)
    if metadata(zero).dtype != metadata(result).dtype:
        # Promotion would otherwise change the result's dtype: a float32 zero added to bfloat16.
        zero = _add_call(rewrite, aten._to_copy.default, (zero,), result, {"dtype": metadata(result).dtype})
    # `add` would make +0 of −0.
    return _add_call(rewrite, aten.sub.Tensor, (rewrite.values[result], zero), result)


def _add_call(rewrite: Rewrite, target: Any, args: tuple[Any, ...], at: fx.Node, kwargs: Any = None) -> fx.Node:
    new = rewrite.add("call_function", target, args, kwargs or {}, f"{at.name}_{of_function(target).op.short}", at=at)
    given = fx.map_arg(args, metadata)
    mode = metadata(args[0]).fake_mode
    with mode, without_guards(mode):
        new.meta["val"] = target(*given, **(kwargs or {}))
    return new


def _call_on_results(
    call: torch._ops.OpOverload,
    given: list[fx.Node],
    node: fx.Node,
    decisions: dict[fx.Node, Decision],
    planner: Planner,
) -> None:
    """Append a call to some results of the expansion of `node`, if the target has a lowering for it."""
    if not given:
        return
    if planner.kept is not None:
        planner.kept.depth = 1  # for the calls that are added
    derived: Any = decisions[node]
    template = planner.reach(_with_call(call, given, derived), planner.request(node), 0)
    if isinstance(template, ExpansionTemplate):
        decisions[node] = replace(derived, template=template)


def _leaving(graph: fx.Graph) -> list[fx.Node]:
    """The nodes that reach the output, including through views."""
    results = graph.output_node().all_input_nodes
    return list(dict.fromkeys(each for result in results for each in view_chain(result)))


def _gives_argument(node: fx.Node) -> bool:
    """Whether the op shares memory with an argument although its schema does not say so, as composite ones may."""
    tensors = (given for given in node.all_input_nodes if isinstance(metadata(given), torch.Tensor))
    return any(is_view_on_meta(node, given) for given in tensors)


def _results_of_inputs(graph: fx.Graph) -> list[fx.Node]:
    """The results of an expansion that share memory with an input."""
    results = graph.output_node().all_input_nodes
    return [node for node in results if _reaches_input(node)]


def _results_saved(graph: fx.Graph) -> list[fx.Node]:
    """The results of an expansion that are saved for the backward pass by the calls that compute them, or views of such
    results."""
    results = graph.output_node().all_input_nodes
    return [node for node in results if can_require_grad(metadata(node)) and _is_saved(node)]


def _is_saved(node: fx.Node) -> bool:
    computed = view_chain(node)[-1]
    return computed.op == "call_function" and spelling_of(computed).op.short in SAVES_ITS_RESULT


def _reaches_input(node: fx.Node) -> bool:
    """Whether a value is an input or a view of one; for calls that may copy, storages are compared."""
    return any(each.op == "placeholder" and _may_share(node, each) for each in view_chain(node))


def _may_share(one: fx.Node, two: fx.Node) -> bool:
    values = [metadata(one), metadata(two)]
    if not all(isinstance(value, torch.Tensor) and value.layout is torch.strided for value in values):
        # Memory of a sparse tensor or of none is not compared: a copy too many is only slower.
        return True
    one_storage, other = (value.untyped_storage()._cdata for value in values)
    return bool(one_storage == other)


def _with_call(call: torch._ops.OpOverload, given: list[fx.Node], derived: Derived) -> Expansion:
    """The flat expansion, with a call on each of the results `given`."""
    flat = derived.template.graph
    rewrite = Rewrite.of(flat)
    for node in flat.nodes:
        if node.op == "output":
            calls = _calls_through(rewrite, derived.template)
            # Before the output is copied, so that it takes the new values.
            for result in given:
                rewrite.replace(result, _called(rewrite, call, result))
        rewrite.copy(node)
    return Expansion(derived.rule, rewrite.graph, dict(derived.template.constants), calls)


def _calls_through(rewrite: Rewrite, template: ExpansionTemplate) -> tuple[InnerCall, ...]:
    """The calls of which a flat expansion consists, in its copy."""
    return tuple(each.through(rewrite.values.__getitem__) for each in template.calls)


def _called(rewrite: Rewrite, call: torch._ops.OpOverload, node: fx.Node) -> fx.Node:
    name = f"{node.name}_{of_function(call).op.short}"
    new = rewrite.add("call_function", call, (rewrite.values[node],), {}, name, at=node)
    value = metadata(node)
    if value is not None:
        # The copy of a symbolic tensor may compare its strides.
        with value.fake_mode, without_guards(value.fake_mode):
            new.meta["val"] = call(value)
    return new
