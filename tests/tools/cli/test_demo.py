"""The demonstration: what it measures is measured right."""

import math

import pytest
import torch
from torch import nn

import decomp
from decomp.proof.correspondence import ValuesDiffer
from decomp.tools.cli.demo import demonstrate, ulp
from decomp_rules import backends, targets


@pytest.mark.parametrize("value", [1.0, 1.5, 0.1, 3e-20, 12345.678])
def test_a_ulp_is_that_of_the_largest_element(value):
    x = torch.tensor([0.0, -value, value / 3])
    assert ulp(x) == float(torch.nextafter(x[1].abs(), torch.tensor(math.inf)) - x[1].abs())
    assert ulp(x.double()) == pytest.approx(math.ulp(value), rel=0)


def test_a_ulp_of_nothing_is_that_of_the_smallest_normal_number():
    assert ulp(torch.zeros(3)) == torch.finfo(torch.float32).smallest_normal * torch.finfo(torch.float32).eps


def test_a_model_that_the_target_knows_differs_in_nothing():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(2, 4)
    found = demonstrate(model, (x,), decomp.Target("all", ["linear", "relu"]), repeats=2)
    assert (found.outputs.difference, found.outputs.ulp, found.gradients.ulp) == (0, 0, 0)
    assert found.outputs.lowered_error == found.outputs.original_error


def test_a_lowered_model_is_as_near_to_the_truth_as_the_original():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.GELU()), torch.randn(2, 4)
    found = demonstrate(model, (x,), targets.tinygrad, repeats=2, backend=backends.get("numpy"))
    assert found.elsewhere.what == "outputs on numpy" and found.functions > 30
    for row in (found.outputs, found.gradients, found.elsewhere):
        assert 0 <= row.lowered_error < 20 and row.original_error < 20
        assert row.ulp <= row.lowered_error + row.original_error + 1e-6
    assert found.fused_seconds > 0 and found.primitive_seconds > 0


def test_a_wrong_rule_shows():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.GELU()), torch.randn(2, 4)
    rules = decomp.Rules({"gelu": lambda x: x * torch.sigmoid(1.702 * x)})
    with pytest.raises(ValuesDiffer, match="rule <lambda> .* for 'gelu', gives .* ULP where 256 are promised"):
        demonstrate(model, (x,), decomp.Target("chip", ["linear", "mul", "sigmoid"]), repeats=1, rules=rules)
