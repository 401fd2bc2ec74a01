"""Chains of views."""

import operator

import pytest
import torch
from torch import fx

from decomp.ir.aliases import view_chain

aten = torch.ops.aten


def listed(at):
    return lambda x, y: torch.broadcast_tensors(x.T, torch.exp(y))[at][0]


@pytest.mark.parametrize(
    "function, chain",
    [
        (lambda x, y: x, ["x"]),
        (lambda x, y: torch.exp(x), ["exp"]),
        (lambda x, y: x.view(-1)[0], ["getitem", "view", "x"]),
        (lambda x, y: torch.exp(x).T.expand_as(y), ["expand_as", "getattr_1", "exp"]),
        (lambda x, y: torch.split(x + y, 1)[1].unsqueeze(0), ["unsqueeze", "getitem", "split", "add"]),
        (lambda x, y: torch.max(x, 0)[0].t(), ["t", "getitem", "max_1"]),
        (listed(0), ["getitem_1", "getitem", "getattr_1", "x"]),
        (listed(1), ["getitem_1", "getitem", "exp"]),
        (listed(-1), ["getitem_1", "getitem", "exp"]),
    ],
)
def test_a_chain_of_views_ends_where_the_memory_comes_from(function, chain):
    (result,) = fx.symbolic_trace(function).graph.output_node().all_input_nodes
    assert [node.name for node in view_chain(result)] == chain


def test_behind_a_list_of_views_are_all_its_operands():
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    flat = graph.call_function(aten.view.default, (x, [-1]))
    both = graph.call_function(aten.broadcast_tensors.default, ([flat, y],))
    assert set(view_chain(both)) == {both, flat, y, x}
    assert view_chain(graph.call_function(operator.getitem, (both, slice(1))))[1] is both
