"""Integrals and slopes of samples agree with the ops, in value, dtype and gradient."""

import pytest
import torch

from decomp_rules.reduce import differences
from tests.decomp_rules.rule_agreement import agrees, lowered_agrees

aten = torch.ops.aten
RULES = differences.RULES
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64]


def close(op, y, *args, **kwargs):
    # In bfloat16 the op rounds each step, and a rule once.
    tolerance = 4e-2 if y.dtype == torch.bfloat16 else None
    agrees(RULES, op, y, *args, tolerance=tolerance, **kwargs)


def samples(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6], [5, 3, 5, 8]]).to(dtype)
    return y, torch.tensor([0, 1, 3, 7]).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_trapezoids(dtype):
    y, x = samples(dtype)
    for op in (aten.trapezoid, aten.trapz):
        close(op.dx, y)
        close(op.dx, y, dx=0.5, dim=0)
        close(op.x, y, x)
        close(op.x, y, x[:3], dim=0)
        close(op.x, y, y * y, dim=0)
    close(aten.cumulative_trapezoid.dx, y, dx=3, dim=0)
    close(aten.cumulative_trapezoid.x, y, x)
    close(aten.cumulative_trapezoid.x, y, x[:3], dim=0)


def test_trapezoids_of_few_places():
    for size in (0, 1):
        y = torch.ones(2, size)
        close(aten.trapezoid.dx, y)
        close(aten.trapezoid.x, y, torch.ones(size))
        close(aten.cumulative_trapezoid.dx, y)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("edge_order", [1, 2])
def test_slopes(dtype, edge_order):
    y, x = samples(dtype)
    close(aten.gradient.scalarint, y, edge_order=edge_order)
    close(aten.gradient.scalarint, y, spacing=0.5, dim=1, edge_order=edge_order)
    close(aten.gradient.scalararray, y, spacing=2.0, dim=[0, 1], edge_order=edge_order)
    close(aten.gradient.array, y, dim=[1], edge_order=edge_order)
    close(aten.gradient.scalarrayarray, y, spacing=[2.0, 0.5], dim=[0, -1], edge_order=edge_order)
    places = [x[:3].float(), x.float()]
    close(aten.gradient.tensorarray, y, spacing=places, dim=[0, 1], edge_order=edge_order)


def test_lowered_to_the_end():
    x = torch.tensor([0.0, 1.0, 3.0, 7.0])
    lowered_agrees(lambda y: torch.trapezoid(y, dx=0.5), samples(torch.float32)[0])
    lowered_agrees(lambda y, x: torch.cumulative_trapezoid(y, x), samples(torch.float32)[0], x)
    lowered_agrees(lambda y: torch.gradient(y, spacing=2.0), samples(torch.float32)[0])
    lowered_agrees(lambda y, x: torch.gradient(y, spacing=(x,), dim=1), samples(torch.float32)[0], x)
