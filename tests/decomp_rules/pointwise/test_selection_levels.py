"""Comparison, selection and rounding at the level standard: exact values, PyTorch's choice at kinks, few calls."""

import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from decomp_rules import targets
from tests.levels import SPECIAL, at_level, calls, of_every_exponent
from tests.pytorch_differences import MORE_CALLS

KINKS = torch.tensor([-6.0, -3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 6.0, 8388609.0])
POINTS = torch.cat([of_every_exponent(4), KINKS, torch.tensor(SPECIAL), torch.linspace(-8, 8, 161)])
OTHER = torch.cat([POINTS[1:-3], torch.tensor([math.nan, math.inf, 0.0, 0.0])])

OF_ONE: dict[str, tuple[Any, int]] = {
    "relu": (F.relu, 3),
    "relu6": (F.relu6, 7),
    "hardtanh": (lambda x: F.hardtanh(x, -1.0, 2.0), 7),
    "clamp": (lambda x: x.clamp(-1, 1), 6),
    "clamp_min": (lambda x: x.clamp_min(0.5), 3),
    "clamp_max": (lambda x: x.clamp_max(-0.5), 3),
    "clamp between crossed bounds": (lambda x: x.clamp(1, -1), 6),
    "abs": (torch.abs, 2),
    "sign": (torch.sign, 9),
    "x >= 0": (lambda x: x >= 0, 2),
    "x <= 0": (lambda x: x <= 0, 1),
    "x > 0.5": (lambda x: x > 0.5, 2),
    "x == 0": (lambda x: x == 0, 2),
    "isnan": (torch.isnan, 1),
    "isinf": (torch.isinf, 4),
    "isfinite": (torch.isfinite, 2),
    "where of numbers": (lambda x: torch.where(x < 1, 1.0, 0.0), 2),
    "where of a number": (lambda x: torch.where(x < 1, 0.0, -2.5), 3),
    "floor": (torch.floor, 4),
    "ceil": (torch.ceil, 3),
    "round": (torch.round, 14),
    "trunc": (torch.trunc, 1),
    "threshold": (lambda x: F.threshold(x, 0.5, 2.0), 3),
    "leaky_relu": (F.leaky_relu, 3),
    "prelu": (lambda x: F.prelu(x, torch.tensor([0.25])), 9),
    "hardshrink": (F.hardshrink, 5),
    "softshrink": (F.softshrink, 8),
    "nan_to_num": (torch.nan_to_num, 9),
    "nan_to_num of given": (lambda x: torch.nan_to_num(x, 1.0, 2.0, -2.0), 10),
}
OF_TWO: dict[str, tuple[Any, int]] = {
    "maximum": (torch.maximum, 1),
    "minimum": (torch.minimum, 4),
    "fmax": (torch.fmax, 4),
    "fmin": (torch.fmin, 4),
    "x <= y": (torch.le, 3),
    "x >= y": (torch.ge, 3),
    "x == y": (torch.eq, 2),
    "clamp_min": (torch.clamp_min, 4),
}


def gradients(function, inputs, orders=2):
    """The gradients of a sum, and those of their sum, zero where there are none."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    result, found = function(*leaves), []
    for _ in range(orders):
        if not result.requires_grad:
            break
        first = torch.autograd.grad(result.sum(), leaves, create_graph=True, allow_unused=True)
        found += [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, first)]
        result = sum(g.sum() for g in first if g is not None)
    return found


def agrees(function, inputs, target, kinks):
    lowered = at_level(function, inputs, "standard", target)
    error = 2.0**-23 if target is targets.luminal else 0
    torch.testing.assert_close(lowered(*inputs), function(*inputs), rtol=error, atol=0, equal_nan=True)
    if function(*inputs).is_floating_point():
        smooth = torch.stack([x.isfinite() for x in inputs]).all(0)
        smooth &= torch.tensor(True) if kinks else inputs[0] != inputs[1]
        points = [torch.where(smooth, x, 0.75 - i) for i, x in enumerate(inputs)]
        for mine, own in zip(gradients(lowered, points), gradients(function, points)):
            torch.testing.assert_close(mine, own, rtol=0, atol=0)


@pytest.mark.parametrize("target", [targets.tinygrad, targets.luminal], ids=lambda target: target.name)
@pytest.mark.parametrize("name", OF_ONE)
def test_of_one_tensor_it_is_the_op_with_its_gradient_at_kinks(name, target):
    agrees(OF_ONE[name][0], (POINTS,), target, kinks=True)


@pytest.mark.parametrize("target", [targets.tinygrad, targets.luminal], ids=lambda target: target.name)
@pytest.mark.parametrize("name", OF_TWO)
def test_of_two_tensors_it_is_the_op(name, target):
    agrees(OF_TWO[name][0], (POINTS, OTHER), target, kinks=name in ("fmax", "fmin"))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8])
@pytest.mark.parametrize("name", OF_ONE)
def test_in_other_dtypes(name, dtype):
    if dtype.is_floating_point:
        x = POINTS.to(dtype)
        x = x[(x == 0) | (x.abs() >= torch.finfo(dtype).tiny) | x.isnan()]
    else:
        x = torch.arange(0 if dtype == torch.uint8 else -9, 10).to(dtype)
    try:
        expected = OF_ONE[name][0](x)
    except (RuntimeError, NotImplementedError):
        pytest.skip("PyTorch has no kernel")
    found = at_level(OF_ONE[name][0], (x,), "standard")(x)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", [*OF_ONE, *OF_TWO])
def test_the_calls_are_few(name):
    function, most = OF_ONE.get(name) or OF_TWO[name]
    inputs = (POINTS,) if name in OF_ONE else (POINTS, OTHER)
    assert calls(function, inputs, "standard") <= most + MORE_CALLS.get(name, 0)


@pytest.mark.parametrize("x", [torch.tensor(-2.0), torch.empty(0, 3)], ids=["0-d", "empty"])
@pytest.mark.parametrize("name", OF_ONE)
def test_of_a_number_and_of_nothing(name, x):
    found = at_level(OF_ONE[name][0], (x,), "standard")(x)
    torch.testing.assert_close(found, OF_ONE[name][0](x), rtol=0, atol=0)


@pytest.mark.parametrize("function, most", [(F.hardswish, 10), (F.hardsigmoid, 9)])
def test_piecewise_products_are_close(function, most):
    x = torch.cat([torch.linspace(-8, 8, 161), torch.tensor([-3.0, 3.0, 100.0, -100.0, math.nan])])
    lowered = at_level(function, (x,), "standard")
    torch.testing.assert_close(lowered(x), function(x), rtol=4 * 2.0**-23, atol=1e-38, equal_nan=True)
    number = x.nan_to_num(1.0)
    for mine, own in zip(gradients(lowered, (number,), 1), gradients(function, (number,), 1)):
        torch.testing.assert_close(mine, own, rtol=1e-6, atol=1e-6)
    assert calls(function, (x,), "standard") <= most


def test_relu_has_no_gradient_at_zero_and_lets_nan_pass():
    x = torch.tensor([-0.0, 0.0, math.nan, -math.inf, math.inf, 1.0], requires_grad=True)
    for target in (targets.tinygrad, targets.luminal):
        y = at_level(F.relu, (x,), "standard", target)(x)
        assert torch.equal(torch.autograd.grad(y.sum(), x)[0][:2], torch.zeros(2))
        torch.testing.assert_close(y, F.relu(x), equal_nan=True)
