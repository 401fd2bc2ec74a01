"""The elementary functions: error in ULP over all float32 against float64, special values, gradients and dtypes."""

from collections.abc import Callable
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import decomp
from decomp_rules import targets
from decomp_rules.pointwise import exponential, logarithm, power, quotient, rounding, trigonometry
from decomp_rules.special import error_function, functions as special
from tests.decomp_rules.rule_agreement import agrees
from tests.forms import Holder

aten = torch.ops.aten
RULES = exponential.RULES | logarithm.RULES | power.RULES | quotient.RULES | rounding.RULES | trigonometry.RULES
RULES = RULES | error_function.RULES | special.RULES
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 1.2e-38, 3.4e38, -3.4e38]

# What a target without any of these has: the rules call each other, so each is measured with the others put in.
DERIVED = {
    torch.exp: exponential.exp,
    torch.expm1: exponential.expm1,
    torch.log: logarithm.log,
    torch.log1p: logarithm.log1p,
    torch.rsqrt: power.rsqrt,
    torch.cos: trigonometry.cos,
    torch.tanh: trigonometry.tanh,
    torch.erf: error_function.erf,
    torch.Tensor.__truediv__: quotient.true_divide,
    torch.cosh: trigonometry.cosh,
    torch.sinh: trigonometry.sinh,
    torch.atan: trigonometry.atan,
}

# Function, rule, largest error in ULP.
FUNCTIONS = [
    (torch.exp, exponential.exp, 1.4),
    (torch.exp2, exponential.exp2, 2.0),
    (torch.expm1, exponential.expm1, 1.6),
    (torch.log, logarithm.log, 1.6),
    (torch.log2, logarithm.log2, 1.9),
    (torch.log10, logarithm.log10, 1.4),
    (torch.log1p, logarithm.log1p, 2.0),
    (torch.rsqrt, power.rsqrt, 2.0),
    (torch.cos, trigonometry.cos, 1.9),
    (torch.tanh, trigonometry.tanh, 1.9),
    (torch.erf, error_function.erf, 1.6),
]


class Derived(TorchFunctionMode):
    """Runs a rule in place of each function that has one, inside rules too."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        rule = DERIVED.get(func)
        if rule is None:
            return func(*args, **(kwargs or {}))
        with self:
            return rule(*args, **(kwargs or {}))


def derived(rule: Callable[..., Tensor], *args: Any) -> Tensor:
    with Derived():
        return rule(*args)


def floats(count: int = 100_000) -> Tensor:
    """Random bit patterns (all exponents alike), numbers of everyday size, and the special values."""
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31 - 1, (count,), generator=generator).to(torch.int32).view(torch.float32)
    near = torch.cat([(torch.rand(count, generator=generator) * 2 - 1) * size for size in (1, 10, 100)])
    return torch.cat([torch.tensor(SPECIAL), bits[bits.isfinite()], near])


def ulps(found: Tensor, exact: Tensor) -> Tensor:
    """The distance of a float32 from a float64, in units of the last place of a float32 of that size."""
    exponent = torch.frexp(exact.abs().clamp(min=2.0**-126)).exponent - 24
    error = (found.double() - exact).abs() / torch.ldexp(torch.ones_like(exact), exponent)
    alike = (found == exact.float()) | (found.isnan() & exact.isnan())
    return torch.where(alike, 0.0, error)


@pytest.mark.parametrize(("function", "rule", "bound"), FUNCTIONS, ids=lambda value: getattr(value, "__name__", None))
def test_error_over_all_float32(function: Any, rule: Any, bound: float) -> None:
    x = floats()
    error = ulps(derived(rule, x), function(x.double()))
    worst = error.nan_to_num(nan=math.inf).argmax()
    assert error[worst] <= bound, f"{error[worst]} ULP at {x[worst]}"


@pytest.mark.parametrize(("function", "rule", "bound"), FUNCTIONS, ids=lambda value: getattr(value, "__name__", None))
def test_special_values_and_signed_zeros(function: Any, rule: Any, bound: float) -> None:
    x = torch.tensor(SPECIAL)
    found, expected = derived(rule, x), function(x)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=2e-45, equal_nan=True)
    zero = (x == 0) & (expected == 0)
    assert torch.equal(found[zero].signbit(), expected[zero].signbit())


@pytest.mark.parametrize(("function", "rule", "bound"), FUNCTIONS, ids=lambda value: getattr(value, "__name__", None))
def test_gradients_of_both_orders(function: Any, rule: Any, bound: float) -> None:
    x = torch.cat([torch.linspace(-9, 9, 181), torch.tensor([1e-30, 0.55, 88.5, 88.7])])
    expected = gradients(function, x.double())
    for found, exact, absolute in zip(gradients(lambda x: derived(rule, x), x), expected, (1e-6, 1e-4), strict=True):
        finite = exact.float().isfinite()
        torch.testing.assert_close(found[finite], exact[finite].float(), rtol=2e-6, atol=absolute)


def gradients(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    return first.detach(), second


@pytest.mark.parametrize(("function", "rule", "bound"), FUNCTIONS, ids=lambda value: getattr(value, "__name__", None))
def test_no_nan_gradient_at_a_finite_input(function: Any, rule: Any, bound: float) -> None:
    x = floats(20_000)
    x = x[x.isfinite()]
    leaves = x.clone().requires_grad_(), x.clone().requires_grad_()
    mine, theirs = derived(rule, leaves[0]), function(leaves[1])
    (found,) = torch.autograd.grad(mine.sum(), leaves[0])
    (expected,) = torch.autograd.grad(theirs.sum(), leaves[1])
    worse = found.isnan() & ~expected.isnan()
    assert not worse.any(), f"at {x[worse][:3]}"


@pytest.mark.parametrize(("function", "rule", "bound"), FUNCTIONS, ids=lambda value: getattr(value, "__name__", None))
def test_float64_half_types_and_integers(function: Any, rule: Any, bound: float) -> None:
    x = torch.cat([torch.linspace(-30, 30, 601, dtype=torch.float64), torch.tensor([1e-300, 1e-9, 700.0, 709.5])])
    torch.testing.assert_close(derived(rule, x), function(x), rtol=2e-15, atol=1e-16, equal_nan=True)
    for dtype in (torch.bfloat16, torch.float16):
        torch.testing.assert_close(derived(rule, x.to(dtype)), function(x.to(dtype)), equal_nan=True)
    whole = torch.arange(-3, 6)
    torch.testing.assert_close(derived(rule, whole), function(whole), equal_nan=True)
    assert derived(rule, torch.tensor(2.0)).shape == ()
    assert derived(rule, torch.empty(0, 3)).shape == (0, 3)


def test_cos_and_tan_next_to_zeros_and_poles_and_far_out() -> None:
    x = torch.cat([(torch.arange(1000) + 0.5) * math.pi, torch.logspace(3, 37, 1000)]).float()
    assert ulps(trigonometry.cos(x), torch.cos(x.double())).max() <= 1.9
    assert ulps(trigonometry.tan(x), torch.tan(x.double())).max() <= 2


def test_division_by_a_number_is_exact_where_it_can_be() -> None:
    for divisor in (3, 7, 49.0, 0.1, math.log(16)):
        whole = torch.arange(-50, 50).float()
        x = whole * torch.tensor(float(divisor))
        assert torch.equal(quotient.true_divide(x, divisor), x / divisor)
    x = floats()
    for divisor in (3, -0.1, 1e38, 1e-39, 8, math.inf, 0.0):
        assert ulps(quotient.true_divide(x, divisor), x.double() / torch.tensor(divisor).double()).max() <= 1.5


def test_division_by_a_tensor_over_all_float32() -> None:
    x = floats()
    y = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(1))]
    assert ulps(quotient.true_divide(x, y), x.double() / y.double()).max() <= 1.5
    values = torch.tensor(SPECIAL)
    x, y = values.repeat(len(values)), values.repeat_interleave(len(values))
    torch.testing.assert_close(quotient.true_divide(x, y), x / y, rtol=1e-6, atol=0, equal_nan=True)


def test_the_gradient_by_a_subnormal_divisor_of_nothing_is_no_nan() -> None:
    x, y = torch.zeros(3, requires_grad=True), torch.tensor([1e-45, -1e-40, 1.0], requires_grad=True)
    _, found = torch.autograd.grad(quotient.true_divide(x, y).sum(), (x, y))
    assert torch.equal(found, torch.zeros(3))


def test_quotients_that_are_exact_come_out_exact() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(1, 4000, (10_000,), generator=generator).float()
    x = torch.randint(1, 4000, (10_000,), generator=generator).float()
    assert torch.equal(quotient.true_divide(x * y, y), x)
    x, y = torch.randn(10_000, generator=generator), torch.randn(10_000, generator=generator)
    assert ulps(quotient.true_divide(x, y), x.double() / y.double()).max() <= 0.51


@pytest.mark.parametrize(
    "operands",
    [
        (torch.tensor([1, 2, 3]), torch.tensor([2, 7, -4])),
        (torch.tensor([1, 2, 3]), 7),
        (torch.tensor([1.0, 2.0]).bfloat16(), torch.tensor([3.0, 7.0]).bfloat16()),
        (torch.tensor([1.0, 2.0], dtype=torch.float16), 3),
        (torch.tensor([1.0, 2.0]), torch.tensor(3.0, dtype=torch.float64)),
        (torch.tensor([1.0, 2.0], dtype=torch.float64), 3.3),
        (torch.tensor([True, False]), torch.tensor([True, True])),
    ],
)
def test_division_promotes_like_the_op(operands: Any) -> None:
    overload = aten.div.Tensor if isinstance(operands[1], Tensor) else aten.div.Scalar
    agrees(RULES, overload, *operands, tolerance=1e-7 if operands[0].dtype != torch.bfloat16 else None)


@pytest.mark.parametrize("exponent", [0, 2, 3, 4, 7, 0.5, -0.5, -1, -2, 2.0, 2.5, -3, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_powers_with_a_number_as_exponent(exponent: float, dtype: torch.dtype) -> None:
    agrees(RULES, aten.pow.Tensor_Scalar, torch.tensor([0.25, 1.0, 1.75, 3.0]).to(dtype), exponent)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 10, 2.0, 0.5])
def test_powers_of_integers(exponent: float) -> None:
    agrees(RULES, aten.pow.Tensor_Scalar, torch.tensor([0, 1, -2, 5]), exponent)


@pytest.mark.parametrize("base", [1, 2, 2.0, 0.5, 3.7, 0])
def test_powers_of_a_number(base: float) -> None:
    agrees(RULES, aten.pow.Scalar, base, torch.tensor([0.5, 1.0, 2.0, 3.0]))
    agrees(RULES, aten.pow.Scalar, base, torch.tensor([0, 1, 2, 5]))


def test_powers_of_tensors_with_their_special_cases() -> None:
    values = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 3.0, -2.0, 2.5, -0.5, 1e8, math.inf, -math.inf, math.nan])
    x, y = values.repeat(len(values)), values.repeat_interleave(len(values))
    found, expected = power.power(x, y), torch.pow(x, y)
    torch.testing.assert_close(found, expected, rtol=2e-7, atol=0, equal_nan=True)
    zero = expected == 0
    assert torch.equal(found[zero].signbit(), expected[zero].signbit())
    agrees(RULES, aten.pow.Tensor_Tensor, torch.tensor([0.5, 2.0, 3.0, 7.0]), torch.tensor([2.5, -1.0, 3.0, 2.0]))


def test_powers_have_no_gradient_where_the_exponent_is_no_number() -> None:
    x = torch.tensor([0.0, 1.5, -0.0, -2.0], requires_grad=True)
    y = torch.tensor([math.nan, math.nan, -1.0, 2.0], requires_grad=True)
    found = torch.autograd.grad(power.power(x, y).sum(), (x, y))
    expected = torch.autograd.grad(torch.pow(x, y).sum(), (x, y))
    torch.testing.assert_close(found, expected, equal_nan=True)


def test_powers_of_tensors_over_all_float32() -> None:
    x = floats(50_000).abs()
    y = torch.randn(len(x), generator=torch.Generator().manual_seed(1)) * 100 / torch.log2(x).clamp(min=1e-3)
    y = torch.where(y.isfinite(), y, 1.5)
    assert ulps(power.power(x, y), torch.pow(x.double(), y.double())).nan_to_num(nan=0.0).max() <= 1.1
    x, y = x.double().clamp(min=1e-300), y.double() * 3
    torch.testing.assert_close(power.power(x, y), torch.pow(x, y), rtol=5e-16, atol=0, equal_nan=True)


def test_powers_have_slopes_where_they_overflow_vanish_or_end() -> None:
    pairs = [
        (1e30, 1.3),
        (1e-30, 2.0),
        (1e-45, 0.5),
        (1e-45, 1.0),
        (-3e10, 4.0),
        (26.15, 26.15),
        (1e-40, 0.9),
        (-2.0, 3),
    ]
    pairs += [(0.0, 1.0), (0.0, 0.5), (0.0, 2.0), (math.inf, 1.0), (math.inf, 2.5), (math.inf, 0.0), (-math.inf, 3.0)]
    pairs += [(2.0, math.inf), (0.5, -math.inf), (1.0, math.inf), (1.0, math.nan), (math.nan, 0.0), (math.nan, 1.0)]
    x, y = torch.tensor(pairs).T
    agrees(RULES, aten.pow.Tensor_Tensor, x, y)
    agrees(RULES, aten.pow.Tensor_Tensor, x.double(), y.double())


def test_powers_have_second_derivatives_next_to_overflow() -> None:
    x, y = torch.tensor([26.15, 8.0, 1.5]), torch.tensor([26.15, 39.5, 2.5])
    second = [
        torch.autograd.functional.hessian(lambda x, y: function(x, y).sum(), (x, y))
        for function in (torch.pow, power.power)
    ]
    torch.testing.assert_close(*second, rtol=1e-5, atol=0)


@pytest.mark.parametrize("overload", [aten.hypot.default, aten.logaddexp.default, aten.logaddexp2.default])
def test_functions_of_two_tensors(overload: Any) -> None:
    values = torch.tensor([0.5, -0.5, 1.0, -2.0, 1e-3, 30.0, 1e4])
    agrees(RULES, overload, values.repeat(7), values.repeat_interleave(7))
    edges = torch.tensor([math.inf, -math.inf, math.nan, 1e30, 1e-30, 3.0])
    agrees(RULES, overload, edges.repeat(6), edges.repeat_interleave(6), gradient=False)


@pytest.mark.parametrize("overload", [aten.xlogy.Tensor, aten.special_xlog1py.default])
def test_zero_times_an_infinite_logarithm_is_zero(overload: Any) -> None:
    values = torch.tensor([0.0, 1.0, -2.0, 0.5])
    other = torch.tensor([0.0, math.inf, -1.0, 2.0])
    agrees(RULES, overload, values.repeat(4), other.repeat_interleave(4), gradient=False)
    agrees(RULES, overload, torch.tensor([0.0, 1.0, 2.0]), torch.tensor([2.0, 3.0, 0.5]))
    agrees(RULES, overload, torch.tensor([0.0, -0.0, 0.0]), torch.tensor([math.inf, math.inf, -1.5]))


def test_a_logarithm_of_next_to_nothing_times_next_to_nothing_has_its_slope() -> None:
    values = torch.tensor([1e-45, 1e-40, 1e-38, -1e-38])
    x, y = values.repeat(3), values[:3].repeat_interleave(4).requires_grad_()
    lowered = decomp.lower(Holder(torch.xlogy), to=targets.tinygrad, args=(x, y), accuracy="exact").result
    (found,) = torch.autograd.grad(lowered(x, y).sum(), y)
    torch.testing.assert_close(found, x / y.detach())


ROUNDING = [aten.trunc.default, aten.floor.default, aten.ceil.default, aten.round.default, aten.frac.default]


@pytest.mark.parametrize("function", ROUNDING)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rounding_is_exact(function: Any, dtype: torch.dtype) -> None:
    halves = torch.arange(-20, 21) * 0.25
    x = torch.cat([halves, floats(2000)]).to(dtype)
    agrees(RULES, function, x, tolerance=0)


def test_rounding_leaves_integers_alone_and_knows_decimals() -> None:
    for function in (aten.floor.default, aten.ceil.default, aten.round.default):
        agrees(RULES, function, torch.arange(-3, 3))
    for decimals in (2, -2, 0):
        agrees(RULES, aten.round.decimals, torch.tensor([1.234, -567.891, 250.0, 0.125]), decimals=decimals)


TRIGONOMETRIC = [
    (torch.tan, trigonometry.tan, 2.0, 8e37),
    (torch.atan, trigonometry.atan, 2.0, 3e38),
    (torch.asin, trigonometry.asin, 1.7, 1.5),
    (torch.acos, trigonometry.acos, 2.0, 1.5),
    (torch.sinh, trigonometry.sinh, 3.0, 88.0),
    (torch.cosh, trigonometry.cosh, 2.5, 88.0),
    (torch.asinh, trigonometry.asinh, 3.0, 3e38),
    (torch.acosh, trigonometry.acosh, 3.0, 3e38),
    (torch.atanh, trigonometry.atanh, 2.0, 1.5),
    (torch.erfc, error_function.erfc, 2.0, 3e38),
]


@pytest.mark.parametrize(
    ("function", "rule", "bound", "largest"), TRIGONOMETRIC, ids=lambda value: getattr(value, "__name__", None)
)
def test_trigonometric_and_hyperbolic_functions(function: Any, rule: Any, bound: float, largest: float) -> None:
    x = floats(50_000)
    x = x[x.abs() <= largest]
    error = ulps(derived(rule, x), function(x.double()))
    worst = error.nan_to_num(nan=math.inf).argmax()
    assert error[worst] <= bound, f"{error[worst]} ULP at {x[worst]}"
    edges = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0])
    found, expected = derived(rule, edges), function(edges)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0, equal_nan=True)
    assert torch.equal(found[expected == 0].signbit(), expected[expected == 0].signbit())
    leaves = x.clone().requires_grad_(), x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(derived(rule, leaves[0]).sum(), leaves[0])
    (exact,) = torch.autograd.grad(function(leaves[1]).sum(), leaves[1])
    assert not (slope.isnan() & ~exact.isnan() & ~function(x).isnan()).any()
    x = torch.linspace(-0.95, 0.95, 101, dtype=torch.float64) + (2 if function is torch.acosh else 0)
    torch.testing.assert_close(derived(rule, x), function(x), rtol=4e-15, atol=1e-16)
    torch.testing.assert_close(gradients(rule, x)[0], gradients(function, x)[0], rtol=1e-10, atol=1e-12)


def test_atan2_in_all_quadrants_and_at_signed_zeros() -> None:
    x = floats(30_000)
    y = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(1))]
    assert ulps(derived(trigonometry.atan2, x, y), torch.atan2(x.double(), y.double())).max() <= 2.5
    values = torch.tensor(SPECIAL)
    x, y = values.repeat(len(values)), values.repeat_interleave(len(values))
    found, expected = derived(trigonometry.atan2, x, y), torch.atan2(x, y)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=2e-45, equal_nan=True)
    y, x = torch.tensor([0.0, 1.0, -2.0, 3.0, 0.0]), torch.tensor([0.0, 0.0, -1.0, 4.0, -1.0])
    agrees(RULES, aten.atan2.default, y, x)


def test_quotients_of_subnormal_numbers_by_small_ones_have_slopes_with_all_digits() -> None:
    x = torch.tensor([1.4e-45, 8.1e-43, 8.6e-43, 1e-40])
    y = torch.tensor([5.89e-21, 1.65e-19, 1.98e-19, 1e-22], requires_grad=True)
    (found,) = torch.autograd.grad(quotient.true_divide(x, y).sum(), y)
    torch.testing.assert_close(found.double(), -x.double() / y.detach().double() ** 2, rtol=5e-7, atol=0)


def test_quotients_that_vanish_keep_their_sign() -> None:
    x = torch.exp2(torch.arange(-149, -21).float())
    found = quotient.true_divide(x, torch.full_like(x, -1.7e38))
    assert found.signbit().all() and torch.equal(found, x / -1.7e38)


def test_remainders_of_floats_are_exact_for_any_quotient() -> None:
    x = floats(30_000)
    x = x[x.isfinite()]
    y = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(1))]
    x, y = x[y != 0], y[y != 0]
    found = quotient.fmod(x, y)
    # PyTorch's vectorised kernel of float32 has NaN where the quotient overflows.
    assert torch.equal(found.double(), torch.fmod(x.double(), y.double()))
    assert torch.equal(found.signbit(), x.signbit())
    assert torch.equal(quotient.fmod_of_large(x, y), found)
    values = torch.tensor(SPECIAL)
    x, y = values.repeat(len(values)), values.repeat_interleave(len(values))
    exact = torch.fmod(x.double(), y.double()).float()
    torch.testing.assert_close(quotient.fmod(x, y), exact, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(quotient.fmod_of_large(x, y), exact, rtol=0, atol=0, equal_nan=True)


def test_remainders_in_float64_are_those_of_integers() -> None:
    numbers = [math.ldexp(m, n) for m, n in ((1.0, -1074), (0.7, 1024), (-0.1, 900), (3.3, 0), (0.9, -1020), (1e15, 3))]
    pairs = [(x, y) for x in numbers for y in numbers]
    x, y = torch.tensor(pairs, dtype=torch.float64).T
    expected = torch.tensor([math.fmod(*pair) for pair in pairs], dtype=torch.float64)
    assert torch.equal(quotient.fmod(x, y), expected)
    assert torch.equal(quotient.fmod_of_large(x, y), expected)


@pytest.mark.parametrize("overload", [aten.fmod.Tensor, aten.remainder.Tensor])
def test_remainders_of_floats_and_their_gradients(overload: Any) -> None:
    x, y = torch.tensor([7.5, -7.5, 7.5, -7.5, 6.0, 1e5]), torch.tensor([2.0, 2.0, -2.0, -2.0, 3.0, 0.37])
    agrees(RULES, overload, x, y)
    agrees(RULES, overload, x.double(), y.double())
    agrees(RULES, overload, x.bfloat16(), y.bfloat16())
    agrees(RULES, overload, torch.tensor([5, 7]), y[:2])


@pytest.mark.parametrize(
    "overload",
    [
        aten.special_ndtr.default,
        aten.sinc.default,
        aten.deg2rad.default,
        aten.rad2deg.default,
        aten.special_entr.default,
    ],
)
def test_special_functions(overload: Any) -> None:
    x = torch.tensor([0.0, 0.25, 0.5, 1.0, 3.0, 100.0])
    agrees(RULES, overload, x, gradient=overload is not aten.special_entr.default)
    agrees(RULES, overload, x + 0.5)
    agrees(RULES, overload, -x, gradient=overload is not aten.special_entr.default)
    agrees(RULES, overload, torch.tensor([1, 2, 3]))


def test_float_power_is_in_float64() -> None:
    agrees(RULES, aten.float_power.Tensor_Scalar, torch.tensor([1.0, 2.0]), 3)
    agrees(RULES, aten.float_power.Tensor_Tensor, torch.tensor([1, 2]), torch.tensor([0.5, 3.0]))
    agrees(RULES, aten.float_power.Scalar, 2, torch.tensor([1, 2]))
