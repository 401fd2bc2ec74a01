"""Levels of accuracy: which rules are good enough, and which of these is taken."""

import pickle

import pytest
import torch
from torch import nn

import decomp
from decomp import Rules, Target, errors
from decomp.rules.accuracy import Accuracy

X = torch.randn(3)
CHIP = Target("chip", ["add", "mul", "sin", "exp", "detach"])


def ways():
    """Three alternatives for tanh, distinguished by their number of calls; and relu, which is computed from it."""
    rules = Rules(level="exact")
    rules.register("tanh", name="exactly")(lambda x: torch.sin(x) + x * 2)
    rules.register("tanh", name="nearly", level="standard")(lambda x: torch.sin(x) * 2)
    rules.register("tanh", name="about", level="fast")(lambda x: torch.sin(x))
    rules.register("relu", name="on tanh")(lambda x: torch.tanh(x) * 3)
    return rules


def names(model, accuracy, rules=None, **how):
    plan = decomp.plan(model, to=CHIP, rules=rules or ways(), args=(X,), accuracy=accuracy, **how)
    return [derived.rule.name for derived in plan.derived.values()]


def size(model, accuracy):
    lowered = decomp.lower(model, to=CHIP, rules=ways(), args=(X,), accuracy=accuracy).result
    return len(list(decomp.calls(lowered)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("level, rule", [("exact", "exactly"), ("standard", "nearly"), ("fast", "about")])
def test_the_cheapest_rule_that_reaches_the_level_is_taken(level, rule):
    assert names(nn.Tanh(), level) == [rule]


@pytest.mark.parametrize("level, calls", [("exact", 4), ("standard", 3), ("fast", 2)])
def test_the_level_of_an_op_holds_for_all_that_it_is_derived_to(level, calls):
    assert size(nn.ReLU(), level) == calls


def test_levels_are_given_by_op():
    both = nn.Sequential(nn.Tanh(), nn.ReLU())
    assert names(both, {"tanh": "fast", ...: "exact"}) == ["about", "on tanh"]
    assert size(both, {"tanh": "fast", ...: "exact"}) == 1 + 4
    assert size(both, {nn.ReLU: "fast", ...: "exact"}) == 3 + 2


def test_the_level_of_an_op_holds_for_its_other_forms():
    accuracy = Accuracy.of({"softmax": "exact", "layer_norm": "exact", "gelu_backward": "exact", ...: "fast"})
    levels = {
        name: accuracy.level(decomp.op(name))
        for name in (
            "_softmax",
            "_softmax_backward_data",
            "native_layer_norm",
            "native_layer_norm_backward",
            "gelu",
            "log_softmax",
        )
    }
    assert levels.pop("log_softmax") == "fast"
    assert set(levels.values()) == {"exact"}


def test_a_form_that_is_named_itself_has_its_own_level():
    accuracy = Accuracy.of({"softmax": "exact", "_softmax": "fast"})
    assert accuracy.level(decomp.op("_softmax")) == "fast"


def test_an_author_s_own_rule_needs_no_level_and_comes_first():
    own = Rules()
    own.register("tanh", name="own")(lambda x: torch.sin(x) + torch.sin(x * 2) + torch.exp(x))
    assert names(nn.Tanh(), "fast", own | ways()) == ["own"]
    assert names(nn.Tanh(), "fast", own | ways(), cost=decomp.costs.calls) == ["about"]


def test_a_rule_that_misses_its_level_is_reported_with_it():
    rules = Rules(level="fast")
    rules.register("tanh", name="about")(lambda x: torch.sin(x))
    with pytest.raises(decomp.NotLowered, match="reaches the level fast, but exact is required"):
        decomp.lower(nn.Tanh(), to=CHIP, rules=rules, args=(X,), accuracy="exact")


def test_what_one_level_found_out_is_not_taken_for_another():
    rules = ways()
    found = [names(nn.Tanh(), level, rules) for level in ("fast", "exact", "standard", "fast")]
    assert found == [["about"], ["exactly"], ["nearly"], ["about"]]


def test_a_rule_runs_once_for_all_targets_levels_and_costs():
    runs = []
    rules = Rules()

    @rules.register("tanh")
    def counted(x):
        runs.append(1)
        return torch.sin(x)

    for target in (CHIP, Target("other", ["sin"])):
        for cost in (None, decomp.costs.calls, lambda call: 1.0):
            decomp.lower(nn.Tanh(), to=target, rules=rules, args=(X,), accuracy="fast", cost=cost)
    assert len(runs) == 1


def test_of_ways_that_cost_the_same_the_most_accurate_is_taken():
    rules = Rules()
    rules.register("tanh", name="about", level="fast")(lambda x: torch.sin(x))
    rules.register("tanh", name="exactly", level="exact")(lambda x: torch.exp(x))
    assert names(nn.Tanh(), "fast", rules) == ["exactly"]


def test_rules_that_wrap_each_other_without_end_do_not_cost_more_than_they_may():
    """`stack` by `cat` by `stack`, each of one dimension more: every call is a new one."""
    rules, runs = Rules(level="exact"), []

    @rules.register("cat", name="by stack")
    def by_stack(tensors, dim=0):
        runs.append(1)
        return torch.stack(list(tensors), dim).flatten(dim, dim + 1)

    @rules.register("stack", name="by cat")
    def by_cat(tensors, dim=0):
        return torch.cat([x.unsqueeze(dim) for x in tensors], dim)

    @rules.register("cat", name="padded")
    def padded(tensors, dim=0):
        first, second = tensors
        rest = [0, 0] * (first.dim() - 1 - dim)
        before = torch.constant_pad_nd(first, [*rest, 0, second.shape[dim]])
        return before + torch.constant_pad_nd(second, [*rest, first.shape[dim], 0])

    class Joined(nn.Module):
        def forward(self, x):
            return torch.cat([x, x], 0)

    chip = Target("chip", ["add", "constant_pad_nd", "unsqueeze", "flatten", "view"])
    lowered = decomp.lower(Joined(), to=chip, rules=rules, args=(X,), accuracy="standard").result
    assert len(list(decomp.calls(lowered))) == 3
    assert len(runs) < 10


def test_levels_travel():
    level = pickle.loads(pickle.dumps(Rules({"tanh": torch.sin}, level="fast"))).level
    assert level == "fast"
    (rule,) = pickle.loads(pickle.dumps(Rules({"tanh": torch.sin}, level="fast")))["tanh"]
    assert rule.level == "fast"


@pytest.mark.parametrize(
    "wrong, says",
    [
        ("precise", "accuracy= must be one of 'exact', 'standard', 'fast', not 'precise'"),
        (3, "not 3"),
        ({"tanh": "best"}, "accuracy= of 'tanh' must be one of"),
        ({...: "best"}, "accuracy= of all other ops must be one of"),
        ({"tanhh": "fast"}, "tanhh"),
    ],
)
def test_a_wrong_level_is_reported(wrong, says):
    for verb in (decomp.lower, decomp.plan):
        with pytest.raises(decomp.DecompError, match=says):
            verb(nn.Tanh(), to=CHIP, args=(X,), accuracy=wrong)
    with pytest.raises(decomp.DecompError, match=says):
        decomp.backend(to=CHIP, accuracy=wrong)


def test_a_wrong_level_of_a_rule_is_reported():
    with pytest.raises(errors.ArgumentError, match="level= must be one of"):
        Rules().register("tanh", level="quick")
    with pytest.raises(errors.ArgumentError, match="level= must be one of"):
        Rules(level="quick")
