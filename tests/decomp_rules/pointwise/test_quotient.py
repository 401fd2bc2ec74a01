"""Quotients at the levels of accuracy: errors over all exponents, gradients, special values and what they cost."""

import math

import pytest
import torch

from decomp_rules import targets
from tests.levels import SPECIAL, at_level, calls, holds, keeps_special_values, of_every_exponent

X, Y = of_every_exponent(12, seed=1), of_every_exponent(12, seed=2)
SMALL = torch.randn(4, generator=torch.Generator().manual_seed(0))
NUMBERS = [3.0, -0.1, 7, 1e38, 3e38, 2.0**-126, 1e-30, math.inf]


@pytest.mark.parametrize("target", [targets.tinygrad, targets.luminal], ids=lambda target: target.name)
def test_division_is_right_for_every_exponent_with_both_gradients(target):
    holds(torch.div, "standard", (X, Y), target, orders=0)
    smaller = of_every_exponent(12, highest=124, seed=1)  # times the gradient that comes in, next to overflow
    holds(torch.div, "standard", (smaller, Y[: len(smaller)]), target)


def test_division_of_the_largest_and_the_smallest():
    for lowest in (-126, 124):
        x, y = of_every_exponent(400, lowest, lowest + 3, 3), of_every_exponent(400, lowest, lowest + 3, 4)
        holds(torch.div, "standard", (x, y), orders=0)
        holds(torch.div, "standard", (x, y / y.abs() * 1.9), orders=0)


def test_division_in_the_units_of_float64():
    x, y = (of_every_exponent(4, -1000, 1000, seed, torch.float64) for seed in (1, 2))
    program = at_level(torch.div, (x, y), "standard")
    fine = (x / y).abs() > torch.finfo(torch.float64).tiny
    torch.testing.assert_close(program(x, y)[fine], (x / y)[fine], rtol=1e-15, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_halves_are_divided_in_float32_and_rounded_once(dtype):
    limits = (-14, 15) if dtype == torch.float16 else (-126, 127)
    x, y = (of_every_exponent(12, *limits, seed, dtype) for seed in (1, 2))
    holds(torch.div, "standard", (x, y), most=0.51)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_division_by_a_number_is_one_product(number, dtype):
    x = X.to(dtype)
    holds(lambda x: x / number, "standard", (x,), most=1.5)
    keeps_special_values(lambda x: x / number, "standard", (torch.tensor(SPECIAL, dtype=dtype),))


@pytest.mark.parametrize("level", ["standard", "fast"])
@pytest.mark.parametrize("target", [targets.tinygrad, targets.luminal], ids=lambda target: target.name)
def test_zeros_and_infinities_are_divided_as_they_should(level, target):
    pairs = torch.cartesian_prod(torch.tensor(SPECIAL), torch.tensor(SPECIAL))
    keeps_special_values(torch.div, level, (pairs[:, 0].contiguous(), pairs[:, 1].contiguous()), target)


def test_fast_division_is_right_where_networks_live():
    x, y = of_every_exponent(20, -40, 40, 1), of_every_exponent(20, -40, 40, 2)
    holds(torch.div, "fast", (x, y), most=2.0)
    assert at_level(torch.div, (x.bfloat16(), y.bfloat16()), "fast")(x.bfloat16(), y.bfloat16()).dtype == torch.bfloat16


def test_quotients_that_are_whole_are_cut_off_where_they_should():
    whole, y = torch.cartesian_prod(torch.arange(-60.0, 61.0), torch.arange(1.0, 60.0) * 0.37).unbind(1)
    x = (whole * y).contiguous()
    for mode in ("trunc", "floor"):
        program = at_level(lambda x, y: torch.div(x, y, rounding_mode=mode), (x, y), "standard")
        exact = torch.div(x.double(), y.double(), rounding_mode=mode).float()
        assert ((program(x, y) == exact) | (program(x, y) == whole)).all()
    numbers = torch.arange(-200.0, 201.0)
    for divisor in (3.0, 7.0, 49.0, -0.5):
        program = at_level(lambda x: torch.div(x, divisor, rounding_mode="trunc"), (numbers,), "standard")
        assert torch.equal(program(numbers), torch.div(numbers, divisor, rounding_mode="trunc"))
        tensor = torch.full_like(numbers, divisor)
        program = at_level(lambda x, y: torch.div(x, y, rounding_mode="trunc"), (numbers, tensor), "standard")
        assert torch.equal(program(numbers, tensor), torch.div(numbers, divisor, rounding_mode="trunc"))


COSTS = [
    (torch.div, 2, "standard", targets.tinygrad, 8),
    (torch.div, 2, "fast", targets.tinygrad, 2),
    (torch.div, 2, "standard", targets.luminal, 10),
    (torch.div, 2, "fast", targets.luminal, 2),
    (lambda x: x / 3, 1, "standard", targets.tinygrad, 1),
    (lambda x: 3 / x, 1, "standard", targets.tinygrad, 2),
    (torch.rsqrt, 1, "standard", targets.tinygrad, 2),
]


@pytest.mark.parametrize("function,operands,level,target,most", COSTS)
def test_what_quotients_cost(function, operands, level, target, most):
    assert calls(function, (SMALL,) * operands, level, target) <= most
