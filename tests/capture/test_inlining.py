"""Leaf modules of a graph: traced where they can be, else captured by the metadata of what they are given."""

import copy

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

import decomp
from decomp_rules import targets

X = torch.randn(5, 2, 4)
IMAGE = torch.randn(2, 3, 4, 4)
LEAVES = [
    (nn.LSTM(4, 3, 2), (X,)),
    (nn.LSTM(4, 3), (X, (torch.ones(1, 2, 3), torch.ones(1, 2, 3)))),
    (nn.GRU(4, 3), (X,)),
    (nn.RNN(4, 3), (X,)),
    (nn.LSTMCell(4, 3), (X[0],)),
    (nn.GRUCell(4, 3), (X[0],)),
    (nn.RNNCell(4, 3), (X[0],)),
    (nn.MultiheadAttention(4, 2), (X, X, X)),
    (nn.TransformerEncoderLayer(4, 2, 8).eval(), (X,)),
    (nn.Transformer(4, 2, 1, 1, 8, batch_first=True).eval(), (X, X)),
    (nn.Softmax2d(), (IMAGE,)),
    (nn.InstanceNorm2d(3), (IMAGE,)),
    (nn.ConvTranspose2d(3, 2, 3, stride=2), (IMAGE, [10, 10])),
    (nn.BatchNorm2d(3), (IMAGE,)),
    (nn.ReLU(inplace=True), (IMAGE,)),
]


class Calls(nn.Module):
    """Calls a leaf on what it computes, and uses its own input again."""

    def __init__(self, leaf, count):
        super().__init__()
        self.leaf, self.count = leaf, count
        self.train(leaf.training)

    def forward(self, x, second=None, third=None):
        h = x * 2
        out = self.leaf(*(h, second, third)[: self.count])
        return out, h


class LeafTracer(fx.Tracer):
    def is_leaf_module(self, module, name):
        return True


@pytest.mark.sampled(4)
@pytest.mark.parametrize("target", ["core_aten", "tinygrad"])
@pytest.mark.parametrize("leaf, args", LEAVES, ids=lambda value: type(value).__name__)
@pytest.mark.filterwarnings("ignore:.*nested")
def test_a_leaf_is_captured_by_what_it_is_given(leaf, args, target):
    model = Calls(copy.deepcopy(leaf), len(args))
    absent = {name: None for name in ("second", "third")[len(args) - 1 :]}
    graph = fx.GraphModule(model, LeafTracer().trace(model, absent))
    expected = copy.deepcopy(graph)
    low = decomp.lower(graph, to=getattr(targets, target), args=args)
    torch.testing.assert_close(low.result(*args), expected(*args), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        dict(low.result.named_buffers()).get("leaf.running_mean"),
        dict(expected.named_buffers()).get("leaf.running_mean"),
    )
    assert all(node.op != "call_module" for node in low.result.graph.nodes)


def test_numbers_that_a_leaf_was_captured_for_are_checked():
    model = Calls(nn.ConvTranspose2d(3, 2, 3, stride=2), 2)
    graph = fx.GraphModule(model, LeafTracer().trace(model, {"third": None}))
    low = decomp.lower(graph, to=targets.tinygrad, args=(IMAGE, [10, 10])).result
    with pytest.raises(decomp.DecompError, match=r"'second' has value \[9, 9\], .* for \[10, 10\]"):
        low(IMAGE, [9, 9])


def test_metadata_that_a_pass_did_not_fill_in_is_filled_in():
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.LayerNorm(4))
    for args in (None, (X,)):
        graph = torch.export.export(model, (X,)).module()
        for node in graph.graph.nodes:
            if "gelu" in str(node.target):
                del node.meta["val"]
        low = decomp.lower(graph, to=targets.tinygrad, args=args).result
        torch.testing.assert_close(low(X), model(X))
        assert [node.name for node in graph.graph.nodes if "gelu" in node.name and "val" in node.meta] == []


def test_example_inputs_go_before_metadata_that_they_contradict():
    graph = torch.export.export(nn.Sequential(nn.LayerNorm(4)), (X,)).module(check_guards=False)
    graph._forward_pre_hooks.clear()
    graph._forward_pre_hooks_with_kwargs.clear()
    low = decomp.lower(graph, to=targets.tinygrad, args=(X[:3],)).result
    torch.testing.assert_close(low(X[:3]), F.layer_norm(X[:3], (4,)))


@pytest.mark.parametrize(
    "module",
    [
        nn.ReLU,
        nn.ELU,
        nn.SELU,
        nn.CELU,
        nn.SiLU,
        nn.Mish,
        nn.Hardtanh,
        nn.Hardswish,
        nn.Hardsigmoid,
        nn.LeakyReLU,
        nn.Dropout,
    ],
)
def test_a_leaf_that_writes_its_input_is_lowered_where_the_target_knows_it(module):
    model = Calls(module(inplace=True).eval(), 1)
    graph = fx.GraphModule(model, LeafTracer().trace(model, {"second": None, "third": None}))
    known = decomp.Target("known", ["mul", module])
    low = decomp.lower(graph, to=known, args=(X,)).result
    torch.testing.assert_close(low(X), model(X))
