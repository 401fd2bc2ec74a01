"""Comparisons and remainders on targets that have some of their calls: LiteRT orders numbers, not booleans, and takes
remainders of integers by tensors alone."""

import torch

import decomp
from decomp_rules import targets
from tests.forms import Holder

NUMBERS_ALONE = targets.litert
REMAINDERS_BY_TENSORS = decomp.Target(
    "remainders",
    ["remainder.Tensor", "full", "lt", "mul", "sub", "logical_not", "bitwise_and", "bitwise_or", "_to_copy"],
)
INTEGERS = torch.arange(-7, 8)


def lowered(function, target, *args):
    """The ops of a function that is lowered, after its values were compared."""
    lowering = decomp.lower(Holder(function), to=target, args=args, training=False, verify="values")
    torch.testing.assert_close(lowering.result(*args), function(*args))
    return [str(call.op) for call in decomp.calls(lowering.result)]


def test_booleans_are_ordered_by_logic_where_comparisons_are_of_numbers():
    a, b = torch.tensor([[False], [True]]), torch.tensor([False, True])
    assert lowered(torch.lt, NUMBERS_ALONE, a, b) == ["aten.logical_not", "aten.bitwise_and"]
    assert "aten.lt" not in lowered(torch.gt, NUMBERS_ALONE, a, b)


def test_a_remainder_by_a_number_is_one_by_a_tensor_where_that_is_what_there_is():
    assert lowered(lambda x: x % 3, REMAINDERS_BY_TENSORS, INTEGERS) == ["aten.full", "aten.remainder"]
    assert lowered(lambda x: x % -3, REMAINDERS_BY_TENSORS, INTEGERS) == ["aten.full", "aten.remainder"]


def test_fmod_of_integers_is_the_remainder_with_the_other_sign():
    for divisor in (3, -3):
        ops = lowered(lambda x: torch.fmod(x, divisor), REMAINDERS_BY_TENSORS, INTEGERS)
        assert ops.count("aten.remainder") == 1 and "aten.fmod" not in ops
