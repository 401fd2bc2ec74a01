"""What a lowered program returns shares memory with an input only where the model's own result does."""

import pytest
import torch

import decomp
from decomp_rules import targets
from tests.forms import Holder


@pytest.mark.parametrize("function, shared", [
    (lambda x: x.cumprod(1), False), (lambda x: x.roll(0, 1).view(16), False), (lambda x: x.cumsum(1).cumsum(1), False),
    (lambda x: torch.unbind_copy(x)[0], False), (lambda x: torch.einsum("abc->acb", x), True), (lambda x: x[0], True),
])
def test_a_result_shares_memory_with_the_input_where_the_op_says_so(function, shared):
    x = torch.rand(4, 1, 4)
    result = decomp.lower(Holder(function), to=targets.tinygrad, args=(x,)).result(x)
    assert torch.equal(result, function(x))
    assert (result.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()) is shared


def test_a_result_keeps_its_values_where_the_program_then_writes_its_input():
    def model(x):
        y = x.cumprod(1)
        x.add_(1)
        return y

    x = torch.ones(4, 1, 4)
    assert torch.equal(decomp.lower(Holder(model), to=targets.tinygrad, args=(x,)).result(x), torch.ones(4, 1, 4))
