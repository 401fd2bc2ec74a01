"""Models, targets and rules of one's own on the command line: from a file, or from a module on the path."""

from importlib.metadata import version
import json
import sys

import pytest
import torch

from tests.commands import run, said

CHIP = """
import torch
from torch import nn
import decomp

chip = decomp.Target("chip", ["add", "mul", "where", "gt", "mm", "view", "permute", "detach"])
rules = decomp.Rules({"relu": lambda x: torch.where(x > 0, x, x * 0)})
table = {torch.relu: lambda x: x * (x > 0)}
number = 3


def make():
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(2, 4)
"""


@pytest.fixture
def bringup(tmp_path, monkeypatch):
    """A file elsewhere, with a target, rules and a model."""
    path = tmp_path / "my_own_chip.py"
    path.write_text(CHIP)
    yield path
    sys.modules.pop("my_own_chip", None)


def test_model_target_and_rules_of_a_file(bringup):
    result = run("lower", f"{bringup}:make", "--to", f"{bringup}:chip", "--rules", f"{bringup}:rules", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["target"] == "chip" and "my_own_chip.py" in json.dumps(report)


def test_of_a_module_in_the_current_directory(bringup, monkeypatch):
    monkeypatch.chdir(bringup.parent)
    result = run("plan", "my_own_chip:make", "--to", "my_own_chip:chip", "--rules", "my_own_chip:table", "--json")
    assert result.exit_code == 0, result.output
    derived = {each["node"]: each["rule"] for each in json.loads(result.stdout)["derived"]}
    assert "my_own_chip.py" in derived["relu"]


def test_rules_named_first_are_asked_first(bringup):
    both = ["--rules", f"{bringup}:table", "--rules", f"{bringup}:rules"]
    plans = [
        json.loads(run("plan", f"{bringup}:make", "--to", f"{bringup}:chip", *order, "--json").stdout)
        for order in (both, [*both[2:], *both[:2]])
    ]
    first, second = ({each["node"]: each["rule"] for each in plan["derived"]}["relu"] for plan in plans)
    assert first != second


@pytest.mark.parametrize(
    "words, said",
    [
        (["--to", "{}:number"], "is of type int, not a decomp.Target"),
        (
            ["--to", "{}:chip", "--rules", "{}:number"],
            "is of type int, not decomp.Rules or a dict from op to function",
        ),
        (["--to", "nowhere.py:chip"], "error: no file nowhere.py"),
        (["--to", "{}:chips"], "has no attribute 'chips'"),
    ],
)
def test_wrong_names_in_a_file_of_ones_own_are_reported(bringup, words, said):
    result = run("plan", f"{bringup}:make", *(word.format(bringup) for word in words))
    assert result.exit_code == 2 and said in " ".join(result.stderr.split())


@pytest.mark.parametrize("name", ["my-model.py", "m m.py", "mö del.py", "class.py", "3d.py", "v1.2.py"])
def test_a_file_may_have_any_name(tmp_path, monkeypatch, name):
    path = tmp_path / name
    path.write_text(CHIP)
    monkeypatch.chdir(tmp_path)
    try:
        result = run("plan", f"{name}:make", "--to", f"{path}:chip", "--rules", f"{name}:rules", "--json")
    finally:
        sys.modules.pop(path.stem, None)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["target"] == "chip" and name in str(json.loads(result.stdout)["derived"])


def test_a_file_with_a_dot_in_its_name_that_fails_is_reported_each_time(tmp_path):
    path = tmp_path / "v1.2.py"
    path.write_text("raise LookupError('no weights')")
    for _ in range(2):
        code, text = said(run("plan", f"{path}:make", "--to", "core_aten"))
        assert (code, text) == (2, "error: importing v1.2 raised LookupError: no weights (--debug shows where)")


def test_a_file_with_the_name_of_another_module_is_refused(tmp_path):
    (tmp_path / "json.py").write_text(CHIP)
    result = run("plan", f"{tmp_path / 'json.py'}:make", "--to", "core_aten")
    assert result.exit_code == 2 and "has the same name as the module" in " ".join(result.stderr.split())


def test_the_version():
    result = run("--version")
    assert result.exit_code == 0
    assert result.output.strip() == f"decomp {version('decomp')}, torch {torch.__version__}"
