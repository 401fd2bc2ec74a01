"""What is recorded of calls, where it is not word for word what a rule wrote."""

import pytest
import torch

import decomp
from tests.forms import Holder


@pytest.mark.parametrize("dtype, zero", [(torch.float32, "0.0"), (torch.complex64, "0.0"), (torch.int64, "0")])
def test_the_number_0_is_a_float_where_it_multiplies_floats(dtype, zero):
    x = torch.ones(2, dtype=dtype)
    for number, written in ((3, "3"), (0, zero), (3, "3"), (0, zero)):  # known ways are taken without PyTorch
        rules = decomp.Rules({"neg": lambda x, number=number: x * number})
        lowered = decomp.lower(Holder(torch.neg), to=decomp.Target("chip", ["mul"]), rules=rules, args=(x,)).result
        (product,) = (node for node in lowered.graph.nodes if node.op == "call_function")
        assert repr(product.args[1]) == written
        assert torch.equal(lowered(x), x * number) and lowered(x).dtype is dtype
