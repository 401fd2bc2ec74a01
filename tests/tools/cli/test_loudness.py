"""How much a command says: `--quiet`, `--verbose` and `--debug`, the same on every command."""

import logging
import sys
import warnings

import pytest
import torch
from torch import nn
import typer

from decomp.tools.cli.app import COMMANDS, imported
from decomp.tools.cli.flags import Words
from decomp.tools.cli.terminal import report_errors
from tests.commands import run, said

NOISY = """
import logging, warnings
import torch

def make():
    logging.getLogger("torch._dynamo").error("noise of a logger")
    logging.getLogger("torch.made_just_now").critical("noise of a new logger")
    warnings.warn_explicit("noise of a warning", UserWarning, "x.py", 1, module="torch.nn.modules")
    warnings.warn("what the user's own code says")
    return torch.nn.ReLU(), (torch.ones(2),)
"""


@pytest.fixture
def noisy(tmp_path, monkeypatch):
    (tmp_path / "noisy_model.py").write_text(NOISY)
    monkeypatch.chdir(tmp_path)
    yield "noisy_model.py:make"
    sys.modules.pop("noisy_model", None)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_the_same_options_for_what_it_says(name):
    found = {each.name: (each.opts, each.help) for each in imported(name).params}
    assert found["quiet"] == (["-q", "--quiet"], "Show only results and errors.")
    assert found["verbose"] == (["-v", "--verbose"], "Show what was checked, and log what is done.")
    assert found["debug"] == (["--debug"], "Show the traceback of an error, and what PyTorch logs.")


def test_quiet_and_verbose_exclude_one_another():
    code, text = said(run("cache", "-q", "-v"))
    assert code == 2 and "--quiet and --verbose exclude one another" in text


def test_what_pytorch_logs_and_warns_of_is_shown_with_debug_alone(noisy):
    level = logging.getLogger("torch._dynamo").level
    with pytest.warns(UserWarning, match="what the user's own code says"):
        plain = run("lower", noisy, "--to", "core_aten")
    assert plain.exit_code == 0 and "noise" not in plain.output
    assert logging.getLogger("torch._dynamo").level == level
    sys.modules.pop("noisy_model")
    with pytest.warns(UserWarning) as warned:
        loud = run("lower", noisy, "--to", "core_aten", "--debug")
    assert loud.exit_code == 0 and "noise of a warning" in [str(each.message) for each in warned]


def test_a_warning_without_a_line_of_the_users_is_its_text():
    own, users = ("no composites", UserWarning, typer.main.__file__, 5), ("careful", UserWarning, "mine.py", 3)
    with report_errors():
        assert warnings.formatwarning(*own) == "warning: no composites\n"
        assert warnings.formatwarning(*users).startswith("mine.py:3: UserWarning: careful")
    assert "UserWarning" in warnings.formatwarning(*own)


def test_quiet_shows_the_result_alone(noisy):
    result = run("lower", noisy, "--to", "core_aten", "-o", "relu.pt2", "--quiet")
    assert result.exit_code == 0 and result.stderr == ""
    assert result.stdout.startswith("lowered to core_aten") and "saved" not in result.stdout
    sys.modules.pop("noisy_model")
    with pytest.warns(UserWarning, match="what the user's own code says"):
        assert "\nsaved relu.pt2" in run("lower", noisy, "--to", "core_aten", "-o", "relu.pt2").stdout


def test_quiet_still_shows_errors():
    code, text = said(run("plan", "mpl", "--to", "core_aten", "-q"))
    assert code == 2 and text.startswith("error: no model 'mpl'. Did you mean 'mlp'?")


def test_verbose_shows_what_was_checked_and_logs_the_stages():
    result = run("lower", "mlp", "--to", "core_aten", "-v")
    assert "\nchecked:\n" in result.stdout and "all 5 calls are legal" in result.stdout
    stages = [line for line in result.stderr.splitlines() if line.startswith("decomp.stage_clock: ")]
    assert stages[0].startswith("decomp.stage_clock: capture: ") and stages[0].endswith(" ms")
    assert stages == result.stderr.splitlines()
    assert logging.getLogger("decomp").handlers == []


def test_a_worker_imports_what_the_command_imported(tmp_path, monkeypatch):
    (tmp_path / "op_library.py").write_text("import torch\n")
    monkeypatch.chdir(tmp_path)
    torch.export.save(torch.export.export(nn.ReLU(), (torch.ones(2),)), "relu.pt2")
    Words({"imports": ["op_library"], "trust": False}).load("relu.pt2")
    assert sys.modules.pop("op_library").__file__ == str(tmp_path / "op_library.py")
