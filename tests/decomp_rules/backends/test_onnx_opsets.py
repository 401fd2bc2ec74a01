"""Models of each opset that is offered: older forms of what is new, and refusals."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import decomp
from decomp_rules import targets
from tests.forms import Holder

onnx = pytest.importorskip("onnx", reason="the backend onnx: pip install decomp[onnx]")
onnxruntime = pytest.importorskip("onnxruntime", reason="the backend onnx: pip install decomp[onnx]")

from decomp_rules.backends import onnx_models

LAST = onnx.defs.onnx_opset_version()
X, GRID = torch.randn(2, 3, 6, 6), torch.rand(2, 4, 5, 2) * 2 - 1


class Net(nn.Module):
    """Convolution, norms, attention with a mask of run time, and weights of more than a kilobyte."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.layer, self.head = nn.LayerNorm(36), nn.Linear(36, 36)

    def forward(self, x, mask):
        y = self.layer(F.gelu(self.norm(self.conv(x))).flatten(2))
        y = F.scaled_dot_product_attention(y, y, self.head(y), mask)
        return F.gelu(y, approximate="tanh")


def saved(model, args, path, opset):
    """What ONNX Runtime computes of a model of this opset, which has passed ONNX's checker."""
    found = onnx_models.save(decomp.lower(model, to=targets.onnxruntime, args=args, verify=False), path, opset=opset)
    assert [each.version for each in onnx.load(path).opset_import] == [opset]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    fed = {given.name: x.numpy() for given, x in zip(session.get_inputs(), args, strict=True)}
    edges = {each.name for each in (*found.graph.value_info, *found.graph.output)}
    assert edges == {name for node in found.graph.node for name in node.output}
    return torch.from_numpy(session.run(None, fed)[0])


@pytest.mark.parametrize("opset", range(18, LAST + 1))
def test_a_model_may_be_of_each_opset(tmp_path, opset):
    torch.manual_seed(0)
    model, args = Net().eval(), (X, torch.rand(2, 1, 8) > 0.2)
    try:
        found = saved(model, args, tmp_path / "m.onnx", opset)
    except onnxruntime.capi.onnxruntime_pybind11_state.Fail as error:
        pytest.skip(f"this ONNX Runtime is older than the opset: {error}")
    torch.testing.assert_close(found, model(*args).detach(), rtol=1e-5, atol=1e-5)


OLDER = [
    (lambda x: F.gelu(x), (X,), ["Constant"] * 3 + ["Div", "Erf", "Add", "Mul", "Mul"]),
    (lambda x: (x > 1).amax(1), (X,), ["Greater", "Cast", "ReduceMax", "Cast"]),
    (lambda x: (x > -1).amin((2, 3), keepdim=True), (X,), ["Greater", "Cast", "ReduceMin", "Cast"]),
    (lambda x, g: F.grid_sample(x, g, align_corners=False), (X, GRID), ["GridSample"]),
    (lambda x, g: F.grid_sample(x, g, mode="bicubic", align_corners=True), (X, GRID), ["GridSample"]),
]


@pytest.mark.parametrize("function, args, kinds", OLDER)
def test_what_is_new_is_written_in_its_older_form(tmp_path, function, args, kinds):
    found = saved(Holder(function), args, tmp_path / "m.onnx", 18)
    torch.testing.assert_close(found, function(*args))
    assert [node.op_type for node in onnx.load(tmp_path / "m.onnx").graph.node] == kinds
    same = saved(Holder(function), args, tmp_path / "m.onnx", 21)
    torch.testing.assert_close(same, function(*args))


REFUSED = [
    (18, "GridSample of volumes is of opset 20, and the model is to be of opset 18"),
    (17, f"opset 17 is not one of 18 to {LAST}"),
    (LAST + 1, f"opset {LAST + 1} is not one of 18 to {LAST}"),
]


@pytest.mark.parametrize("opset, problem", REFUSED)
def test_what_an_opset_lacks_is_refused(tmp_path, opset, problem):
    volumes = torch.randn(1, 2, 3, 4, 5), torch.rand(1, 2, 2, 2, 3)
    lowering = decomp.lower(
        Holder(lambda x, g: F.grid_sample(x, g, align_corners=True)), to=targets.onnxruntime, args=volumes
    )
    with pytest.raises(decomp.errors.LoadError) as refused:
        onnx_models.save(lowering, tmp_path / "m.onnx", opset=opset)
    assert str(refused.value) == (
        f"onnx cannot run this program; nothing has run\n  {problem}\n  to do, the easiest first:\n"
        "    1. a newer opset\n    2. decomp.lower(model, to=targets.onnx, ...), which has fewer operators"
    )
    assert not list(tmp_path.iterdir())
