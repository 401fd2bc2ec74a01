"""Signatures: which calls share an expansion."""

import torch
from torch import fx

from decomp.ir.signature import Signatures
from decomp.ops import aten


def signatures_of(*calls):
    """The signature of each call, given its arguments as a function of two inputs of equal metadata."""
    graph, signatures = fx.Graph(), Signatures()
    inputs = [graph.placeholder(name) for name in "xy"]
    for node in inputs:
        node.meta["val"] = torch.empty(2, 3, device="meta")
    nodes = [graph.call_function(aten.add.Tensor, call(*inputs)) for call in calls]
    return [signatures.of(node).key for node in nodes]


def test_places_of_operands_differ_from_numbers():
    calls = (lambda x, y: (x, 0), lambda x, y: (x, x), lambda x, y: (x, y), lambda x, y: (x, 1), lambda x, y: (x, True))
    assert len(set(signatures_of(*calls))) == len(calls)


def test_places_in_lists_differ_from_numbers_there():
    calls = (lambda x, y: ([x, 0],), lambda x, y: ([x, x],), lambda x, y: ([x, 1],), lambda x, y: ([x, y],))
    assert len(set(signatures_of(*calls))) == len(calls)


def test_which_node_an_operand_is_does_not_count():
    first, second = signatures_of(lambda x, y: (x, y), lambda x, y: (y, x))
    assert first == second
