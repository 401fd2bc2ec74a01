"""Commands on several models, named one by one or by a pattern."""

import json

import pytest
import torch
from torch import nn

from tests.commands import run, said


@pytest.fixture
def models(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, module in (("a", nn.ReLU()), ("b", nn.GELU())):
        torch.export.save(torch.export.export(module, (torch.ones(2, 3),)), f"{name}.pt2")
    (tmp_path / "chip.toml").write_text('ops = ["relu"]')


def test_a_pattern_names_the_files_that_match_and_a_table_of_all_comes_last(models):
    result = run("plan", "*.pt2", "--to", "chip.toml")
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert result.exit_code == 1
    assert (
        lines.index("a.pt2") < lines.index("plan for chip: 1 call legal, 0 derived, 0 blocked") < lines.index("b.pt2")
    )
    assert [line.split() for line in lines[-5:]] == [
        "model legal derived blocked comes to calls cost result".split(),
        ["─" * len(lines[-4])],
        "a.pt2 1 0 0 1 lowers".split(),
        "b.pt2 0 0 1 blocked: aten.gelu".split(),
        "2 models, 1 failed".split(),
    ]


def test_quiet_shows_the_table_alone(models):
    result = run("plan", "a.pt2", "b.pt2", "--to", "core_aten", "-q")
    assert result.exit_code == 0 and result.stdout.startswith("model") and result.stderr == ""
    assert result.stdout.splitlines()[-1] == "2 models"


def test_a_model_that_fails_does_not_stop_the_others_and_the_exit_code_is_the_worst(models):
    result = run("lower", "nowhere.pt2", "b.pt2", "a.pt2", "--to", "chip.toml")
    assert result.exit_code == 2
    assert "error: no file nowhere.pt2" in result.stderr and "1 op cannot be lowered to chip" in result.stderr
    rows = [line.split() for line in result.stdout.splitlines()[-4:]]
    assert rows[0] == "nowhere.pt2 no file nowhere.pt2".split() and rows[1][:2] == ["b.pt2", "1"]
    assert rows[2] == "a.pt2 1 1 1 lowered".split() and rows[3] == "3 models, 2 failed".split()


def test_json_has_each_model_under_its_name(models):
    data = json.loads(run("lower", "a.pt2", "b.pt2", "--to", "chip.toml", "--json").stdout)
    assert data["a.pt2"]["target"] == "chip" and data["a.pt2"]["after"] == {"aten.relu.default": 1}
    assert data["b.pt2"]["error"] == "NotLowered" and data["b.pt2"]["blockers"][0]["op"] == "aten.gelu"


def test_several_programs_are_saved_in_a_directory(models, tmp_path):
    words = ["lower", "[ab].pt2", "--to", "core_aten", "-o"]
    assert said(run(*words, "out")) == (2, "error: -o out: for several models it must be a directory that is there")
    (tmp_path / "out").mkdir()
    assert run(*words, "out").exit_code == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.pt2", "b.pt2"]
    text = "error: -o out: two models would be saved as out/a.pt2"
    assert said(run("lower", "a.pt2", "./a.pt2", "--to", "core_aten", "-o", "out")) == (2, text)


def test_memory_of_several_models_is_a_table_in_bytes(models):
    result = run("memory", "*.pt2", "-q")
    head, _, first, second, count = (line.split() for line in result.stdout.splitlines())
    assert head == "model peak in bytes without a plan lower bound result".split()
    assert (first[0], second[0], count) == ("a.pt2", "b.pt2", ["2", "models"]) and first[-1] == "planned"


@pytest.mark.parametrize(
    "words, text",
    [
        (["plan", "no*.pt2", "--to", "prims"], "error: no file matches no*.pt2"),
        (["advise", "no*.pt2", "--to", "prims"], "error: no file matches no*.pt2"),
        (
            ["lower", "a.pt2", "b.pt2", "--to", "prims", "--lock", "x.lock"],
            "error: --lock x.lock: a lock is of one model",
        ),
        (["memory", "a.pt2", "b.pt2", "--plot", "x.svg"], "error: --plot x.svg: a plot is of one model"),
    ],
)
def test_what_is_for_one_model_and_patterns_without_files_are_refused(models, words, text):
    assert said(run(*words)) == (2, text)
