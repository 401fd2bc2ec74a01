"""Comparisons as PyTorch's partitioner takes them."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from decomp.graphs.traced_bodies import compare_with_numbers

aten = torch.ops.aten


def compared(function, *inputs):
    """The module, with numbers instead of full tensors, and its comparison."""
    module = make_fx(function, tracing_mode="fake")(*inputs)
    compare_with_numbers(module)
    names = {aten.lt, aten.le, aten.gt, aten.ge, aten.eq, aten.ne}
    return module, next(node for node in module.graph.nodes if getattr(node.target, "overloadpacket", None) in names)


@pytest.mark.parametrize(
    "name, mirrored",
    [
        ("lt", "gt"),
        ("le", "ge"),
        ("gt", "lt"),
        ("ge", "le"),
        ("eq", "eq"),
        ("ne", "ne"),
    ],
)
def test_a_comparison_with_a_full_tensor_is_one_with_its_number(name, mirrored):
    x = torch.tensor([-1.0, 0.1, 2.0, torch.nan])
    operation = getattr(torch, name)
    for function, target in (
        (lambda x: operation(x, torch.full((), 0.1)), name),
        (lambda x: operation(torch.full((), 0.1), x), mirrored),
    ):
        module, comparison = compared(function, x)
        assert comparison.target is getattr(aten, target).Scalar
        assert comparison.args[1] == torch.tensor(0.1).item(), "as its dtype holds it"
        assert torch.equal(module(x), function(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x > torch.full((1,), 0.1),
        lambda x: x > torch.full((), 1),
        lambda x: x > x.sum(),
        lambda x: torch.full((), 1.0) > torch.full((), 2.0, dtype=torch.float64),
    ],
)
def test_other_comparisons_stay(function):
    _, comparison = compared(function, torch.ones(3))
    assert comparison.target is aten.gt.Tensor
