"""Error in ULP of elementwise ops once they are lowered to nothing but a target's primitives, against float64: all
exponents of float32, and where the rules change from one formula to another; every bfloat16."""

from collections.abc import Callable
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import decomp
from decomp_rules import targets
from tests.decomp_rules.test_elementwise import SPECIAL, ulps
from tests.forms import Holder

KINKS = [0.25, 0.3465, 0.42, 0.5, 0.55, 0.6, 0.66, 0.75, 0.8, 0.866, 0.885, 1.0, 1.55, 2.0, 9.0, 20.0, 64.0, 88.0, 1e4]

# The largest error of the op when lowered to tinygrad; PyTorch's own is 0.5 to 2.5.
UNARY = {
    torch.exp: 1.2, torch.expm1: 1.6, torch.log: 1.5, torch.log10: 1.2, torch.log1p: 2.0, torch.cos: 1.95,
    torch.tanh: 1.6, torch.asin: 1.7, torch.acos: 1.6, torch.atan: 1.6, torch.asinh: 2.6, torch.acosh: 3.1,
    torch.atanh: 2.0, torch.erf: 1.5, torch.erfc: 2.0, torch.rsqrt: 2.0, torch.sigmoid: 2.8, torch.deg2rad: 0.8,
    F.softplus: 2.6, F.logsigmoid: 2.6, F.elu: 1.2, F.selu: 2.0, F.hardswish: 2.0, F.softsign: 1.6,
}  # fmt: skip # packed bounds
BINARY = {torch.div: 1.5, torch.atan2: 1.8, torch.hypot: 1.5, torch.fmod: 0.0, torch.remainder: 0.5}


def lowered(function: Callable[..., Tensor], args: tuple[Tensor, ...], target: Any) -> Callable[..., Tensor]:
    result: Callable[..., Tensor] = decomp.lower(Holder(function), to=target, args=args, accuracy="exact").result
    return result


def points(count: int = 16) -> Tensor:
    """Of each exponent a few numbers of either sign, and the neighbours of kinks."""
    generator = torch.Generator().manual_seed(0)
    mantissas = torch.randint(0, 2**23, (255, count), generator=generator)
    bits = (torch.arange(255)[:, None] << 23) + mantissas
    kinks = torch.tensor(KINKS).view(torch.int32)[:, None] + torch.arange(-20, 21)
    positive = torch.cat([bits.flatten(), kinks.flatten()]).to(torch.int32).view(torch.float32)
    everyday = torch.rand(20_000, generator=generator) * 20 - 10
    return torch.cat([positive, -positive, everyday, torch.tensor(SPECIAL)])


def worst(found: Tensor, exact: Tensor, *inputs: Tensor) -> tuple[float, list[float]]:
    error = ulps(found, exact).nan_to_num(nan=math.inf)
    k = error.argmax()
    return float(error[k]), [float(x[k]) for x in inputs]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", UNARY, ids=lambda function: function.__name__)
def test_functions_of_one_tensor_over_all_float32(function: Any) -> None:
    x = points()
    found = lowered(function, (x,), targets.tinygrad)(x)
    error, at = worst(found, function(x.double()), x)
    assert error <= UNARY[function], f"{error} ULP at {at}"


@pytest.mark.parametrize(
    "function",
    [torch.exp, torch.log1p, torch.cos, torch.tanh, torch.erfc, torch.sigmoid, F.hardswish, F.softplus],
    ids=lambda function: function.__name__,
)
def test_functions_of_one_tensor_of_every_bfloat16(function: Any) -> None:
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)
    found = lowered(function, (x,), targets.tinygrad)(x)
    assert found.dtype == torch.bfloat16
    exact = function(x.double())
    assert torch.equal(found.isnan(), function(x).isnan())
    # Half a unit, but for the rounding of float32 next to a tie and for what PyTorch's kernel makes of overflow.
    rounded = exact.to(torch.bfloat16)
    near = (found.float() - exact).abs() <= (exact.abs() * 2.0**-8 * 1.01).clamp(min=2.0**-134 * 1.01)
    assert (near | (found == rounded) | found.isnan()).all()


def test_tan_over_all_float32() -> None:
    x = points()
    found = lowered(torch.tan, (x,), targets.tinygrad)(x)
    exact = torch.tan(x.double())
    below = ~(x.abs() > 8e37)  # where 4x does not overflow
    assert worst(found[below], exact[below], x[below])[0] <= 2
    assert worst(found, exact, x)[0] <= 3.3


@pytest.mark.parametrize("function", BINARY, ids=lambda function: function.__name__)
def test_functions_of_two_tensors_over_all_float32(function: Any) -> None:
    x = points(20)
    x = x[x.isfinite()]
    y = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(1))]
    if function in (torch.fmod, torch.remainder):
        x, y = x[(x / y).isfinite()], y[(x / y).isfinite()]
    found = lowered(function, (x, y), targets.tinygrad)(x, y)
    error, at = worst(found, function(x.double(), y.double()), x, y)
    assert error <= BINARY[function], f"{error} ULP at {at}"


def test_powers_on_a_target_without_them() -> None:
    x = points(10).abs()
    y = torch.randn(len(x), generator=torch.Generator().manual_seed(1)) * 90 / torch.log2(x).abs().clamp(0.01, 150)
    y = torch.where(y.isfinite(), y, 1.5)
    found = lowered(torch.pow, (x, y), targets.luminal)(x, y)
    error, at = worst(found, torch.pow(x.double(), y.double()), x, y)
    assert error <= 1.1, f"{error} ULP at {at}"


def second_order(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
    if not first.requires_grad:
        return first, torch.zeros_like(x)
    return first.detach(), torch.autograd.grad(first.sum(), x)[0]


@pytest.mark.parametrize(
    "function",
    [
        torch.exp,
        torch.expm1,
        torch.log,
        torch.cos,
        torch.tan,
        torch.asin,
        torch.atanh,
        torch.erf,
        torch.erfc,
        F.mish,
        F.gelu,
        F.silu,
        F.softplus,
        F.celu,
        torch.frac,
    ],
    ids=lambda function: function.__name__,
)
def test_gradients_of_both_orders_once_lowered(function: Any) -> None:
    # Halves of tenths, the same on every processor, and none of them at a kink: what `linspace` has for 0 is not.
    x = torch.cat([(torch.arange(180) - 89.5) / 10, torch.tensor([1e-30, -1e-30, 30.5, -30.5, 88.5, -88.5, 1e4, -1e4])])
    x = x[function(x).isfinite()]
    found = second_order(lowered(function, (x,), targets.tinygrad), x)
    exact = second_order(function, x.double())
    for mine, theirs, absolute in zip(found, exact, (1e-6, 1e-4), strict=True):
        fine = theirs.isfinite()
        torch.testing.assert_close(mine[fine], theirs[fine].float(), rtol=2e-5, atol=absolute)


@pytest.mark.parametrize(
    "function",
    [F.hardswish, F.hardsigmoid, F.softplus, torch.erf, torch.erfc, F.elu, F.relu6],
    ids=lambda function: function.__name__,
)
def test_gradients_far_out_are_those_of_the_op(function: Any) -> None:
    x = torch.tensor([3.0, -3.0, 2.9999998, -2.9999998, 90.0, -90.0, 1e30, -1e30, math.inf])
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    lowered(function, (x,), targets.tinygrad)(mine).sum().backward()
    function(theirs).sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-5, atol=1e-7, equal_nan=True)
