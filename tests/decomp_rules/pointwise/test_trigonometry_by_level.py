"""Cosine and tangent at the levels of accuracy: errors, gradients, special values and what they cost."""

import math

import pytest
import torch

from decomp_rules import targets
from tests.levels import calls, holds, keeps_special_values, of_every_exponent

QUARTERS = (torch.arange(-5215, 5216) * (math.pi / 2)).float()
POINTS = torch.cat([of_every_exponent(20, highest=12, seed=1), QUARTERS])


@pytest.mark.parametrize("target", [targets.tinygrad, targets.luminal], ids=lambda target: target.name)
def test_cosine_is_right_next_to_its_zeros_too_with_both_gradients(target):
    holds(torch.cos, "standard", (POINTS,), target, gradient_most=4.0)


def test_tangent_is_right_for_every_exponent():
    holds(torch.tan, "standard", (POINTS,), orders=0)
    ordinary = of_every_exponent(100, -12, -1, seed=2)
    holds(torch.tan, "standard", (ordinary,), gradient_most=16.0)


@pytest.mark.parametrize("function", [torch.cos, torch.tan], ids=lambda function: function.__name__)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_trigonometry_of_halves_is_rounded_once(function, dtype):
    holds(function, "standard", (of_every_exponent(20, -14, 11, dtype=dtype),), orders=1, most=0.51)


@pytest.mark.parametrize("function", [torch.cos, torch.tan], ids=lambda function: function.__name__)
def test_what_has_no_angle_is_not_a_number_and_zero_is_exact(function):
    points = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan])
    keeps_special_values(function, "standard", (points,))
    holds(function, "standard", (points,), gradient_most=0.5)


@pytest.mark.parametrize("function", [torch.cos, torch.tan], ids=lambda function: function.__name__)
def test_fast_trigonometry_is_right_to_the_digits_of_the_argument(function):
    x = torch.linspace(-1.2, 1.2, 999)
    holds(function, "fast", (x,), orders=0)


@pytest.mark.parametrize(
    "function,level,most",
    [
        (torch.cos, "standard", 17),
        (torch.cos, "fast", 2),
        (torch.tan, "standard", 21),
        (torch.tan, "fast", 6),
    ],
)
def test_what_trigonometry_costs(function, level, most):
    assert calls(function, (POINTS[:4],), level) <= most
