"""The gamma function's kin lowered to tinygrad: error in ULP, poles, zeros, integers, float64 and gradients."""

from collections.abc import Callable
import math
from typing import Any

from exact_values import lowered, spread, worst, worst_in_double
import mpmath
import pytest
from rule_agreement import agrees, lowered_agrees
import torch

from decomp_rules import gamma, incomplete_gamma, zeta

aten, special = torch.ops.aten, torch.special
RULES = gamma.RULES | zeta.RULES | incomplete_gamma.RULES
EDGES = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-40, 3e38, -3e38, 1.0, 2.0, 0.5, -0.5, -1.0, -2.0])


def log_gamma(x: Any) -> Any:
    return mpmath.log(abs(mpmath.gamma(x)))


def derivative(order: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: torch.polygamma(order, x)


def test_lgamma_on_the_right_and_to_minus_one_half() -> None:
    points = [1e-5, 0.3, 0.5, 0.9, 1.0, 1.3, 1.36, 1.99, 2.0, 2.01, 2.4, 2.6, 3.9, 4.1, 20.0, 1e3, -0.3, -0.7, -1.4]
    error, place = worst_in_double(torch.lgamma, log_gamma, points)
    assert error <= 3, f"float64: {error} ULP at {place}"
    for x in (spread(1e-38, 1e36), spread(0.1, 30.0), -spread(1e-38, 0.5)):
        error, place = worst(torch.lgamma, x)
        assert error <= 3, f"{error} ULP at {place}"


def test_lgamma_on_the_left_is_right_to_the_last_place_of_one() -> None:
    x = -spread(0.5, 40.0)
    x = x[(x - x.round()).abs() > 1e-3]
    found, exact = lowered(torch.lgamma, x)(x), torch.lgamma(x.double())
    assert ((found - exact).abs() / exact.abs().clamp(min=1)).max() < 8e-7


def test_digamma_keeps_its_digits_at_its_zero() -> None:
    error, place = worst_in_double(torch.digamma, mpmath.digamma, [1e-5, 0.3, 0.9, 1.46, 1.4617, 2.9, 3.1, 50.0, -0.3])
    assert error <= 3, f"float64: {error} ULP at {place}"
    for x in (spread(1e-38, 1e36), spread(0.5, 4.0), spread(1.4616, 1.4617)):
        error, place = worst(torch.digamma, x)
        assert error <= 3, f"{error} ULP at {place}"


@pytest.mark.parametrize(("order", "bound"), [(1, 3.5), (2, 3.0), (3, 4.2), (4, 5.0), (9, 8.0)])
def test_polygamma(order: int, bound: float) -> None:
    function = derivative(order)
    points = [0.01, 0.3, 1.0, 1.5, 3.0, 8.0, 15.0, 200.0, -0.3, -0.7, -1.2, -5.6]
    error, place = worst_in_double(function, lambda x: mpmath.polygamma(order, x), points)
    assert error <= 5, f"float64: {error} ULP at {place}"
    error, place = worst(function, spread(0.02, 1e3))
    assert error <= bound, f"{error} ULP at {place}"
    x = -spread(0.02, 30.0)
    x = x[(x - x.round()).abs() > 0.01]
    found, exact = lowered(function, x)(x), lowered(function, x.double())(x.double())
    scale = (x - x.round()).abs().double() ** -(order + 1) * math.factorial(order)
    assert ((found - exact).abs() / scale).max() < 2e-6


def test_zeta() -> None:
    points = [(1.5, 0.3), (2.0, 1.0), (2.5, 40.0), (10.0, 0.01), (10.0, 12.0), (40.0, 9.0), (4.0, -0.3), (5.0, -2.6)]
    s, q = ([point[i] for point in points] for i in (0, 1))
    error, place = worst_in_double(special.zeta, lambda s, q: mpmath.zeta(s, q), s, q)
    assert error <= 8, f"float64: {error} ULP at {place}"
    order = 1 + spread(1e-3, 20.0)
    error, place = worst(special.zeta, order, spread(1e-2, 1e3).flip(0))
    assert error <= 5, f"{error} ULP at {place}"


def test_incomplete_gamma_is_no_worse_than_the_kernel() -> None:
    a = torch.cat([spread(1e-3, 1e4, 4000), spread(1.0, 50.0, 4000)])
    x = a * spread(0.2, 3.0, 8000).flip(0)
    for function in (special.gammainc, special.gammaincc):
        exact, found, own = function(a.double(), x.double()), lowered(function, a, x)(a, x), function(a, x)
        seen = exact > 1e-30
        error, bound = (((y - exact).abs() / exact)[seen] for y in (found, own))
        assert error.max() < 1e-4 and error.mean() < bound.mean()


def test_incomplete_gamma_in_double() -> None:
    pairs = [(0.3, 0.2), (0.999, 0.9), (1.5, 0.01), (3.0, 2.9), (3.0, 3.1), (50.0, 20.0), (50.0, 70.0), (1e4, 1.01e4)]
    a, x = ([pair[i] for pair in pairs] for i in (0, 1))
    tensors = torch.tensor(a, dtype=torch.float64), torch.tensor(x, dtype=torch.float64)
    for function, limits in ((special.gammainc, (0, None)), (special.gammaincc, (None, mpmath.inf))):
        exact = [
            float(mpmath.gammainc(p, *(y if limit is None else limit for limit in limits), regularized=True))
            for p, y in pairs
        ]
        found = lowered(function, *tensors)(*tensors)
        torch.testing.assert_close(found, torch.tensor(exact, dtype=torch.float64), rtol=2e-14, atol=0)


@pytest.mark.parametrize("function", [torch.lgamma, torch.digamma, derivative(2), derivative(3)])
def test_edges_are_those_of_the_op(function: Any) -> None:
    torch.testing.assert_close(lowered(function, EDGES)(EDGES), function(EDGES), rtol=1e-5, atol=1e-37, equal_nan=True)
    whole = torch.arange(-3, 12)
    torch.testing.assert_close(lowered(function, whole)(whole), function(whole), rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("function", [special.zeta, special.gammainc, special.gammaincc])
def test_edges_of_functions_of_two_numbers(function: Any) -> None:
    values = torch.tensor([-1.0, 0.0, -0.0, 0.5, 1.0, 1.5, 3.0, 30.0, 1e4, math.inf, -math.inf, math.nan, -2.0, -0.5])
    a, x = torch.cartesian_prod(values, values).T.contiguous()
    found, expected = lowered(function, a, x)(a, x), function(a, x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-37, equal_nan=True)


def test_a_pole_of_the_trigamma_function_is_as_high_as_the_kernel_has_it() -> None:
    x = torch.tensor([-1.0, -5.0, 0.0])
    torch.testing.assert_close(lowered(derivative(1), x)(x), torch.polygamma(1, x), rtol=1e-5, atol=0)


def test_orders_so_huge_that_their_powers_overflow() -> None:
    order = torch.tensor([1.2e13, 1.7e13, 1e14, 4180457.0, 15572453.0, 2e22])
    q = torch.tensor([1.003, 5.3, 1.1, -3.64e-5, -337.75, -0.46])
    torch.testing.assert_close(lowered(special.zeta, order, q)(order, q), special.zeta(order, q), equal_nan=True)


def test_zeta_next_to_a_zero_has_the_digits_of_its_terms() -> None:
    order, q = torch.tensor([3.0]), torch.tensor([-0.495735854])
    assert (lowered(special.zeta, order, q)(order, q) - special.zeta(order.double(), q.double())).abs() < 2e-7


@pytest.mark.parametrize("function", [derivative(1), derivative(2), derivative(3), lambda x: special.zeta(3.0, x)])
def test_slopes_at_poles_and_next_to_them_are_those_of_the_op(function: Any) -> None:
    x = torch.tensor([0.0, -0.0, -1.0, -7.0, 1e-30, 1e-8, -1e-7, -0.99999857, 1e30, -math.inf])
    slopes = []
    for way in (function, lowered(function, x.requires_grad_())):
        slopes += torch.autograd.grad(way(x).sum(), x)
    torch.testing.assert_close(slopes[1], slopes[0], rtol=1e-5, atol=0)


def test_gradients() -> None:
    x = torch.tensor([-3.3, -1.2, -0.6, -0.4, 1e-3, 0.4, 0.6, 1.0, 1.3, 1.5, 2.0, 2.9, 3.1, 7.9, 8.1, 40.0])
    for function in (torch.lgamma, torch.digamma, derivative(1), derivative(2)):
        lowered_agrees(function, x, tolerance=2e-5)
    lowered_agrees(torch.lgamma, x.double(), tolerance=1e-12)
    lowered_agrees(lambda x: torch.mvlgamma(x, 3), x[x > 1.01], tolerance=1e-5)
    for dtype, tolerance in ((torch.float32, 2e-5), (torch.float64, 1e-12)):
        order = torch.tensor([1.5, 2.0, 3.0, 9.0], dtype=dtype)
        q = torch.tensor([0.3, 1.0, 5.0, 20.0], dtype=dtype)
        agrees(RULES, aten.special_zeta.default, order, q, fixed=(0,), tolerance=tolerance)
        a = torch.tensor([0.3, 0.9, 2.0, 7.0, 30.0], dtype=dtype)
        x = torch.tensor([0.2, 1.5, 1.9, 9.0, 31.0], dtype=dtype)
        for op in (aten.igamma.default, aten.igammac.default):  # the kernel itself is off by 1e-9 in places
            agrees(RULES, op, a, x, fixed=(0,), tolerance=max(tolerance, 1e-8))


def test_multivariate_gamma() -> None:
    for p in (1, 2, 5):
        agrees(RULES, aten.mvlgamma.default, torch.tensor([[2.6, 3.0], [7.5, 100.0]], dtype=torch.float64), p)
        agrees(RULES, aten.mvlgamma.default, torch.tensor([3, 4, 9]), p)
        agrees(RULES, aten.mvlgamma.default, torch.tensor(3.5).bfloat16(), p, gradient=False)


def test_empty_and_single_elements() -> None:
    for op in (aten.lgamma.default, aten.digamma.default):
        agrees(RULES, op, torch.empty(0, 2))
        agrees(RULES, op, torch.tensor(2.5))
    agrees(RULES, aten.igamma.default, torch.rand(3, 1), torch.rand(4), gradient=False)
    agrees(RULES, aten.special_zeta.default, torch.rand(3, 1) + 2, torch.rand(4), gradient=False)
