"""Random ops have the distribution of the op: moments, probabilities, ranges; and each draws its numbers once."""

import math

import pytest
import torch
from torch import nn

import decomp
from decomp_rules import targets
from decomp_rules.creation import random
from tests.decomp_rules.rule_agreement import agrees

aten = torch.ops.aten
RULES = random.RULES
MANY = 200_000
pytestmark = pytest.mark.usefixtures("seeded")


def run(op: object, *args: object, alternative: int = 0) -> torch.Tensor:
    return RULES[op][alternative].function(*args)


def zeros(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(MANY, dtype=dtype)


def close(found: torch.Tensor, expected: float, tolerance: float = 0.01) -> None:
    assert abs(found.double().mean().item() - expected) < tolerance


@pytest.mark.parametrize("op", [aten.dropout, aten.feature_dropout, aten.alpha_dropout, aten.feature_alpha_dropout])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nothing_is_dropped_without_training_and_everything_at_one(op: object, dtype: torch.dtype) -> None:
    x = torch.linspace(-1, 1, 24).reshape(2, 3, 4).to(dtype)
    agrees(RULES, op.default, x, 0.5, False, gradient=False)
    agrees(RULES, op.default, x, 0.0, True, gradient=False)
    agrees(RULES, op.default, x, 1.0, True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout(dtype: torch.dtype) -> None:
    x = torch.ones(MANY, dtype=dtype, requires_grad=True)
    y, mask = run(aten.native_dropout, x, 0.25, True)
    close(mask, 0.75)
    assert y.dtype == dtype
    torch.testing.assert_close(y, torch.where(mask, 1 / 0.75, 0.0).to(dtype))
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], y.detach())


def test_dropout_keeps_the_nan_of_what_it_drops() -> None:
    x = torch.full((64,), float("inf"))
    y, mask = run(aten.native_dropout, x, 0.5, True)
    assert torch.equal(y.isnan(), ~mask)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_native_dropout_backward(dtype: torch.dtype) -> None:
    grad = torch.linspace(-1, 1, 24).to(dtype)
    agrees(RULES, aten.native_dropout_backward.default, grad, grad > 0, 4 / 3, gradient=False)
    agrees(RULES, aten.native_dropout.default, grad, 0.5, False, gradient=False)


@pytest.mark.parametrize("op", [aten.feature_dropout, aten.feature_alpha_dropout])
def test_features_are_dropped_whole(op: object) -> None:
    y = run(op, torch.ones(50, 40, 3, 3), 0.5, True)
    assert torch.equal(y.amin((2, 3)), y.amax((2, 3)))
    assert len(y.unique()) == 2


@pytest.mark.parametrize("op", [aten.alpha_dropout, aten.feature_alpha_dropout])
def test_alpha_dropout_keeps_mean_and_variance(op: object) -> None:
    y = run(op, torch.randn(500, 400, 1), 0.3, True)
    close(y, 0, 0.02)
    assert abs(y.var().item() - 1) < 0.03


def test_normal_numbers() -> None:
    n = run(aten.randn, [MANY])
    close(n, 0)
    close(n**2, 1, 0.02)
    close(n**4, 3, 0.1)
    assert n.isfinite().all()
    assert run(aten.randn, [4], torch.bfloat16).dtype == torch.bfloat16
    assert run(aten.randn_like, torch.zeros(2, 3, dtype=torch.float64)).dtype == torch.float64


def test_numbers_of_a_distribution() -> None:
    close(run(aten.bernoulli, torch.full((MANY,), 0.3)), 0.3)
    close(run(aten.bernoulli, zeros(torch.bfloat16), 0.7, alternative=1), 0.7)
    close(run(aten.uniform, zeros(), 1.0, 3.0), 2)
    close(run(aten.exponential, zeros(), 2.0), 0.5)
    close(run(aten.geometric, zeros(), 0.4), 2.5, 0.03)
    close(run(aten.log_normal, zeros(), 0.0, 0.5), math.exp(0.125))
    close(run(aten.normal_functional, zeros(), 1.0, 2.0), 1, 0.02)
    close(run(aten.normal, zeros(), torch.ones(MANY)), 0)
    close(run(aten.normal, 1.0, 2.0, [MANY], alternative=1), 1, 0.02)
    close((run(aten.cauchy, zeros(), 0.0, 1.0) < 1).float(), 0.75)


def test_integers() -> None:
    drawn = run(aten.randint, 5, [MANY], 2)
    assert drawn.dtype == torch.int64
    assert drawn.unique().tolist() == [2, 3, 4]
    assert run(aten.randint_like, zeros(), 3).unique().tolist() == [0, 1, 2]
    assert run(aten.randperm, 50).sort()[0].tolist() == list(range(50))


def test_integers_of_32_bits() -> None:
    drawn = run(aten.randint, 5, [MANY], 2, torch.int32, alternative=1)
    assert drawn.dtype == torch.int32 and drawn.unique().tolist() == [2, 3, 4]
    torch.testing.assert_close(drawn.bincount()[2:] / MANY, torch.full((3,), 1 / 3), atol=0.01, rtol=0)
    whole = run(aten.randint, 2**31, [MANY], 0, torch.int32, alternative=1)
    assert whole.min() >= 0 and (whole & 1).double().mean().item() == pytest.approx(0.5, abs=0.01)
    close(whole.double() / 2**31, 0.5)
    assert run(aten.randint_like, zeros(), 3, alternative=1).unique().tolist() == [0, 1, 2]
    assert isinstance(run(aten.randint, 2**33, [2], alternative=1), decomp.results.Declined)


def test_permutations_of_32_bits() -> None:
    assert run(aten.randperm, 50, alternative=1).sort()[0].tolist() == list(range(50))
    drawn = torch.stack([run(aten.randperm, 3, alternative=1) for _ in range(3000)])
    torch.testing.assert_close(
        (drawn @ torch.tensor([9, 3, 1])).bincount().double()[[5, 7, 11, 15, 19, 21]] / 3000,
        torch.full((6,), 1 / 6, dtype=torch.float64),
        atol=0.03,
        rtol=0,
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("target", [targets.tinygrad, targets.stablehlo], ids=["tinygrad", "stablehlo"])
def test_integers_are_drawn_on_targets_of_32_bits(target: decomp.Target) -> None:
    class Drawing(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x + torch.randint(2, 5, (3, 40)), torch.arange(7)[torch.randperm(7)]

    to = target.with_dtypes(["float32", "int32", "bool"])
    low = decomp.lower(Drawing(), to=to, args=(torch.zeros(3, 40),), narrow=True)
    drawn, order = low.result(torch.zeros(3, 40))
    assert drawn.unique().tolist() == [2, 3, 4] and order.sort()[0].tolist() == list(range(7))
    wide = decomp.plan(Drawing(), to=target, args=(torch.zeros(3, 40),))
    assert not any("of_32_bits" in each.chosen.rule for each in wide.costs().derived)


def test_multinomial() -> None:
    weights = torch.tensor([[0.1, 0.2, 0.7, 0.0], [1.0, 1.0, 2.0, 4.0]])
    drawn = run(aten.multinomial, weights, MANY, True)
    shares = torch.stack([row.bincount(minlength=4) for row in drawn]) / MANY
    torch.testing.assert_close(shares, weights / weights.sum(-1, keepdim=True), atol=0.01, rtol=0)
    first = run(aten.multinomial, weights[1].expand(20_000, 4), 4)
    assert torch.equal(first.sort(-1)[0], torch.arange(4).expand(20_000, 4))
    torch.testing.assert_close(first[:, 0].bincount() / 20_000, weights[1] / 8, atol=0.01, rtol=0)


class Noisy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.dropout(x, 0.5, True) + torch.randn_like(x)
        return x + torch.bernoulli(x.sigmoid()) + torch.randint(0, 5, (2, 3))


def test_each_random_op_draws_once_on_tinygrad() -> None:
    low = decomp.lower(Noisy(), to=targets.tinygrad, args=(torch.ones(2, 3),))
    drawn = [node for node in low.result.graph.nodes if node.target is aten.rand.default]
    assert len(drawn) == 4
    assert low.result(torch.ones(2, 3)).shape == (2, 3)


def test_random_ops_are_declared_for_targets_without_random_numbers() -> None:
    class Noisy(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.dropout(x + torch.randn_like(x), 0.5)

    with pytest.raises(decomp.NotLowered) as raised:
        decomp.lower(Noisy(), to=targets.luminal, args=(torch.ones(3),))
    assert {blocker.limitation for blocker in raised.value.blockers} == {"the target has no random numbers"}


@pytest.mark.parametrize(
    "dtype, top",
    [(torch.int64, 2**63), (torch.uint8, 256), (torch.float32, 2**24 + 1), (torch.bfloat16, 257), (torch.bool, 2)],
)
def test_whole_numbers_over_all_that_a_dtype_has(dtype: torch.dtype, top: int) -> None:
    torch.manual_seed(0)
    drawn = random.random(torch.zeros(4000, dtype=dtype))
    assert drawn.dtype == dtype and 0 <= drawn.min() and drawn.double().max() <= top - 1
    assert abs(drawn.double().mean() / ((top - 1) / 2) - 1) < 0.05
