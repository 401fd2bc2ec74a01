"""`decomp certify`: what it measures, shows, keeps and draws, and what it says to wrong input."""

import json

import pytest

from decomp.tools.certification import certificates
from tests.commands import run, said


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """An empty directory instead of the committed certificates."""
    monkeypatch.setattr(certificates, "directory", lambda: tmp_path)
    return tmp_path


def test_a_certificate_is_measured_shown_drawn_kept_and_compared(kept):
    shown = run("certify", "deg2rad", "--to", "tinygrad", "--update", "--plot", kept / "ulp.png")
    assert shown.exit_code == 0
    assert "for aten.deg2rad: " in shown.output and "all 65,536 values of 16 bits" in shown.output
    assert "rule, max / mean ULP" in shown.output and "\ntinygrad\n" in shown.output
    assert "1 files of certificates written" in shown.output
    assert (kept / "ulp.png").read_bytes().startswith(b"\x89PNG")
    (path,) = kept.glob("*.jsonl")
    (data,) = map(json.loads, path.read_text().splitlines())
    assert json.loads(run("certify", "deg2rad", "--stored", "--json").stdout) == [data]
    line = next(line for line in run("rules", "deg2rad").output.splitlines() if "deg2rad  " in line)
    assert " / " in line
    way = next(way for way in data["ways"] if way["name"] == "tinygrad")
    way["values"]["float32"]["max"] = -1
    path.write_text(json.dumps(data) + "\n")
    worse = run("certify", "deg2rad", "--to", "tinygrad")
    assert worse.exit_code == 1
    assert "is worse than its certificate: tinygrad: values in float32: " in worse.output


def test_only_rules_of_one_argument_can_be_drawn(kept, tmp_path):
    code, text = said(run("certify", "mm", "--stored", "--plot", tmp_path / "ulp.png"))
    assert code == 2
    assert text.endswith("only rules of pointwise ops with one float argument can be plotted")


def test_which_rules_must_be_said(kept):
    assert said(run("certify")) == (2, "error: which rules? Name an op, or pass --family FAMILY, --stale or --all")
    code, text = said(run("certify", "--family", "activatoin"))
    assert code == 2
    assert text.startswith("error: no family 'activatoin'. Did you mean 'activation'")
    assert said(run("certify", "sortt"))[0] == 2


def test_an_executor_must_be_one(kept):
    assert said(run("certify", "deg2rad", "--executor", "builtins:dict")) == (
        2,
        "error: builtins:dict must return a concurrent.futures.Executor, not dict",
    )
    assert said(run("certify", "deg2rad", "--executor", "nowhere:x")) == (
        2,
        "error: cannot find nowhere:x: No module named 'nowhere'",
    )


def test_of_many_rules_those_with_faults_are_named():
    found = run("certify", "gelu", "--stored")
    text = " ".join(found.output.split())
    assert found.exit_code == 0 and "gelu_of_sigmoid for aten.gelu: as written: second" in text
    assert "decomp certify NAME" in found.output
    assert "second in float32: " in run("certify", "gelu_of_sigmoid", "--stored").output
