"""CONTRIBUTING.md is correct: its Python and commands run, and the files that it names exist."""

import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from decomp.tools.cli.app import app
from tests.documents import ROOT, Document, run

CONTRIBUTING = Document("CONTRIBUTING.md")
WRITES = "--update"


@pytest.mark.parametrize("title", CONTRIBUTING.sections("python"))
def test_the_python_of_a_section_runs(title, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(CONTRIBUTING, title)


@pytest.mark.parametrize("command", CONTRIBUTING.lines("sh"))
def test_a_command_runs(command, tmp_path, monkeypatch):
    """One that writes into the tree shows its help instead, and refuses options that it does not have."""
    monkeypatch.chdir(tmp_path)
    program, *words = command.split()
    result = CliRunner().invoke(app, [*words, "--help"] if WRITES in words else words)
    assert program == "decomp" and result.exit_code == 0, result.output


@pytest.mark.parametrize("command", [line for line in CONTRIBUTING.lines("") if line.startswith("pytest")])
def test_the_test_command_has_its_options_and_its_folders(command):
    words = command.split()
    assert [word for word in words if word.startswith("tests") and not (ROOT / word).exists()] == []
    command = [sys.executable, "-m", *words, "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_linters_are_those_of_the_whole_check():
    checks = (ROOT / ".ci" / "run").read_text(encoding="utf-8").replace(" --quiet", "")
    linters = [line for line in CONTRIBUTING.lines("") if not line.startswith(("pytest", "pip"))]
    assert len(linters) == 4
    assert [line for line in linters if not re.search(rf"^{re.escape(line)}\b", checks, re.MULTILINE)] == []


def test_the_install_has_the_extras_of_the_whole_check():
    (line,) = [line for line in CONTRIBUTING.lines("") if line.startswith("pip")]
    assert re.sub("^pip install ", "python -m pip install --quiet ", line) in (ROOT / ".ci" / "run").read_text("utf-8")


def test_the_files_that_are_named_exist():
    named = re.findall(r"`((?:decomp|decomp_rules|tests)/[\w./]*)`", CONTRIBUTING.text)
    assert len(named) >= 8 and [name for name in named if not (ROOT / name).exists()] == []
