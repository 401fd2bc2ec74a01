"""A simplified program is as simple as it can be, and the same whichever law is asked first: programs where two laws
apply to one call, and where what a call is surrounded by changed while others were simplified."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from decomp.ir.module import ProgramGraph
from decomp.rules.target import MatchAllTarget
from decomp.simplification.checking import check_simplified
from decomp.simplification.laws import Laws
from decomp.simplification.simplifier import LAWS, Settings, Subject, simplify_graph

aten = torch.ops.aten
pad = aten.constant_pad_nd.default


class Of(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.arange(12.0).reshape(3, 4) - 5)

    def forward(self, x: Tensor) -> Any:
        return self.function(x, self.weight)


def cast(x: Tensor) -> Tensor:
    return aten._to_copy.default(x, dtype=torch.float32)


def copy_between(x: Tensor, _: Tensor) -> Any:
    copied = cast(x.exp())
    return copied, cast(copied).neg()


def views_of_equals(x: Tensor, _: Tensor) -> Any:
    one, other = ((x * x).reshape(-1).exp().reshape(3, 4) for _ in range(2))
    return one.signbit(), other.reshape(-1).reshape(3, 4)


def base_no_longer(x: Tensor, _: Tensor) -> Any:
    full = torch.full((1, 1), 2.0)
    turned = full.t()
    return turned.t(), turned.signbit()


def copy_of_a_constant(x: Tensor, weight: Tensor) -> Any:
    same = (weight.permute(1, 0) == 1).logical_not()
    return same.flatten().view(6, 2), same.any()


def two_broadcast(x: Tensor, weight: Tensor) -> Tensor:
    return x[0].expand(1, 3, 4) * weight.unsqueeze(0)


def permuted_and_returned(x: Tensor, _: Tensor) -> Any:
    same = x.permute(0, 1)
    return x, same, same.permute(0, 1).exp()


def padded_by_nothing(x: Tensor, _: Tensor) -> Any:
    padded = pad(x, [1, 0])
    return pad(padded, [0, 0, 0, 0]).exp(), padded.neg()


def sliced_as_a_whole(x: Tensor, _: Tensor) -> Any:
    part = x[:, 1:]
    return part[:, -3:].exp(), part.neg()


def full_spelled_otherwise(x: Tensor, _: Tensor) -> Any:
    full = torch.full((3, 4), True, dtype=torch.float32)
    return full.view(3, 4).signbit(), full.neg()


def flat_with_gradients(_: Tensor, weight: Tensor) -> Any:
    base = weight.exp()
    one, other = (base.view(2, 6).flatten() for _ in range(2))
    return one.sin() * other.cos()


ASKED = Settings(training=False)
CASES: dict[str, tuple[Callable[..., Any], Settings, list[str]]] = {
    "a cast of a cast that is returned": (copy_between, ASKED, ["exp", "_to_copy", "neg"]),
    "views of calls that became one, one of them returned": (
        views_of_equals,
        ASKED,
        ["mul", "reshape", "exp", "reshape", "signbit"],
    ),
    "what a result was a view of": (base_no_longer, ASKED, ["full", "signbit"]),
    "a constant of which a result is a copy": (copy_of_a_constant, Settings(freeze=True), ["reshape", "any"]),
    "two operands of which one must be broadcast": (two_broadcast, ASKED, ["select", "unsqueeze", "mul"]),
    "a permutation that is returned": (permuted_and_returned, ASKED, ["permute", "exp"]),
    "padding by nothing": (padded_by_nothing, ASKED, ["constant_pad_nd", "exp", "neg"]),
    "a slice that is the whole": (sliced_as_a_whole, ASKED, ["slice", "exp", "neg"]),
    "a tensor that is full of another spelling": (full_spelled_otherwise, ASKED, ["full", "signbit", "neg"]),
    "views by other ops that have gradients": (flat_with_gradients, Settings(), ["exp", "view", "sin", "cos", "mul"]),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", CASES)
def test_once_is_enough_whichever_law_is_asked_first(name):
    function, settings, expected = CASES[name]
    program = torch.export.export(Of(function), (torch.ones(3, 4),))
    subject, forms = (
        Subject.of(ProgramGraph(program.graph, program.graph_module), MatchAllTarget("any"), program),
        set(),
    )
    for laws in (Laws(LAWS), Laws(LAWS[::-1])):
        found = simplify_graph(subject, settings, laws)
        check_simplified(found)
        forms.add(str(found.graph))
        own = ProgramGraph(found.graph, program.graph_module, constants=found.constants)
        again = Subject.of(own, MatchAllTarget("any"), program)
        assert simplify_graph(again, settings, laws) is None
        assert [str(n.target).split(".")[1] for n in found.graph.nodes if n.op == "call_function"] == expected
    assert len(forms) == 1
