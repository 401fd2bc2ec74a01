"""Functions computed from the bits of a power of two for compilers that fuse, and GELU without gradients."""

import math

import pytest
import torch
from torch.nn import functional as F

import decomp
from decomp.costs import fused
from decomp_rules import targets
from decomp_rules.nn.inference import gelu_of_logit
from decomp_rules.nn.softmax import softmax_of_powers_trained
from decomp_rules.pointwise.exponent_bits import sigmoid_of_power, sigmoid_of_power_trained
from decomp_rules.pointwise.gelu import gelu_of_logistic
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


@pytest.mark.parametrize(
    ("function", "training", "exponentials"),
    [
        (torch.sigmoid, False, 0),
        (torch.sigmoid, None, 0),
        (F.silu, False, 0),
        (softmax, False, 0),
        (softmax, None, 0),
        (F.gelu, False, 1),
        (F.gelu, None, 1),
    ],
)
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


def trained_softmax(x):
    return softmax_of_powers_trained(x, 1, False)


def derivatives(function, x):
    """The value, the gradient of it under some weights, and the gradient of that under others."""
    x = x.clone().requires_grad_()
    weights = torch.linspace(-1, 1, x.numel(), dtype=torch.float64).reshape(x.shape).to(x.dtype)
    value = function(x)
    (first,) = torch.autograd.grad(value, x, weights, create_graph=True)
    (second,) = torch.autograd.grad(first, x, weights.flip(0, 1))
    return value.detach(), first.detach(), second


@pytest.mark.parametrize("size", [3, 1000])
@pytest.mark.parametrize("scale", [1.0, 3.0, 10.0, 60.0])
def test_a_trained_softmax_and_its_gradients_are_as_right_as_those_of_the_kernel(scale, size):
    x = torch.randn(20_000 // size, size, generator=torch.Generator().manual_seed(size)) * scale
    found = zip(derivatives(trained_softmax, x), derivatives(softmax, x), derivatives(softmax, x.double()))
    for mine, own, exact in found:
        assert (mine.double() - exact).abs().max() <= 4 * (own.double() - exact).abs().max()


def test_a_trained_softmax_of_whole_numbers_has_all_digits_of_what_is_small():
    x = -torch.arange(86).float()[None]
    assert ulps(trained_softmax(x), softmax(x.double()), torch.float32).max() <= 4


def test_a_trained_softmax_keeps_its_special_rows_and_their_gradients():
    inf = math.inf
    x = torch.tensor(
        [[1.0, -inf, 2.0], [-inf] * 3, [inf, 1, 2], [-1e9, -1e9, -3e38], [1e30, -1e30, 3.0], [math.nan, 1.0, 2.0]]
    )
    for mine, own in zip(derivatives(trained_softmax, x), derivatives(softmax, x)):
        torch.testing.assert_close(torch.where(own.isnan(), math.nan, mine), own, equal_nan=True)
    assert trained_softmax(x)[[1, 2, 5]].isnan().all()


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (torch.sigmoid, [(8, 64)]),
        (F.silu, [(8, 64)]),
        (F.gelu, [(8, 64)]),
        (softmax, [(8, 64), (8, 64), (8, 1)]),
        (F.hardswish, [(8, 64)]),
    ],
)
def test_what_a_compiler_keeps_for_the_backward(function, shapes):
    """x, of softmax the powers and their sums too; no masks, which Inductor (torch 2.13) writes one by one."""
    x, kept = torch.randn(8, 64, requires_grad=True), []

    def noted(value):
        kept.append((tuple(value.shape), value.dtype))
        return value

    compiled = torch.compile(lowered(function, x, None), backend="aot_eager_decomp_partition")
    with torch.autograd.graph.saved_tensors_hooks(noted, lambda value: value):
        compiled(x).sum().backward()
    assert kept == [(shape, torch.float32) for shape in shapes]


def test_hardsigmoid_keeps_one_mask_for_the_backward():
    x, kept = torch.randn(8, 64, requires_grad=True), []
    compiled = torch.compile(lowered(F.hardsigmoid, x, None), backend="aot_eager_decomp_partition")
    with torch.autograd.graph.saved_tensors_hooks(lambda value: kept.append(value.dtype) or value, lambda value: value):
        compiled(x).sum().backward()
    assert kept == [torch.bool]


def test_a_trained_gelu_has_finite_gradients_far_out():
    x = torch.linspace(-8, 8, 10_001)[None]
    found = zip(derivatives(gelu_of_logistic, x), derivatives(F.gelu, x.double()), (1e-6, 6e-7, 3e-6))
    for mine, exact, bound in found:
        assert (mine.double() - exact).abs().max() <= bound
    far = torch.tensor([[-1e4, 1e4, -1e30, 1e30, 1e37, -1e37]])
    assert all(each.isfinite().all() for each in derivatives(gelu_of_logistic, far))
    assert gelu_of_logistic(INFINITE).tolist()[0] == math.inf and gelu_of_logistic(INFINITE)[1:3].isnan().all()


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
