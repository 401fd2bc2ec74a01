"""The activations and their backward kernels: error in ULP, gradients at kinks and far out, dtypes."""

from collections.abc import Callable
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from decomp import Rule
from decomp.results import Declined
from decomp_rules.pointwise import activation, activation_backward, gelu
from tests.decomp_rules.rule_agreement import agrees
from tests.decomp_rules.test_elementwise import DERIVED, Derived, floats, ulps

aten = torch.ops.aten
RULES = activation.RULES | activation_backward.RULES | gelu.RULES
DERIVED[torch.sigmoid] = activation.sigmoid

EDGES = [-0.0, 0.125, -0.125, 20.0, 20.5, -30.0, 60.0, -60.0, 1e4, -1e4, 1e30, -1e30]
POINTS = torch.cat([torch.linspace(-8, 8, 65), torch.tensor(EDGES)])

# The op with its arguments, and the largest error in ULP of its rule; None where the op itself cancels.
ACTIVATIONS = [
    (aten.sigmoid.default, (), 3.0),
    (aten.silu.default, (), 3.5),
    (aten.gelu.default, (), None),
    (aten.softplus.default, (), 2.6),
    (aten.softplus.default, (2.0, 5.0), None),
    (aten.log_sigmoid.default, (), 2.6),
    (aten.mish.default, (), 5.0),
    (aten.elu.default, (), 1.6),
    (aten.elu.default, (0.7, 1.3, 2.0), 2.6),
    (aten.celu.default, (1.3,), None),
    (aten.selu.default, (), 2.6),
    (aten.relu.default, (), 0.0),
    (aten.relu6.default, (), 0.0),
    (aten.hardtanh.default, (), 0.0),
    (aten.hardtanh.default, (-0.5, 2.0), 0.0),
    (aten.hardsigmoid.default, (), 1.5),
    (aten.hardswish.default, (), 2.0),
    (aten.leaky_relu.default, (), 1.0),
    (aten.leaky_relu.default, (0.2,), 1.0),
    (aten.threshold.default, (0.5, 20.0), 0.0),
    (aten.hardshrink.default, (), 0.0),
    (aten.softshrink.default, (0.25,), 0.5),
    (aten.rrelu.default, (), 1.0),
]


def named(value: Any) -> str | None:
    return str(value) if isinstance(value, torch._ops.OpOverload) else None


@pytest.mark.parametrize(("op", "arguments", "bound"), ACTIVATIONS, ids=named)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_agrees_with_the_op_and_its_gradient(op: Any, arguments: Any, bound: Any, dtype: torch.dtype) -> None:
    # PyTorch's kernels of these two take their constants in float32.
    tolerance = 1e-6 if op in (aten.celu.default, aten.hardsigmoid.default) and dtype == torch.float64 else None
    layouts = POINTS, torch.tensor([[0.5, -1.0]]).t().expand(2, 3), torch.tensor(-0.25), torch.empty(0, 2)
    for x in layouts:
        with Derived():
            agrees(RULES, op, x.to(dtype), *arguments, tolerance=tolerance)


@pytest.mark.parametrize(("op", "arguments", "bound"), [case for case in ACTIVATIONS if case[2] is not None], ids=named)
def test_error_over_all_float32(op: Any, arguments: Any, bound: float) -> None:
    x = floats(50_000)
    x = x[x.isfinite() & (x > -87)]  # below, what is subnormal on the way has few digits left
    for rule in serving(op, x, arguments):
        with Derived():
            found = rule.function(x, *arguments)
        error = ulps(found, op(x.double(), *arguments))
        worst = error.nan_to_num(nan=math.inf).argmax()
        assert error[worst] <= bound, f"{error[worst]} ULP at {x[worst]}"


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(approximate: str) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        x = POINTS.to(dtype)
        with Derived():
            agrees(RULES, aten.gelu.default, x, approximate=approximate)
            inside = x[x.abs() < 1e4]  # beyond, the kernel's own polynomial overflows
            grad = torch.linspace(-1, 1, len(inside)).to(dtype)
            agrees(RULES, aten.gelu_backward.default, grad, inside, approximate=approximate, gradient=False)
    x = torch.linspace(-6, 6, 4001)
    with Derived():
        found = gelu.gelu(x, approximate)
    exact = F.gelu(x.double(), approximate=approximate)
    theirs = F.gelu(x, approximate=approximate)
    assert (found - exact).abs().max() <= 2 * (theirs - exact).abs().max()


@pytest.mark.parametrize(("op", "arguments", "bound"), ACTIVATIONS, ids=named)
def test_no_nan_gradient_at_a_finite_input(op: Any, arguments: Any, bound: Any) -> None:
    x = floats(20_000)
    x = x[x.isfinite()]
    for rule in serving(op, x, arguments):
        with Derived():
            found = gradient(rule.function, x, arguments)
        worse = found.isnan() & ~gradient(op, x, arguments).isnan()
        assert not worse.any(), f"at {x[worse][:3]}"


@pytest.mark.parametrize(("op", "arguments", "bound"), ACTIVATIONS, ids=named)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_nan_and_infinities_come_out_as_from_the_op_in_float64(op: Any, arguments: Any, bound: Any, dtype: Any) -> None:
    # Of a narrower dtype PyTorch's kernels differ by instruction set: gelu(inf) is NaN on AVX512 (torch 2.13).
    x = torch.tensor([math.nan, math.inf, -math.inf])
    for rule in serving(op, x.to(dtype), arguments):
        expected = op(x.double(), *arguments).to(dtype)
        torch.testing.assert_close(rule.function(x.to(dtype), *arguments), expected, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_gradient_of_gelu_at_nan_and_infinities_is_that_in_float64(dtype: torch.dtype) -> None:
    x = torch.tensor([math.nan, math.inf, -math.inf, 2.0])
    expected = gradient(aten.gelu.default, x.double(), ()).to(dtype)
    for rule in serving(aten.gelu.default, x.to(dtype), ()):
        torch.testing.assert_close(gradient(rule.function, x.to(dtype), ()), expected, equal_nan=True)


def test_far_below_zero_the_slope_of_elu_keeps_its_digits() -> None:
    x = torch.tensor([-17.0, -25.0, -0.5])
    for rule in RULES[aten.elu.default]:
        torch.testing.assert_close(gradient(rule.function, x, ()), torch.exp(x), rtol=1e-5, atol=0)


def test_the_second_gradient_of_the_tanh_form_of_gelu_keeps_its_digits_where_it_is_almost_the_identity() -> None:
    def bend(function: Callable[..., Tensor], x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(function(x, approximate="tanh").sum(), x, create_graph=True)
        return torch.autograd.grad(slope.sum(), x)[0]

    x = torch.tensor([3.0, 4.5, 5.0, 5.5, -5.0])
    torch.testing.assert_close(bend(gelu.gelu_of_parts, x), bend(aten.gelu, x.double()).float(), rtol=1e-4, atol=0)


def test_the_tanh_form_of_gelu_backward_has_a_gradient_far_out() -> None:
    x = torch.tensor([5.0, -5.0])
    slope = gradient(lambda x: gelu.gelu_backward(torch.ones(2), x, "tanh"), x, ())
    exact = gradient(lambda x: aten.gelu_backward(torch.ones(2).double(), x, approximate="tanh"), x.double(), ())
    torch.testing.assert_close(slope, exact.float(), rtol=1e-4, atol=0)


def serving(op: Any, x: Tensor, arguments: Any) -> list[Rule]:
    """The exact rules for the op that do not decline the call."""
    exact = [rule for rule in RULES[op] if rule.level == "exact" and not rule.forward_only]
    found = [rule for rule in exact if not isinstance(rule.function(x, *arguments), Declined)]
    assert found
    return found


def gradient(function: Callable[..., Tensor], x: Tensor, arguments: Any) -> Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(function(x, *arguments).sum(), x)[0]


BACKWARD = [
    (aten.silu_backward.default, ()),
    (aten.softplus_backward.default, (1.0, 20.0)),
    (aten.softplus_backward.default, (2.0, 5.0)),
    (aten.mish_backward.default, ()),
    (aten.threshold_backward.default, (0,)),
    (aten.hardtanh_backward.default, (-1.0, 1.0)),
    (aten.hardswish_backward.default, ()),
    (aten.leaky_relu_backward.default, (0.1, False)),
    (aten.hardshrink_backward.default, (0.5,)),
    (aten.softshrink_backward.default, (0.5,)),
]


@pytest.mark.parametrize(("op", "arguments"), BACKWARD, ids=named)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_backward_kernels(op: Any, arguments: Any, dtype: torch.dtype) -> None:
    x = POINTS.to(dtype)
    with Derived():
        agrees(RULES, op, torch.linspace(-1, 1, len(x)).to(dtype), x, *arguments, gradient=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_backward_kernels_of_other_shapes(dtype: torch.dtype) -> None:
    x = POINTS.to(dtype)
    grad = torch.linspace(-1, 1, len(x)).to(dtype)
    y = torch.sigmoid(x)
    agrees(RULES, aten.sigmoid_backward.default, grad, y, gradient=False)
    agrees(RULES, aten.tanh_backward.default, grad, torch.tanh(x), gradient=False)
    agrees(RULES, aten.hardsigmoid_backward.default, grad, x, gradient=False, tolerance=1e-2)
    for is_result in (False, True):
        agrees(RULES, aten.elu_backward.default, grad, 1.3, 1.1, 0.7, is_result, x.clamp(max=80), gradient=False)
    out, buffer = aten.log_sigmoid_forward.default(x)
    agrees(RULES, aten.log_sigmoid_forward.default, x, gradient=False)
    agrees(RULES, aten.log_sigmoid_backward.default, grad, x, buffer, gradient=False)
    agrees(RULES, aten._prelu_kernel_backward.default, grad, x, torch.full_like(x, 0.3), gradient=False)
    for training in (False, True):
        others = (torch.full_like(x, 0.2), 0.1, 0.3, training, False)
        agrees(RULES, aten.rrelu_with_noise_backward.default, grad, x, *others, gradient=False)
    square = x[:64].view(8, 8)
    agrees(RULES, aten.glu_backward.default, grad[:32].view(8, 4), square, 1, gradient=False)
    agrees(RULES, aten.glu_backward.default, grad[:32].view(4, 8), square, 0, gradient=False)
    inside = torch.linspace(0.1, 0.9, 9).to(dtype)
    for eps in (None, 0.25):
        agrees(RULES, aten.logit_backward.default, grad[:9], inside, eps, gradient=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gated_and_parametric(dtype: torch.dtype) -> None:
    x = torch.linspace(-3, 3, 24).to(dtype).view(2, 4, 3)
    agrees(RULES, aten.glu.default, x, 1)
    agrees(RULES, aten.prelu.default, x, torch.tensor([0.25], dtype=dtype))
    agrees(RULES, aten.prelu.default, x, torch.tensor([0.25, -1.0, 2.0, 0.5], dtype=dtype))
    agrees(RULES, aten.prelu.default, torch.tensor(-1.0, dtype=dtype), torch.tensor([0.25], dtype=dtype))
    agrees(RULES, aten._prelu_kernel.default, x, torch.full_like(x, 0.25))


def test_logit() -> None:
    x = torch.cat([torch.linspace(0.01, 0.99, 99), torch.tensor([1e-30, 0.5001])])
    agrees(RULES, aten.logit.default, x.double())
    agrees(RULES, aten.logit.default, x, 0.1)
    assert ulps(activation.logit(x), torch.logit(x.double())).max() <= 4


@pytest.mark.parametrize("function", [F.softsign, F.tanhshrink])
def test_functions_without_an_aten_op(function: Any) -> None:
    (rule,) = RULES[function]
    torch.testing.assert_close(rule.function(POINTS), function(POINTS))
    assert torch.equal(gradient(rule.function, torch.zeros(1), ()), gradient(function, torch.zeros(1), ()))


def test_rrelu_draws_a_slope_for_each_element_at_or_below_zero() -> None:
    x = torch.linspace(-2, 2, 1001)
    found = activation.rrelu(x, 0.1, 0.3, True)
    assert torch.equal(found[x > 0], x[x > 0])
    slopes = (found / x)[x < 0]
    assert slopes.min() >= 0.1 and slopes.max() <= 0.3 and slopes.std() > 0.03
