"""Shorter alternatives are used if nothing is trained, and not otherwise."""

import pytest
import torch
from torch.nn import functional as F

import decomp
from decomp_rules import targets
from tests.forms import Holder

SPECIAL = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, 6.0, 3.0, -3.0, 25.0, -30.0, -120.0])
X = torch.cat([SPECIAL, torch.linspace(-8, 8, 182)]).view(12, 16)
CALLS = {
    "relu6": (F.relu6, 4, 1),
    "hardtanh": (lambda x: F.hardtanh(x, -2.0, 3.0), 4, 1),
    "clamp": (lambda x: x.clamp(-1, 2), 4, 1),
    "hardsigmoid": (F.hardsigmoid, 6, 3),
    "hardswish": (F.hardswish, 7, 4),
    "elu": (F.elu, 7, 3),
    "mish": (F.mish, 8, 8),
    "softplus": (F.softplus, 12, 10),
    "logsigmoid": (F.logsigmoid, 10, 8),
    "prelu": (lambda x: F.prelu(x, x.new_full((16,), 0.25)), 4, 4),
}
"""A function, and how many calls it may become on ONNX and on StableHLO, constants included."""


@pytest.mark.parametrize("name", CALLS)
def test_an_activation_is_no_longer_than_a_person_writes_it(name):
    f, *most = CALLS[name]
    for target, calls in zip((targets.onnx, targets.stablehlo), most):
        lowering = decomp.lower(Holder(f), to=target, args=(X,), training=False, verify="values")
        assert len(decomp.calls(lowering.result)) <= calls
        torch.testing.assert_close(lowering.result(X), f(X), rtol=1e-6, atol=1e-37, equal_nan=True)


def test_what_is_trained_keeps_its_gradients():
    x = torch.tensor([0.0, 6.0, 3.0, -1.0], requires_grad=True)
    for target in (targets.onnx, targets.stablehlo):
        lowered = decomp.lower(Holder(F.relu6), to=target, args=(x,)).result
        assert torch.autograd.grad(lowered(x).sum(), x)[0].tolist() == [0.0, 0.0, 1.0, 0.0]


def test_a_rule_may_be_for_programs_that_are_not_trained():
    rules = decomp.Rules()
    chip = decomp.Target("chip", ["maximum", "full.default", "mul", "gt"])
    rules.register("relu", forward_only=True)(lambda x: torch.maximum(x, torch.full((), 0.0)))
    rules.register("relu")(lambda x: x * torch.gt(x, 0))
    model = Holder(torch.relu)
    short, long = (decomp.lower(model, to=chip, args=(X,), rules=rules, training=each) for each in (False, None))
    assert decomp.calls(short.result, "maximum") and not decomp.calls(long.result, "maximum")
    assert not decomp.calls(decomp.decompose(model, rules, args=(X,)), "maximum")
