"""Reductions and norms agree with the ops, in value, dtype, shape and gradient, at ties, zeros, NaN and infinities."""

from collections.abc import Callable
import math

import pytest
import torch

from decomp_rules.reduce import deviations, norms, reduction
from tests.decomp_rules.rule_agreement import agrees, lowered_agrees

aten = torch.ops.aten
RULES = reduction.RULES | deviations.RULES | norms.RULES
INF, NAN = math.inf, math.nan


def sample(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64) * 3
    return (x > 0) if dtype == torch.bool else x.to(dtype)


FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
DTYPES = [*FLOATS, torch.int32, torch.int64, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_and_products(dtype: torch.dtype) -> None:
    x = sample(2, 3, 4, dtype=dtype)
    agrees(RULES, aten.sum.default, x)
    for dim in ([0], [1, -1], [], None, [2, 0]):
        agrees(RULES, aten.sum.dim_IntList, x, dim)
        agrees(RULES, aten.sum.dim_IntList, x, dim, True)
    agrees(RULES, aten.sum.default, x, dtype=torch.float64)
    agrees(RULES, aten.sum.dim_IntList, x.to(torch.int64), [1], dtype=torch.int32)
    agrees(RULES, aten.sum.default, sample(dtype=dtype))
    agrees(RULES, aten.sum.dim_IntList, sample(2, 0, dtype=dtype), [1])
    agrees(RULES, aten.prod.default, x)
    agrees(RULES, aten.prod.dim_int, x, -2)
    agrees(RULES, aten.prod.dim_int, x, 1, True)
    agrees(RULES, aten.prod.default, sample(dtype=dtype))


def test_a_product_passes_its_gradient_by_a_zero() -> None:
    agrees(RULES, aten.prod.default, torch.tensor([2.0, 0.0, 3.0]))
    agrees(RULES, aten.prod.dim_int, torch.tensor([[2.0, 0.0, 3.0], [0.0, 0.0, 1.0]]), 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_extrema(dtype: torch.dtype) -> None:
    x = sample(2, 3, 4, dtype=dtype)
    for op in (aten.amax.default, aten.amin.default):
        agrees(RULES, op, x)
        agrees(RULES, op, x, [0, 2])
        agrees(RULES, op, x, [-1], True)
        agrees(RULES, op, sample(dtype=dtype), [0])
    for op in (aten.max.default, aten.min.default):
        agrees(RULES, op, x)
        agrees(RULES, op, sample(dtype=dtype))
    agrees(RULES, aten.aminmax.default, x)
    agrees(RULES, aten.aminmax.default, x, dim=1, keepdim=True)


def test_the_least_integer_has_no_negative() -> None:
    low = torch.iinfo(torch.int32).min
    agrees(RULES, aten.amin.default, torch.tensor([low, 5], dtype=torch.int32))


def test_ties_share_the_gradient() -> None:
    x = torch.tensor([[1.0, 3.0, 3.0], [3.0, 0.0, 2.0]])
    for op in (aten.amax.default, aten.amin.default):
        agrees(RULES, op, x, [0, 1])
        agrees(RULES, op, x, [1])
    agrees(RULES, aten.max.default, x)
    agrees(RULES, aten.min.default, -x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_all_and_counts(dtype: torch.dtype) -> None:
    x = torch.tensor([[0, 1, 0], [0, 0, 0], [1, 1, 1]]).to(dtype)
    for given in (x, x[:0], x[0, 0], x[:, :0]):
        for op in (aten.any, aten.all):
            agrees(RULES, op.default, given)
            agrees(RULES, op.dim, given, -1, True)
            agrees(RULES, op.dims, given, None)
            agrees(RULES, op.dims, given, [0, 1] if given.dim() else [])
        agrees(RULES, aten.count_nonzero.default, given)
        agrees(RULES, aten.count_nonzero.default, given, 0)
    agrees(RULES, aten._is_all_true.default, torch.tensor([True, False]))
    agrees(RULES, aten._is_any_true.default, torch.tensor([True, False]))


def test_any_of_nan_is_true() -> None:
    agrees(RULES, aten.any.default, torch.tensor([0.0, NAN]))
    agrees(RULES, aten.all.default, torch.tensor([1.0, NAN]))


@pytest.mark.parametrize("dtype", FLOATS)
def test_means_and_moments(dtype: torch.dtype) -> None:
    x = sample(3, 4, 5, dtype=dtype)
    agrees(RULES, aten.mean.default, x)
    agrees(RULES, aten.mean.dim, x, [0, -1], True)
    agrees(RULES, aten.mean.dim, x, None)
    agrees(RULES, aten.mean.default, x, dtype=torch.float64)
    agrees(RULES, aten.mean.default, sample(dtype=dtype))
    for op in (aten.var, aten.std, aten.var_mean, aten.std_mean):
        agrees(RULES, op.default, x)
        agrees(RULES, op.default, x, False)
        agrees(RULES, op.dim, x, [1], True, True)
        agrees(RULES, op.correction, x, [0, 2])
        agrees(RULES, op.correction, x, None, correction=0.5, keepdim=True)


@pytest.mark.filterwarnings("ignore:(var|std|var_mean|std_mean)\\(\\). degrees of freedom")
def test_moments_without_freedom_or_spread() -> None:
    for x in (torch.ones(1), torch.tensor(2.0), torch.empty(0), torch.tensor([1.0, 2.0])):
        agrees(RULES, aten.var.correction, x, None, correction=2, gradient=False)
        agrees(RULES, aten.std.correction, x, None, correction=1, gradient=False)
    agrees(RULES, aten.std.default, torch.ones(3))
    agrees(RULES, aten.var.default, torch.ones(3))


def test_variance_of_numbers_far_from_zero() -> None:
    x = 1e4 + torch.linspace(0, 1, 1000)
    exact = x.double().var()
    assert abs(reduction.var(x).double() - exact) < 1e-5 * exact


@pytest.mark.parametrize("shift", [0.0, 1e3, 1e5])
def test_the_variance_is_right_within_an_ulp_wherever_its_centre(shift: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(50, 768) + shift
    exact = x.double().var(-1)
    assert ((reduction.var(x, -1) - exact).abs() < 1.2e-7 * exact).all()


def test_what_does_not_vary_has_no_variance_and_what_is_huge_an_infinite_one() -> None:
    assert reduction.var(torch.full((3, 768), 0.1), -1).tolist() == [0.0, 0.0, 0.0]
    huge = torch.tensor([[3e38, 3e38], [3e38, -3e38]])
    for found, expected in zip(reduction.var_mean(huge, 1), torch.var_mean(huge, 1)):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", FLOATS)
def test_logsumexp(dtype: torch.dtype) -> None:
    agrees(RULES, aten.logsumexp.default, sample(3, 4, dtype=dtype) * 50, [1])
    agrees(RULES, aten.logsumexp.default, sample(3, 4, dtype=dtype), [0, -1], True)
    agrees(RULES, aten.logsumexp.default, sample(dtype=dtype), [0])


def test_logsumexp_at_infinities() -> None:
    x = torch.tensor([[-INF, -INF], [-INF, 1.0], [INF, 1.0], [NAN, 1.0], [INF, -INF]])
    agrees(RULES, aten.logsumexp.default, x, [1], gradient=False)
    agrees(RULES, aten.logsumexp.default, x[1:2], [1])
    agrees(RULES, aten.logsumexp.default, torch.empty(2, 0), [1], gradient=False)
    agrees(RULES, aten.logsumexp.default, torch.tensor([1, 2, 3]), [0])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("ord", [2, 1, 0, INF, -INF, 3, 0.5, 2.5, -1])
def test_vector_norms(dtype: torch.dtype, ord: float) -> None:
    x, tolerance = sample(3, 4, dtype=dtype), 5e-5 if dtype == torch.float32 else None
    agrees(RULES, aten.linalg_vector_norm.default, x, ord, tolerance=tolerance)
    agrees(RULES, aten.linalg_vector_norm.default, x, ord, [1], True, tolerance=tolerance)


@pytest.mark.parametrize("ord", [2, 1, INF, 3, 0.5])
def test_norms_have_no_gradient_at_zero(ord: float) -> None:
    agrees(RULES, aten.linalg_vector_norm.default, torch.zeros(3), ord)
    agrees(RULES, aten.linalg_vector_norm.default, torch.tensor([[0.0, 2.0], [0.0, 0.0]]), ord, [1])


def test_other_norms_and_sums() -> None:
    x, y = sample(3, 4), sample(3, 4).flip(0)
    agrees(RULES, aten.norm.Scalar, x)
    agrees(RULES, aten.norm.ScalarOpt_dim, x, None, [0], True)
    agrees(RULES, aten.norm.ScalarOpt_dim_dtype, x, 1, [0], True, dtype=torch.float64)
    agrees(RULES, aten.linalg_norm.default, x)
    agrees(RULES, aten.linalg_norm.default, x, 1)
    agrees(RULES, aten.linalg_norm.default, x, INF, [1])
    agrees(RULES, aten.linalg_norm.ord_str, x, "fro")
    for ord in (1, -1, INF, -INF):
        agrees(RULES, aten.linalg_matrix_norm.default, sample(2, 3, 4), ord, keepdim=True)
        agrees(RULES, aten.linalg_matrix_norm.default, sample(2, 3, 4), ord, [0, 2])
    agrees(RULES, aten.frobenius_norm.dim, x, [1])
    agrees(RULES, aten.dist.default, x, y)
    agrees(RULES, aten.renorm.default, x, 2, 0, 4.0)
    agrees(RULES, aten.nansum.default, torch.tensor([1.0, NAN, 2.0]))
    agrees(RULES, aten.nanmean.default, torch.tensor([[1.0, NAN], [2.0, 4.0]]), [1])
    agrees(RULES, aten.trace.default, x)
    agrees(RULES, aten.sum_to_size.default, sample(2, 3, 4), [3, 1])
    agrees(RULES, aten.sum_to_size.default, x, [3, 4])


def test_distances() -> None:
    x, y = sample(5, 3), sample(4, 3) + 1
    for p in (0.0, 0.5, 1.0, 2.0, 3.0, INF):
        agrees(RULES, aten.cdist.default, x, y, p, tolerance=1e-4)
        agrees(RULES, aten._cdist_forward.default, x, y, p, None, tolerance=1e-4)
        agrees(RULES, aten._pdist_forward.default, x, p, tolerance=1e-4)
        distance = torch.cdist(x, y, p)
        agrees(
            RULES,
            aten._cdist_backward.default,
            torch.ones_like(distance),
            x,
            y,
            p,
            distance,
            gradient=False,
            tolerance=1e-4,
        )
    agrees(RULES, aten.cdist.default, sample(2, 1, 5, 3), sample(3, 4, 3))
    agrees(RULES, aten.cdist.default, x, x.clone(), tolerance=1e-4)
    agrees(RULES, aten.pairwise_distance.default, x, x + 1, keepdim=True)
    agrees(RULES, aten.cosine_similarity.default, x, x.flip(0))
    agrees(RULES, aten.cosine_similarity.default, sample(2, 3, 4), torch.zeros(3, 4), -1)
    agrees(RULES, aten.cosine_similarity.default, torch.full((1, 2), 1e-9), torch.ones(1, 2))


def test_weight_norm() -> None:
    v, g = sample(4, 3, 2), sample(4, 1, 1)
    agrees(RULES, aten._weight_norm.default, v, g)
    agrees(RULES, aten._weight_norm.default, v, torch.tensor(2.0), -1)
    agrees(RULES, aten._weight_norm_interface.default, v, g, 0)
    agrees(RULES, aten._weight_norm_interface.default, v, sample(1, 1, 2), 2)
    halves = v.to(torch.bfloat16), g.to(torch.bfloat16)
    agrees(RULES, aten._weight_norm_interface.default, *halves, 0, gradient=False, tolerance=1e-2)
    w, norm = torch._weight_norm_interface(v, g, 0)
    agrees(RULES, aten._weight_norm_interface_backward.default, w + 1, v, g, norm, 0, gradient=False)
    agrees(RULES, aten.norm_except_dim.default, v, 2, 1)


def test_normalize() -> None:
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0]], requires_grad=True)
    expected, found = torch.nn.functional.normalize(x), norms.normalize(x)
    assert torch.equal(found, expected)
    pair = [torch.autograd.grad(y, x, torch.tensor([[1.0, 2.0], [3.0, 4.0]]))[0] for y in (found, expected)]
    torch.testing.assert_close(*pair)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sum(),
        lambda x: x.mean([0, 2], keepdim=True),
        lambda x: x.prod(1),
        lambda x: x.max(),
        lambda x: x.min(),
        lambda x: x.amin([0, 1]),
        lambda x: (x > 0).any(1),
        lambda x: (x > 0).all(),
        lambda x: x.var(-1),
        lambda x: x.std(),
        lambda x: torch.var_mean(x, 1),
        lambda x: x.logsumexp([0, 1]),
        lambda x: x.norm(dim=1),
        lambda x: x.norm(p=3),
        lambda x: torch.nn.functional.normalize(x, dim=-1),
        lambda x: torch.cdist(x, x + 1),
        lambda x: torch.nn.functional.cosine_similarity(x, x.flip(0)),
        lambda x: torch._weight_norm(x, x[:, :1, :1], 0),
        lambda x: torch.count_nonzero(x, 1),
        lambda x: torch.aminmax(x, dim=1),
    ],
)
def test_lowered_to_the_end(function: Callable[[torch.Tensor], object]) -> None:
    lowered_agrees(function, sample(2, 3, 4))


def test_a_mean_of_what_cancels_keeps_its_digits() -> None:
    half = torch.linspace(1, 2, 500)
    x = torch.cat([half, -half * (1 + 2.0**-12)])
    torch.testing.assert_close(reduction.var_mean(x)[1], x.double().mean().float(), rtol=3e-7, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_variance_of_equal_halves_is_zero_for_any_count(dtype: torch.dtype) -> None:
    bits = 1 - round(math.log2(torch.finfo(dtype).eps))
    significands = torch.arange(1 << (bits - 1), 1 << bits, dtype=torch.float64)
    largest = (significands / significands.max() * torch.finfo(dtype).max).to(dtype)
    for count in (3, 7, 13, 15, 40, 97, 123):
        assert not reduction.var(largest.unsqueeze(1).expand(-1, count), 1).any()


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_product_of_one_number(dtype: torch.dtype) -> None:
    found = reduction.prod_by_halves(torch.tensor(3, dtype=dtype), 0)
    assert found.dtype == dtype and found == 3
