"""The cost of calls under a compiler that fuses."""

import pytest
import torch
from torch.nn import functional as F

import decomp
from decomp import costs
from decomp_rules import targets
from tests.costs.test_counting import price
from tests.forms import Holder

X = torch.ones(3, 4)


@pytest.mark.parametrize(
    ("function", "args", "additions"),
    [
        (torch.add, (X, X), 12),
        (torch.exp2, (X,), 12 * 28),
        (torch.sum, (X,), 12),
        (lambda x: x.view(12), (X,), 0),
        (lambda: torch.full((3, 4), 2.0), (), 0),
        (lambda x: torch.ops.aten._to_copy(x, dtype=torch.float64), (X,), 12 * 4),
        (lambda x, i: torch.take(x, i), (X, torch.tensor([1, 2])), 2 * 100),
        (torch.mm, (X, X.t()), 2 * 3 * 3 * 4),
    ],
)
def test_a_call_costs_as_many_additions_as_it_takes(function, args, additions):
    assert price(costs.fused, function, *args) == additions


def lowered(cost=None, accuracy="standard", to=targets.tinygrad):
    how = {"to": to, "args": (torch.randn(8, 8),), "training": False}
    return decomp.lower(Holder(F.silu), cost=cost, accuracy=accuracy, **how).report().after


def test_powers_of_two_are_put_together_from_bits_where_functions_are_dear():
    assert lowered()["aten.exp2.default"] == 2
    assert "aten.exp2.default" not in lowered(costs.fused)


@pytest.mark.parametrize(
    ("accuracy", "to", "by"),
    [
        ("standard", targets.tinygrad, {"cost": costs.fused}),
        ("exact", targets.tinygrad, {"accuracy": "exact"}),
        ("standard", targets.tinygrad.with_costs(costs.calls), {}),
    ],
    ids=["standard", "exact", "costs of the target"],
)
def test_inductor_is_given_what_costs_it_least_unless_somebody_says_otherwise(accuracy, to, by, monkeypatch):
    seen = []

    def lower(*args, **kwargs):
        seen.append(decomp.lower(*args, **kwargs))
        return seen[-1]

    monkeypatch.setattr("decomp.backends.lower", lower)
    monkeypatch.setattr("decomp.backends._inner_compiler", lambda *args: lambda graph, inputs, is_backward: graph)
    compiled = torch.compile(Holder(F.silu), backend=decomp.backend(to=to, accuracy=accuracy, compiler="inductor"))
    with torch.no_grad():
        compiled(torch.randn(8, 8))
    assert seen[0].report().after == lowered(**by)
