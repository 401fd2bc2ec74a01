"""The program of an assignment: a graph that calls one module for each part, in the form of `torch.fx`'s
`CapabilityBasedPartitioner`. `fused_0`, `fused_1`, … run on the chip, `host_0`, `host_1`, … on the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
import operator
from typing import Any

import torch
from torch import fx, nn

from decomp.capture.frontends import graph_module
from decomp.capture.inputs.layouts import lay_out_in_order, order_of
from decomp.capture.lowered_module import disable_gradients
from decomp.capture.module_hooks import carry_hooks
from decomp.ir.call import metadata
from decomp.metadata.strides import inverse, same_layout
from decomp.ops import aten
from decomp.partitioning.assignment import CHIP, HOST, Assignment
from decomp.partitioning.choices import Choices, inputs_of


@dataclass(frozen=True)
class Cut:
    """One part of a program, as it was cut out."""

    name: str
    side: str
    nodes: tuple[fx.Node, ...]
    """Its calls, in the program."""
    inputs: tuple[fx.Node, ...]
    """The values that it takes, in the program."""
    outputs: tuple[fx.Node, ...]
    """The values that it returns, in the program."""
    module: fx.GraphModule
    """Its calls, as they are in the program."""


def cuts_of(choices: Choices, assignment: Assignment) -> list[Cut]:
    """The parts of an assignment, in the order in which they run."""
    members: dict[tuple[int, bool], list[fx.Node]] = {}
    for node, i in choices.number.items():
        # Sorted, this is the order host 0, chip 1, host 1, …: on one level the chip runs first.
        members.setdefault((assignment.levels[i], i not in assignment.chip), []).append(node)
    found, counts = [], {CHIP: 0, HOST: 0}
    for key in sorted(members):
        side = HOST if key[1] else CHIP
        name = f"{'fused' if side == CHIP else 'host'}_{counts[side]}"
        counts[side] += 1
        found.append(_cut(choices, name, side, members[key]))
    return found


def _cut(choices: Choices, name: str, side: str, nodes: Sequence[fx.Node]) -> Cut:
    inside, given = set(nodes), set(inputs_of(choices.program))
    read = dict.fromkeys(each for node in nodes for each in node.all_input_nodes if each not in inside)
    # Parameters are on the side that uses them and are no inputs, so that they are not transferred in each call.
    attributes = [each for each in read if each.op == "get_attr" and each not in given]
    inputs = tuple(each for each in read if each not in attributes)
    outputs = tuple(node for node in nodes if any(user not in inside for user in choices.readers(node)))
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for each in inputs:
        copies[each] = graph.placeholder(each.name)
        copies[each].meta = dict(each.meta)
    for each in (*attributes, *nodes):
        copies[each] = graph.node_copy(each, copies.__getitem__)
    results = tuple(copies[each] for each in outputs)
    # As `CapabilityBasedPartitioner` returns one result, so that its users need not tell the two apart.
    graph.output(results[0] if len(results) == 1 else results)
    return Cut(name, side, tuple(nodes), inputs, outputs, graph_module(choices.program, graph))


def program_of_parts(
    choices: Choices, cuts: Sequence[Cut], modules: Mapping[str, nn.Module], gradients: bool = True
) -> fx.GraphModule:
    """The program that calls `modules`, by name of the part, with the inputs, hooks, writes and outputs of the
    program."""
    program, graph = choices.program, fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    assigned = {node for cut in cuts for node in cut.nodes}
    outside = [node for node in program.graph.nodes if node not in assigned and node.name not in choices.erased]
    writes_and_output = [node for node in outside if node.op not in ("placeholder", "get_attr")]
    # Parameters that only parts read belong to these now.
    needed = {*inputs_of(program), *(each for node in writes_and_output for each in node.all_input_nodes)}
    for node in outside:
        if node in needed and node not in writes_and_output:
            values[node] = graph.node_copy(node)
    for cut in cuts:
        _call(graph, cut, modules[cut.name], values)
    for node in writes_and_output:
        values[node] = graph.node_copy(node, values.__getitem__)
    # The pytree of inputs and outputs, which a new graph has not.
    graph.set_codegen(program.graph._codegen)
    made = graph_module(program, graph, bodies=modules)
    carry_hooks(program, made)
    if not gradients:
        disable_gradients(made)
    return made


def _call(graph: fx.Graph, cut: Cut, module: nn.Module, values: dict[fx.Node, fx.Node]) -> None:
    """Add the call of a part, and nodes for its results."""
    made = graph.call_module(cut.name, tuple(values[each] for each in cut.inputs))
    found = tuple(metadata(each) for each in cut.outputs)
    made.meta["val"] = found[0] if len(found) == 1 else found
    actual = _results(module, len(cut.outputs))
    for i, each in enumerate(cut.outputs):
        result = made if len(cut.outputs) == 1 else graph.call_function(operator.getitem, (made, i))
        if result is not made:
            result.meta = dict(each.meta)
        values[each] = _as_laid_out(graph, result, metadata(each), actual[i])


def _results(module: nn.Module, count: int) -> Sequence[Any]:
    """The metadata of what a part returns."""
    if not isinstance(module, fx.GraphModule):
        return [None] * count
    results = module.graph.output_node().args[0]
    listed = results if isinstance(results, (tuple, list)) else (results,)
    return [metadata(each) if isinstance(each, fx.Node) else None for each in listed]


def _as_laid_out(graph: fx.Graph, node: fx.Node, expected: Any, actual: Any) -> fx.Node:
    """A value with the strides that the program has there, for parts that were traced with them: expansions may return
    results with others."""
    if not isinstance(expected, torch.Tensor) or not isinstance(actual, torch.Tensor):
        return node
    if same_layout(expected, actual):
        return node
    order = order_of(expected)
    if order is None:
        return node
    if order == tuple(range(len(order))):
        return graph.call_function(aten.contiguous.default, (node,))
    turned = graph.call_function(aten.permute.default, (node, list(order)))
    dense = graph.call_function(aten.contiguous.default, (turned,))
    return graph.call_function(aten.permute.default, (dense, inverse(list(order))))


class OnBackend(nn.Module):
    """A part that runs on a backend; its results have the strides that the program has there."""

    def __init__(self, loaded: Any, cut: Cut) -> None:
        super().__init__()
        self.loaded = loaded
        self._orders = [
            order_of(value) if isinstance(value := metadata(each), torch.Tensor) else None for each in cut.outputs
        ]

    def forward(self, *args: Any) -> Any:
        found = self.loaded(*args)
        if len(self._orders) == 1:
            return _ordered(found, self._orders[0])
        return tuple(map(_ordered, found, self._orders))


def _ordered(value: Any, order: tuple[int, ...] | None) -> Any:
    # A backend has layouts of its own, and what comes after was traced for the program's.
    if order is None or not isinstance(value, torch.Tensor) or order_of(value) == order:
        return value
    return lay_out_in_order(value, order)
