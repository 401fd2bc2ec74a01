"""Bessel functions lowered to tinygrad: error in ULP from the smallest to the largest numbers, edges, integers and
gradients."""

from collections.abc import Callable
import math
from typing import Any

import mpmath
import pytest
import torch

from decomp_rules.special import bessel, modified_bessel
from tests.decomp_rules.exact_values import lowered, spread, worst, worst_in_double
from tests.decomp_rules.rule_agreement import agrees, lowered_agrees
from tests.pytorch_differences import I1E_HAS_A_GRADIENT_AT_NAN

aten, special = torch.ops.aten, torch.special
RULES = bessel.RULES | modified_bessel.RULES

# Function, what it is, the bounds of the points, and the largest error in ULP.
MODIFIED = [
    (torch.i0, lambda x: mpmath.besseli(0, x), 1e-30, 88, 5.0),
    (special.i0e, lambda x: mpmath.besseli(0, x) * mpmath.exp(-x), 1e-30, 1e4, 3.9),
    (special.i1, lambda x: mpmath.besseli(1, x), 1e-30, 88, 4.5),
    (special.i1e, lambda x: mpmath.besseli(1, x) * mpmath.exp(-x), 1e-30, 1e4, 3.6),
    (special.modified_bessel_i0, lambda x: mpmath.besseli(0, x), 1e-3, 88, 5.0),
    (special.modified_bessel_i1, lambda x: mpmath.besseli(1, x), 1e-3, 88, 4.5),
    (special.modified_bessel_k0, lambda x: mpmath.besselk(0, x), 1e-37, 80, 4.0),
    (special.modified_bessel_k1, lambda x: mpmath.besselk(1, x), 1e-37, 80, 4.0),
    (special.scaled_modified_bessel_k0, lambda x: mpmath.besselk(0, x) * mpmath.exp(x), 1e-37, 1e4, 4.0),
    (special.scaled_modified_bessel_k1, lambda x: mpmath.besselk(1, x) * mpmath.exp(x), 1e-37, 1e4, 4.0),
]
OSCILLATING = [
    (special.bessel_j0, lambda x: mpmath.besselj(0, x), 2.3, 4.5),
    (special.bessel_j1, lambda x: mpmath.besselj(1, x), 3.5, 4.5),
    (special.bessel_y0, lambda x: mpmath.bessely(0, x), 0.7, 5.0),
    (special.bessel_y1, lambda x: mpmath.bessely(1, x), 1.5, 4.5),
    (special.spherical_bessel_j0, lambda x: mpmath.sin(x) / x, 3e38, 2.0),
]
EDGES = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-38, -1e-38, 3e38, 1.0, -1.0, 8.0, -8.0, 90.0, -90.0])


def names(value: Any) -> Any:
    return getattr(value, "__name__", None)


@pytest.mark.parametrize(("function", "exact", "lowest", "highest", "bound"), MODIFIED, ids=names)
def test_modified_functions_at_every_size(
    function: Any, exact: Callable[..., Any], lowest: float, highest: float, bound: float
) -> None:
    error, place = worst_in_double(function, exact, [0.01, 0.5, 0.99, 1.0, 1.5, 3.0, 7.9, 8.0, 20.0, 60.0])
    assert error <= 4, f"float64: {error} ULP at {place}"
    error, place = worst(function, torch.cat([spread(lowest, highest), spread(0.1, 60.0)]))
    assert error <= bound, f"{error} ULP at {place}"


@pytest.mark.parametrize(("function", "exact", "highest", "bound"), OSCILLATING, ids=names)
def test_oscillating_functions_up_to_their_zeros(
    function: Any, exact: Callable[..., Any], highest: float, bound: float
) -> None:
    error, place = worst_in_double(function, exact, [0.01, 0.2, 0.5, 0.7])
    assert error <= 5, f"float64: {error} ULP at {place}"
    error, place = worst(function, torch.cat([spread(1e-30, highest), spread(0.1, min(highest, 100.0))]))
    assert error <= bound, f"{error} ULP at {place}"


@pytest.mark.parametrize(("function", "exact", "highest", "bound"), OSCILLATING[:4], ids=names)
def test_far_out_the_error_is_that_of_the_amplitude(
    function: Any, exact: Callable[..., Any], highest: float, bound: float
) -> None:
    for x, tolerance in ((spread(1.0, 1e6, 60), 2.5e-7), (spread(1.0, 1e4, 60).double(), 4e-16)):
        found = lowered(function, x)(x)
        with mpmath.workdps(30):
            reference = torch.tensor([float(exact(mpmath.mpf(v))) for v in x.tolist()], dtype=torch.float64)
        error = (found.double() - reference).abs() * x.double().clamp(min=1).sqrt()
        assert error.max() <= tolerance, f"{error.max()} at {x[error.argmax()]}"


def test_airy_function() -> None:
    error, place = worst_in_double(special.airy_ai, mpmath.airyai, [-3.9, -3.0, -1.3, -1.1, 0.5, 0.99, 1.01, 2.0, 4.0])
    assert error <= 40, f"float64: {error} ULP at {place}"
    for x, bound in ((-spread(0.01, 2.2), 4.0), (spread(1e-20, 1.0), 2.0), (spread(1.0, 5.0), 30.0)):
        error, place = worst(special.airy_ai, x)
        assert error <= bound, f"{error} ULP at {place}"
    x = torch.tensor([-30.0, -12.0, -4.1], dtype=torch.float64)
    exact = torch.tensor([float(mpmath.airyai(v)) for v in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(lowered(special.airy_ai, x)(x), exact, rtol=0, atol=1e-14)


@pytest.mark.parametrize("function", [entry[0] for entry in MODIFIED + OSCILLATING] + [special.airy_ai], ids=names)
def test_edges_are_those_of_the_op(function: Any) -> None:
    x = EDGES[EDGES != 3e38] if function in (entry[0] for entry in OSCILLATING[:4]) else EDGES
    found, expected = lowered(function, x)(x), function(x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-37, equal_nan=True)
    whole = torch.arange(-3, 12)
    torch.testing.assert_close(lowered(function, whole)(whole), function(whole), rtol=2e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("function", [torch.i0, special.i0e, special.i1, special.i1e], ids=names)
def test_gradients_of_modified_functions(function: Any) -> None:
    x = torch.tensor([-30.0, -8.0, -7.9, -1.0, -1e-3, 0.0, 1e-6, 0.5, 3.0, 7.99, 8.0, 50.0])
    lowered_agrees(function, x, tolerance=4e-6)
    lowered_agrees(function, x.double(), tolerance=1e-13)


@pytest.mark.parametrize("function", [torch.i0, special.i1, special.i1e], ids=names)
def test_gradients_of_modified_functions_at_nan_and_where_they_overflow(function: Any) -> None:
    at_nan = function is special.i1 or I1E_HAS_A_GRADIENT_AT_NAN
    x = [200.0, -200.0] if function is torch.i0 else [math.nan, -0.0] if at_nan else [-0.0]
    lowered_agrees(function, torch.tensor(x))


def test_every_rule_agrees_in_each_dtype() -> None:
    for name in ("i0", "special_i0e", "special_i1", "special_i1e"):
        for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
            x = torch.tensor([0.0, 0.5, -2.0, 9.0], dtype=dtype)
            agrees(RULES, getattr(aten, name).default, x, gradient=dtype.itemsize > 2)
    for name in ("bessel_j0", "bessel_y1", "modified_bessel_k0", "scaled_modified_bessel_k1", "airy_ai"):
        agrees(RULES, getattr(aten, f"special_{name}").default, torch.tensor(2.5), gradient=False)
        agrees(RULES, getattr(aten, f"special_{name}").default, torch.empty(0, 3), gradient=False)
