"""`decomp doctor`: a line a fact, whatever a fact costs to find out, and an exit code that says whether it works."""

import importlib
import json

import pytest

from decomp.tools import diagnosis
from decomp.torch_internals import versions
from tests.commands import run


def only(monkeypatch, find, state="absent", key=("devices", "tpu")):
    monkeypatch.setattr(diagnosis, "CHECKS", {key: (find, state)})


def facts(find):
    return list(find())


def test_doctor_says_that_the_library_works_and_exits_with_0():
    result = run("doctor")
    lines = result.output.splitlines()
    assert result.exit_code == 0 and lines[0] == "decomp works here"
    for name in ("torch", "Python", "networkx", "lowering", "private API", "cpu", "disk cache", "tinygrad"):
        assert sum(line[2:].startswith(f"{name} ") for line in lines) == 1, name
    assert {line[0] for line in lines if line[1:2] == " "} <= {"✓", "-"}


def test_doctor_has_its_facts_for_machines():
    data = json.loads(run("doctor", "--json").stdout)
    groups = {fact["group"] for fact in data["facts"]}
    assert data["ok"] and groups == {group for group, _ in diagnosis.CHECKS}
    assert {fact["state"] for fact in data["facts"]} <= set(diagnosis.STATES)


def fails():
    raise RuntimeError("the driver is of another year\nand so on")
    yield


def test_what_cannot_be_found_out_costs_one_line(monkeypatch):
    only(monkeypatch, fails)
    result = run("doctor")
    assert result.exit_code == 0
    assert "- tpu RuntimeError: the driver is of another year; to do: report this line" in result.output


def test_what_the_library_needs_and_is_broken_is_said_first_and_exits_with_1(monkeypatch):
    only(monkeypatch, fails, "broken", ("does it work", "lowering"))
    result = run("doctor")
    assert result.exit_code == 1
    assert result.output.startswith("decomp does not work here: does it work, lowering\n")
    assert "✗ lowering RuntimeError: the driver is of another year; to do: " in result.output
    assert json.loads(run("doctor", "--json").stdout)["ok"] is False


def test_a_package_that_is_missing_is_named_with_its_extra(monkeypatch):
    known = diagnosis._installed
    monkeypatch.setattr(diagnosis, "_installed", lambda name: None if name == "jax" else known(name))
    found = {name: rest for name, *rest in facts(diagnosis._extras)}
    assert found["stablehlo"] == ["absent", "no jax", 'pip install "decomp[stablehlo]"']
    assert found["certify"][0] == "fine" and not set(found) & set(diagnosis.DEVELOPERS)


def test_a_package_of_another_version_than_an_extra_asks_for_is_named(monkeypatch):
    pytest.importorskip("packaging")
    monkeypatch.setattr(diagnosis, "_installed", lambda name: "0.13.1" if name == "tinygrad" else "2030.1")
    found = {name: rest for name, *rest in facts(diagnosis._extras)}
    assert found["tinygrad"] == ["absent", "tinygrad 0.13.1, not <0.15,>=0.14", 'pip install "decomp[tinygrad]"']


def test_a_cache_that_is_not_there_yet_can_be_used(monkeypatch, tmp_path):
    monkeypatch.setenv("DECOMP_CACHE", str(tmp_path / "some" / "where"))
    assert facts(diagnosis._cache)[0][1:] == ("fine", f"{tmp_path}/some/where: 0 files, 0.0 MiB", "")
    assert not (tmp_path / "some").exists()


def test_a_cache_that_cannot_be_written_says_what_to_do(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DECOMP_CACHE", str(tmp_path / "file" / "cache"))
    ((_, state, text, remedy),) = facts(diagnosis._cache)
    assert state == "absent" and text.endswith("cannot be written: a file is in its place")
    assert remedy == "set DECOMP_CACHE to a directory of your own"


def test_a_cache_that_is_off_is_no_fault(monkeypatch):
    monkeypatch.setenv("DECOMP_CACHE", "off")
    assert facts(diagnosis._cache) == [("disk cache", "absent", "off (DECOMP_CACHE)", "")]


def test_ops_that_only_other_versions_have_are_named_those_of_rules_first(monkeypatch):
    ((_, state, text, _),) = facts(diagnosis._lacking_ops)
    assert state == "absent" and text.startswith("without ") and " more" in text
    monkeypatch.setattr(versions, "names_by_version", lambda: {"aten._a": ("2.11",), "aten.relu": ("2.11", "2.12")})
    monkeypatch.setattr(diagnosis, "lacking_ops", lambda: ["aten._a", "aten.relu"])
    ((_, _, text, _),) = facts(diagnosis._lacking_ops)
    assert text == "without aten.relu (2.11-2.12), aten._a (2.11)"


def test_what_this_pytorch_does_otherwise_is_one_line_each(monkeypatch):
    monkeypatch.setattr(versions, "INSTALLED", (2, 14))
    found = facts(diagnosis._changes)
    assert ("does otherwise", "fine", "ties share gradients (since 2.14)", "") in found
    monkeypatch.setattr(versions, "INSTALLED", (2, 11))
    assert facts(diagnosis._changes) == []


def test_private_api_that_is_gone_is_named_with_its_module(monkeypatch):
    known = importlib.import_module

    def without_fakes(name, *rest):
        if name == "decomp.torch_internals.fakes":
            raise ImportError("cannot import name 'FakeTensorMode'")
        return known(name, *rest)

    monkeypatch.setattr(importlib, "import_module", without_fakes)
    ((_, state, text, remedy),) = facts(diagnosis._private_api)
    assert (state, text) == ("broken", "fakes: cannot import name 'FakeTensorMode'")
    assert remedy.startswith("pip install 'torch<=2.")


def test_no_clang_is_said_with_what_brings_one(monkeypatch):
    monkeypatch.setattr(diagnosis.c_compilers, "compiler", lambda: None)
    assert facts(diagnosis._clang)[0][1:] == (
        "absent",
        "no clang",
        'apt install clang, or pip install "decomp[tinygrad]"',
    )
