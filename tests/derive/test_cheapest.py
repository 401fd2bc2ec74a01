"""The cheapest way, against all ways: small systems of rules, circles and rules that wrap their own op included, for
each of which every derivation can be tried."""

from __future__ import annotations

from functools import reduce
import math

from hypothesis import given, settings, strategies as st
import pytest
import torch
from torch import nn

import decomp
from decomp import costs
from decomp_rules import targets

X = torch.ones(3)
PRIMITIVES = ("sin", "cos", "exp")
DERIVED = ("tanh", "relu", "sigmoid", "erf")
CHIP = decomp.Target("chip", PRIMITIVES)

ways = st.lists(st.lists(st.sampled_from(PRIMITIVES + DERIVED), min_size=1, max_size=3), min_size=1, max_size=3)
systems = st.fixed_dictionaries({name: ways for name in DERIVED})
"""By op, its alternatives; each calls ops one after the other."""
prices = st.fixed_dictionaries({name: st.sampled_from([0, 1, 1, 2, 3, 7]) for name in PRIMITIVES})
programs = st.lists(st.sampled_from(DERIVED), min_size=1, max_size=3)


def rules_of(system):
    rules = decomp.Rules()
    for name, alternatives in system.items():
        for place, called in enumerate(alternatives):
            rules.register(name, name=f"{name} {place}")(applying(called))
    return rules


def applying(names):
    """A function that applies ops one after the other."""
    return lambda x: reduce(lambda value, name: getattr(torch, name)(value), names, x)


class Program(nn.Module):
    def __init__(self, names):
        super().__init__()
        self.names = names

    def forward(self, x):
        return applying(self.names)(x)


def least(system, price, name, above=()):
    """The cost of the cheapest derivation in which no op recurses on itself; infinity if there is none."""
    if name in price:
        return price[name]
    if name in above:
        return math.inf
    ways = (sum(least(system, price, each, (*above, name)) for each in called) for called in system[name])
    return min(ways)


@settings(max_examples=40, deadline=None)
@given(systems, prices, programs)
def test_each_op_takes_the_cheapest_of_all_derivations(system, price, program):
    rules, table = rules_of(system), costs.table(price)
    wanted = [least(system, price, name) for name in program]
    plan = decomp.plan(Program(program), to=CHIP, rules=rules, args=(X,), cost=table)
    found = [costs.total(derived.template.graph, table) for derived in plan.derived.values()]
    assert found == [each for each in wanted if each < math.inf]
    assert len(plan.blocked) == sum(each == math.inf for each in wanted)


@settings(max_examples=15, deadline=None)
@given(systems, prices, programs)
def test_what_is_executed_costs_what_was_promised(system, price, program):
    rules, table = rules_of(system), costs.table(price)
    wanted = sum(least(system, price, name) for name in program)
    if wanted == math.inf:
        with pytest.raises(decomp.NotLowered):
            decomp.lower(Program(program), to=CHIP, rules=rules, args=(X,), cost=table)
        return
    lowered = decomp.lower(Program(program), to=CHIP, rules=rules, args=(X,), cost=table).result
    assert costs.total(lowered, table) == wanted
    assert costs.total(lowered, lambda call: price[call.op.short]) == wanted


@settings(max_examples=15, deadline=None)
@given(systems, prices, programs, st.randoms(use_true_random=False))
def test_the_price_does_not_depend_on_the_order_of_rules_nor_on_what_was_planned_before(system, price, program, draw):
    shuffled = {name: draw.sample(alternatives, len(alternatives)) for name, alternatives in system.items()}
    rules, table = rules_of(shuffled), costs.table(price)
    for names in (program, program[::-1], DERIVED):
        plan = decomp.plan(Program(names), to=CHIP, rules=rules, args=(X,), cost=table)
        found = sum(costs.total(derived.template.graph, table) for derived in plan.derived.values())
        assert found == sum(each for name in names if (each := least(system, price, name)) < math.inf)


def test_a_result_of_another_shape_costs_a_call_before_anything_is_known_of_how_it_is_derived():
    rules, runs = decomp.Rules(), []

    @rules.register("tanh", level="standard")
    def direct(x):
        return torch.sin(x)

    @rules.register("tanh", level="standard")
    def by_rows(x):
        return torch.squeeze(torch.unsqueeze(x, 0), 0)

    @rules.register("unsqueeze")
    def unsqueeze(x, dim):
        runs.append(x.shape)
        return torch.reshape(x, [1, *x.shape])

    for args, dynamic in (((X,), None), ((X,), ({0: torch.export.Dim.DYNAMIC},))):
        plan = decomp.plan(Program(["tanh"]), to=CHIP, rules=rules, args=args, dynamic_shapes=dynamic)
        (derived,) = plan.derived.values()
        assert [why for _, why in derived.passed_over] == ["costlier: at least 2, not 1"] and not runs


SMALL_MODELS = {
    "convolutions": lambda: (nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1)), (1, 2, 9, 9)),
    "upsampling": lambda: (nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear"), nn.Softmax(-1)), (1, 4, 3, 3)),
    "a transformer": lambda: (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), (2, 5, 8)),
}


@pytest.mark.parametrize("target", [targets.tinygrad, targets.luminal], ids=lambda target: target.name)
@pytest.mark.parametrize("name", SMALL_MODELS)
def test_bounds_do_not_change_what_a_model_costs(name, target):
    module, shape = SMALL_MODELS[name]()

    def prices(**how):
        plan = decomp.plan(module, to=target, args=(torch.randn(shape),), **how)
        return [derived.price for derived in plan.derived.values()]

    assert prices() == prices(cost=lambda call: 1.0)
