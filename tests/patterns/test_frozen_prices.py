"""The cost of patterns in a frozen program, where computation on weights costs nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import decomp
from decomp.errors import ArgumentError
from decomp.patterns.terms import op_name

# The op is this module's own and lives as long as it does, though TorchFix asks for a library that is torn down.
library = torch.library.Library("frozen_prices", "DEF")
library.define("linear_relu(Tensor x, Tensor w, Tensor? b) -> Tensor")
library.impl("linear_relu", lambda x, w, b: torch.relu(F.linear(x, w, b)), "CompositeImplicitAutograd")
linear_relu = torch.ops.frozen_prices.linear_relu
chip = decomp.Target("chip", ["linear", "relu", "mul", "neg", "add", "exp", linear_relu])
x = torch.rand(2, 4)

folding = decomp.Rules()


@folding.pattern(lambda x, w, v, b: F.relu(F.linear(x, w, b)) * v)
def folded(x, w, v, b):
    return linear_relu(x, w * v.neg().neg(), b * v)


class Scaled(nn.Module):
    """A layer and its scale; the weight of the layer is the parameter, or computed from it."""

    def __init__(self, weight=lambda w: w, scale=lambda x, v: v):
        super().__init__()
        torch.manual_seed(0)
        self.w, self.v, self.b = (nn.Parameter(torch.rand(size)) for size in ((3, 4), (1,), (3,)))
        self.weight, self.scale = weight, scale

    def forward(self, x):
        return F.relu(F.linear(x, self.weight(self.w), self.b)) * self.scale(x, self.v)


def targets(program):
    return [op_name(node).rsplit(".", 1)[-1] for node in program.graph.nodes if node.op.startswith("call")]


def captures(model):
    return (model, {"args": (x,)}), (torch.export.export(model, (x,)), {})


@pytest.mark.parametrize("cost", [None, lambda call: 1, decomp.costs.calls])
def test_what_an_expansion_computes_from_weights_costs_nothing_in_a_frozen_program(cost):
    for program, given in captures(Scaled()):
        lowered = decomp.lower(program, to=chip, rules=folding, freeze=True, cost=cost, **given)
        assert targets(lowered.result) == ["linear_relu"]
        runs = lowered.result if isinstance(lowered.result, nn.Module) else lowered.result.module()
        torch.testing.assert_close(runs(x), Scaled()(x))
        assert decomp.plan(program, to=chip, rules=folding, freeze=True, cost=cost, **given).patterns[0].taken


def test_without_freezing_it_has_its_price_and_the_plan_says_what_freezing_would_change():
    for program, given in captures(Scaled()):
        lowered = decomp.lower(program, to=chip, rules=folding, **given)
        assert targets(lowered.result) == ["linear", "relu", "mul"]
        (missed,) = lowered.plan.patterns[0].missed
        assert missed.reason == "costs 5, the calls that it replaces 3; with freeze=True 1"
        assert decomp.lower(program, to=chip, rules=folding, freeze=True, **given).plan.patterns[0].taken
        (missed,) = decomp.plan(program, to=chip, rules=folding, **given).patterns[0].missed
        assert missed.reason == "costs 5, the calls that it replaces 3; with freeze=True 1"
        (missed,) = decomp.plan(program, to=chip, rules=folding, training=True, **given).patterns[0].missed
        assert missed.reason == "costs 5, the calls that it replaces 3"


def test_what_is_computed_from_weights_before_the_match_is_a_constant_too():
    model = Scaled(weight=lambda w: w.exp() + 1)
    assert targets(decomp.lower(model, to=chip, rules=folding, freeze=True, args=(x,)).result) == ["linear_relu"]


def test_what_depends_on_an_input_has_its_price():
    model = Scaled(scale=lambda x, v: x.sum())
    plan = decomp.plan(model, to=chip | {"sum"}, rules=folding, freeze=True, args=(x,))
    assert [missed.reason for missed in plan.patterns[0].missed] == ["costs 5, the calls that it replaces 3"]


def test_what_the_program_writes_has_its_price():
    class Counting(Scaled):
        def __init__(self):
            super().__init__()
            del self.v
            self.register_buffer("v", torch.ones(1))

        def forward(self, x):
            result = super().forward(x)
            self.v.add_(1)
            return result

    for program, given in captures(Counting()):
        plan = decomp.plan(program, to=chip, rules=folding, freeze=True, **given)
        assert [missed.reason for missed in plan.patterns[0].missed] == ["costs 5, the calls that it replaces 3"]


def test_calls_on_weights_that_a_match_replaces_cost_nothing_either():
    scaling = decomp.Rules()
    scaling.pattern(lambda x, w, v, b: F.relu(F.linear(x, w * v, b)), name="inputs")(
        lambda x, w, v, b: linear_relu(x * v, w, b)
    )
    model = Scaled()
    model.forward = lambda x: F.relu(F.linear(x, model.w * model.v, model.b))
    assert targets(decomp.lower(model, to=chip, rules=scaling, args=(x,)).result) == ["mul", "linear_relu"]
    frozen = decomp.lower(model, to=chip, rules=scaling, freeze=True, args=(x,))
    assert targets(frozen.result) == ["linear", "relu"]
    assert frozen.plan.patterns[0].missed[0].reason == "costs 2, the calls that it replaces 2"

    scaling = decomp.Rules()
    scaling.pattern(lambda x, w, v, b: F.relu(F.linear(x, w * v, b)), name="weights")(
        lambda x, w, v, b: linear_relu(x, (w * v).neg().neg(), b)
    )
    plan = decomp.plan(model, to=chip, rules=scaling, args=(x,))
    reason = "costs 4, the calls that it replaces 3; with freeze=True 1, they 2"
    assert plan.patterns[0].missed[0].reason == reason


def test_a_plan_of_a_frozen_program_that_trains_is_refused():
    with pytest.raises(ArgumentError, match="freeze=True makes parameters constants, which cannot train"):
        decomp.plan(Scaled(), to=chip, args=(x,), freeze=True, training=True)
