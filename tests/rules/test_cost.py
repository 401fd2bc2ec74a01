"""Choosing by cost: of the ways that reach the target, each op takes the cheapest, and so does what its rule calls."""

import pytest
import torch
from torch import nn

import decomp
from decomp import Rules, Target
from decomp.costs.model import CostModel

X = torch.randn(3)
CHIP = Target("chip", ["add", "mul", "sin", "exp"])


def nodes(call):
    return 1.0


def calls(module, rules, **how):
    lowered = decomp.lower(module, to=CHIP, rules=rules, args=(X,), **how).result
    return [str(call.op).removeprefix("aten.") for call in decomp.calls(lowered)]


def ways():
    rules = Rules()
    rules.register("tanh", name="long")(lambda x: torch.sin(x) + x * 2)
    rules.register("tanh", name="short")(lambda x: torch.sin(x))
    rules.register("relu")(lambda x: torch.tanh(x) * 3)
    return rules


def test_without_costs_the_first_way_is_taken():
    assert calls(nn.Tanh(), ways()) == ["sin", "mul", "add"]


def test_with_costs_the_cheapest_is():
    assert calls(nn.Tanh(), ways(), cost=nodes) == ["sin"]


def test_the_price_is_the_user_s():
    assert calls(nn.Tanh(), ways(), cost=lambda call: -0.0 if call.op.short in ("add", "mul") else 1.0) == [
        "sin",
        "mul",
        "add",
    ]


def test_a_call_that_a_rule_makes_takes_its_cheapest_way_too():
    assert calls(nn.ReLU(), ways(), cost=nodes) == ["sin", "mul"]


def test_a_way_with_more_calls_of_its_own_may_end_in_fewer():
    rules = Rules()
    rules.register("relu", name="one call")(lambda x: torch.tanh(x))
    rules.register("relu", name="two calls")(lambda x: torch.sin(x) * 2)
    rules.register("tanh")(lambda x: torch.exp(torch.sin(x)) + x * 2)
    assert calls(nn.ReLU(), rules, cost=nodes) == ["sin", "mul"]


def test_rejected_alternatives_are_reported_with_their_prices():
    plan = decomp.plan(nn.Tanh(), to=CHIP, rules=ways(), args=(X,), cost=nodes)
    (derived,) = plan.derived.values()
    assert derived.rule.name == "short"
    assert [reason for _, reason in derived.passed_over] == ["costlier: at least 2, not 1"]


def test_prices_see_the_call():
    def by_size(call):
        return float(call.meta.numel())

    rules = Rules()
    rules.register("relu", name="wide")(lambda x: torch.sin(x) + 1)
    rules.register("relu", name="narrow")(lambda x: torch.sin(x))
    assert calls(nn.ReLU(), rules, cost=by_size) == ["sin"]


def test_a_circle_does_not_hide_the_cheapest_way_from_the_next_call():
    rules = Rules()
    rules.register("relu", name="by tanh")(lambda x: torch.tanh(x))
    rules.register("relu", name="itself")(lambda x: torch.sin(x) * 2 + 1)
    rules.register("tanh", name="by relu")(lambda x: torch.relu(x))
    rules.register("tanh", name="itself")(lambda x: torch.sin(x) * 2 + 1 + x * 3)

    class Both(nn.Module):
        def forward(self, x):
            return torch.relu(x), torch.tanh(x)

    found = calls(Both(), rules, cost=nodes)
    assert found == ["sin", "mul", "add"] * 2


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["gpt", "resnet"])
def test_models_cost_no_more_nodes_than_by_the_rules_own_order(name):
    from decomp_rules import samples, targets

    module, args = samples.model(name)
    first = decomp.lower(module, to=targets.tinygrad, args=args).result
    least = decomp.lower(module, to=targets.tinygrad, args=args, cost=nodes).result
    assert len(decomp.calls(least)) <= len(decomp.calls(first))
    torch.testing.assert_close(least(*args), module(*args), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "price",
    [float("nan"), -1, float("inf"), -float("inf"), None, "cheap", 1j, pytest.param(10**400, id="larger than a float")],
)
def test_an_invalid_cost_is_refused_with_the_call(price):
    rules = decomp.Rules({torch.relu: lambda x: x.clamp(min=0)})
    chip = decomp.Target("chip", ["clamp"])
    with pytest.raises(decomp.DecompError) as caught:
        decomp.lower(torch.nn.ReLU(), to=chip, rules=rules, args=(torch.zeros(3),), cost=lambda call: price)
    assert str(caught.value) == (
        f"cost= returned {price!r} for a call of aten.clamp\n  to do: return a finite number that is not negative"
    )


def test_a_cost_that_fails_says_for_which_call():
    rules = decomp.Rules({torch.relu: lambda x: x.clamp(min=0)})
    chip = decomp.Target("chip", ["clamp"])
    with pytest.raises(decomp.DecompError, match="cost= failed on aten.clamp with ZeroDivisionError"):
        decomp.lower(torch.nn.ReLU(), to=chip, rules=rules, args=(torch.zeros(3),), cost=lambda call: 1 / 0)


@pytest.mark.parametrize("of_graph", [lambda self, graph: 1 / 0, lambda self, graph: None])
def test_a_cost_model_that_fails_on_a_graph_says_so(of_graph):
    class Own(CostModel):
        def __call__(self, call):
            return 1.0

    Own.of_graph = of_graph
    rules = decomp.Rules({torch.relu: lambda x: x.clamp(min=0)})
    with pytest.raises(decomp.errors.CostError, match="cost= (failed on a graph with Zero|returned None for a graph)"):
        decomp.lower(
            torch.nn.ReLU(), to=decomp.Target("chip", ["clamp"]), rules=rules, args=(torch.zeros(3),), cost=Own()
        )


def test_a_limitation_s_condition_that_fails_says_so():
    rules = decomp.Rules({torch.relu: lambda x: x.clamp(min=0)})
    rules.limit(torch.relu, reason="no", when=lambda call: 1 / 0)
    with pytest.raises(
        decomp.errors.RuleError, match="when= of its limitation failed with ZeroDivisionError"
    ) as caught:
        decomp.lower(torch.nn.ReLU(), to=decomp.Target("chip", ["clamp"]), rules=rules, args=(torch.zeros(3),))
    assert caught.value.node.name == "relu"
