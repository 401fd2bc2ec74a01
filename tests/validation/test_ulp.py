"""Distances in units of the last place: across binades, in the subnormal range, at overflow; and special values."""

from fractions import Fraction
import math

from hypothesis import given, settings, strategies as st
import pytest
import torch

from decomp.validation.ulp import Exact, deviation, kinds, spacing, ulp_error

NAN, INF = math.nan, math.inf
LARGEST = torch.finfo(torch.float32).max


def error(found, exact, dtype=torch.float32):
    return ulp_error(torch.tensor([found], dtype=dtype), torch.tensor([exact], dtype=torch.float64)).item()


def special(found, exact):
    return deviation(torch.tensor([found]), torch.tensor([exact], dtype=torch.float64)).special.item()


@pytest.mark.parametrize(
    "x, expected",
    [
        (1.0, 2**-23),
        (1.5, 2**-23),
        (2.0, 2**-22),
        (1 - 2**-24, 2**-24),
        (1e-45, 2**-149),
        (0.0, 2**-149),
        (2**-126, 2**-149),
        (-3.0, 2**-22),
        (1e39, 2**104),
    ],
)
def test_the_spacing_is_that_of_the_binade_and_never_below_the_subnormal_one(x, expected):
    assert spacing(torch.tensor([x], dtype=torch.float64), torch.float32).item() == expected


def test_an_exact_result_has_no_error_and_a_neighbour_has_one_ulp():
    assert error(1.0, 1.0) == 0
    assert error(1 + 2**-23, 1.0) == 1
    assert error(1 - 2**-24, 1.0) == 0.5  # the unit is that of the exact value
    assert error(1e-45, 0.0) == 1
    assert error(1.0, 1 + 2**-24) == 0.5


@settings(deadline=None)
@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(-40, 40))
def test_so_many_steps_within_a_binade_are_so_many_ulp(x, steps):
    step = Fraction(spacing(torch.tensor([x], dtype=torch.float64), torch.float32).item())
    exact = float(Fraction(x) + steps * step)
    if abs(exact) <= LARGEST and spacing(torch.tensor([exact], dtype=torch.float64), torch.float32).item() == step:
        assert error(x, exact) == abs(steps)


def test_overflow_is_an_error_near_the_largest_number_and_another_value_far_from_it():
    assert error(INF, 1e39) == 0 and not special(INF, 1e39)
    assert error(LARGEST, 1e39) == 1 and not special(LARGEST, 1e39)
    assert error(INF, LARGEST) == 1 and not special(INF, LARGEST)
    assert special(INF, 1e38)
    assert special(1e38, 1e39)
    assert special(LARGEST, INF), "an infinity that is not an overflow"
    assert math.isnan(error(-INF, 1e39)) and special(-INF, 1e39)


def test_nan_and_the_sign_of_zero_are_values_of_their_own():
    assert special(NAN, 1.0) and special(1.0, NAN) and not special(NAN, NAN)
    assert special(-0.0, 0.0) and not special(-0.0, -0.0)
    assert not special(-0.0, 1e-60), "what only rounds to zero has a sign that tells nothing"
    loose = deviation(torch.tensor([-0.0]), torch.tensor([0.0], dtype=torch.float64), signed_zero=False)
    assert not loose.special.item() and loose.error.item() == 0


def test_what_is_special_has_no_error():
    found = deviation(torch.tensor([NAN, 2.0]), torch.tensor([1.0, 2.0], dtype=torch.float64))
    assert found.error.isnan().tolist() == [True, False]


def test_kinds_tell_the_parts_of_complex_numbers():
    assert kinds(torch.tensor([1.0, NAN, INF, -INF, 0.0, -0.0])).tolist() == [0, 1, 2, 3, 4, 5]
    a, b = kinds(torch.tensor([complex(1, 0), complex(1, -0.0)]))
    assert a != b
    assert kinds(torch.tensor([1, 0])).tolist() == [0, 0]


def test_what_float64_cannot_hold_counts():
    exact = Exact(torch.tensor([1.0], dtype=torch.float64), torch.tensor([2**-54], dtype=torch.float64))
    assert ulp_error(torch.tensor([1.0], dtype=torch.float64), exact).item() == 0.25


def test_half_types_have_units_of_their_own():
    assert error(1 + 2**-7, 1.0, torch.bfloat16) == 1
    assert error(1 + 2**-10, 1.0, torch.float16) == 1
    assert error(INF, 65520.0, torch.float16) == 0
