"""Calls: every use of an op in a program, in any spelling."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

import decomp
from decomp.ir.call import bound_call, call_target, is_host, is_projection, kind_of, module_path
import decomp_rules


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.ReLU()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        a, b = torch.chunk(self.linear(x), 2, dim=1)
        y = F.relu(a) + torch.relu(b) + self.act(a) + b.relu()
        return y.view(x.shape[0], -1) * x.dim()


x = torch.rand(2, 4)


def test_every_spelling_is_found():
    found = decomp.calls(fx.symbolic_trace(Net()), nn.ReLU)
    assert [call.node.op for call in found] == ["call_function", "call_function", "call_module", "call_method"]


def test_an_exported_program_has_metadata_places_and_users():
    exported = torch.export.export(Net(), (x,))
    (linear,) = decomp.calls(exported, F.linear)
    assert (linear.module_path, linear.overload) == ("linear", "default")
    assert linear.argument("weight").shape == (4, 4) and linear.meta.shape == (2, 4)
    assert [t.shape for t in linear.tensors] == [(2, 4), (4, 4), (4,)]
    assert [node.name for node in linear.inputs] == ["x", "p_linear_weight", "p_linear_bias"]
    assert [node.name for node in linear.users] == ["chunk"] and linear.looked_around


def test_without_an_op_all_calls_are_found_but_not_sizes_and_projections():
    assert [call.op.short for call in decomp.calls(fx.symbolic_trace(Net()))] == [
        "linear",
        "chunk",
        "relu",
        "relu",
        "add",
        "relu",
        "add",
        "relu",
        "add",
        "view",
        "mul",
    ]


def test_arguments_are_bound_with_defaults():
    (call,) = decomp.calls(fx.symbolic_trace(lambda x: torch.sum(x, 1)))
    assert {name: call.argument(name) for name in ("dim", "keepdim", "dtype")} == {
        "dim": 1,
        "keepdim": False,
        "dtype": None,
    }
    assert call.given == {"self", "dim"}


def test_a_misnamed_argument_is_explained():
    (call,) = decomp.calls(fx.symbolic_trace(lambda x: x.relu()))
    with pytest.raises(KeyError) as caught:
        call.argument("dim")
    assert caught.value.args == ("aten.relu has no argument 'dim'; it has self",)


def test_functions_of_the_user_are_called_by_their_own_names():
    def mine(x, scale=2):
        return x

    graph = fx.Graph()
    graph.output(graph.call_function(mine, (graph.placeholder("x"),)))
    (call,) = decomp.calls(fx.GraphModule({}, graph), mine)
    assert call.arguments["scale"] == 2


def test_calls_inside_higher_order_ops_are_found():
    class Conditional(nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    exported = torch.export.export(Conditional(), (x,))
    assert [len(decomp.calls(exported, name)) for name in ("sin", "cos", "exp")] == [1, 1, 0]


def test_a_call_that_fits_no_overload_is_found_as_what_it_is():
    graph = fx.Graph()
    graph.output(graph.call_function(torch.relu, (graph.placeholder("x"), 1, 2)))
    (call,) = decomp.calls(graph)
    assert (call.op.name, list(call.arguments)) == ("torch.relu", ["arg0", "arg1", "arg2"])


def test_an_unknown_op_is_refused():
    with pytest.raises(decomp.errors.UnknownOp, match="unknown op 'rleu'"):
        decomp.calls(fx.Graph(), "rleu")


def test_kinds_without_metadata():
    graph = fx.symbolic_trace(Net()).graph
    kinds = {node.name: kind_of(node) for node in graph.nodes}
    assert kinds["chunk"] == "many" and kinds["getattr_1"] == kinds["getitem_2"] == kinds["dim"] == "host"
    assert kinds["x"] == kinds["relu"] == "unknown"
    assert kind_of(x) == "tensor" and kind_of(3) == "host"
    assert [node.name for node in graph.nodes if is_projection(node)] == ["getitem", "getitem_1"]
    assert [node.name for node in graph.nodes if is_host(node)] == ["getattr_1", "getitem_2", "dim"]


def test_what_is_no_call_is_none():
    graph = fx.Graph()
    assert bound_call(graph.placeholder("x")) is None
    assert bound_call(graph.call_function(operator.add, (1, 2))).op.short == "add"


@pytest.mark.parametrize(
    "stack, path",
    [
        (None, ""),
        ({}, ""),
        ({"a": ("", "Net"), "b": ("layers.0", "Block")}, "layers.0"),
        ({"a": ("L['self'].layers.0", "Block")}, "layers.0"),
        ({"a": ("L['self']", "Net")}, ""),
    ],
)
def test_module_paths_lose_the_prefixes_of_captures(stack, path):
    assert module_path(stack) == path


@pytest.mark.parametrize(
    "function, kinds",
    [
        (lambda x: x.max(1)[0], ["many", "unknown"]),
        (lambda x: torch.min(x, dim=0)[1], ["many", "unknown"]),
        (lambda x: x.max()[None], ["unknown", "unknown"]),
        (lambda x: torch.max(x, x)[0], ["unknown", "unknown"]),
        (lambda x: torch.median(x, 0, True)[0], ["many", "unknown"]),
    ],
)
def test_without_metadata_the_overload_says_whether_there_are_several_results(function, kinds):
    traced = fx.symbolic_trace(function)
    assert [kind_of(node) for node in traced.graph.nodes if node.op.startswith("call")] == kinds


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.arange(x.shape[0]),
        lambda x: torch.arange(x.shape[0] * 2.5),
        lambda x: torch.arange(1, x.size(0)),
    ],
)
def test_without_metadata_a_size_is_not_taken_for_data(function):
    with pytest.raises(decomp.NotLowered, match="needs a size as a number, and .* no metadata; pass args="):
        decomp.lower(fx.symbolic_trace(function), to=decomp_rules.targets.tinygrad)


def test_without_metadata_arithmetic_of_sizes_is_another_call_than_of_tensors():
    traced = fx.symbolic_trace(lambda x: x.view(x.shape[0] * 2, -1) * 2)
    with pytest.raises(decomp.NotLowered, match="aten.mul at mul_1"):
        decomp.lower(traced, to=decomp.Target("chip", ["view"]))


def test_a_call_goes_to_a_function_or_to_the_method_of_a_name():
    assert torch.equal(call_target("sum", (x,), {"dim": 1}), call_target(torch.sum, (x,), {"dim": 1}))
    assert torch.equal(call_target("sum", (x,), {"dim": 1}), x.sum(1))


class Batches(nn.Module):
    def forward(self, batch, scale):
        return batch["a"]["x"].exp() * scale


@pytest.mark.parametrize("known", [False, True], ids=["traced", "with inputs"])
def test_what_an_input_holds_is_taken_from_it(known):
    batch, scale = {"a": {"x": torch.randn(4, 8)}}, torch.rand(8)
    graph = fx.symbolic_trace(Batches())
    lowered = decomp.lower(graph, to=decomp_rules.targets.core_aten, args=(batch, scale) if known else None)
    torch.testing.assert_close(lowered.result(batch, scale), Batches()(batch, scale))
    assert [call.op.short for call in decomp.calls(graph)] == ["exp", "mul"]
