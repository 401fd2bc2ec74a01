"""Compiled autograd, whose graphs have inputs that are lists of tensors."""

import pytest
import torch
from torch import nn
from torch._dynamo import config
from torch.nn import functional as F

import decomp
from decomp_rules import targets

ONE = nn.Linear(4, 4)


def activated(x):
    return F.gelu(ONE(x))


def hooked(x):
    y = ONE(x)
    y.register_hook(lambda gradient: gradient * 2)
    return y


def gradients(function, backend=None):
    """The gradients of the weights after two backward passes."""
    torch._dynamo.reset()
    ONE.zero_grad()
    compiled = torch.compile(backend=backend) if backend is not None else lambda function: function
    with config.patch(compiled_autograd=backend is not None):
        called = compiled(function)
        step = compiled(lambda x: (called(x) ** 2).sum().backward())
        for rows in (3, 5):  # the second is added to the first
            step(torch.linspace(-1, 1, rows * 4).view(rows, 4))
    return [each.grad.clone() for each in ONE.parameters()]


@pytest.mark.filterwarnings("ignore:decomp.backend lowers a graph only after autograd")
@pytest.mark.parametrize("function", [activated, hooked])
def test_a_backward_pass_is_compiled_by_compiled_autograd(function):
    backend = decomp.backend(to=targets.tinygrad)
    torch.testing.assert_close(gradients(function, backend), gradients(function))
    numbers = [record.compilation for record in backend.graphs]
    assert any(number.startswith("!") for number in numbers), "a graph of compiled autograd"


def test_a_hook_is_kept_by_autograd_and_is_warned_of():
    backend = decomp.backend(to=targets.core_aten)
    with pytest.warns(UserWarning, match="by register_hook"):
        gradients(hooked, backend)
    assert backend.graphs[0].behind_autograd.endswith("by register_hook")
