"""Verification of composites: with each body in the place of its calls, a graph must be the one that was outlined, call
by call, and each call must declare what was recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import fx

from decomp.errors import count_noun
from decomp.graphs.rewrite import Rewrite
from decomp.ir.agreement import shown
from decomp.ir.composites import Outlined, composites_in
from decomp.ir.module import ProgramGraph
from decomp.proof.correspondence import NotAsRecorded, OutputsChanged
from decomp.proof.replay import same, same_call


def check_outlined(own: ProgramGraph, bodies: Mapping[str, fx.Graph], lifted: Mapping[str, str], signed: int) -> str:
    """Verify a graph with composite calls against the one before. `bodies`: by attribute. `lifted`: by input that was a
    constant before the program was rebuilt, the constant. `signed`: how many of its results are written back. Raises
    `NotAsRecorded`, `OutputsChanged`."""
    record: Outlined = own.why
    assert own.before is not None
    require_recorded_composites(own.graph, record)
    inlined = inline_composites(own.graph, record, bodies)
    compared = _require_same_calls(own.before.graph, inlined, lifted, signed)
    names = sorted({made.name for made in record.calls.values()})
    calls = count_noun(len(record.calls), "composite call")
    return f"{calls} ({', '.join(names)}) inlined again: each of {compared} calls is as before, on the same operands"


def require_recorded_composites(graph: fx.Graph, record: Outlined) -> None:
    """Require that the composite calls of a graph declare what was recorded. Raises `NotAsRecorded`."""
    declared = composites_in(graph)
    if len(declared) != len(record.declared):
        raise NotAsRecorded(f"there are {len(declared)} composite calls, not {len(record.declared)}")
    for (node, found), made in zip(declared.items(), record.declared):
        if found != made:
            problem = f"{node.name!r} declares another composite than was recorded"
            raise NotAsRecorded(problem, node, expected=shown(made.meta), found=shown(found.meta))


def inline_composites(graph: fx.Graph, record: Outlined, bodies: Mapping[str, fx.Graph]) -> fx.Graph:
    """A graph with the bodies of its composite calls in their place."""
    rewrite = Rewrite.of(graph)
    # Attributes with the bodies are new, and read by composite calls alone.
    attributes = {node.args[0] for node in record.calls}
    for node in graph.nodes:
        if node in record.calls:
            body, given = _body_of(node, bodies), [rewrite.values[each] for each in node.args[1:]]
            values = rewrite.inline(body, given, lambda each, args, kwargs: _call(rewrite, each, args, kwargs))
            rewrite.replace(node, tuple(fx.map_arg(body.output_node().args[0], values.__getitem__)))
        elif node not in attributes:
            rewrite.copy(node)
    return rewrite.graph


def _body_of(node: fx.Node, bodies: Mapping[str, fx.Graph]) -> fx.Graph:
    """The body that a composite call runs, which takes as many operands as it is given."""
    attribute: Any = node.args[0]
    body = bodies.get(str(attribute.target))
    if body is None or len(body.find_nodes(op="placeholder")) != len(node.args) - 1:
        raise NotAsRecorded(f"{node.name!r} runs a body that does not take its operands", node)
    return body


def _call(rewrite: Rewrite, node: fx.Node, args: Any, kwargs: Any) -> fx.Node:
    new = rewrite.create(node.op, node.target, args, kwargs, rewrite.free(node.name))
    new.meta.update(node.meta)
    return new


def _require_same_calls(before: fx.Graph, after: fx.Graph, lifted: Mapping[str, str], signed: int) -> int:
    """The calls of the two graphs must be the same, in the same order. Returns their number."""
    calls = (node for node in after.nodes if node.op.startswith("call"))
    values = dict(_leaves(before, after, lifted))
    compared = 0
    for wanted in before.nodes:
        if wanted.op == "output":
            _require_results(wanted, after.output_node(), values, signed)
        elif wanted.op.startswith("call"):
            # In order and not by name: inlining gives the nodes of bodies new names.
            node = next(calls, None)
            compared += 1
            if node is None or node.op != wanted.op or not _same_call(node, wanted, values):
                expected, found = ((each.target, each.args, each.kwargs) if each else None for each in (wanted, node))
                problem = f"inlining the composites does not give back {wanted.name!r}"
                raise NotAsRecorded(problem, node, wanted, expected=shown(expected), found=shown(found))
            values[wanted] = node
    extra = next(calls, None)
    if extra is not None:
        raise NotAsRecorded(f"{extra.name!r} is in the body of a composite, but not in what was outlined", extra)
    return compared


def _same_call(node: fx.Node, wanted: fx.Node, values: Mapping[fx.Node, Any]) -> bool:
    # `canonical` is for overloads; another higher-order op with equal operands would pass `same_call`.
    if isinstance(wanted.target, torch._ops.HigherOrderOperator) and node.target is not wanted.target:
        return False
    return same_call(node, wanted.target, wanted.args, wanted.kwargs, values)


def _leaves(before: fx.Graph, after: fx.Graph, lifted: Mapping[str, str]) -> Iterator[tuple[fx.Node, fx.Node]]:
    """The inputs and constants of a graph with those of another, in which constants may be inputs by now."""
    inputs = {str(node.target): node for node in after.find_nodes(op="placeholder")}
    constants = {lifted[name]: node for name, node in inputs.items() if name in lifted}
    constants |= {str(node.target): node for node in after.find_nodes(op="get_attr")}
    for node in before.nodes:
        found = {"placeholder": inputs, "get_attr": constants}.get(node.op, {}).get(str(node.target))
        if found is not None:
            yield node, found


def _require_results(wanted: fx.Node, found: fx.Node, values: Mapping[fx.Node, Any], signed: int) -> None:
    results, expected = (each.args[0] for each in (found, wanted))
    if isinstance(results, (tuple, list)) and isinstance(expected, (tuple, list)):
        # The signature's writes lead the outputs, and were added after outlining.
        results, expected = list(results[signed:]), list(expected)
    if not same(results, expected, values):
        raise OutputsChanged("the outputs changed", found, wanted, expected=shown(expected), found=shown(results))
