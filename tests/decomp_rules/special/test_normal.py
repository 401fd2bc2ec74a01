"""The normal distribution's functions and the orthogonal polynomials lowered to tinygrad: error in ULP, edges,
integers and gradients."""

import math
from typing import Any

import mpmath
import pytest
import torch

from decomp_rules.special import functions as special, normal, orthogonal_polynomials
from tests.decomp_rules.exact_values import lowered, spread, worst, worst_in_double
from tests.decomp_rules.rule_agreement import agrees, lowered_agrees

aten = torch.ops.aten
functions = torch.special
RULES = normal.RULES | special.RULES | orthogonal_polynomials.RULES
KINDS = [f"{shifted}chebyshev_polynomial_{kind}" for shifted in ("", "shifted_") for kind in "tuvw"]
OTHERS = ["hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"]


def quantile(p: Any) -> Any:
    """The inverse of the normal distribution, by Newton's method."""
    z = mpmath.mpf(float(functions.ndtri(torch.tensor(float(p), dtype=torch.float64))))
    for _ in range(4):
        z -= (mpmath.ncdf(z) - p) / mpmath.npdf(z)
    return z


def test_erfinv() -> None:
    error, place = worst_in_double(torch.erfinv, mpmath.erfinv, [1e-9, 0.3, 0.7, 0.89, 0.91, 0.99, 0.9999, 1 - 1e-12])
    assert error <= 3, f"float64: {error} ULP at {place}"
    for x in (spread(1e-38, 1.0), -spread(0.5, 1.0), 1 - spread(6e-8, 0.5)):
        error, place = worst(torch.erfinv, x[x.abs() < 1])
        assert error <= 2.7, f"{error} ULP at {place}"


def test_ndtri() -> None:
    error, place = worst_in_double(functions.ndtri, quantile, [1e-200, 1e-20, 0.01, 0.049, 0.051, 0.3, 0.6, 0.96])
    assert error <= 4, f"float64: {error} ULP at {place}"
    for x in (spread(1e-44, 1.0), 1 - spread(6e-8, 0.5)):
        error, place = worst(functions.ndtri, x[(x - 0.5).abs().le(0.4999)])
        assert error <= 4, f"{error} ULP at {place}"


def test_scaled_complement() -> None:
    points = [-20.0, -5.3, -1.0, -0.3, 0.0, 0.1, 0.8, 1.0, 3.0, 12.0, 1e5]
    error, place = worst_in_double(functions.erfcx, lambda x: mpmath.exp(x * x) * mpmath.erfc(x), points)
    assert error <= 3, f"float64: {error} ULP at {place}"
    for x in (spread(1e-30, 1e30), spread(0.01, 30.0), -spread(0.01, 9.3)):
        error, place = worst(functions.erfcx, x)
        assert error <= 6, f"{error} ULP at {place}"


def test_logarithm_of_the_distribution_on_the_left() -> None:
    points = [-1e5, -50.0, -5.3, -1.1, -1.0, -0.9, 0.0, 0.3]
    error, place = worst_in_double(functions.log_ndtr, lambda x: mpmath.log(mpmath.ncdf(x)), points)
    assert error <= 4, f"float64: {error} ULP at {place}"
    for x in (-spread(1e-3, 1e18), -spread(0.1, 20.0)):
        error, place = worst(functions.log_ndtr, x)
        assert error <= 4.5, f"{error} ULP at {place}"


@pytest.mark.parametrize("name", ["erfinv", "ndtri", "erfcx", "log_ndtr", "ndtr", "entr", "sinc"])
def test_edges_are_those_of_the_op(name: str) -> None:
    function = getattr(functions, name)
    x = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -2.0, math.inf, -math.inf, math.nan, 1e-40, -1e-40, 1e30, -1e30])
    if name == "sinc":
        x = x[x.abs() != 1e30]
    torch.testing.assert_close(lowered(function, x)(x), function(x), rtol=1e-5, atol=1e-6, equal_nan=True)
    whole = torch.tensor([0, 1, 2, -1])
    torch.testing.assert_close(lowered(function, whole)(whole), function(whole), rtol=1e-5, atol=1e-6, equal_nan=True)
    agrees(RULES, getattr(aten, name if name in ("erfinv", "sinc") else f"special_{name}").default, torch.empty(0, 2))


def test_gradients() -> None:
    x = torch.tensor([-0.99, -0.9, -0.5, 0.0, 0.3, 0.89, 0.91, 0.999])
    lowered_agrees(torch.erfinv, x, tolerance=1e-5)
    lowered_agrees(torch.erfinv, torch.tensor([1.0, -1.0]))
    lowered_agrees(functions.ndtri, x.abs(), tolerance=1e-5)
    x = torch.tensor([-9.0, -3.0, -1.0, -0.5, 0.0, 0.5, 1.5, 3.0])
    lowered_agrees(functions.erfcx, x, tolerance=1e-4)
    lowered_agrees(functions.log_ndtr, x, tolerance=1e-5)
    lowered_agrees(functions.log_ndtr, x.double(), tolerance=1e-12)


def test_gradient_of_the_entropy_is_that_of_the_formula() -> None:
    x = torch.tensor([-1.0, 0.0, 0.3, 2.0], requires_grad=True)
    (found,) = torch.autograd.grad(lowered(functions.entr, x.detach())(x).sum(), x)
    (expected,) = torch.autograd.grad(functions.entr(x).sum(), x)
    torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize("name", KINDS)
def test_chebyshev_polynomials_of_any_degree(name: str) -> None:
    function = getattr(functions, name)
    x = torch.tensor([0.0, 1.0, -1.0, 0.3, -0.7, 0.999, 1.0001, 1.5, -2.5, 40.0, math.inf, 1e30, -1e30])
    degrees = torch.tensor([-1.0, -0.5, 0.0, 1.0, 2.7, 6.0, 7.0, 8.0, 9.0, 25.0, math.nan, math.inf])
    x, n = torch.cartesian_prod(x, degrees).T.contiguous()
    found, expected = lowered(function, x, n)(x, n), function(x, n)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
    for degree in (0, 3, 12, 2.5, -1):
        agrees(RULES, getattr(aten, f"special_{name}").n_scalar, x[x.abs() < 9], degree, gradient=False, tolerance=1e-4)
    agrees(RULES, getattr(aten, f"special_{name}").x_scalar, 0.3, torch.tensor([2, 9]), gradient=False, tolerance=1e-4)


@pytest.mark.parametrize("name", OTHERS)
def test_other_polynomials_of_known_degree(name: str) -> None:
    overloads = getattr(aten, f"special_{name}")
    x = torch.tensor([0.0, 1.0, -1.0, 0.3, -2.5, 7.0], dtype=torch.float64)
    for degree in (-2, 0, 1, 2, 5, 30, 3.9):
        agrees(RULES, overloads.n_scalar, x, degree, gradient=False, tolerance=1e-9)
        agrees(RULES, overloads.n_scalar, x.float(), degree, gradient=False, tolerance=1e-4)
    small = torch.tensor([0, 1, 5, 40], dtype=torch.int8)
    agrees(RULES, overloads.default, torch.tensor([0.5, -1.5, 2.0, 0.1]), small, gradient=False, tolerance=1e-4)


def test_hermite_polynomials_end_where_the_kernel_ends_them() -> None:
    x, n = torch.tensor([0.5, 0.5, 1.5, 0.2]), torch.tensor([30.0, 129.0, -3.0, 7.0])
    for name in ("hermite_polynomial_h", "hermite_polynomial_he"):
        agrees(RULES, getattr(aten, f"special_{name}").default, x, n, gradient=False, tolerance=1e-4)


def test_a_degree_in_data_is_declared_where_nothing_bounds_it() -> None:
    for name in ("laguerre_polynomial_l", "legendre_polynomial_p"):
        with pytest.raises(Exception, match="depends on data"):
            lowered(getattr(functions, name), torch.rand(3), torch.tensor([1.0, 2.0, 3.0]))


def test_polynomials_are_numbers_up_to_overflow() -> None:
    for name, x, n in (
        ("chebyshev_polynomial_v", 1556.88599, 11),
        ("shifted_chebyshev_polynomial_u", -3.0, 33),
        ("chebyshev_polynomial_t", -186.290146, 17),
        ("laguerre_polynomial_l", math.inf, 2),
    ):
        function, values = getattr(torch.special, name), torch.full((4,), x)
        found = lowered(lambda x: function(x, n), values)(values)
        torch.testing.assert_close(found, function(values, n), rtol=2e-5, atol=0)


def test_hermites_second_polynomial_keeps_its_digits_at_its_zeros() -> None:
    x = torch.tensor([0.5**0.5, -(0.5**0.5)])
    found = lowered(lambda x: torch.special.hermite_polynomial_h(x, 2), x)(x)
    torch.testing.assert_close(found.double(), 4 * x.double() ** 2 - 2, rtol=1e-6, atol=0)
