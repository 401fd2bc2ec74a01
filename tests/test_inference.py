"""Programs that are not trained: a target need not know what only gradients need."""

import pytest
import torch
from torch import nn

import decomp
from decomp_rules import RULES

X = torch.linspace(-2, 2, 12).reshape(3, 4)
CHIP = decomp.Target("chip", ["add", "mul", "sub", "div", "exp", "amax", "sum", "mm", "addmm", "permute", "full"])


class Scores(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return torch.softmax(self.linear(x).detach(), -1)


def ops(program):
    return {call.op.short for call in decomp.calls(program)}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("how", [dict(training=False), dict(freeze=True), dict(training=False, simplify=False)])
def test_a_target_need_not_know_detach_for_inference(how):
    model = Scores()
    with pytest.raises(decomp.NotLowered, match="add detach"):
        decomp.lower(model, to=CHIP, args=(X,))
    lowered = decomp.lower(model, to=CHIP, args=(X,), verify="values", **how)
    assert "detach" not in ops(lowered.result) and not lowered.trains
    assert torch.allclose(lowered.result(X), model(X), atol=1e-6)


def test_what_is_kept_for_gradients_is_kept_by_default():
    knowing = CHIP | ["detach"]
    lowered = decomp.lower(Scores(), to=knowing, args=(X,))
    assert "detach" in ops(lowered.result) and lowered.trains
    assert "detach" not in ops(decomp.lower(Scores(), to=knowing, args=(X,), training=False).result)


def test_a_program_that_has_nothing_to_train_is_one_for_inference():
    counts = torch.arange(12).reshape(3, 4)
    lowered = decomp.lower(_Counting(), to=CHIP, args=(counts,), verify="values")
    assert ops(lowered.result) == {"add"} and not lowered.trains


class _Counting(nn.Module):
    def forward(self, x):
        return x.detach() + x


def test_regions_without_gradients_go_with_the_gradients():
    class Quiet(nn.Module):
        def forward(self, x):
            with torch.no_grad():
                y = x * 2
            return y + x

    program = torch.export.export(Quiet(), (X,))
    lowered = decomp.lower(program, to=CHIP, training=False)
    assert ops(lowered.result) == {"mul", "add"}
    assert torch.equal(lowered.result.module()(X), Quiet()(X))


def test_plans_and_advice_are_of_the_same_kind():
    few = decomp.Target("few", ["add", "mul", "sub", "exp", "amax", "sum", "mm", "addmm", "permute"])
    trained, run = (decomp.plan(Scores(), to=few, args=(X,), training=how).suggest() for how in (None, False))
    assert "detach" in trained.ops and "detach" not in run.ops
    trained, run = (decomp.advise({"scores": (Scores(), (X,))}, to=few, training=how) for how in (None, False))
    assert "detach" in trained.ops and "detach" not in run.ops


def test_decompose_leaves_detach_alone():
    found = decomp.decompose(_Counting(), {"add": lambda x, y: y + x * 1}, args=(torch.arange(3),))
    assert "detach" in ops(found)


def test_rules_of_the_user_for_detach_come_first():
    rules = decomp.Rules({"detach": lambda x: x * 1}) | RULES
    lowered = decomp.lower(_Counting(), to=CHIP, args=(X,), rules=rules, training=False, simplify=False)
    assert ops(lowered.result) == {"add", "mul"}


def test_rules_that_are_added_later_count_for_inference_too():
    rules = decomp.Rules()
    with pytest.raises(decomp.NotLowered):
        decomp.lower(nn.ReLU(), to=CHIP, args=(X,), rules=rules, training=False)
    rules.register("relu")(lambda x: x * 1)
    assert ops(decomp.lower(nn.ReLU(), to=CHIP, args=(X,), rules=rules, training=False).result) == {"mul"}
