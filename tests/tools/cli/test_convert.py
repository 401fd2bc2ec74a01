"""`decomp convert` and `decomp probe` with converters of a file, and what cannot be done."""

import json

import pytest

import decomp
from tests.commands import run, said

FAKES = "tests.tools.converting.fakes"


def test_a_model_is_converted_compared_and_saved(tmp_path):
    path = tmp_path / "mlp.txt"
    words = ("convert", "mlp", "--to", f"{FAKES}:FAKE", "--target", "core_aten", "-o", path)
    result = run(*words)
    assert result.exit_code == 0, result.output
    first, second, last = result.output.splitlines()
    assert first.startswith("fake ") and " converts the model: " in first
    assert second.startswith("the whole program run on the example inputs, against itself in float64: 1 result within ")
    assert last == f"saved {path}" and "call_function" in path.read_text() or "graph" in path.read_text()


def test_json_has_what_was_compared():
    found = json.loads(run("convert", "mlp", "--to", f"{FAKES}:FAKE", "--target", "core_aten", "--json").stdout)
    assert found["converter"] == "fake" and found["output"] is None and "1 result within" in found["verified"]


def test_composites_are_handed_to_a_converter_that_takes_them(tmp_path):
    words = ("convert", "mlp", "--to", f"{FAKES}:COMPOSITES", "--target", "core_aten", "--composites", "linear")
    made, path = "aten.linear (composite, 2 calls inside)", tmp_path / "mlp.txt"
    result = run(*words, "--composites", "relu", "-o", path)
    lines = result.output.splitlines()
    assert lines[2:-1] == [
        f"composite: {made}",
        f"composite: {made}",
        "composite: aten.relu: no composite, its calls are legal on core_aten",
    ]
    assert path.read_text().count("torch.ops.higher_order.wrap") == 2
    assert json.loads(run(*words, "--json").stdout)["composites"] == [made, made]


def test_a_converter_that_takes_no_composites_is_given_the_lowered_calls_with_a_warning(tmp_path):
    path = tmp_path / "mlp.txt"
    words = ("convert", "mlp", "--to", f"{FAKES}:FAKE", "--target", "core_aten", "--no-verify", "-o", path)
    with pytest.warns(UserWarning, match="fake takes no composites: the calls that would be some are lowered"):
        assert run(*words, "--composites", "linear").exit_code == 0
    assert "wrap" not in path.read_text()
    assert said(run(*words, "--composites", "lniear"))[1].startswith(
        "error: unknown op 'lniear'; did you mean 'linear'"
    )


def test_what_a_converter_gets_wrong_ends_with_three():
    code, text = said(run("convert", "mlp", "--to", f"{FAKES}:WRONG", "--target", "core_aten"))
    assert code == 3 and text.startswith("error: wrong ")


def test_names_and_files_are_checked_before_a_model_is_loaded(tmp_path):
    assert said(run("convert", "mlp", "--to", "opnvino")) == (
        2,
        "error: no converter 'opnvino'. Did you mean 'openvino'? Available: coreai, coremltools, executorch, iree, "
        "litert, openvino, torch_mlir, torch_onnx, tvm, and file.py:name",
    )
    assert said(run("convert", "mlp", "--to", f"{FAKES}:FAKE", "-o", tmp_path / "x.bin")) == (
        2,
        f"error: -o {tmp_path / 'x.bin'}: the name must end in .txt",
    )
    assert said(run("convert", "mlp", "--to", f"{FAKES}:ABSENT"))[1].startswith(
        'error: to="absent" needs no-such-converter, which is not installed'
    )
    assert said(run("convert", "mlp", "--to", "onnx"))[1].startswith('error: to="onnx" is not a converter')
    assert said(run("probe", f"{FAKES}:FAKE", "-o", tmp_path / "x.txt")) == (
        2,
        f"error: -o {tmp_path / 'x.txt'}: the name must end in .toml",
    )


def test_probe_writes_a_target(tmp_path):
    path = tmp_path / "fake.toml"
    words = ("--op", "aten.neg.default", "--op", "aten.topk.default", "--dtype", "float32", "--workers", 1)
    result = run("probe", f"{FAKES}:PARTLY", "-o", path, *words)
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-1] == f"saved {path}"
    assert "neg" in decomp.Target.load(path) and decomp.Target.load(path).dtypes == ("float32",)
