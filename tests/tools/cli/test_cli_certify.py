"""`decomp certify`: what it measures, shows, keeps and draws, and what it says to wrong input."""

import json

import pytest
import torch

from decomp.rules.certificates import identity
from decomp.tools.certification import certificates
from decomp.tools.cli.certificate_runs import CertificateRun
from decomp.tools.cli.certify_command import DRAWN
from decomp_rules import RULES
from tests.commands import run, said

VERSION = torch.__version__.partition("+")[0]


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """An empty directory instead of the committed certificates."""
    monkeypatch.setattr("decomp_rules.CERTIFICATES", tmp_path)
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


def changed(path, **figures):
    """Change a committed certificate: these figures of its values in float32, as written and on its targets."""
    (data,) = map(json.loads, path.read_text().splitlines())
    for way in data["ways"]:
        way["values"]["float32"].update(figures)
    path.write_text(json.dumps(data) + "\n")


def test_a_sample_says_which_rules_differ_here_and_what_changed(kept):
    measured = run("certify", "deg2rad", "--to", "tinygrad", "--update")
    assert measured.exit_code == 0
    (path,) = kept.glob("*.jsonl")
    asked = ("certify", "deg2rad", "--sample", "--to", "tinygrad")
    same = run(*asked)
    assert same.exit_code == 0
    assert f"1 of 1 rules (seed 0) on torch {VERSION}, certified on torch {VERSION}: none differs" in same.output

    kept_text = path.read_text()
    changed(path, own_max=900.0)
    kernel = run(*asked)
    assert kernel.exit_code == 0
    assert "0 worse, 1 whose kernel changed" in kernel.output
    assert "kernel: values in float32: 0.629 ULP, where there were 900" in kernel.output

    path.write_text(kept_text)
    changed(path, max=-9.0)
    worse = run(*asked)
    assert worse.exit_code == 1
    assert "1 worse, 0 whose kernel changed" in worse.output
    assert "rule: as written: values in float32: " in worse.output
    found = json.loads(run(*asked, "--json").stdout)
    assert (found["torch"], found["drawn"], found["of"]) == (VERSION, 1, 1)
    assert {each["cause"] for each in found["differences"]} == {"rule"}


def test_a_difference_of_another_processor_is_no_fault_of_the_rule(kept):
    assert run("certify", "deg2rad", "--to", "tinygrad", "--update").exit_code == 0
    (path,) = kept.glob("*.jsonl")
    changed(path, max=-9.0)
    (data,) = map(json.loads, path.read_text().splitlines())
    path.write_text(json.dumps({**data, "machine": "m68k, 1 thread"}) + "\n")
    found = run("certify", "deg2rad", "--sample", "--to", "tinygrad")
    assert found.exit_code == 0
    assert "0 worse, 0 whose kernel changed, 1 by the processor" in found.output
    assert "(PyTorch is the same; certified on m68k, 1 thread)" in found.output

    path.write_text(json.dumps({**data, "machine": "m68k, 1 thread", "torch": "2.10.0"}) + "\n")
    of_version = run("certify", "deg2rad", "--sample", "--to", "tinygrad")
    assert of_version.exit_code == 1
    assert "(the kernel's own error does not explain it; certified on m68k, 1 thread)" in of_version.output


def test_a_sample_is_drawn_by_its_seed(monkeypatch):
    drawn = []

    def noted(self, rules):
        drawn.append([rule.name for rule in rules])
        return [certificates.read_committed()[identity(rule)] for rule in rules]

    monkeypatch.setattr(CertificateRun, "measure", noted)
    for words in (["3"], ["3"], ["3", "--seed", "1"], ["gelu"], []):
        found = run("certify", "--sample", *words)
        assert found.exit_code == 0 and "none differs" in found.output
    first, again, other, of_gelu, of_all = drawn
    assert first == again != other and len(first) == len(other) == 3
    assert sorted(of_gelu) == sorted(rule.name for rule in RULES["gelu"])
    assert len(of_all) == DRAWN


def test_a_sample_is_only_compared(kept):
    assert said(run("certify", "--sample", "--update")) == (
        2,
        "error: --sample only compares with the committed certificates: leave out --update",
    )
    assert said(run("certify", "deg2rad", "--sample")) == (
        2,
        "error: none of these rules has a certificate to compare with",
    )
