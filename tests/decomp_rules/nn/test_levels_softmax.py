"""Cheap alternatives of softmax and similar ops: their number of calls, errors, gradients, masked rows."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from decomp_rules import targets
from tests.levels import at_level, calls, holds


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def log_softmax(x: Tensor) -> Tensor:
    return torch.log_softmax(x, -1)


def safe_softmax(x: Tensor) -> Tensor:
    return torch.ops.aten._safe_softmax(x, -1)


def logsumexp(x: Tensor) -> Tensor:
    return torch.logsumexp(x, -1)


# The function, the most calls on tinygrad at standard and at fast, and on luminal at standard.
CALLS = [(softmax, 19, 8, 24), (log_softmax, 10, 9, 10), (safe_softmax, 23, 23, 30), (logsumexp, 15, 15, 18)]
TARGETS = [targets.tinygrad, targets.luminal]


@pytest.mark.parametrize(("function", "standard", "fast", "few"), CALLS)
def test_calls(function: Any, standard: int, fast: int, few: int) -> None:
    x = [torch.zeros(4, 8)]
    assert calls(function, x, "standard") <= standard
    assert calls(function, x, "fast") <= fast
    assert calls(function, x, "standard", targets.luminal) <= few


def rows(scale: float, size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(size)
    return (torch.randn(20_000 // size, size, generator=generator) * scale).to(dtype)


@pytest.mark.parametrize("function", [softmax, safe_softmax, logsumexp, log_softmax], ids=lambda value: value.__name__)
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: str(target.name))
@pytest.mark.parametrize("scale", [1.0, 3.0, 10.0])
def test_error_and_gradients_at_standard(function: Any, target: Any, scale: float) -> None:
    for size in (3, 1000):
        x = rows(scale, size)
        holds(function, "standard", [x], target, orders=0)
        mine, exact = (
            gradient(f, v) for f, v in [(at_level(function, [x], "standard", target), x), (function, x.double())]
        )
        assert (mine.double() - exact).abs().max() <= 4 * (gradient(function, x).double() - exact).abs().max()


def test_softmax_of_whole_numbers_has_all_digits_of_what_is_small() -> None:
    x = -torch.arange(86).float()
    for target in TARGETS:
        holds(softmax, "standard", [x], target, most=4, orders=0)


def gradient(function: Any, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    found = function(x)
    weights = torch.linspace(-1, 1, found.numel(), dtype=torch.float64).reshape(found.shape).to(x.dtype)
    return torch.autograd.grad(found, x, weights)[0]


@pytest.mark.parametrize("function", [softmax, safe_softmax, log_softmax, logsumexp], ids=lambda value: value.__name__)
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: str(target.name))
def test_masked_and_infinite_rows_at_standard(function: Any, target: Any) -> None:
    inf = math.inf
    x = torch.tensor(
        [[1.0, -inf, 2.0], [-inf] * 3, [inf, 1, 2], [-1e9, -1e9, -3e38], [1e30, -1e30, 3.0], [math.nan, 1.0, 2.0]]
    )
    found = at_level(function, [x], "standard", target)
    torch.testing.assert_close(found(x), function(x), equal_nan=True)
    worse = gradient(found, x).isnan() & ~gradient(function, x).isnan()
    assert not worse.any()


@pytest.mark.parametrize("function", [softmax, safe_softmax, log_softmax, logsumexp], ids=lambda value: value.__name__)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes_at_standard(function: Any, dtype: torch.dtype) -> None:
    holds(function, "standard", [rows(2.0, 100, dtype)], most=16 if dtype == torch.float64 else 2, orders=0)


@pytest.mark.parametrize("function", [softmax, log_softmax], ids=lambda value: value.__name__)
def test_fast(function: Any) -> None:
    x = rows(2.0, 100)
    holds(function, "fast", [x], orders=0)
    found = at_level(function, [x], "fast")
    torch.testing.assert_close(gradient(found, x), gradient(function, x), rtol=1e-4, atol=1e-5)
    hidden = torch.tensor([[1e4, -1e4, 3.0], [-1e9, -1e9, -1e9]])
    torch.testing.assert_close(at_level(function, [hidden], "fast")(hidden), function(hidden))
    for dtype in (torch.bfloat16, torch.float16):
        half = x.to(dtype)
        program = at_level(function, [half], "fast")
        assert program(half).dtype == dtype
        assert not [node for node in program.graph.nodes if "_to_copy" in str(node.target)]
        error = (program(half).double() - function(half.double())).abs()
        assert error.max() <= (0.05 if function is softmax else 0.3)


def test_a_cross_entropy_of_binary_powers_takes_fewer_calls_and_is_as_right() -> None:
    scores, target = torch.randn(64, 300) * 8, torch.randint(0, 300, (64,))
    target[3] = -100
    scores[5, 7] = -math.inf

    def entropy(x: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(x, target)

    lowered = at_level(entropy, [scores], "standard")
    found, exact = ((f, x.requires_grad_()) for f, x in ((lowered, scores), (entropy, scores.detach().double())))
    values = [f(x) for f, x in (found, exact)]
    torch.testing.assert_close(values[0].double(), values[1], rtol=2e-7, atol=0)
    slopes = [torch.autograd.grad(value, x)[0].double() for value, (_, x) in zip(values, (found, exact))]
    torch.testing.assert_close(*slopes, rtol=2e-5, atol=1e-12)
    assert calls(entropy, [scores.detach()], "standard") < calls(entropy, [scores.detach()], "exact") - 10
