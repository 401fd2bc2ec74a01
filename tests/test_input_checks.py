"""A lowered graph looks at what its rules saw: the sizes of its inputs, and the numbers among them."""

import pytest
import torch
from torch import fx, nn

import decomp
from decomp_rules import targets


def lowered(function, *args, **kwargs):
    return decomp.lower(fx.symbolic_trace(function), to=targets.tinygrad, args=args, kwargs=kwargs).result


def test_another_size_is_refused():
    mean = lowered(lambda x: x.mean(0), torch.ones(4, 3))
    with pytest.raises(decomp.DecompError) as refused:
        mean(torch.ones(8, 3))
    assert str(refused.value) == (
        "input 'x' has shape (8, 3), the program was lowered for (4, 3)\n"
        "  to do: lower it with inputs of this shape, or with dynamic_shapes= where the size is to vary")
    assert mean(x=torch.ones(4, 3)).tolist() == [1, 1, 1]


def test_another_number_is_refused_where_a_rule_saw_it():
    softmax = lowered(lambda x, dim: torch.softmax(x, dim), torch.eye(3), 0)
    with pytest.raises(ValueError) as refused:
        softmax(torch.eye(3), 1)
    assert str(refused.value) == (
        "input 'dim' has value 1, the program was lowered for 0\n  to do: lower it with inputs of this value")


def test_numbers_that_no_rule_saw_are_inputs_still():
    scaled = lowered(lambda x, n: torch.relu(x) * n, torch.ones(3), 2)
    assert scaled(torch.ones(3), 5).tolist() == [5, 5, 5]


def test_sizes_that_no_rule_saw_may_be_others():
    doubled = lowered(lambda x: x * 2, torch.ones(3))
    assert doubled(torch.ones(5)).tolist() == [2] * 5


def test_lengths_that_a_loss_was_lowered_for():
    logits = torch.randn(10, 2, 6).log_softmax(-1)
    args = (logits, torch.tensor([[1, 2, 3, 4], [5, 5, 1, 2]]), (10, 8), (4, 3))
    loss = decomp.lower(nn.CTCLoss(), to=targets.core_aten, args=args).result
    torch.testing.assert_close(loss(*args), nn.CTCLoss()(*args))
    with pytest.raises(decomp.DecompError, match=r"input .input_lengths. has value \(7, 10\), .* for \(10, 8\)"):
        loss(*args[:2], (7, 10), (4, 3))
