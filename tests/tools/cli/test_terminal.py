"""The command line as a process: encodings, pipes, disks that are full, interrupts, and names that a terminal would
obey."""

import contextlib
import json
import math
import os
from pathlib import Path
import signal
import subprocess
import sys
import time

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from decomp.tools.cli.app import app
from decomp.tools.cli.terminal import print_json, printable

ROOT = Path(__file__).parents[3]


# A shell that runs the tests in the background has them ignore interrupts, and so all that they start.
START = """
import resource, runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
limit = int(sys.argv.pop(1))
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
runpy.run_module("decomp", run_name="__main__", alter_sys=True)
"""


def command(*words, largest_file=0, encoding="", **options):
    """Start it; with an `encoding`, in the locale C and on a terminal of that encoding."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    if encoding:
        environment |= {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONIOENCODING": encoding}
    return subprocess.Popen(
        [sys.executable, "-c", START, str(largest_file), *map(str, words)],
        env=environment,
        stderr=subprocess.PIPE,
        **{"stdout": subprocess.PIPE, **options},
    )


def ended(*words, **options):
    process = command(*words, **options)
    out, err = process.communicate(timeout=300)
    return process.returncode, (out or b"").decode("utf-8", "surrogateescape"), err.decode("utf-8", "surrogateescape")


def said(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, (result.stderr or result.output).strip()


def test_an_ascii_terminal_is_spoken_to_in_ascii():
    code, out, err = ended("explain", "softmax", "--to", "tinygrad", encoding="ascii")
    assert (code, err) == (0, "")
    assert out.isascii() and "`-- softmax (softmax.py:" in out and "derived" in out


def test_whoever_reads_a_pipe_may_go_away():
    with command("rules") as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read().decode() == ""
        assert process.wait(timeout=300) == 141


def test_a_full_disk_is_reported():
    with open("/dev/full", "wb") as full:
        code, _, err = ended("targets", stdout=full)
        assert (code, err) == (2, "error: the output: No space left on device\n")
        code, _, err = ended("lint", "nothing:RULES", "--json", stdout=full)
        assert code == 2 and "Traceback" not in err and "cannot find nothing:RULES" in err


def test_a_program_that_does_not_fit_on_the_disk_leaves_what_was_there(tmp_path):
    path = tmp_path / "mlp.pt2"
    path.write_bytes(b"before")
    code, _, err = ended("lower", "mlp", "--to", "core_aten", "-o", path, largest_file=4096)
    assert code == 2 and err.startswith(f"error: cannot save {path}: ") and "Traceback" not in err
    assert path.read_bytes() == b"before" and list(tmp_path.iterdir()) == [path]


def test_an_interrupt_of_certify_ends_it_at_once_with_130_and_nothing_half_written(tmp_path):
    before = {path: path.read_bytes() for path in (ROOT / "decomp_rules/certificates").iterdir()}
    with command("certify", "--all", "--workers", "1", "--update") as process:
        while process.poll() is None and not _children(process.pid):
            time.sleep(0.05)  # until its worker is there
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        try:
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130 and err.decode().strip() == "interrupted"
    assert {path: path.read_bytes() for path in (ROOT / "decomp_rules/certificates").iterdir()} == before


def _children(pid):
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            found += [place.parent.name] if place.read_text().rpartition(")")[2].split()[1] == str(pid) else []
    return found


def test_characters_that_a_terminal_would_obey_are_written_out():
    assert printable("a\x1b[31mb\x07\x9b1m\r\u202ec\n\té→") == "a\\x1b[31mb\\x07\\x9b1m\\r\\u202ec\n\té→"


PROGRAMS = """
import torch
from torch import fx, nn

ESC = "\\x1b]0;owned\\x07\\x1b[2J"


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.add_module("in" + ESC, nn.Linear(3, 3))

    def forward(self, x):
        return getattr(self, "in" + ESC)(x).relu()


def named():
    return Named(), (torch.ones(1, 3),)


def raising():
    raise ValueError("bad " + ESC)


def graph():
    return fx.symbolic_trace(nn.Linear(4, 4)), (torch.randn(2, 4),)


def modules(depth=1500):
    module = nn.Linear(4, 4)
    for _ in range(depth):
        module = nn.Sequential(module)
    return module, (torch.ones(2, 4),)


def inputs(depth=1500):
    value = torch.ones(2, 4)
    for _ in range(depth):
        value = [value]
    return nn.Linear(4, 4), (value,)


def leaves():
    raise SystemExit(7)


def nothing():
    pass


class Chars(nn.Module):
    pass


def unfit():
    return nn.Linear(4, 4), (torch.ones(2, 5),)


def tensor():
    return nn.Linear(4, 4), torch.ones(2, 4)
"""


@pytest.fixture
def programs(tmp_path, monkeypatch):
    (tmp_path / "own_programs.py").write_text(PROGRAMS)
    (tmp_path / "misspelt.py").write_text("def f(:\n    pass\n")
    (tmp_path / "failing_import.py").write_text("raise LookupError('no weights')\n")
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit(3)\n")
    (tmp_path / "lacking.py").write_text("from torch import nothing_of_the_kind\n")
    monkeypatch.chdir(tmp_path)
    yield "own_programs"
    for name in ("own_programs", "misspelt", "failing_import", "leaving", "lacking"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["graph", "tensor"])
@pytest.mark.parametrize("verb", ["lower", "plan"])
def test_a_callable_may_return_a_graph_module(programs, verb, name):
    code, text = said(verb, f"{programs}:{name}", "--to", "core_aten")
    assert code == 0 and "core_aten" in text


def test_names_with_escape_sequences_are_shown_and_not_obeyed(programs, tmp_path):
    for words in (
        ["lower", f"{programs}:named", "--to", "core_aten"],
        ["plan", f"{programs}:named", "--to", "prims"],
        ["lower", f"{programs}:raising", "--to", "core_aten"],
        ["lower", "a\x1b[2J.pt2", "--to", "prims"],
        ["lower", "a\x1b[2J", "--to", "prims"],
        ["targets", "\x1b[2J.toml"],
        ["explain", "re\x1blu"],
        ["lower", f"{programs}:raising", "--to", "core_aten", "--debug"],
        ["rules", "\x1b"],
        ["certify", "--family", "\x1b[2J"],
        ["lint", "\x1b:x"],
        ["lower", "\x1b[2J:f", "--to", "prims"],
    ):
        result = CliRunner().invoke(app, words)
        assert "\x1b" not in result.output + result.stderr and "\x07" not in result.output, words
    assert "\\x1b" in said("lower", f"{programs}:raising", "--to", "core_aten")[1]


@pytest.mark.parametrize(
    "name, text",
    [
        ("own_programs:modules", "maximum recursion depth exceeded"),
        ("own_programs:inputs", "maximum recursion depth exceeded"),
        ("own_programs:leaves", "error: own_programs:leaves raised SystemExit: 7 (--debug shows where)"),
        (
            "own_programs:nothing",
            "error: own_programs:nothing must return a module and example inputs, or an ExportedProgram, not NoneType",
        ),
        (
            "own_programs:Chars",
            "error: own_programs:Chars must return a module and example inputs, or an ExportedProgram, not Chars",
        ),
        ("misspelt:f", "error: importing misspelt raised SyntaxError: invalid syntax at "),
        ("failing_import:f", "error: importing failing_import raised LookupError: no weights (--debug shows where)"),
        ("leaving:f", "error: importing leaving raised SystemExit: 3 (--debug shows where)"),
        (
            "lacking:f",
            "error: importing lacking raised ImportError: cannot import name 'nothing_of_the_kind' from 'torch'",
        ),
        ("own_programs:", "error: 'own_programs:' must be package.module:name or file.py:name"),
        (":f", "error: ':f' must be package.module:name or file.py:name"),
        ("..:f", "error: '..:f' must be package.module:name or file.py:name"),
        ("own_programs:a b", "error: 'own_programs:a b' must be package.module:name or file.py:name"),
        ("own_programs", "error: no model 'own_programs'."),
        ("", "error: no model ''."),
    ],
)
def test_what_cannot_be_used_exits_with_2_and_a_word_on_why(programs, name, text):
    code, told = said("plan", name, "--to", "core_aten")
    assert code == 2
    assert "Traceback" not in told
    assert text in told and told.startswith("error: ")


@pytest.mark.parametrize("name", ["own_programs:leaves", "misspelt:f", "own_programs:", ""])
def test_with_debug_it_is_shown_where(programs, name):
    code, told = said("plan", name, "--to", "core_aten", "--debug")
    assert code == 2
    assert "Traceback" in told


def test_a_model_that_does_not_take_its_inputs_exits_with_3(programs):
    code, told = said("plan", "own_programs:unfit", "--to", "core_aten")
    # From torch 2.14 on its fake tensors log the failure first, which is not shown.
    assert code == 3 and told.startswith("error: Linear itself fails on these inputs: RuntimeError: ")


def test_a_file_that_would_execute_code_is_refused_unless_it_is_trusted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    import io
    import zipfile

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    torch.export.save(torch.export.export(nn.Linear(4, 4), (torch.randn(2, 4),)), "good.pt2")
    data = io.BytesIO()
    torch.save({"x": Evil()}, data)
    with zipfile.ZipFile("good.pt2") as source, zipfile.ZipFile("evil.pt2", "w") as target:
        for name in source.namelist():
            target.writestr(name, data.getvalue() if "sample_inputs" in name else source.read(name))
    for verb in ("plan", "lower"):
        code, told = said(verb, "evil.pt2", "--to", "core_aten")
        assert code == 2 and "posix.mkdir" in told and "pass --trust" in told
    assert said("bench", "evil.pt2", "--out", tmp_path / "out", "--to", "prims")[0] == 2
    assert not (tmp_path / "ran").exists()
    assert said("plan", "good.pt2", "--to", "core_aten")[0] == 0
    assert said("plan", "evil.pt2", "--to", "core_aten", "--trust")[0] == 0
    assert (tmp_path / "ran").is_dir()


def test_the_help_says_what_is_executed():
    for verb in ("lower", "plan"):
        text = " ".join(CliRunner().invoke(app, [verb, "--help"]).output.split())
        assert "nothing in it is executed unless you pass --trust" in text
        assert "which is imported and called" in text


@pytest.mark.parametrize(
    "words, text",
    [
        (["plan", "here.pt2", "--to", "prims"], "error: here.pt2 is a directory, not a file"),
        (["targets", "here.toml"], "error: here.toml: cannot be read: Is a directory"),
        (["lower", "mlp", "--to", "prims", "-o", "here.pt2"], "error: -o here.pt2: a directory is in its place"),
        (["lower", "mlp", "--to", "prims", "--no-verify", "-o", "/proc/x.pt2"], "error: cannot save /proc/x.pt2: "),
        (["bench", "softmax", "--compare", "no.json", "no.json"], "error: "),
        (
            ["certify", "deg2rad", "--stored", "--plot", "nowhere/ulp.png"],
            "error: --plot nowhere/ulp.png: there is no directory nowhere",
        ),
        (["bench", "softmax", "--quick", "--to", "core_aten", "--out", "file/x"], "error: --out file/x: "),
    ],
)
def test_files_that_cannot_be_read_or_written_exit_with_2(tmp_path, monkeypatch, words, text):
    monkeypatch.chdir(tmp_path)
    for name in ("here.pt2", "here.toml"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").write_text("")
    code, told = said(*words)
    assert code == 2 and text in told and "Traceback" not in told


def test_json_has_escape_sequences_as_json_writes_them(programs):
    result = CliRunner().invoke(app, ["plan", f"{programs}:raising", "--to", "core_aten", "--json"])
    assert "\x1b" not in result.stdout and "\x1b" in json.loads(result.stdout)["message"]


NOT_CAPTURED = """
import sys, torch

class Branches(torch.nn.Module):
    def forward(self, x):
        print("seen", file=sys.stderr)
        return x.nonzero() * 2 if x.sum() > 0 else x

def make():
    return Branches(), (torch.randn(3),)
"""


def test_an_error_is_not_buried_in_what_pytorch_logs(tmp_path):
    (tmp_path / "branches.py").write_text(NOT_CAPTURED)
    words = ("lower", "branches.py:make", "--to", "tinygrad")
    process = command(*words, cwd=tmp_path, text=True)
    said = process.communicate()[1]
    lines = [line for line in said.splitlines() if line != "seen"]
    assert process.returncode == 3 and "seen" in said
    assert lines[0].startswith("error: torch.export could not capture Branches: ") and lines[-1].startswith("  to do: ")
    assert all(line.startswith("  ") for line in lines[1:]) and "def forward(self" not in said
    loud = command(*words, "--debug", cwd=tmp_path, text=True).communicate()[1]
    assert "def forward(self" in loud and "Traceback" in loud


def test_json_has_no_infinities(capsys):
    print_json({"rows": [{"ulp": math.inf}, {"ulp": -math.inf}, {"ulp": math.nan}, {"ulp": 0.5}]})
    rows = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["rows"]
    assert [row["ulp"] for row in rows] == ["inf", "-inf", "nan", 0.5]
