"""The gamma function's kin lowered to tinygrad: error in ULP, poles, zeros, integers, float64 and gradients."""

from collections.abc import Callable
import math
from typing import Any

import mpmath
import pytest
import torch

from decomp.validation.ulp import Exact, deviation
from decomp_rules.special import gamma, incomplete_gamma, zeta
from tests.decomp_rules.exact_values import lowered, spread, worst, worst_in_double
from tests.decomp_rules.rule_agreement import agrees, lowered_agrees

aten, special = torch.ops.aten, torch.special
RULES = gamma.RULES | zeta.RULES | incomplete_gamma.RULES
EDGES = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-40, 3e38, -3e38, 1.0, 2.0, 0.5, -0.5, -1.0, -2.0])


def log_gamma(x: Any) -> Any:
    return mpmath.log(abs(mpmath.gamma(x)))


# Where |Γ| is 1 on the left, the first of them beside −2 and the last beside −9.
ZEROS = (
    2.4570247, 2.7476826, 3.1435809, 3.9552943, 4.0393618, 4.9915446, 5.0082182, 5.9986075, 6.0013853, 6.9998015,
    7.0001983, 7.9999752, 8.0000248, 8.9999972, 9.0000028,
)  # fmt: skip # packed numbers


def beside(place: float, steps: torch.Tensor) -> torch.Tensor:
    """float32 numbers so many units in the last place from one."""
    return (torch.tensor(place).view(torch.int32) + steps).view(torch.float32)


def logarithm_on_the_left(x: torch.Tensor) -> Exact:
    with mpmath.workdps(40):
        return Exact(torch.tensor(list(map(float, map(log_gamma, map(mpmath.mpf, x.tolist())))), dtype=torch.float64))


def derivative(order: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: torch.polygamma(order, x)


def test_lgamma_on_the_right_and_to_minus_one_half() -> None:
    points = [1e-5, 0.3, 0.5, 0.9, 1.0, 1.3, 1.36, 1.99, 2.0, 2.01, 2.4, 2.6, 3.9, 4.1, 20.0, 1e3, -0.3, -0.7, -1.4]
    error, place = worst_in_double(torch.lgamma, log_gamma, points)
    assert error <= 3, f"float64: {error} ULP at {place}"
    for x in (spread(1e-38, 1e36), spread(0.1, 30.0), -spread(1e-38, 0.5)):
        error, place = worst(torch.lgamma, x)
        assert error <= 3, f"{error} ULP at {place}"


def test_lgamma_on_the_left_keeps_its_digits_at_its_zeros() -> None:
    steps = torch.cat([torch.arange(-200, 201), (1.25 ** torch.arange(24.0, 64)).long()]).int()
    exact = spread(0.5, 40.0, 4000), spread(2.2, 12.0, 4000)
    pieces = [-x[x != x.round()] for x in exact + tuple(beside(zero, steps) for zero in ZEROS)]
    together = torch.cat(pieces)
    errors = deviation(lowered(torch.lgamma, together)(together), logarithm_on_the_left(together)).error
    for x, found in zip(pieces, errors.split([len(x) for x in pieces])):
        assert found.max() <= 4.2, f"{float(found.max())} ULP at {float(x[found.argmax()])}"
        assert found.mean() < 1.2


def test_lgamma_in_double_keeps_its_digits_at_its_zeros() -> None:
    with mpmath.workdps(40):
        zeros = [float(mpmath.findroot(log_gamma, -zero)) for zero in ZEROS[:10]]
    steps = [0, 1, -1, 5, -12, 300, -4000, 10**6, -(10**9), 10**12, -(10**12)]
    beside_zeros = torch.tensor(zeros, dtype=torch.float64).view(torch.int64)[:, None] + torch.tensor(steps)
    points = beside_zeros.view(torch.float64).flatten().tolist()
    points += [-16 + 1e-14, -17 - 1e-14, -12 - 1e-7, -22.3, -22.7, -23 + 1e-14, -1.6, -2.2, -3.4]
    error, place = worst_in_double(torch.lgamma, log_gamma, points)
    assert error <= 4, f"{error} ULP at {place}"


def test_lgamma_beside_whole_numbers_below_zero() -> None:
    steps = torch.tensor([1, 2, 3, 5, 9, 40, 600, -1, -2, -3, -5, -9, -40, -600, 20000, -20000])
    x = -torch.cat([beside(float(whole), steps.int()) for whole in range(1, 30)])
    found = deviation(lowered(torch.lgamma, x)(x), logarithm_on_the_left(x)).error
    assert found.max() <= 3.6, f"{float(found.max())} ULP at {float(x[found.argmax()])}"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_lgamma_of_half_types_is_rounded_once_at_the_left(dtype: torch.dtype) -> None:
    x = torch.unique(-spread(0.5, 40.0).to(dtype))
    x = x[x != x.round()]
    found, exact = lowered(torch.lgamma, x)(x), torch.lgamma(x.double())
    assert deviation(found, Exact(exact)).error.max() <= 0.6


def test_slopes_of_lgamma_on_the_left() -> None:
    x = -torch.cat([spread(0.5, 14.0, 3000), *(beside(zero, torch.arange(-9, 10).int()) for zero in ZEROS)])
    x = x[(x - x.round()).abs() > 1e-5].requires_grad_()
    distance = (x - x.round()).detach().abs().double()
    (slope,) = torch.autograd.grad(lowered(torch.lgamma, x)(x).sum(), x, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), x)
    assert ((slope - torch.digamma(x.double())) * distance).abs().max() < 1e-6
    assert ((bend - torch.polygamma(1, x.double())) * distance**2).abs().max() < 4e-5


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
