"""Modules of StableHLO: where operations come from, the names of arguments, and weights beside the text."""

import json
import re

import numpy as np
import pytest
import torch
from torch import nn

import decomp
from decomp_rules import targets

jax = pytest.importorskip("jax", reason="the backend needs jax: pip install decomp[stablehlo]")

from decomp_rules.backends import safetensors, xla

X = torch.randn(3, 4)


class Net(nn.Module):
    """A layer, a branch, a call of its own, and a buffer that nothing reads."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("unread", torch.arange(3))

    def forward(self, x):
        y = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
        return self.layer(y).exp()


def module(model):
    with torch.device(next(model.parameters()).device):
        program = torch.export.export(model, (torch.empty_like(X, device=next(model.parameters()).device),))
    return xla.module_of(decomp.lower(program, to=targets.stablehlo))


def locations(text):
    """The location of each operation, with what it refers to written out."""
    named = dict(re.findall(r"^(#loc\d*) = loc\((.*)\)$", text, re.MULTILINE))
    found = re.findall(r"stablehlo\.(\w+)\b.* loc\((.*?)\)$", text, re.MULTILINE)
    return [(kind, re.sub(r"#loc\d*", lambda each: named[each[0]], named.get(place, place))) for kind, place in found]


def test_operations_say_which_call_and_line_they_come_from():
    found = dict(locations(module(Net()).text))
    file = re.escape(__file__)
    assert re.fullmatch(rf'"layer: linear = aten.linear.default"\("{file}":\d+:0\)', found["dot_general"])
    assert re.fullmatch(rf'"exp = aten.exp.default"\("{file}":\d+:0\)', found["exponential"])
    assert "aten.sin.default" in found["sine"] and "aten.cos.default" in found["cosine"]
    assert "site-packages/jax" not in module(Net()).text


def test_arguments_have_the_names_of_the_program_also_those_that_nothing_reads():
    text = module(Net()).text
    kinds = {"layer.weight": "parameter", "layer.bias": "parameter", "unread": "buffer", "x": "input"}
    said = dict(re.findall(r"^// %arg\d+: (\w+) (\S+)$", text, re.MULTILINE)[i][::-1] for i in range(len(kinds)))
    assert said == kinds
    (main,) = [line for line in text.splitlines() if "func.func public @main" in line]
    assert re.findall(r'%arg\d+: \S+ loc\("([^"]*)"\)', main) == list(kinds)


def read(path):
    """The arrays of a file of safetensors."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    kinds, found = {"F32": np.float32, "I64": np.int64}, {}
    for name, each in header.items():
        begin, end = (start + offset for offset in each["data_offsets"])
        found[name] = np.frombuffer(data[begin:end], kinds[each["dtype"]]).reshape(each["shape"])
    return found


@pytest.mark.parametrize("suffix", [".mlir", ".mlirbc"])
def test_weights_are_written_beside_the_module_on_request(tmp_path, suffix):
    model, path = Net(), tmp_path / f"m{suffix}"
    made = module(model)
    made.save(path)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    made.save(path, weights=True)
    weights = read(tmp_path / "m.safetensors")
    state = model.state_dict()
    assert {name: torch.tensor(each).equal(state[name]) for name, each in weights.items()} == dict.fromkeys(state, True)
    with jax.enable_x64(True):
        (found,) = made.exported.call(*weights.values(), X.numpy())
    torch.testing.assert_close(torch.tensor(np.array(found)), model(X).detach())
    if suffix == ".mlirbc":
        from jax.extend.mlir.dialects import stablehlo
        from jax.interpreters import mlir

        with mlir.make_ir_context() as context:
            again = stablehlo.deserialize_portable_artifact(context, path.read_bytes())
            assert again.operation.get_asm(enable_debug_info=True) in made.text


def test_weights_that_cannot_be_written_are_refused(tmp_path):
    path = tmp_path / "m.mlir"
    with pytest.raises(decomp.errors.ArgumentError) as refused:
        module(Net().to("meta")).save(path, weights=True)
    assert str(refused.value) == f"{path}: the program has weights without numbers: layer.weight, layer.bias, unread"
    with pytest.raises(decomp.errors.ArgumentError) as refused:
        safetensors.write(path, {"a": np.zeros(2, np.complex128)})
    assert str(refused.value) == f"{path}: 'a' is complex128, which is no dtype of safetensors"
    assert not list(tmp_path.iterdir())
