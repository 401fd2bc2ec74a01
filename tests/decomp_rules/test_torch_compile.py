"""The backends for `torch.compile` by name: one for each target that ships, found by PyTorch among entry points."""

import configparser
from importlib.metadata import EntryPoint
import json
import os
from pathlib import Path
import subprocess
import sys

import pytest

import decomp
from decomp_rules import targets, torch_compile

ROOT = Path(decomp.__file__).parents[1]
GROUP = "torch_dynamo_backends"


def entry_points():
    """The entry points that the package declares, by name."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    declared = config["options.entry_points"][GROUP].split("\n")
    pairs = [line.split(" = ") for line in declared if line]
    return {name: EntryPoint(name, value, GROUP) for name, value in pairs}


def test_every_target_that_ships_is_declared_and_nothing_else():
    assert sorted(entry_points()) == [f"decomp_{name}" for name in targets.names()]


def test_an_entry_point_is_the_backend_for_its_target():
    for name in targets.names():
        found, target = entry_points()[f"decomp_{name}"].load(), targets.get(name)
        assert found is getattr(torch_compile, name) is torch_compile.get(name)
        assert found.target is target and found.__name__ == f"decomp({target.name})"


def test_a_backend_for_an_unknown_target_says_which_there_are():
    with pytest.raises(AttributeError, match="no backend for a target 'core'; there are core_aten, coreai, "):
        torch_compile.core


PROGRAM = """
import json, sys, torch
named = [name for name in torch._dynamo.list_backends() if name.startswith("decomp_")]
lazy = not {"decomp", "decomp_rules"} & set(sys.modules)
x = torch.tensor([-1.0, 2.0])
found = torch.compile(torch.nn.functional.relu, backend="decomp_tinygrad")(x).tolist()
from decomp_rules import torch_compile
print(json.dumps([named, lazy, found, [each.stage for each in torch_compile.tinygrad.graphs]]))
"""


def test_an_installed_package_is_found_by_name_and_loaded_when_used(tmp_path):
    """What `pip` writes into an environment, in a folder of its own."""
    installed = tmp_path / "decomp-0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: decomp\nVersion: 0\n")
    lines = [f"[{GROUP}]", *(f"{each.name} = {each.value}" for each in entry_points().values())]
    (installed / "entry_points.txt").write_text("\n".join(lines) + "\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    named, lazy, found, stages = json.loads(done.stdout.splitlines()[-1])
    assert named == [f"decomp_{name}" for name in targets.names()] and lazy
    assert found == [0.0, 2.0] and stages == ["before autograd", "forward"]
