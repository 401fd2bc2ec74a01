"""Results as long as data has different elements, on targets that list places: equal to the op's for any data."""

import pytest
import torch

import decomp
from decomp_rules import targets
from tests.forms import Holder

X = torch.tensor([[3.0, 1.0, 1.0], [float("nan"), 3.0, -0.0]])


CALLS = [
    lambda x: torch.unique(x),
    lambda x: torch.unique(x, return_inverse=True, return_counts=True),
    lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True),
    lambda x: torch.masked_select(x, x[:, :1] > 1) * 2,
    lambda x: torch.argwhere(x) + 1,
]


@pytest.mark.parametrize("call", CALLS)
def test_the_lowered_program_lists_what_the_op_lists(call):
    lowered = decomp.lower(torch.export.export(Holder(call), (X,)), to=targets.core_aten).result.module()
    for x in (X, torch.zeros(2, 3), torch.arange(6.0).reshape(2, 3)):
        torch.testing.assert_close(lowered(x), call(x), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("call", CALLS[:4])
def test_other_targets_hear_why_they_cannot_have_it(call):
    with pytest.raises(decomp.NotLowered, match="cannot be decomposed: the shape of the result depends on data"):
        decomp.lower(torch.export.export(Holder(call), (X,)), to=targets.tinygrad)


def test_the_gradient_goes_where_the_mask_is():
    call = CALLS[3]
    lowered = decomp.lower(torch.export.export(Holder(call), (X,)), to=targets.core_aten).result.module()
    x = torch.arange(6.0).reshape(2, 3).requires_grad_()
    assert torch.autograd.grad(lowered(x).sum(), x)[0].tolist() == [[0, 0, 0], [2, 2, 2]]
