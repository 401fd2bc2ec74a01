"""The script for a machine with a GPU, on the CPU: a rule or two, one model, one family at its smallest size."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import gpu_parts, on_gpu
from benchmarks.gpu_results import GpuResults
from decomp.rules.certificates import identity
from decomp.tools.benchmarking.clock import Effort

PARTS = ("--rules", "2", "--models", "mlp", "--families", "softmax")
CPU = torch.device("cpu")


def refused(*args, **kwargs):
    raise AssertionError("measured again")


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(gpu_parts, "SIZES", ("small",))
    monkeypatch.setattr(gpu_parts, "EFFORT", Effort(warm_up=0, seconds=0.0, least=1, most=1, sample=0.0))


def run(path, *words):
    return on_gpu.main(["--device", "cpu", "-o", str(path), *words])


def test_three_parts_are_written_as_they_come_and_a_second_run_goes_on(small, tmp_path, monkeypatch, capsys):
    path = tmp_path / "results.json"
    assert run(path, *PARTS) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("; ")[0] for line in lines] == [
        "certificates: 2 of 2 rules, 2 without a fault",
        "models: 2 of 2 lowered and verified, 0 failed",
        "timings: 1 of 1 cases of 1 families, 0 programs failed",
        f"{path}, {path.with_suffix('.md')}: written",
    ]
    data = json.loads(path.read_text())
    assert list(data["certificates"]) == [identity(rule) for rule in gpu_parts.most_used_rules(2)]
    assert [(row["model"], row["target"]) for row in data["models"]] == [("mlp", "core_aten"), ("mlp", "tinygrad")]
    assert {row["variant"] for row in data["timings"]["rows"]} == {
        "fused",
        "fused, compiled",
        "tinygrad + products, compiled",
    }
    page = path.with_suffix(".md").read_text()
    assert page.startswith(f"# Seen on cpu, torch {torch.__version__}\n")
    assert "| linear for aten.linear | exact | " in page and "| mlp | tinygrad | " in page
    assert "### softmax, small, forward, cpu" in page

    for name in ("measure_in_process", "_lowered"):
        monkeypatch.setattr(gpu_parts, name, refused)
    monkeypatch.setattr("decomp.tools.benchmarking.suite.measure_case", refused)
    assert run(path, *PARTS) == 0
    assert json.loads(path.read_text()) == data


def test_at_its_time_limit_it_ends_and_writes_what_it_has(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu_parts, "_lowered", refused)
    path = tmp_path / "results.json"
    assert run(path, *PARTS, "--minutes", "0") == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.endswith(" s, time up") for line in lines[:3])
    assert lines[0].startswith("certificates: 0 of 2 rules, ")
    data = json.loads(path.read_text())
    assert not data["certificates"] and not data["models"]
    assert path.with_suffix(".md").read_text().startswith("# Seen on cpu, ")


def test_a_model_that_fails_is_a_row(tmp_path, monkeypatch):
    def fails(*args, **kwargs):
        raise RuntimeError("CUDA error: device-side assert triggered\nmore")

    monkeypatch.setattr("decomp.lower", fails)
    results = GpuResults.at(tmp_path / "results.json", CPU)
    assert gpu_parts.lower_models(results, gpu_parts.Plan(CPU, 9, models=["mlp"]), float("inf")) == (
        "0 of 2 lowered and verified, 2 failed"
    )
    assert results.models[0]["error"] == "RuntimeError: CUDA error: device-side assert triggered"
    assert "| mlp | core_aten |  |  |  | RuntimeError: CUDA error: device-side assert triggered |" in results.page()


def test_results_of_another_machine_are_not_continued(tmp_path, capsys):
    path = tmp_path / "results.json"
    results = GpuResults.at(path, CPU)
    GpuResults(path, {**results.machine, "device": "NVIDIA H100"}).save()
    assert run(path) == 2
    assert capsys.readouterr().err == f"{path} is of another machine: other device\n  to do: another -o\n"
    path.write_text("[]")
    assert run(path) == 2
    assert "holds no results of this script" in capsys.readouterr().err


def test_what_is_missing_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(on_gpu, "NEEDED", ("torch", "no_such_package"))
    assert run(tmp_path / "results.json") == 2
    assert capsys.readouterr().err == "missing: no_such_package\n  to do: pip install no_such_package\n"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_a_cuda_device_the_way_to_try_it_is_named(tmp_path, capsys):
    assert on_gpu.main(["-o", str(tmp_path / "results.json")]) == 2
    assert capsys.readouterr().err.endswith(
        f"torch {torch.__version__} finds no CUDA device\n  to do: --device cpu tries the script\n"
    )


def test_a_hundred_rules_are_those_of_the_ops_in_most_models():
    few, more = gpu_parts.most_used_rules(3), gpu_parts.most_used_rules(6)
    assert more[:3] == few and len(set(more)) == 6
    assert str(few[0].op) == "aten.linear"
