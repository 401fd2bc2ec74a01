"""`decomp init`: what it writes passes its own tests, and it overwrites nothing."""

import subprocess
import sys

import pytest

from decomp.tools.cli.app import COMMANDS
from decomp.tools.cli.new_backend import LIKE
from tests.commands import run, said

FILES = [".github/workflows/test.yml", "README.md", "mychip.py", "mychip.toml", "test_mychip.py"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def outcome_of(folder, *words):
    """The last line that the tests of a new backend print, run by themselves."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout.splitlines()[-1] if done.stdout else done.stderr


def test_a_new_backend_passes_its_tests_as_it_is(here):
    result = run("init", "mychip")
    assert result.exit_code == 0, result.output
    files = [path.relative_to(here / "mychip") for path in (here / "mychip").rglob("*") if path.is_file()]
    assert sorted(map(str, files)) == FILES
    code, last = outcome_of(here / "mychip")
    assert (code, last.split()[:2]) == (0, ["40", "passed"]), last


def test_its_readme_names_commands_that_there_are(here):
    run("init", "mychip", "-q")
    text = (here / "mychip/README.md").read_text("utf-8")
    commands = [line.split()[1] for line in text.splitlines() if line.startswith("decomp ")]
    assert set(commands) <= set(COMMANDS) and len(commands) == 5 and len(text.splitlines()) <= 20


@pytest.mark.sampled(1)
@pytest.mark.parametrize("like", LIKE)
def test_models_run_right_on_a_backend_like_each_target(here, like):
    assert run("init", "mychip", "--like", like, "-q").exit_code == 0
    code, last = outcome_of(here / "mychip", "-k", "a_model")
    assert (code, last.split()[:2]) == (0, ["2", "passed,"]), last


def test_nothing_is_overwritten(here):
    (here / "mychip").mkdir()
    assert said(run("init", "mychip")) == (2, "error: mychip is there already; nothing was written")
    assert list((here / "mychip").iterdir()) == []


@pytest.mark.parametrize("name", ["my-chip", "3d", "class", "a/b", ""])
def test_a_name_that_python_cannot_import_is_refused(here, name):
    assert said(run("init", name)) == (2, f"error: {name!r} is not a Python identifier, as mychip is")
    assert list(here.iterdir()) == []


def test_another_target_is_refused_before_pytorch_is_imported(here):
    code, text = said(run("init", "mychip", "--like", "core"))
    assert code == 2 and "'tinygrad', 'luminal', 'core_aten'" in text
