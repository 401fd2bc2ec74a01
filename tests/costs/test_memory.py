"""Peak memory, against programs whose widest point anybody can work out, and against what PyTorch holds when it
runs."""

import pytest
import torch
from torch import fx, nn

import decomp
from decomp import costs
from tests.forms import exported
from tests.held import held

X = torch.ones(8)
ONE = 32  # bytes of a tensor like X


@pytest.mark.parametrize(
    ("function", "peak"),
    [
        (lambda x: x, 0),
        (lambda x: torch.exp(x), ONE),
        (lambda x: torch.exp(torch.exp(torch.exp(x))), 2 * ONE),  # each with what it is made of
        (lambda x: torch.exp(x) + torch.sin(x), 3 * ONE),
        (lambda x: torch.exp(x).view(2, 4) * 2, 2 * ONE),  # the view keeps its base, and takes nothing
        (lambda x: x.view(2, 4).permute(1, 0), 0),
        (lambda x: (torch.exp(x), torch.sin(x)), 2 * ONE),  # results stay
        (lambda x: torch.exp(x.expand(4, 8)), 4 * ONE),
        (lambda x: torch.exp(x).expand(4, 8).sum(0), 2 * ONE),
        (lambda x: torch.exp(x).view(2, 4).max(1).values, ONE + 8 + 16),
        (lambda x: torch.exp(torch.exp(x).view(8, 1).split(4)[0]), ONE + ONE // 2),
    ],
)
def test_the_widest_point(function, peak):
    assert costs.total(exported(function, X), costs.peak_memory) == peak


def test_a_write_in_place_takes_no_memory():
    graph = fx.Graph()
    x = graph.placeholder("x")
    made = graph.call_function(torch.ops.aten.exp.default, (x,))
    written = graph.call_function(torch.ops.aten.add_.Tensor, (made, 1))
    for node in (x, made, written):
        node.meta["val"] = X
    graph.output(written)
    assert costs.total(graph, costs.peak_memory) == ONE


def test_the_bodies_of_a_condition_are_held_while_one_of_them_runs():
    def chosen(x):
        return torch.cond(x.sum() > 0, lambda x: torch.exp(torch.exp(x)) + x, lambda x: x.sin(), (x,))

    assert costs.total(exported(chosen, X), costs.peak_memory) == 1 + 3 * ONE  # `sum` is gone, the predicate is not


@pytest.mark.parametrize("function", [nn.functional.gelu, lambda x: torch.softmax(x, -1), torch.erf, torch.cumsum])
def test_it_is_what_a_run_holds(function):
    from decomp_rules import targets

    args = (torch.randn(4, 16),)
    module = exported((lambda x: torch.cumsum(x, 1)) if function is torch.cumsum else function, *args)
    lowered = decomp.lower(module.module(), to=targets.tinygrad, args=args).result
    assert costs.total(lowered, costs.peak_memory) == held(lowered, args)


def test_the_way_of_the_least_peak_is_taken_though_it_makes_more_calls():
    rules = decomp.Rules()
    rules.register("tanh", name="wide")(lambda x: torch.exp(x) * torch.sin(x))
    rules.register("tanh", name="narrow")(lambda x: torch.exp(torch.sin(torch.exp(torch.sin(x)))))
    chip = decomp.Target("chip", ["mul", "exp", "sin"])

    def chosen(cost):
        (derived,) = decomp.plan(nn.Tanh(), to=chip, rules=rules, args=(X,), cost=cost).derived.values()
        return derived.rule.name

    assert chosen(costs.calls) == "wide"
    assert chosen(costs.peak_memory) == "narrow"


def test_what_two_calls_of_a_derivation_hold_in_turn_does_not_add_up():
    rules = decomp.Rules()
    rules.register("tanh", name="in turn")(lambda x: torch.erf(torch.erf(torch.erf(torch.erf(x)))))
    rules.register("tanh", name="at once")(lambda x: torch.exp(x) + torch.exp(x * 2) + torch.exp(x * 3))
    rules.register("erf")(lambda x: torch.exp(torch.sin(x)))
    chip = decomp.Target("chip", ["mul", "add", "exp", "sin"])
    plan = decomp.plan(nn.Tanh(), to=chip, rules=rules, args=(X,), cost=costs.peak_memory)
    (derived,) = plan.derived.values()
    assert derived.rule.name == "in turn"
