"""Joining, padding and triangles at the level standard: exact, in few calls."""

import math

import pytest
import torch
from torch.nn import functional as F

from decomp_rules import targets
from tests.levels import at_level, calls

FUNCTIONS = {
    "cat": (lambda x: torch.cat([x, x[:, :2]], 1), 4),
    "cat of three": (lambda x: torch.cat([x, x[:2], x[:1]], 0), 7),
    "roll": (lambda x: x.roll(2, 1), 5),
    "triu": (lambda x: x.triu(1), 3),
    "tril": (lambda x: x.tril(-1), 3),
    "pad with a number": (lambda x: F.pad(x, (1, 2), value=-2.0), 3),
    "pad of rows": (lambda x: F.pad(x, (0, 0, 2, 1), value=-2.0), 3),
    "pad by reflection": (lambda x: F.pad(x, (1, 2), mode="reflect"), 9),
}


def points(dtype=torch.float32):
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    if dtype.is_floating_point:
        x[1, 2], x[2, 3], x[3, 0] = math.nan, math.inf, -math.inf
    return (3 * x).to(dtype)


@pytest.mark.parametrize("target", [targets.tinygrad, targets.luminal], ids=lambda target: target.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_nothing_leaks_from_one_part_to_another(name, dtype, target):
    function, x = FUNCTIONS[name][0], points(dtype)
    if name == "pad by reflection" and not dtype.is_floating_point:
        pytest.skip("PyTorch reflects floats")
    found = at_level(function, (x,), "standard", target)(x)
    torch.testing.assert_close(found, function(x), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_calls_are_few_and_gradients_right(name):
    function, most = FUNCTIONS[name]
    assert calls(function, (points(),), "standard") <= most
    x = points().nan_to_num(1.0, 2.0, 3.0).requires_grad_()
    lowered = at_level(function, (x,), "standard")
    own, mine = (torch.autograd.grad(f(x).square().sum(), x)[0] for f in (function, lowered))
    torch.testing.assert_close(mine, own)
