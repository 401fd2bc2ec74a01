"""Cheap alternatives of the exponential, the logarithm and functions of them: their number of calls, its error
over every exponent, its gradients, dtypes and special values."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from decomp_rules import targets
from tests.levels import SPECIAL, at_level, calls, holds, keeps_special_values, of_every_exponent, ulps


def gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def softplus_of_steps(x: Tensor) -> Tensor:
    return F.softplus(x, 2.0, 5.0)


def celu(x: Tensor) -> Tensor:
    return F.celu(x, 1.3)


# The function, the most calls on tinygrad at standard and at fast, and on luminal at both.
CALLS: list[tuple[Callable[..., Any], int, int, int, int]] = [
    (torch.exp, 13, 2, 17, 2),
    (torch.expm1, 29, 29, 34, 34),
    (torch.log, 2, 2, 2, 2),
    (torch.log10, 2, 2, 2, 2),
    (torch.log1p, 13, 13, 22, 22),
    (torch.sigmoid, 17, 5, 21, 5),
    (F.silu, 18, 6, 22, 6),
    (torch.tanh, 23, 7, 35, 7),
    (F.gelu, 26, 20, 32, 21),
    (gelu_tanh, 22, 10, 26, 11),
    (torch.erf, 33, 33, 82, 82),
    (F.softplus, 26, 16, 41, 41),
    (F.logsigmoid, 25, 25, 59, 59),
    (F.mish, 26, 16, 60, 32),
    (F.elu, 32, 9, 97, 49),
]


def named(value: Any) -> str:
    return getattr(value, "__name__", "")


@pytest.mark.parametrize(("function", "standard", "fast", "few", "fewest"), CALLS, ids=named)
def test_calls(function: Any, standard: int, fast: int, few: int, fewest: int) -> None:
    x = [torch.zeros(4, 8)]
    assert calls(function, x, "standard") <= standard
    assert calls(function, x, "fast") <= fast
    assert calls(function, x, "standard", targets.luminal) <= few
    assert calls(function, x, "fast", targets.luminal) <= fewest


EVERY = torch.cat([of_every_exponent(12), torch.linspace(-87, 88, 3001), torch.linspace(-3, 3, 3001)])
ABOVE_85 = EVERY[EVERY > -85]
"""Where x·eˣ is normal."""
ABOVE_1 = EVERY[EVERY > -1]
"""Where the GELU of PyTorch has its digits."""

VALUES = [
    (torch.exp, EVERY),
    (torch.expm1, EVERY),
    (torch.log, EVERY),
    (torch.log10, EVERY),
    (torch.log1p, EVERY),
    (torch.sigmoid, EVERY),
    (F.silu, ABOVE_85),
    (torch.tanh, EVERY),
    (F.gelu, ABOVE_1),
    (gelu_tanh, ABOVE_1),
    (torch.erf, EVERY),
    (F.softplus, EVERY),
    (softplus_of_steps, EVERY),
    (F.logsigmoid, EVERY),
    (F.mish, ABOVE_85),
    (F.elu, EVERY),
    (celu, EVERY),
    (F.selu, EVERY),
]


@pytest.mark.parametrize(("function", "points"), VALUES, ids=lambda value: getattr(value, "__name__", ""))
@pytest.mark.parametrize("target", [targets.tinygrad, targets.luminal], ids=lambda target: str(target.name))
def test_error_at_standard_over_every_exponent(function: Any, points: Tensor, target: Any) -> None:
    holds(function, "standard", [points], target, orders=0)


@pytest.mark.parametrize("function", [torch.exp, torch.log, torch.log10, torch.log1p])
@pytest.mark.parametrize("target", [targets.tinygrad, targets.luminal], ids=lambda target: str(target.name))
def test_gradients_at_standard_over_every_exponent(function: Any, target: Any) -> None:
    points = EVERY if function is torch.exp else EVERY[EVERY > -0.999]
    holds(function, "standard", [points], target)


# How far the first and the second gradient may be off, the largest being about 1.
GRADIENTS = [
    (torch.expm1, 5e-7, 1e-5),
    (torch.sigmoid, 2e-7, 2e-7),
    (F.silu, 4e-7, 4e-7),
    (torch.tanh, 4e-7, 1e-6),
    (F.gelu, 2e-6, 1e-5),
    (gelu_tanh, 1e-6, 1e-6),
    (torch.erf, 3e-6, 6e-5),
    (F.softplus, 4e-7, 4e-7),
    (softplus_of_steps, 4e-7, 1e-6),
    (F.logsigmoid, 4e-7, 4e-7),
    (F.mish, 1e-6, 3e-6),
    (F.elu, 5e-7, 5e-6),
    (celu, 5e-7, 5e-6),
    (F.selu, 1e-6, 1e-5),
]


@pytest.mark.parametrize(("function", "first", "second"), GRADIENTS, ids=lambda value: getattr(value, "__name__", ""))
def test_gradients_at_standard(function: Any, first: float, second: float) -> None:
    x = torch.cat([torch.linspace(-6, 1 if function is torch.expm1 else 30, 4001), torch.tensor([0.0, 1e-30, -1e-10])])
    x = torch.cat([x, torch.tensor([20.0])]) if function is F.softplus else x
    x = x[x != 0] if function in (F.elu, celu, F.selu) else x
    found = derivatives(at_level(function, [x], "standard"), x)
    for mine, exact, bound in zip(found, derivatives(function, x.double()), (first, second), strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=bound, atol=bound)


@pytest.mark.parametrize(("function", "points"), VALUES, ids=lambda value: getattr(value, "__name__", ""))
@pytest.mark.parametrize("target", [targets.tinygrad, targets.luminal], ids=lambda target: str(target.name))
def test_no_gradient_is_nan_unless_it_is_in_the_op(function: Any, points: Tensor, target: Any) -> None:
    x = EVERY[EVERY.abs() < 1e15]
    for mine, theirs in zip(derivatives(at_level(function, [x], "standard", target), x), derivatives(function, x)):
        worse = mine.isnan() & theirs.isfinite()
        assert not worse.any(), f"at {x[worse][:3]}"


def derivatives(function: Callable[..., Any], x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x, materialize_grads=True)
    return first.detach(), second


@pytest.mark.parametrize("function", [function for function, *_ in VALUES], ids=lambda value: value.__name__)
def test_special_values_at_standard(function: Any) -> None:
    keeps_special_values(function, "standard", [torch.tensor([*SPECIAL, 200.0, -200.0])])


@pytest.mark.parametrize("function", [torch.exp, torch.expm1, torch.sinh, torch.cosh], ids=named)
@pytest.mark.parametrize("level", ["exact", "standard"])
@pytest.mark.parametrize("target", [targets.tinygrad, targets.luminal], ids=lambda target: str(target.name))
def test_gradients_overflow_with_the_value(function: Any, level: str, target: Any) -> None:
    x = torch.tensor([80.0, 88.0, 88.5, 88.72, 89.45, 90.0, 128.0, 1e4, 1e10, 3e38, -80.0, -100.0, -1e10, -3e38])
    for dtype in (torch.float32, torch.float64):
        points = x.to(dtype) * (1 if dtype == torch.float32 else 8)
        lowered = at_level(function, [points], level, target)
        exact = [each.to(dtype) for each in derivatives(function, points.double())]
        torch.testing.assert_close(derivatives(lowered, points), tuple(exact), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("function", [torch.exp, torch.expm1], ids=lambda value: value.__name__)
def test_the_last_numbers_below_overflow(function: Any) -> None:
    last = torch.tensor(88.72283).view(torch.int32) + torch.arange(-50, 3, dtype=torch.int32)
    x = last.view(torch.float32)
    assert function(x).isfinite().any() and function(x).isinf().any()
    for target in (targets.tinygrad, targets.luminal):
        found = at_level(function, [x], "standard", target)(x)
        assert ulps(found, function(x.double()).float(), torch.float32).max() <= 4


@pytest.mark.parametrize("function", [function for function, *_ in VALUES], ids=lambda value: value.__name__)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes_at_standard(function: Any, dtype: torch.dtype) -> None:
    if function in (F.gelu, gelu_tanh):
        points = torch.linspace(-1, 60, 801)
    else:
        points = torch.linspace(-60 if dtype == torch.float64 else -9, 60 if dtype == torch.float64 else 9, 801)
    points = torch.cat([points, torch.tensor([1e-3, -1e-3, 0.0])])
    holds(function, "standard", [points.to(dtype)], most=6 if dtype == torch.float64 else 1, orders=0)


# Where the docstring of the rule says that its digits are.
FAST = [
    (torch.exp, -40, 40, 0),
    (torch.sigmoid, -40, 40, 0),
    (F.silu, -40, 40, 0),
    (torch.tanh, -40, 40, 0.05),
    (F.gelu, -3, 40, 0),
    (gelu_tanh, -3, 40, 0),
    (F.softplus, -40, 40, 0),
    (F.mish, -20, 20, 0),
    (F.elu, -40, 40, 0.05),
]


@pytest.mark.parametrize(("function", "low", "high", "hole"), FAST, ids=lambda value: getattr(value, "__name__", ""))
def test_error_at_fast(function: Any, low: float, high: float, hole: float) -> None:
    x = torch.linspace(low, high, 4001)
    x = x[x.abs() >= hole]
    for target in (targets.tinygrad, targets.luminal):
        holds(function, "fast", [x], target, orders=0)
    limit = torch.cat([torch.linspace(-80, 80, 801), torch.tensor([0.0, -0.0])])
    assert not derivatives(at_level(function, [limit], "fast"), limit)[0].isnan().any()
    large = torch.tensor([-1e4, -300.0, 300.0, 1e4])
    assert not at_level(function, [large], "fast")(large).isnan().any()


@pytest.mark.parametrize("function", [function for function, *_ in FAST], ids=lambda value: value.__name__)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_at_fast(function: Any, dtype: torch.dtype) -> None:
    x = torch.linspace(-10, 10, 2001).to(dtype)
    found = at_level(function, [x], "fast")(x)
    assert found.dtype == dtype
    scale = function(x.double()).abs().clamp(min=1.0)
    assert ((found.double() - function(x.double())).abs() / scale).max() <= 16 * torch.finfo(dtype).eps
    assert not derivatives(at_level(function, [x], "fast"), x)[0].isnan().any()


aten = torch.ops.aten
# The backward op after its gradient, and the most calls at standard on tinygrad and on luminal.
BACKWARD: list[tuple[Any, tuple[Any, ...], dict[str, Any], int, int]] = [
    (aten.softplus_backward, (1.0, 20.0), {}, 22, 31),
    (aten.softplus_backward, (2.0, 5.0), {}, 23, 32),
    (aten.mish_backward, (), {}, 28, 34),
]


@pytest.mark.parametrize(("op", "arguments", "options", "most", "few"), BACKWARD)
def test_backward_ops_at_standard(op: Any, arguments: Any, options: Any, most: int, few: int) -> None:
    def function(grad: Tensor, x: Tensor) -> Tensor:
        return op(grad, x, *arguments, **options)

    x = torch.cat([torch.linspace(-30, 40, 4001), torch.tensor([0.0, 1e-30, 200.0, -200.0, 1e10, -1e10])])
    grad = torch.full_like(x, 1.25)
    for target, calls_ in ((targets.tinygrad, most), (targets.luminal, few)):
        assert calls(function, [grad, x], "standard", target) <= calls_
        found = at_level(function, [grad, x], "standard", target)(grad, x)
        torch.testing.assert_close(found.double(), function(grad.double(), x.double()), rtol=5e-7, atol=5e-7)
