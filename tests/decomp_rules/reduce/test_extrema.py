"""The largest and the least along a dimension, and where they are, at the level standard."""

import math

import pytest
import torch

from decomp_rules import targets
from tests.levels import at_level, calls

TARGETS = pytest.mark.parametrize("target", [targets.tinygrad, targets.luminal], ids=lambda target: target.name)


def points():
    x = torch.randint(-3, 4, (5, 4, 6), generator=torch.Generator().manual_seed(0)).float()
    x[1, 2, 3] = x[1, 2, 5] = x[2, 0, 0] = math.nan
    x[3, 1, 1], x[3, 1, 2], x[4, 0] = math.inf, -math.inf, -math.inf
    return x


FUNCTIONS = {
    "max": lambda x: tuple(x.max(1)),
    "max, kept": lambda x: tuple(x.max(-1, keepdim=True)),
    "min": lambda x: tuple(x.min(0)),
    "values": lambda x: x.max(2)[0],
    "indices": lambda x: x.min(-2)[1],
    "argmax": lambda x: x.argmax(1),
    "argmax of all": lambda x: x.argmax(),
    "argmax of all, kept": lambda x: x.argmax(keepdim=True),
    "argmin": lambda x: x.argmin(-3, keepdim=True),
    "amax": lambda x: x.amax((0, 2)),
    "amin": lambda x: x.amin(-1),
}


@TARGETS
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_first_of_several_and_nan_before_all(name, target):
    x = points()
    found = at_level(FUNCTIONS[name], (x,), "standard", target)(x)
    torch.testing.assert_close(found, FUNCTIONS[name](x), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_of_other_dtypes(name, dtype):
    if dtype == torch.bool and name.startswith("arg"):
        pytest.skip("PyTorch has no argmax of booleans")
    x = points().nan_to_num(2.0, 3.0, -3.0).to(dtype)
    found = at_level(FUNCTIONS[name], (x,), "standard")(x)
    torch.testing.assert_close(found, FUNCTIONS[name](x), rtol=0, atol=0)


def test_of_numbers_and_of_one_element():
    for x in (torch.tensor(2.0), torch.ones(3, 1)):
        for name in ("max, kept", "argmax of all"):
            found = at_level(FUNCTIONS[name], (x,), "standard")(x)
            torch.testing.assert_close(found, FUNCTIONS[name](x), rtol=0, atol=0)


@TARGETS
def test_the_gradient_goes_to_the_largest(target):
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1)).requires_grad_()
    lowered = at_level(lambda x: x.max(1)[0], (x,), "standard", target)
    own, mine = (torch.autograd.grad(f(x).square().sum(), x)[0] for f in (lambda x: x.max(1)[0], lowered))
    torch.testing.assert_close(mine, own)


@pytest.mark.parametrize("name, most", {"values": 1, "max": 9, "argmax": 8, "argmin": 9, "amin": 3}.items())
def test_the_calls_are_few(name, most):
    assert calls(FUNCTIONS[name], (points(),), "standard") <= most
