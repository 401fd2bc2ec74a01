"""ONNX models are no larger than need be: what products and convolutions take in, and what is computed once."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import decomp
from decomp_rules import targets
from tests.forms import Holder

pytest.importorskip("onnx", reason="the backend onnx: pip install decomp[onnx]")
pytest.importorskip("onnxruntime", reason="the backend onnx: pip install decomp[onnx]")

from decomp_rules import backends
from decomp_rules.backends import onnx_models

X = torch.randn(2, 4, 9, 9)


def with_statistics(*layers):
    """Layers in evaluation mode, whose norms have seen something."""
    model = nn.Sequential(*layers)
    for layer in model:
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            for each in (layer.weight, layer.bias, layer.running_mean, layer.running_var):
                nn.init.uniform_(each, 0.5, 2) if each is not None else None
    return model.eval()


def loaded(model, *args):
    return backends.get("onnx").load(decomp.lower(model, to=targets.onnxruntime, args=args, training=False))


def kinds(program):
    return [node.op_type for node in program.function.emitted.model.graph.node]


FOLDED = [
    ([nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6)], X, ["Conv"]),
    ([nn.Conv2d(4, 8, 3, groups=2, bias=False), nn.BatchNorm2d(8, affine=False)], X, ["Conv"]),
    ([nn.Conv1d(4, 6, 3), nn.BatchNorm1d(6), nn.ReLU()], X[:, :, 0], ["Conv", "Relu"]),
    ([nn.ConvTranspose2d(4, 6, 3, groups=2), nn.BatchNorm2d(6)], X, ["ConvTranspose"]),
    ([nn.Linear(9, 5), nn.BatchNorm1d(5)], X[0, 0], ["Gemm"]),
    ([nn.ZeroPad2d((0, 1, 2, 3)), nn.Conv2d(4, 6, 3, padding=1)], X, ["Conv"]),
    ([nn.ConstantPad2d(1, 2.0), nn.Conv2d(4, 6, 3)], X, ["Pad", "Conv"]),
    ([nn.ZeroPad2d(-1), nn.Conv2d(4, 6, 3)], X, ["Pad", "Conv"]),
    ([nn.ReflectionPad2d(1), nn.Conv2d(4, 6, 3)], X, ["Pad", "Conv"]),
    ([nn.BatchNorm2d(4), nn.Conv2d(4, 6, 3)], X, ["BatchNormalization", "Conv"]),
]


@pytest.mark.parametrize("layers, x, expected", FOLDED)
def test_a_layer_takes_in_batch_norms_and_paddings(layers, x, expected):
    model = with_statistics(*layers)
    program = loaded(model, x)
    assert kinds(program) == expected
    torch.testing.assert_close(program(x), model(x).detach(), rtol=1e-5, atol=1e-5)


def test_a_layer_that_is_read_elsewhere_stays_as_it_is():
    conv, norm = with_statistics(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6))

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = conv, norm

        def forward(self, x):
            y = self.conv(x)
            return self.norm(y), y.relu()

    program, model = loaded(Twice().eval(), X), Twice().eval()
    assert sorted(kinds(program)) == ["BatchNormalization", "Conv", "Relu"]
    torch.testing.assert_close(program(X), model(X))


def test_other_weights_are_folded_as_well_and_absent_ones_are_not(tmp_path):
    model, other = (with_statistics(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6)) for _ in range(2))
    program = loaded(model, X)
    program.load_state_dict(other.state_dict())
    torch.testing.assert_close(program(X), other(X).detach(), rtol=1e-5, atol=1e-5)
    said = {each.key: each.value for each in program.function.emitted.model.graph.node[0].metadata_props}
    assert said["decomp.folded"] == "batch_norm = aten.batch_norm.default"
    with torch.device("meta"):
        absent = decomp.lower(model.to("meta"), to=targets.onnxruntime, args=(torch.empty(2, 4, 9, 9),))
    found = onnx_models.save(absent, tmp_path / "m.onnx")
    assert [node.op_type for node in found.graph.node] == ["Conv", "BatchNormalization"]


def test_products_of_merged_batches_are_of_the_batches_as_they_are():
    def product(x, y):
        return torch.bmm(x.reshape(8, 9, 9), y.reshape(8, 9, 9)).reshape(2, 4, 9, 9)

    program = loaded(Holder(product), X, X)
    assert kinds(program) == ["MatMul"]
    torch.testing.assert_close(program(X, X + 1), product(X, X + 1))
    split_otherwise = Holder(lambda x, y: torch.bmm(x.reshape(8, 9, 9), y.reshape(8, 9, 9)).reshape(4, 2, 9, 9))
    assert kinds(loaded(split_otherwise, X, X)) == ["Reshape", "Reshape", "MatMul", "Reshape"]


def test_what_is_the_same_is_computed_once_and_what_is_drawn_is_not():
    def attend(q, mask):
        for _ in range(2):
            q = F.scaled_dot_product_attention(q, q, q, mask)
        return q

    found = kinds(loaded(Holder(attend), X, torch.rand(2, 1, 9, 9) > 0.3))
    assert found.count("ReduceMax") == 1 and found.count("Softmax") == 2
    program = loaded(Holder(lambda x: (torch.rand_like(x), torch.rand_like(x))), X)
    assert kinds(program) == ["RandomUniform", "RandomUniform"]
    assert not torch.equal(*program(X))


def test_one_place_of_a_dimension_is_one_operator():
    select = Holder(lambda x: (x[:, 1], x.select(-1, -2)))
    program = loaded(select, X)
    assert kinds(program) == ["Gather", "Gather"]
    torch.testing.assert_close(program(X), select(X))


def test_first_states_and_biases_of_recurrent_layers_are_constants():
    layer, x = nn.GRU(9, 5, batch_first=True), X[0]
    program = loaded(layer, x)
    assert kinds(program) == ["Transpose", "GRU", "Transpose", "Reshape", "Transpose"]
    torch.testing.assert_close(program(x), layer(x))
