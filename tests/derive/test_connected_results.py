"""A result requires a gradient by the operands by which that of the op does, also where the gradient is zero."""

import pytest
import torch

import decomp
from decomp_rules import targets
from tests.forms import Holder

CALLS = {
    "floor": lambda y, s: torch.div(y, s, rounding_mode="floor"),
    "trunc": lambda y, s: torch.div(y, s, rounding_mode="trunc"),
    "copysign": torch.copysign,
    "heaviside": lambda y, s: torch.heaviside(s, y),
    "nextafter": torch.nextafter,
    "broadcast": lambda y, s: torch.copysign(y, s[:1]),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("target", ["core_aten", "tinygrad", "luminal"])
@pytest.mark.parametrize("name", CALLS)
def test_a_gradient_of_zero_is_a_gradient(name, target):
    y, s = torch.tensor([1.5, -2.0, 0.5]), torch.tensor([-1.0, 3.0, 2.0], requires_grad=True)
    lowered = decomp.lower(Holder(lambda y, s: CALLS[name](y, s)), to=getattr(targets, target), args=(y, s)).result
    found = lowered(y, s)
    assert torch.equal(found, CALLS[name](y, s).detach()) and found.requires_grad
    assert torch.equal(torch.autograd.grad(found.sum(), s)[0], torch.zeros(3))


def test_calls_are_added_only_for_operands_that_may_require_a_gradient():
    def scaled(x):
        return x * torch.copysign(torch.arange(3.0), torch.ones(3))

    def calls(function, **how):
        graph = decomp.lower(Holder(function), to=targets.tinygrad, args=(torch.ones(3),), **how).result.graph
        return [node.op for node in graph.nodes].count("call_function")

    assert calls(scaled) == calls(scaled, training=False)
    assert calls(lambda x: torch.copysign(x, x * 2)) > calls(lambda x: torch.copysign(x, x * 2), training=False)
