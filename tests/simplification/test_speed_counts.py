"""The speed of simplification, as counts: each node costs a bounded number of calls, metadata is made without the fake
mode, legality is found out once a signature, and laws that may not be applied are not asked."""

from __future__ import annotations

from collections.abc import Callable
import functools
import sys
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks import programs
import decomp
from decomp.simplification import simplifier
from decomp.simplification.laws import law
from decomp.simplification.new_calls import NewCalls
from decomp.simplification.terms import TermCall
from decomp_rules import targets

aten = torch.ops.aten


@functools.cache
def lowered(layers: int, name: str) -> torch.export.ExportedProgram:
    """Transformer layers, lowered and not simplified."""
    return decomp.lower(programs.transformer(layers), to=getattr(targets, name), simplify=False).result


def calls(of: Callable[[], Any]) -> int:
    """How many Python functions and builtins something calls, when it is done for the second time."""
    count = 0

    def profile(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    of()
    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        of()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name, most", [("tinygrad", 340), ("core_aten", 600)])
def test_calls_for_each_node_are_few_and_as_many_in_a_longer_program(name, most):
    short, long = lowered(3, name), lowered(12, name)
    few, many = (calls(lambda: decomp.simplify(program)) for program in (short, long))
    assert many - few < most * (len(long.graph.nodes) - len(short.graph.nodes))
    assert many < 4.2 * few


def test_metadata_of_calls_that_are_put_above_views_costs_no_run_of_the_fake_mode(monkeypatch):
    program = lowered(3, "core_aten")
    dispatch, seen = FakeTensorMode.dispatch, []

    def counting(self, func, *args, **kwargs):
        seen.append(func)
        return dispatch(self, func, *args, **kwargs)

    monkeypatch.setattr(FakeTensorMode, "dispatch", counting)
    found = decomp.simplify(program)
    made = [node for node in found.graph.nodes if "_inner" in node.name]
    assert len(made) >= 3 and all("val" in node.meta for node in made)
    assert len(seen) == sum("_frozen" in node.name for node in found.graph.nodes) < 2


def test_legality_is_asked_about_once_a_signature(monkeypatch):
    programs_of_both = lowered(3, "stablehlo"), lowered(6, "stablehlo")
    legal, asked = NewCalls._is_legal, []

    def counting(self, call):
        asked.append(call)
        return legal(self, call)

    monkeypatch.setattr(NewCalls, "_is_legal", counting)
    found = []
    for program in programs_of_both:
        decomp.simplify(program, to=targets.stablehlo)
        found.append(len(asked))
        asked.clear()
    assert 0 < found[0] == found[1]


def test_laws_that_change_gradients_are_not_asked_where_there_are_some(monkeypatch):
    asked = []

    @law("no_ops", aten.add.Tensor, gradients=False)
    def nothing(call: TermCall) -> None:
        asked.append(call.value.dtype)

    class Sums(torch.nn.Module):
        def forward(self, x, i):
            return x + x, i + i

    program = torch.export.export(Sums(), (torch.ones(2), torch.ones(2, dtype=torch.int64)))
    monkeypatch.setattr(simplifier, "LAWS", (nothing,))
    decomp.simplify(program)
    assert asked == [torch.int64]
    decomp.simplify(program, training=False)
    assert asked == [torch.int64, torch.float32, torch.int64]
