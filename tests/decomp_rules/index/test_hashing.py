"""Hashes agree with the op to the bit, whether bits are read or put together."""

import math

import pytest
import torch

from decomp_rules.index import hashing
from tests.decomp_rules.rule_agreement import agrees, lowered_agrees

aten = torch.ops.aten
EDGES = [1.5, -0.0, 0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-310, 5e-324, 2.0**-1022, 3e38, -1.7e308]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_one_number_is_its_bits(dtype):
    for value in EDGES:
        agrees(hashing.RULES, aten.hash_tensor.default, torch.tensor(value, dtype=torch.float64).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.int8, torch.uint8, torch.bool])
def test_hashes_over_dimensions(dtype):
    torch.manual_seed(0)
    x = torch.randint(0, 100, (3, 5, 4)).to(dtype)
    agrees(hashing.RULES, aten.hash_tensor.default, x)
    agrees(hashing.RULES, aten.hash_tensor.default, x, [1])
    agrees(hashing.RULES, aten.hash_tensor.default, x, [0, -1], keepdim=True)


def test_lowered_to_the_end():
    lowered_agrees(lambda x: torch.hash_tensor(x, 1).to(torch.int64), torch.tensor([[1.0, -2.5], [0.0, 3e-40]]))
