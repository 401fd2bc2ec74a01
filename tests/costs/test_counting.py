"""Costs that are counted: literal numbers for calls whose price anybody can work out."""

import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import decomp
from decomp import costs
from tests.forms import exported


def price(cost, function, *args):
    """Of the one call that a function makes."""
    (call,) = decomp.calls(exported(function, *args))
    return cost(call)


X, Y = torch.ones(3, 4), torch.ones(4, 5)


@pytest.mark.parametrize(
    ("function", "args", "bytes_", "flops"),
    [
        (torch.exp, (X,), 96, 12),
        (torch.add, (X, torch.ones(4)), 48 + 16 + 48, 12),
        (lambda x: x * x, (X,), 96, 12),  # read once
        (lambda x, y: x * y, (X, torch.ones(3, 1).expand(3, 4)), 48 + 12 + 48, 12),  # a stride of 0
        (torch.mm, (X, Y), 48 + 80 + 60, 2 * 3 * 5 * 4),
        (torch.addmm, (torch.ones(5), X, Y), 20 + 48 + 80 + 60, 2 * 3 * 5 * 4 + 15),
        (torch.bmm, (torch.ones(2, 3, 4), torch.ones(2, 4, 5)), 96 + 160 + 120, 2 * 2 * 3 * 5 * 4),
        (F.linear, (X, torch.ones(5, 4)), 48 + 80 + 60, 2 * 3 * 5 * 4),
        (
            lambda x, w: F.conv2d(x, w, groups=2),
            (torch.ones(1, 4, 5, 5), torch.ones(6, 2, 3, 3)),
            4 * (100 + 108 + 54),
            2 * 6 * 9 * 18,
        ),
        (F.conv_transpose2d, (torch.ones(1, 4, 2, 2), torch.ones(4, 6, 3, 3)), 4 * (16 + 216 + 96), 2 * 16 * 54),
        (lambda x: x.sum(1), (X,), 48 + 12, 12),
        (lambda x: x.permute(1, 0), (X,), 0, 0),
        (lambda x: x[1:], (X,), 0, 0),
        (lambda x: x.expand(2, 3, 4), (X,), 0, 0),
        (lambda x: x.clone(), (X,), 96, 0),
        (lambda x: x.to(torch.float64), (X,), 48 + 96, 0),
        (lambda: torch.full((3, 4), 1.0), (), 48, 0),
        (lambda x: torch.full_like(x, 1.0), (X,), 48, 0),
        (F.embedding, (torch.tensor([1, 2]), torch.ones(100, 4)), None, 0),
        (lambda w, i: torch.index_select(w, 0, i), (torch.ones(100, 4), torch.tensor([1, 2])), 32 + 16 + 32, 0),
        (lambda x: F.max_pool2d(x, 2), (torch.ones(1, 1, 4, 4),), None, 16),
        (torch.sort, (torch.ones(2, 8),), 64 + 64 + 128, 16 * 3),
        (lambda x: torch.fft.fft(x), (torch.ones(8, dtype=torch.complex64),), 128, 5 * 8 * 3),
        (F.scaled_dot_product_attention, (torch.ones(1, 2, 3, 4),) * 3, 192, 2 * 6 * 3 * 8),
    ],
)
def test_the_price_of_a_call(function, args, bytes_, flops):
    assert price(costs.calls, function, *args) == 1
    assert price(costs.flops, function, *args) == flops
    if bytes_ is not None:
        assert price(costs.bytes, function, *args) == bytes_


def test_a_reshape_is_free_where_it_is_a_view_and_moves_bytes_where_it_is_not():
    assert price(costs.bytes, lambda x: torch.ops.aten.reshape(x, (12,)), X) == 0
    (call,) = decomp.calls(torch.fx.symbolic_trace(lambda x: x.reshape(12)))
    with pytest.raises(decomp.DecompError, match="depends on shapes"):
        costs.bytes(call)
    moved = decomp.calls(exported(lambda x: torch.ops.aten.clone(x.T, memory_format=torch.contiguous_format), X))
    assert [costs.bytes(call) for call in moved] == [0, 96]


def test_a_write_in_place_moves_what_it_reads_and_writes():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = X
    added = graph.call_function(torch.ops.aten.add_.Tensor, (x, 1))
    added.meta["val"] = X
    (call,) = decomp.calls(graph, "add")
    assert costs.bytes(call) == 96


def test_sizes_that_vary_count_as_in_the_example():
    batch = torch.export.Dim("batch", min=2)
    program = exported(torch.exp, X, dynamic_shapes=(({0: batch},),))
    (call,) = decomp.calls(program, "exp")
    assert (costs.bytes(call), costs.flops(call)) == (96, 12)


def test_a_size_that_data_decide_has_a_price_and_no_guard():
    program = exported(lambda x: torch.exp(x[x > 0]), X)
    (call,) = decomp.calls(program, "exp")
    assert costs.flops(call) == 64
    assert costs.bytes(call) == 2 * 4 * 64


def test_without_metadata_calls_have_a_price_and_bytes_say_what_is_missing():
    (call,) = decomp.calls(torch.fx.symbolic_trace(lambda x: torch.exp(x)))
    assert costs.calls(call) == 1
    with pytest.raises(decomp.DecompError) as caught:
        costs.bytes(call)
    assert str(caught.value) == (
        "the cost of a call of aten.exp depends on shapes, and the program has no metadata for exp\n  to do: pass args="
    )


def test_costs_are_values():
    named = [getattr(costs, name) for name in costs.NAMED]
    assert len(set(named)) == len(named)
    for cost in named:
        assert pickle.loads(pickle.dumps(cost)) == cost
        assert hash(pickle.loads(pickle.dumps(cost))) == hash(cost)
    assert [repr(cost) for cost in named] == [f"decomp.costs.{name}" for name in costs.NAMED]


def test_an_unknown_cost_names_those_that_there_are():
    with pytest.raises(
        AttributeError, match="no attribute 'flop'; it has .*calls, flops, fused, measured, peak_memory"
    ):
        costs.flop
    assert {*costs.NAMED, "table", "total"} <= set(dir(costs))


class Chain(nn.Module):
    def forward(self, x):
        return torch.exp(x.permute(1, 0)) + 1


def test_the_total_of_a_program_is_the_sum_of_its_calls():
    program = torch.export.export(Chain(), (X,))
    assert costs.total(program, costs.calls) == 3
    assert costs.total(program, costs.bytes) == 2 * 96
    assert costs.total(program.graph_module, costs.flops) == 24
    assert costs.total(program.graph, lambda call: 0.5) == 1.5


def test_a_total_is_of_a_program_only():
    with pytest.raises(decomp.DecompError, match="int has no graph; pass a GraphModule, a Graph or an ExportedProgram"):
        costs.total(3, costs.calls)
