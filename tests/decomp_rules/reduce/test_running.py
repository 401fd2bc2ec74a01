"""Running sums and products at the levels standard and fast."""

import math

import pytest
import torch

from decomp_rules import targets
from tests.levels import at_level, calls, holds


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


SHAPES = {
    "short": ((3, 64), 1),
    "first": ((5, 3), 0),
    "middle": ((2, 70, 2), -2),
    "blocks": ((2, 200), -1),
    "one": ((4, 1), 1),
    "doubling": ((2, 5000), 1),
    "many": ((700, 100), 1),
}


@pytest.mark.parametrize("target", [targets.tinygrad, targets.luminal], ids=lambda target: target.name)
@pytest.mark.parametrize("shape, dim", SHAPES.values(), ids=SHAPES)
def test_sums_are_rounded_once_although_they_cancel(shape, dim, target):
    holds(lambda x: x.cumsum(dim), "standard", [normal(*shape)], target, most=0.51)


@pytest.mark.parametrize("shape, dim", [SHAPES[name] for name in ("short", "middle", "blocks")])
def test_products_are_rounded_once(shape, dim):
    holds(lambda x: x.cumprod(dim), "standard", [1 + 0.3 * normal(*shape)], most=0.51)


@pytest.mark.parametrize("function", [torch.cumsum, torch.cumprod])
@pytest.mark.parametrize("shape", [(3, 64), (2, 200)])
def test_at_fast_they_are_as_close_as_sums_in_their_dtype(function, shape):
    holds(lambda x: function(x, 1), "fast", [normal(*shape).abs() + 0.5], orders=1, gradient_most=16.0)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("length", [7, 100])
def test_of_other_dtypes(dtype, length):
    x = (3 * normal(2, length)).to(dtype)
    for function in (lambda x: x.cumsum(1), lambda x: x.cumsum(0, dtype=torch.float32)):
        torch.testing.assert_close(at_level(function, (x,), "standard")(x), function(x))


@pytest.mark.parametrize("function", [torch.cumsum, torch.cumprod])
@pytest.mark.parametrize("length", [5, 80])
def test_nan_and_infinity_are_met_only_from_their_place_on(function, length):
    x = normal(length).abs() + 0.5
    x[3] = math.nan
    y = x.clone()
    y[3], y[4] = math.inf, -math.inf
    for points in (x, y):
        found = at_level(lambda x: function(x, 0), (points,), "standard")(points)
        torch.testing.assert_close(found, function(points, 0), equal_nan=True)


@pytest.mark.parametrize("x", [torch.tensor(2.0), torch.empty(0, 3), torch.empty(3, 0)], ids=["0-d", "rows", "line"])
def test_of_a_number_and_of_nothing(x):
    for function in (lambda x: x.cumsum(-1), lambda x: x.cumprod(-1)):
        torch.testing.assert_close(at_level(function, (x,), "standard")(x), function(x))


def test_the_gradient_of_a_product_with_zeros_is_right():
    x = torch.tensor([2.0, 0.0, 3.0, 0.0, 4.0], dtype=torch.float64).requires_grad_()
    lowered = at_level(lambda x: x.cumprod(0), (x,), "standard")
    assert torch.autograd.gradcheck(lowered, (x,)) and torch.autograd.gradgradcheck(lowered, (x,))


FEW = [("standard", (4, 64), 6), ("fast", (4, 64), 4), ("standard", (4000,), 19), ("standard", (2, 5000), 41)]


@pytest.mark.parametrize("level, shape, most", FEW)
def test_the_calls_are_few(level, shape, most):
    assert calls(lambda x: x.cumsum(-1), (normal(*shape),), level) <= most
