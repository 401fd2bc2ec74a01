"""Calls as a graph may spell them, with arguments at their defaults or given by name, are simplified like others."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

import decomp
from decomp_rules import targets

aten = torch.ops.aten
SPELLINGS: list[Callable[..., Any]] = [
    lambda x: aten.slice.Tensor(aten.slice.Tensor(x, 0, 1)),
    lambda x: aten.slice.Tensor(aten.slice.Tensor(x, 0, 1), 0),
    lambda x: aten.slice.Tensor(aten.slice.Tensor(x, start=1), end=2),
    lambda x: aten.view.default(aten.view.default(x, size=[12]), size=[3, 4]),
    lambda x: aten.permute.default(aten.permute.default(self=x, dims=[1, 0]), dims=[1, 0]),
    lambda x: aten.transpose.int(aten.transpose.int(x, dim1=1, dim0=0), 0, dim1=1),
    lambda x: aten.constant_pad_nd.default(aten.constant_pad_nd.default(self=x, pad=[1, 1]), pad=[0, 0]),
    lambda x: aten.where.self(condition=aten.gt.Scalar(self=x, other=0), self=x, other=x),
    lambda x: aten.add.Tensor(self=x, other=-0.0),
    lambda x: aten.mul.Tensor(self=x, other=1.0),
    lambda x: aten.eq.Scalar(self=aten.ne.Scalar(self=aten.gt.Scalar(x, other=0), other=1), other=0),
    lambda x: aten.maximum.default(self=x, other=x),
    lambda x: aten._to_copy.default(aten.flatten.using_ints(self=x), dtype=torch.float64),
    lambda x: aten.unflatten.int(self=aten.flatten.using_ints(x, end_dim=1), dim=0, sizes=[3, 4]),
    lambda x: aten.sum.dim_IntList(self=aten.unsqueeze.default(self=x, dim=0), dim=[1]),
]


@pytest.mark.parametrize("spelled", SPELLINGS)
def test_arguments_by_name_or_at_their_defaults(spelled: Callable[..., Any]) -> None:
    graph = fx.Graph()
    tracer = fx.proxy.GraphAppendingTracer(graph)
    graph.output(spelled(fx.Proxy(graph.placeholder("x"), tracer)).node)
    x = torch.arange(12.0).view(3, 4) - 5
    module = fx.GraphModule(torch.nn.Module(), graph)
    before = str(graph)
    lowered, refolded = decomp.lower(module, to=targets.core_aten, args=(x,)), decomp.refold(module, args=(x,))
    for found in (decomp.simplify(module, args=(x,)), lowered.result, refolded.result):
        torch.testing.assert_close(found(x), spelled(x), rtol=0, atol=0)
    assert str(module.graph) == before


def test_a_call_by_name_is_the_same_as_one_by_place() -> None:
    def twice(x: Any) -> Any:
        return aten.permute.default(self=x, dims=[1, 0]) + aten.permute.default(x, [1, 0])

    module = fx.symbolic_trace(twice)
    assert len(module.graph.find_nodes(op="call_function", target=aten.permute.default)) == 2
    found = decomp.simplify(module, args=(torch.ones(3, 4),))
    assert len(found.graph.find_nodes(op="call_function", target=aten.permute.default)) == 1


def test_a_chain_of_thousands_of_constants_is_one_constant() -> None:
    """None of what asks about the operands of calls calls itself for them."""
    graph = fx.Graph()
    x, node = graph.placeholder("x"), graph.call_function(aten.full.default, ([2], 1.0))
    for _ in range(5_000):
        node = graph.call_function(aten.sin.default, (node,))
    graph.output(graph.call_function(aten.add.Tensor, (x, node)))
    module = fx.GraphModule(torch.nn.Module(), graph)
    found = decomp.simplify(module, args=(torch.zeros(2),), freeze=True)
    assert len([each for each in found.graph.nodes if each.op == "call_function"]) == 1
