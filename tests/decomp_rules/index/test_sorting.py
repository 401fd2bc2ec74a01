"""Sorting, extremes and running sums agree with the ops, with NaN, ties and infinities among the data."""

import pytest
import torch

from decomp_rules.index import sorting
from tests.decomp_rules.rule_agreement import agrees, lowered_agrees

aten = torch.ops.aten
RULES = sorting.RULES
INF, NAN = float("inf"), float("nan")
WILD = torch.tensor([[3.0, NAN, -INF, 3.0, 0.0], [-0.0, INF, 1.0, 1.0, -2.0], [INF, -INF, INF, NAN, NAN]])
WHOLE = torch.tensor([[3, -128, 127, 3], [0, 0, -1, 5]], dtype=torch.int8)
SAMPLES = [WILD, WHOLE, WHOLE > 0, torch.randn(3, 4, 2).to(torch.bfloat16), torch.randn(4, 5).t()]
pytestmark = pytest.mark.usefixtures("seeded")


def named(x: torch.Tensor) -> str:
    return f"{x.dtype}{tuple(x.shape)}"


@pytest.mark.parametrize("x", SAMPLES, ids=named)
@pytest.mark.parametrize("descending", [False, True])
def test_sorts_agree_and_are_stable(x, descending):
    for dim in (0, -1):
        agrees(RULES, aten.sort.stable, x, stable=True, dim=dim, descending=descending)
        agrees(RULES, aten.argsort.stable, x, stable=True, dim=dim, descending=descending)
    agrees(RULES, aten.sort.default, x, 0, descending)
    agrees(RULES, aten.sort.default, x.flatten()[0], descending=descending)


def test_a_stable_sort_is_not_left_to_an_unstable_one():
    assert sorting.sort_default(WILD, stable=True).reason == "the sort is stable"


def test_the_largest_and_smallest_agree():
    x = torch.randperm(60).view(3, 20).to(torch.float32)
    for largest in (True, False):
        agrees(RULES, aten.topk.default, x, 4, -1, largest)
        agrees(RULES, aten.topk.default, x, 3, 0, largest)
    agrees(RULES, aten.topk.default, torch.tensor(2.0), 1)
    agrees(RULES, aten.kthvalue.default, x, 3, 1)
    agrees(RULES, aten.kthvalue.default, x, 2, 0, True)
    agrees(RULES, aten.msort.default, x)


@pytest.mark.parametrize("x", SAMPLES, ids=named)
@pytest.mark.parametrize("keepdim", [False, True])
def test_extremes_agree(x, keepdim):
    for dim in (0, -1):
        agrees(RULES, aten.max.dim, x, dim, keepdim)
        agrees(RULES, aten.min.dim, x, dim, keepdim)
        if x.dtype != torch.bool:
            agrees(RULES, aten.argmax.default, x, dim, keepdim, gradient=False)
            agrees(RULES, aten.argmin.default, x, dim, keepdim, gradient=False)
    if x.dtype != torch.bool:
        agrees(RULES, aten.argmax.default, x, None, keepdim, gradient=False)
        agrees(RULES, aten.argmin.default, x, None, keepdim, gradient=False)
    agrees(RULES, aten.max.dim, x.flatten()[0], 0, keepdim)


def test_one_of_several_maxima_gets_the_gradient():
    x = torch.tensor([1.0, 5.0, 5.0], requires_grad=True)
    value, index = sorting.max_dim(x, 0)
    assert index == 1 and torch.equal(torch.autograd.grad(value, x)[0], torch.tensor([0.0, 1.0, 0.0]))


def test_medians_agree():
    x = torch.randperm(35).view(5, 7).to(torch.float32)
    for dim in (0, 1):
        agrees(RULES, aten.median.dim, x, dim)
        agrees(RULES, aten.median.dim, x, dim, True)
    agrees(RULES, aten.median.dim, torch.tensor([1.0, NAN, 0.0, NAN]), 0)


@pytest.mark.parametrize("op", [aten.cumsum.default, aten.cumprod.default], ids=str)
@pytest.mark.parametrize("length", [0, 1, 2, 3, 7, 8, 9, 100])
def test_running_sums_and_products_agree(op, length):
    x = torch.randn(2, length)
    agrees(RULES, op, x, 1, gradient=length != 1)
    agrees(RULES, op, x.t(), 0, gradient=length != 1)
    agrees(RULES, op, (3 * x).to(torch.int32), 1)
    agrees(RULES, op, x, 1, dtype=torch.float64)
    agrees(RULES, op, x > 0, 1)
    agrees(RULES, op, x.to(torch.bfloat16), 1, gradient=False)


def test_running_sums_carry_infinities_and_nan_forward_only():
    for op in (aten.cumsum.default, aten.cumprod.default, aten.logcumsumexp.default):
        agrees(RULES, op, torch.tensor([1.0, -INF, 2.0, INF, 0.0, NAN, 1.0]), 0, gradient=False)
    agrees(RULES, aten.logcumsumexp.default, torch.randn(3, 6), 1)
    agrees(RULES, aten.cumprod.default, torch.tensor([2.0, 0.0, 3.0, 0.0, 5.0]), 0)


def test_running_sums_of_symbolic_length_agree():
    for neutral, op in ((0, torch.cumsum), (1, torch.cumprod), (-INF, torch.logcumsumexp)):
        x = torch.randn(2, 6)
        torch.testing.assert_close(sorting._running_symbolic(x, 1, neutral), op(x, 1))


@pytest.mark.parametrize("x", SAMPLES, ids=named)
def test_running_extremes_agree(x):
    for dim in (0, -1):
        agrees(RULES, aten.cummax.default, x, dim)
        agrees(RULES, aten.cummin.default, x, dim)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sort(-1)[0] * x.argsort(stable=True) + x.cumsum(-1) + x.cumprod(0),
        lambda x: x.topk(2)[0] * x.topk(2)[1] + x.kthvalue(1, keepdim=True)[0],
        lambda x: x.max(-1)[0] * x.max(-1)[1] + x.min(-1)[0] + x.argmax(-1) + x.argmin(-1) + x.median(-1)[0],
    ],
)
def test_programs_reach_the_targets(function):
    lowered_agrees(function, torch.randn(3, 4))


def test_running_sums_are_rounded_once():
    x = torch.randn(4, 1000) * torch.exp2(torch.randint(-10, 11, (4, 1000)).float())
    assert torch.equal(sorting.cumsum(x, 1), x.double().cumsum(1).float())


def test_running_sums_overflow_only_where_the_sum_does():
    half = torch.finfo(torch.float32).max / 2
    x = torch.tensor([half, half, -half, -half, -half, half, -half, half, half])
    assert torch.equal(sorting.cumsum(x, 0), x.cumsum(0))
    x = torch.tensor([1.0, INF, 2.0, -INF, 1.0])
    assert torch.equal(sorting.cumsum(x, 0).nan_to_num(9.0), x.cumsum(0).nan_to_num(9.0))


def test_running_sums_of_exponentials_have_a_second_gradient():
    x = torch.randn(6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: sorting.logcumsumexp(x, 0), x)
