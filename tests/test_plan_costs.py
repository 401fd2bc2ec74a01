"""The cost of a plan by source op, and at other levels of accuracy."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import decomp
from decomp import costs
from decomp.costs.plans import PlanCosts, Price, Priced

CHIP = decomp.Target("chip", ["add", "mul", "sin"])
X = torch.ones(4, 5)


def leveled():
    rules = decomp.Rules()
    rules.register("tanh", level="exact", name="long")(lambda x: torch.sin(x) * 2 + 1)
    rules.register("tanh", level="fast", name="short")(lambda x: torch.sin(x))
    rules.register("relu", name="one way")(lambda x: x * 2)
    return rules


class Program(nn.Module):
    def forward(self, x):
        return torch.tanh(torch.tanh(F.relu(x) + 1))


def planned(**how):
    return decomp.plan(Program(), to=CHIP, rules=leveled(), args=(X,), **how)


def named(rule):
    return rule.partition(" (")[0]


def test_costs_are_values_by_op_with_those_of_other_levels():
    found = planned(accuracy="exact").costs()
    tanh, relu = found.derived
    assert (tanh.op, tanh.count, tanh.chosen.level) == ("aten.tanh", 2, "exact")
    assert (tanh.chosen.calls, tanh.chosen.cost) == (6, 6)
    assert [(p.level, named(p.rule), p.calls, p.cost, p.ulp) for p in tanh.others] == [("fast", "short", 2, 2, None)]
    assert (relu.op, relu.count, relu.chosen.calls, relu.others) == ("aten.relu", 1, 1, ())
    assert (found.target, found.cost, found.legal, found.total) == ("chip", "decomp.costs.calls", 1, 8)


def test_the_other_way_round_too():
    tanh, _ = planned(accuracy="fast").costs().derived
    assert (tanh.chosen.level, tanh.chosen.calls) == ("fast", 2)
    assert [(price.level, price.calls) for price in tanh.others] == [("exact", 6)]


def test_the_level_of_an_op_is_its_own():
    tanh, relu = planned(accuracy={"tanh": "fast", ...: "exact"}).costs().derived
    assert (tanh.chosen.level, relu.chosen.level) == ("fast", "exact")


@pytest.mark.parametrize("cost", [None, costs.calls, costs.bytes, costs.flops])
@pytest.mark.parametrize("accuracy", ["exact", "fast"])
def test_what_is_promised_is_what_the_lowered_program_costs(cost, accuracy):
    promised = planned(accuracy=accuracy, cost=cost).costs()
    lowering = decomp.lower(Program(), to=CHIP, rules=leveled(), args=(X,), accuracy=accuracy, cost=cost)
    assert promised.total == costs.total(lowering.result, cost or costs.calls)
    assert lowering.plan.costs() == promised


def test_a_model_s_plan_costs_what_is_promised():
    from decomp_rules import samples, targets

    module, args = samples.model("mlp")
    for cost in (costs.calls, costs.bytes):
        promised = decomp.plan(module, to=targets.tinygrad, args=args, cost=cost, accuracy="fast").costs()
        lowered = decomp.lower(module, to=targets.tinygrad, args=args, cost=cost, accuracy="fast").result
        assert promised.total == costs.total(lowered, cost)


def test_the_plan_shows_them():
    lines = [line.strip() for line in str(planned(accuracy="exact")).splitlines()]
    assert lines[0] == "plan for chip: 1 call legal, 3 derived, 0 blocked"
    assert lines[1] == "planned for small errors: the first rule that reaches the target"
    assert lines[2] == "comes to 8 calls before simplification"
    assert lines[3].startswith("2 × aten.tanh by long (") and lines[3].endswith("): 3 calls each; fast: 1")
    assert lines[4].startswith("1 × aten.relu by one way (") and lines[4].endswith("): 1 call")


def test_another_cost_is_shown_beside_the_calls():
    _, aim, calls, total, line, *_ = str(
        planned(accuracy="exact", cost=costs.table({"default": 2, "sin": 10}))
    ).splitlines()
    assert aim == "  planned for least cost by the table" and calls == "  comes to 8 calls before simplification"
    assert total == "  costs 32 by the table (decomp.costs.table('the table')) before simplification"
    assert line.endswith("): 3 calls each; fast: 1 (costs 28; fast: 20)")


def test_the_phrase_has_the_error_of_the_certificates():
    best, mid, fast = (
        Price(level, "rule", calls, calls, ulp)
        for level, calls, ulp in (("exact", 50, 2.14), ("standard", 21, 2.9), ("fast", 12, 41.3))
    )
    assert str(Priced("aten.gelu", 1, mid, (best, fast))) == "21 calls at 2.9 ULP; exact: 50 at 2.1; fast: 12 at 41"
    assert str(Priced("aten.gelu", 1, Price("fast", "rule", 1, 1.0, None), ())) == "1 call"
    tail = Price("standard", "rule", 31, 31.0, 1.67e7, 1.68e7)
    assert str(Priced("aten.gelu", 1, tail, (best,))) == "31 calls at PyTorch's own error; exact: 50 at 2.1"
    worse = Price("standard", "rule", 31, 31.0, 1.67e7, 3.0)
    assert str(Priced("aten.gelu", 1, worse, (tail,))) == "31 calls at 1.7e+07 ULP; standard: 31 at PyTorch's own error"
    uneven = Price("fast", "rule", 7, 7.0, 1.0)
    assert str(Priced("aten.gelu", 2, uneven, (best,))) == "7 calls at 1 ULP; exact: 50 at 2.1"


def test_the_error_is_that_of_the_certificate_for_this_target_and_dtype():
    from decomp.rules.library import certificate_of
    from decomp_rules import targets

    class Gelu(nn.Module):
        def forward(self, x):
            return F.gelu(x)

    for x, dtype in ((X, "float32"), (X.bfloat16(), "bfloat16")):
        plan = decomp.plan(Gelu(), to=targets.tinygrad, args=(x,), accuracy="exact")
        (derived,) = plan.derived.values()
        (gelu,) = plan.costs().derived
        assert gelu.chosen.ulp == certificate_of(derived.rule).way("tinygrad").values[dtype].max


def test_sizes_that_vary():
    batch = torch.export.Dim("batch", min=2)
    plan = decomp.plan(Program(), to=CHIP, rules=leveled(), args=(X,), dynamic_shapes=({0: batch},), accuracy="exact")
    assert plan.costs().total == 8


def test_what_blocks_is_no_cost():
    rules = leveled() - ["relu"]
    plan = decomp.plan(Program(), to=CHIP, rules=rules, args=(X,), accuracy="exact")
    assert plan.costs().total == 7
    assert "aten.relu" in str(plan)


def test_a_call_that_only_one_level_reaches_has_no_others():
    rules = decomp.Rules()
    rules.register("tanh", level="fast", name="short")(lambda x: torch.sin(x))
    plan = decomp.plan(nn.Tanh(), to=CHIP, rules=rules, args=(X,), accuracy="fast")
    (tanh,) = plan.costs().derived
    assert tanh.others == ()


def test_a_plan_that_was_put_together_by_hand_knows_no_costs():
    with pytest.raises(decomp.DecompError, match="the costs of this plan are unknown"):
        decomp.Plan("chip", ()).costs()
    assert str(decomp.Plan("chip", ())) == "plan for chip: 0 calls legal, 0 derived, 0 blocked"


def test_a_plan_of_nothing_costs_nothing():
    class Nothing(nn.Module):
        def forward(self, x):
            return x

    found = decomp.plan(Nothing(), to=CHIP, rules=leveled(), args=(X,)).costs()
    assert found == PlanCosts("chip", "decomp.costs.calls", (), 0, "calls", 0, found.planned_for)
