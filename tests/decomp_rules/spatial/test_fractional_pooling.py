"""Fractional pooling agrees with the kernels: values, indices and gradients, for samples that are given."""

import pytest
import torch

from decomp_rules.spatial.fractional_pooling import RULES
from tests.decomp_rules.draws import sample
from tests.decomp_rules.rule_agreement import agrees

aten = torch.ops.aten
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])


def places(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1)).to(dtype)


@DTYPES
@pytest.mark.parametrize("lead", [(2, 3), (3,)], ids=["batch", "image"])
@pytest.mark.parametrize("kernel, wanted", [([2, 3], [4, 3]), ([2, 2], [1, 5]), ([3, 3], [3, 3])])
def test_images(dtype: torch.dtype, lead: tuple[int, ...], kernel: list[int], wanted: list[int]) -> None:
    x, samples = sample(*lead, 9, 7, dtype=dtype), places(len(lead), 3, 2, dtype=dtype)
    agrees(RULES, aten.fractional_max_pool2d.default, x, kernel, wanted, samples, fixed=(3,))
    _, index = aten.fractional_max_pool2d(x, kernel, wanted, samples)
    grad = sample(*index.shape, dtype=dtype)
    agrees(RULES, aten.fractional_max_pool2d_backward.default, grad, x, kernel, wanted, index, gradient=False)


@DTYPES
@pytest.mark.parametrize("kernel, wanted", [([2, 2, 3], [2, 4, 3]), ([1, 2, 2], [4, 1, 5])])
def test_volumes(dtype: torch.dtype, kernel: list[int], wanted: list[int]) -> None:
    x, samples = sample(2, 3, 5, 9, 7, dtype=dtype), places(2, 3, 3, dtype=dtype)
    agrees(RULES, aten.fractional_max_pool3d.default, x, kernel, wanted, samples, fixed=(3,))
    _, index = aten.fractional_max_pool3d(x, kernel, wanted, samples)
    grad = sample(*index.shape, dtype=dtype)
    agrees(RULES, aten.fractional_max_pool3d_backward.default, grad, x, kernel, wanted, index, gradient=False)


def test_the_last_nan_and_the_first_of_equal_ones_are_found() -> None:
    x = sample(1, 1, 6, 6)
    x[0, 0, 2, 2] = x[0, 0, 2, 3] = float("nan")
    x[0, 0, 4] = 1.0
    agrees(RULES, aten.fractional_max_pool2d.default, x, [3, 3], [2, 2], places(1, 1, 2), gradient=False)
