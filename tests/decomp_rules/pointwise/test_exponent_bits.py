"""What is computed from the bits of one power of two where a compiler fuses, and GELU without gradients."""

import math

import pytest
import torch
from torch.nn import functional as F

import decomp
from decomp.costs import fused
from decomp_rules import targets
from decomp_rules.nn.inference import gelu_of_logit
from decomp_rules.pointwise.exponent_bits import sigmoid_of_power, sigmoid_of_power_trained
from tests.forms import Holder
from tests.levels import ulps

X = torch.cat([torch.linspace(-87.3, 60, 100_001), torch.linspace(-3, 3, 100_001)])
INFINITE = torch.tensor([math.inf, -math.inf, math.nan, -90.0, -1e30, 1e30])


def softmax(x):
    return torch.softmax(x, -1)


def lowered(function, x, training):
    return decomp.lower(Holder(function), to=targets.tinygrad, args=(x,), cost=fused, training=training).result


@pytest.mark.parametrize("rule", [sigmoid_of_power, sigmoid_of_power_trained])
def test_sigmoid_is_right_wherever_it_is_normal(rule):
    assert ulps(rule(X), torch.sigmoid(X.double()), torch.float32).max() <= 2.5
    torch.testing.assert_close(rule(INFINITE), torch.tensor([1, 0, math.nan, 0, 0, 1]), rtol=0, atol=0, equal_nan=True)


def test_sigmoid_has_first_and_second_gradients():
    x = torch.linspace(-80, 30, 10_001, requires_grad=True)
    (first,) = torch.autograd.grad(sigmoid_of_power_trained(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    share, rest = torch.sigmoid(x.detach().double()), torch.sigmoid(-x.detach().double())
    slope = share * rest
    assert ((first.double() - slope).abs() / slope).max() < 1e-6
    assert ((second.double() - slope * (rest - share)).abs() / slope).max() < 1e-6


@pytest.mark.parametrize(("function", "training", "exponentials"), [
    (torch.sigmoid, False, 0), (torch.sigmoid, None, 0), (F.silu, False, 0), (softmax, False, 0), (F.gelu, False, 1),
])  # fmt: skip
def test_by_what_a_compiler_takes_the_bits_are_cheaper_than_exponentials(function, training, exponentials):
    x = torch.randn(8, 16, requires_grad=training is None)
    module = lowered(function, x, training)
    assert len(decomp.calls(module, "exp2")) == exponentials
    torch.testing.assert_close(module(x), function(x))


def test_a_softmax_of_powers_keeps_its_special_rows():
    rows = torch.tensor([[0.0, -87.0, -89.0, -math.inf], [math.inf, 0, 0, 0], [-math.inf] * 4, [math.nan, 0, 0, 0]])
    found = lowered(softmax, rows, False)(rows)
    torch.testing.assert_close(found[0], torch.softmax(rows[0].double(), 0).float(), rtol=3e-7, atol=1.2e-38)
    assert found[0, 2:].tolist() == [0.0, 0.0] and found[1:].isnan().all()


def test_gelu_without_gradients_is_right_above_minus_one_and_as_right_as_the_kernel_below():
    x = torch.linspace(-1, 8, 100_001)
    assert ulps(gelu_of_logit(x), F.gelu(x.double()), torch.float32).max() <= 4
    below = torch.linspace(-40, -1, 100_001)
    exact = F.gelu(below.double())
    assert (gelu_of_logit(below) - exact).abs().max() <= (F.gelu(below) - exact).abs().max()
    special = torch.tensor([math.inf, 3e38, -3e38, -100.0])
    assert gelu_of_logit(special).tolist() == [math.inf, special[1].item(), 0.0, 0.0]


def test_in_float64_there_are_other_ways():
    x = torch.randn(4, 8, dtype=torch.float64)
    for function in (torch.sigmoid, softmax, F.gelu):
        torch.testing.assert_close(lowered(function, x, False)(x), function(x), rtol=1e-13, atol=1e-13)
