"""Lowered programs saved in the formats of other runtimes, from the command line."""

import pytest

from decomp.results import PortableProgram
from tests.commands import run, said


def test_lower_saves_an_onnx_model(tmp_path):
    onnx = pytest.importorskip("onnx", reason="pip install decomp[onnx]")
    path = tmp_path / "mlp.onnx"
    result = run("lower", "mlp", "--to", "onnx", "-o", path)
    assert result.exit_code == 0 and f"saved {path}" in " ".join(result.output.split())
    assert [each.op_type for each in onnx.load(path).graph.node].count("Gemm") == 2


def test_modules_of_stablehlo_are_saved(tmp_path):
    pytest.importorskip("jax", reason="StableHLO needs jax: pip install decomp[stablehlo]")
    text, bytecode = tmp_path / "mlp.mlir", tmp_path / "mlp.mlirbc"
    assert run("lower", "mlp", "--to", "stablehlo", "-o", str(text)).exit_code == 0
    assert run("lower", "mlp", "--to", "stablehlo", "-o", str(bytecode), "--no-verify").exit_code == 0
    assert "stablehlo.dot_general" in text.read_text() and bytecode.read_bytes()[:4] == b"ML\xefR"
    assert not text.with_suffix(".safetensors").exists()
    assert run("lower", "mlp", "--to", "stablehlo", "-o", text, "--no-verify", "--weights").exit_code == 0
    assert b'"0.weight"' in text.with_suffix(".safetensors").read_bytes()
    wrong = run("lower", "mlp", "--to", "tinygrad", "-o", tmp_path / "mlp.pt2", "--weights")
    assert said(wrong) == (2, "error: --weights is for -o FILE.mlir or FILE.mlirbc")


@pytest.mark.parametrize(
    "suffix, target", [(".onnx", "onnx or onnxruntime"), (".mlir", "stablehlo"), (".mlirbc", "stablehlo")]
)
def test_a_file_is_for_its_own_target(suffix, target, tmp_path):
    path = tmp_path / f"mlp{suffix}"
    result = run("lower", "mlp", "--to", "core_aten", "-o", path)
    assert said(result) == (2, f"error: -o {path}: {suffix} is for programs lowered to {target}, not to core_aten")


def test_a_program_for_runtimes_without_python_is_json_and_weights(tmp_path):
    path = tmp_path / "mlp.json"
    assert run("lower", "mlp", "--to", "tinygrad", "-o", path, "--no-verify").exit_code == 0
    assert PortableProgram.read(path).target == "tinygrad" and path.with_suffix(".weights").stat().st_size > 800
    assert run("lower", "mlp", "--to", "tinygrad", "-o", path, "--no-verify", "--no-weights").exit_code == 0
    assert path.with_suffix(".weights").stat().st_size == 0
    wrong = run("lower", "mlp", "--to", "tinygrad", "-o", tmp_path / "mlp.pt2", "--no-weights")
    assert said(wrong) == (2, "error: --no-weights is for -o FILE.json")


def test_the_ops_of_a_target_are_written_as_a_header(tmp_path):
    path, lost = tmp_path / "tinygrad.h", tmp_path / "none" / "t.h"
    assert run("targets", "tinygrad", "--header", path).exit_code == 0
    assert 'X(sum_dim_IntList, "aten.sum.dim_IntList")' in path.read_text()
    named = f"error: --header {lost}: of which target? decomp targets tinygrad --header {lost}"
    assert said(run("targets", "--header", lost)) == (2, named)
    wrong = f"error: --header {lost}: there is no directory {lost.parent}"
    assert said(run("targets", "tinygrad", "--header", lost)) == (2, wrong)


def test_an_output_is_of_a_known_format_in_a_directory_that_exists(tmp_path):
    wrong, lost = tmp_path / "out.pt", tmp_path / "none" / "out.pt2"
    assert said(run("lower", "mlp", "--to", "core_aten", "-o", wrong)) == (
        2,
        f"error: -o {wrong}: the name must end in .pt2 or .json or .onnx or .mlir or .mlirbc",
    )
    assert said(run("lower", "mlp", "--to", "core_aten", "-o", lost)) == (
        2,
        f"error: -o {lost}: there is no directory {lost.parent}",
    )


def test_the_opset_of_a_model_is_chosen_and_what_it_lacks_is_refused(tmp_path):
    onnx = pytest.importorskip("onnx")
    path = tmp_path / "mlp.onnx"
    assert run("lower", "mlp", "--to", "onnx", "-o", path, "--opset", "18", "--no-verify").exit_code == 0
    assert [each.version for each in onnx.load(path).opset_import if not each.domain] == [18]
    words = ("lower", "mlp", "--to", "onnx", "--no-verify")
    assert "opset 5 is not one of 18 to" in said(run(*words, "-o", path, "--opset", "5"))[1]
    assert said(run(*words, "-o", tmp_path / "mlp.pt2", "--opset", "18")) == (2, "error: --opset is for -o FILE.onnx")
