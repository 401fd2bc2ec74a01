"""Reading by index at the level standard, on a target that cannot."""

import math

import pytest
import torch
from torch.nn import functional as F

from decomp_rules.index.one_hot import index_of_one
from tests.levels import at_level, calls

INDEX = torch.tensor([[3, 0, 5], [1, 1, 4]])
ROWS = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))

FUNCTIONS = {
    "index_select": (lambda x, i: x.index_select(0, i[0]), 8),
    "gather": (lambda x, i: x.gather(0, i), 7),
    "take_along_dim": (lambda x, i: torch.take_along_dim(x, i[:, :2].repeat(1, 2), 0), 16),
    "embedding": (lambda x, i: F.embedding(i, x), 8),
    "index": (lambda x, i: x[i], 9),
    "index of the last": (lambda x, i: x[:, i % 4 - 2], 12),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_is_the_op_beside_nan_and_infinity(name):
    function, most = FUNCTIONS[name]
    x = ROWS.clone()
    x[2], x[5, 1], x[1, 0] = math.nan, math.inf, -math.inf
    lowered = at_level(function, (x, INDEX), "standard")
    torch.testing.assert_close(lowered(x, INDEX), function(x, INDEX), rtol=0, atol=0, equal_nan=True)
    assert calls(function, (x, INDEX), "standard") <= most


def test_places_are_counted_from_either_end():
    places = torch.tensor([-1, 0, -3])
    assert torch.equal(index_of_one(ROWS, [places, None]), ROWS[places])
    assert torch.equal(index_of_one(ROWS, [None, places]), ROWS[:, places])


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_of_other_dtypes(name, dtype):
    x, function = (3 * ROWS).to(dtype), FUNCTIONS[name][0]
    if name == "embedding" and not dtype.is_floating_point:
        pytest.skip("weights are floats")
    torch.testing.assert_close(at_level(function, (x, INDEX), "standard")(x, INDEX), function(x, INDEX), rtol=0, atol=0)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_add_up(name):
    x, function = ROWS.clone().requires_grad_(), FUNCTIONS[name][0]
    lowered = at_level(function, (x, INDEX), "standard")
    own, mine = (torch.autograd.grad(f(x, INDEX).square().sum(), x)[0] for f in (function, lowered))
    torch.testing.assert_close(mine, own)
