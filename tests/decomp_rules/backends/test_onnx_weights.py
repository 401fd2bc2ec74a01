"""Weights in files beside an ONNX model: large ones, and those that had no numbers when it was written."""

import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import decomp
from decomp_rules import targets
from decomp_rules.backends import onnx_models

X = torch.randn(2, 20)


def model():
    return nn.Sequential(nn.Linear(20, 32), nn.GELU(), nn.Linear(32, 4))


def lowered(source, x):
    return decomp.lower(source, to=targets.onnxruntime, args=(x,))


def ran(path):
    (found,) = onnxruntime.InferenceSession(path).run(None, {"input": X.numpy()})
    return torch.from_numpy(found)


def test_large_weights_are_beside_the_model(tmp_path):
    path, source = tmp_path / "m.onnx", model()
    onnx_models.save(lowered(source, X), path, external=2000)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]
    assert {
        each.name: bool(each.external_data)
        for each in onnx.load(path, load_external_data=False).graph.initializer
        if "." in each.name
    } == {"0.weight": True, "0.bias": False, "2.weight": False, "2.bias": False}
    torch.testing.assert_close(ran(path), source(X).detach())


def test_a_model_on_the_meta_device_is_saved_and_its_weights_later(tmp_path):
    path, source = tmp_path / "m.onnx", model()
    onnx_models.save(lowered(model().to("meta"), X.to("meta")), path)
    assert [each.name for each in tmp_path.iterdir()] == ["m.onnx"]
    assert onnx_models.save_weights(path, source.state_dict()) == tmp_path / "m.onnx.weights"
    torch.testing.assert_close(ran(path), source(X).detach())


@pytest.mark.parametrize(
    "given, problem",
    [
        ({}, "the model has weights that are not given: 0.weight, 0.bias, 2.weight, 2.bias"),
        ({"0.bias": torch.zeros(3)}, "'0.bias' is torch.float32 [32] in the model, and cannot be torch.float32 [3]"),
        (
            {"0.bias": torch.zeros(32).double()},
            "'0.bias' is torch.float32 [32] in the model, and cannot be torch.float64 [32]",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(tmp_path, given, problem):
    path = tmp_path / "m.onnx"
    onnx_models.save(lowered(model().to("meta"), X.to("meta")), path)
    with pytest.raises(decomp.errors.ArgumentError) as caught:
        onnx_models.save_weights(path, {**model().state_dict(), **given} if given else {})
    assert str(caught.value) == problem and [each.name for each in tmp_path.iterdir()] == ["m.onnx"]
