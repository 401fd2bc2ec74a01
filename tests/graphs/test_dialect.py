"""A graph is in the aten dialect if all its calls of ops are overloads: what is emitted then is overloads too."""

import operator

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

import decomp
from decomp.capture.frontends import dialect_of
from decomp.graphs.graph_builder import is_aten
from decomp_rules import targets


def graph_of(*calls):
    """A graph of calls of one tensor: of functions, or of methods by name."""
    graph = fx.Graph()
    value = graph.placeholder("x")
    for call in calls:
        value = graph.call_method(call, (value,)) if isinstance(call, str) else graph.call_function(call, (value,))
    graph.output(value)
    return graph


RELU = torch.ops.aten.relu.default


@pytest.mark.parametrize(
    "calls",
    [
        (RELU,),
        (RELU, operator.neg),
        (RELU, torch.sym_int),
        (torch._C._set_grad_enabled, RELU),
        (torch._check, RELU),
        (torch.amp.autocast_mode._enter_autocast, RELU),
        (torch.ops.higher_order.cond, RELU),
    ],
)
def test_overloads_with_what_is_no_op_are_aten(calls):
    assert is_aten(graph_of(*calls)) and dialect_of(graph_of(*calls)) == "aten"


@pytest.mark.parametrize("calls", [(), (F.gelu,), ("relu",), (RELU, F.gelu), ("relu", RELU), (operator.neg,)])
def test_a_graph_with_a_function_or_method_is_torch(calls):
    assert not is_aten(graph_of(*calls)) and dialect_of(graph_of(*calls)) == "torch"


def test_a_module_beside_overloads_is_torch():
    graph = graph_of(RELU)
    with graph.inserting_before(graph.output_node()):
        graph.call_module("linear")
    assert dialect_of(graph) == "torch"


class Mixed(nn.Module):
    def forward(self, x):
        return F.softplus(torch.ops.aten.relu.default(x).add_(1))


def test_what_a_mixed_graph_is_lowered_to_is_spelled_in_functions_and_methods():
    module, x = fx.symbolic_trace(Mixed()), torch.randn(4, 3)
    lowered = decomp.lower(module, args=(x,), to=targets.core_aten).result
    overloads = [node for node in lowered.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
    assert [node.target for node in overloads] == [RELU]
    torch.testing.assert_close(lowered(x), Mixed()(x))
