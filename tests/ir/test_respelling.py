"""One overload for each op, regardless of its spelling in the program."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx, nn

import decomp
from decomp.ir import spellings
from decomp.ir.ops import types_of
from decomp.ir.respelling import canonical, respell
from decomp_rules import targets

aten = torch.ops.aten


class Masks(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        mask = (x > 0) & (x < 1) | (x == 2)
        return torch.where(mask ^ (x > 3), torch.multiply(x, 2), torch.swapaxes(x, axis0=0, axis1=1))


def spelled(graph: fx.Graph) -> set[str]:
    return {str(node.target) for node in graph.nodes if node.op == "call_function"}


def functional_aliases() -> list[torch._ops.OpOverload]:
    packets = [getattr(aten, name) for name in spellings.ALIASES]
    overloads = [getattr(packet, name) for packet in packets for name in packet.overloads()]
    return [o for o in overloads if not o._schema.is_mutable and "Tensor" in str(o._schema.returns[0].type)]


@pytest.mark.parametrize("overload", functional_aliases(), ids=str)
def test_every_overload_of_an_alias_has_one_of_the_op_that_takes_the_same(overload: torch._ops.OpOverload) -> None:
    own = canonical(overload)
    assert own is not overload and types_of(own) == types_of(overload)
    assert own._schema.name.removeprefix("aten::") == spellings.ALIASES[overload._schema.name.removeprefix("aten::")]


@pytest.mark.parametrize("target", [targets.core_aten, targets.tinygrad])
def test_what_is_copied_is_spelled_as_backends_dispatch_on_it(target: decomp.Target) -> None:
    x = torch.arange(9.0).reshape(3, 3)
    program = torch.export.export(Masks(), (x,))
    assert "aten.__and__.Tensor" in spelled(program.graph)
    for _ in range(2):  # the second lowering finds the overloads remembered
        low = decomp.lower(program, to=target)
        assert torch.equal(low.result.module()(x), Masks()(x))
        assert {"aten.bitwise_and.Tensor", "aten.bitwise_or.Tensor"} <= spelled(low.result.graph)
        calls = [node.target for node in low.result.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
        assert calls == [canonical(overload) for overload in calls]


def test_the_source_keeps_its_spelling_and_so_does_what_decompose_leaves() -> None:
    x = torch.rand(3, 3)
    program = torch.export.export(Masks(), (x,))
    before = spelled(program.graph)
    decomp.lower(program, to=targets.core_aten)
    assert spelled(program.graph) == before
    assert spelled(decomp.decompose(program, decomp.Rules()).graph) == before


def test_keywords_and_defaults_are_those_of_the_op() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    turned = graph.call_function(aten.swapaxes.default, (x,), {"axis0": 0, "axis1": 1})
    rounded = graph.call_function(aten.special_round.default, (turned,))
    graph.output(rounded)
    respell(graph, {aten.swapaxes.default, aten.special_round.default})
    assert (turned.target, turned.kwargs) == (aten.transpose.int, {"dim0": 0, "dim1": 1})
    assert (rounded.target, rounded.kwargs) == (aten.round.decimals, {"decimals": 0})
