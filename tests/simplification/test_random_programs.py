"""Random programs, simplified: the same bits in results, gradients and buffers; never more calls; to a fixed point."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch

import decomp
from decomp.capture.rebuild_exported import written_inputs
from decomp.functionalize.writes import Write
from decomp.ir.module import ProgramGraph
from decomp.rules.target import MatchAllTarget
from decomp.simplification.checking import check_simplified
from decomp.simplification.laws import Laws
from decomp.simplification.simplifier import LAWS, Settings, Subject, simplify_graph
from tests.simplification.random_programs import Program, inputs

SEEDS = range(250)


def bits(value: torch.Tensor) -> torch.Tensor:
    return value.detach().contiguous().view(torch.uint8) if value.dim() else value.detach().reshape(1).view(torch.uint8)


def outcome(program: Any, gradients: bool) -> list[torch.Tensor]:
    """Results, strides, buffers after the run, and gradients."""
    (x,) = inputs()
    x.requires_grad_(gradients)
    with torch.set_grad_enabled(gradients):
        results = program(x)
    found = [bits(each) for each in results] + [torch.tensor(each.stride()) for each in results]
    found.append(bits(program.get_buffer("buffer")))
    if gradients:
        loss = sum((each.float() * (i + 1)).sum() for i, each in enumerate(results) if each.requires_grad)
        if isinstance(loss, torch.Tensor):
            loss.backward()
        leaves = [x, *program.parameters()]
        found += [bits(leaf.grad + 0.0) for leaf in leaves if leaf.grad is not None]
        found.append(torch.tensor([leaf.grad is not None for leaf in leaves]))
    return found


def exported(seed: int) -> Any:
    return torch.export.export(Program(seed), inputs())


def calls(program: Any) -> int:
    return sum(node.op.startswith("call") for node in program.graph.nodes)


def same(program: Any, other: Any, gradients: bool) -> bool:
    one, two = (outcome(copy.deepcopy(each.module()), gradients) for each in (program, other))
    return len(one) == len(two) and all(map(torch.equal, one, two))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", SEEDS)
def test_results_gradients_and_buffers_keep_their_bits(seed):
    program = exported(seed)
    simple = decomp.simplify(program)
    assert calls(simple) <= calls(program)
    assert same(program, simple, gradients=True)
    assert same(program, decomp.simplify(program, training=False), gradients=False)
    assert same(program, decomp.simplify(program, freeze=True), gradients=False)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", SEEDS)
def test_it_is_a_fixed_point_in_any_order_of_the_laws(seed):
    program = exported(seed)
    names = written_inputs(program)
    written = tuple(node for node in program.graph.nodes if node.name in names)
    subject = Subject.of(ProgramGraph(program.graph, program.graph_module), MatchAllTarget("any"), program)
    settings = Settings(training=False)
    forms = set()
    for order in range(3):
        laws = list(LAWS)
        random.Random(order).shuffle(laws)
        found = simplify_graph(subject, settings, Laws(laws))
        if found is None:
            forms.add(None)
            continue
        check_simplified(found)
        forms.add(str([(n.op, n.target, n.args, n.kwargs) for n in renamed(found.graph)]))
        moved = (found.rewrite.values[node] for node in written)
        own = ProgramGraph(found.graph, program.graph_module, writes=tuple(Write(node, node) for node in moved))
        again = Subject.of(own, MatchAllTarget("any"), program)
        assert simplify_graph(again, settings, Laws(laws)) is None
    assert len(forms) == 1


def renamed(graph: Any) -> Any:
    """The nodes of a graph, their names being their places."""
    for i, node in enumerate(graph.nodes):
        node.name = f"n{i}"
    return graph.nodes


def test_the_programs_have_what_the_laws_are_about():
    applied = set()
    for seed in SEEDS:
        program = decomp.simplify(exported(seed), training=False)
        applied |= set(program.graph_module.meta["simplified"]["laws"])
        if len(applied) >= 15:
            return
    raise AssertionError(sorted(applied))
