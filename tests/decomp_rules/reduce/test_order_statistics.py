"""Medians, modes and quantiles agree with the ops, with NaN, ties and gradients, where a target sorts and where not."""

import math

import pytest
import torch

from decomp_rules import RULES
from tests.decomp_rules.rule_agreement import agrees, lowered_agrees

aten = torch.ops.aten
NAN, INF = math.nan, math.inf
ROWS = torch.tensor(
    [[3.0, 1.0, 2.0, 5.0, 4.0], [NAN, 1.0, 2.0, NAN, 0.5], [NAN, NAN, NAN, NAN, NAN], [INF, -INF, 1.0, 7.0, -7.0]]
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
@pytest.mark.parametrize("op", [aten.median, aten.nanmedian])
def test_medians_of_distinct_elements(op, dtype):
    x = torch.tensor([[3, 1, 2, 5, 4], [9, 8, 6, 7, 1]]).to(dtype)
    agrees(RULES, op.default, x)
    agrees(RULES, op.dim, x, -1, True)
    agrees(RULES, op.dim, x, 0)
    agrees(RULES, op.dim, x[0, 0], 0)


@pytest.mark.parametrize("op", [aten.median, aten.nanmedian])
def test_medians_with_nan(op):
    agrees(RULES, op.dim, ROWS, 1)
    agrees(RULES, op.default, ROWS, gradient=False)
    agrees(RULES, op.default, torch.empty(0), gradient=False)


@pytest.mark.parametrize("op", [aten.median, aten.nanmedian])
def test_equal_medians_share_the_gradient(op):
    agrees(RULES, op.default, torch.tensor([1.0, 2.0, 2.0, 2.0, 3.0, INF]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_the_mode_is_the_least_and_last_of_the_most_frequent(dtype):
    x = torch.tensor([[3, 1, 2, 1, 3], [0, 0, 0, 0, 0], [1, 2, 3, 4, 5]]).to(dtype)
    agrees(RULES, aten.mode.default, x)
    agrees(RULES, aten.mode.default, x, 0, True)
    agrees(RULES, aten.mode.default, x[0, 0])


def test_modes_with_nan_and_zeros():
    rows = torch.tensor([[NAN, NAN, 1.0, 2.0], [NAN, 1.0, 1.0, NAN], [0.0, -0.0, 1.0, 2.0], [INF, INF, NAN, NAN]])
    agrees(RULES, aten.mode.default, rows, gradient=False)
    assert torch.signbit(torch.mode(rows)[0][2])


@pytest.mark.parametrize("interpolation", ["linear", "lower", "higher", "nearest", "midpoint"])
@pytest.mark.parametrize("op", [aten.quantile, aten.nanquantile])
def test_quantiles(op, interpolation):
    q = torch.tensor([0.0, 0.1, 0.5, 0.75, 1.0])
    for dim in (None, 1, 0):
        agrees(RULES, op.default, ROWS, q, dim, interpolation=interpolation, gradient=False)
        agrees(RULES, op.scalar, ROWS, 0.3, dim, True, interpolation=interpolation, gradient=False)
    agrees(RULES, op.default, ROWS[0], q, 0, True, interpolation=interpolation)
    agrees(RULES, op.default, ROWS[0], q[1], interpolation=interpolation)
    agrees(RULES, op.scalar, ROWS[0], 0.3, interpolation=interpolation)


def test_a_quantile_of_tenths_is_where_float32_rounds_its_place():
    x = torch.arange(11.0).flip(0)
    for tenths in range(11):
        agrees(RULES, aten.quantile.scalar, x, tenths / 10, tolerance=0)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.median(x, 1),
        lambda x: x.median(),
        lambda x: torch.nanmedian(x, 0, True),
        lambda x: x.nanmedian(),
        lambda x: torch.mode(x, 1),
        lambda x: torch.quantile(x, 0.4, 1),
        lambda x: torch.quantile(x, torch.tensor([0.2, 0.9]), 0),
        lambda x: torch.nanquantile(x, 0.4, 1, keepdim=True),
    ],
)
def test_lowered_to_the_end(function):
    torch.manual_seed(0)
    lowered_agrees(function, torch.randn(4, 5))
