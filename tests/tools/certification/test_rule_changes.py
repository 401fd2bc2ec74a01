"""What changed in a library is found in its certificates: rules, errors and calls; a module of another name is not."""

from dataclasses import replace
import json

import pytest

from decomp.errors import ArgumentError
from decomp.rules.certificates import directory, read_committed
from decomp.tools.certification.rule_changes import compare, read
from tests.commands import run, said

GELU = "decomp_rules.pointwise.gelu:gelu_of_parts for aten.gelu"


@pytest.fixture(scope="module")
def committed():
    return read_committed()


def changed(certificate, way, **values):
    ways = [replace(each, **values) if each.title == way else each for each in certificate.ways]
    return replace(certificate, ways=tuple(ways), hash="0")


def texts(found):
    return {(change.kind, change.about): change.text for change in found.changes}


def test_the_same_is_the_same_and_so_is_a_rule_that_moved(committed):
    assert compare(committed, committed).changes == ()
    moved = {name.replace("pointwise.gelu", "pointwise.elsewhere"): each for name, each in committed.items()}
    found = compare(committed, moved)
    assert found.is_same and found.headline.endswith(": the same in everything")


def test_rules_errors_and_calls_that_changed_are_named(committed):
    one, name = committed[GELU], "gelu_of_parts for aten.gelu"
    way = one.way("tinygrad")
    worse = {"float32": replace(way.values["float32"], max=way.values["float32"].max * 2)}
    calls = dict(way.cost, calls=way.cost["calls"] + 1)
    new = {**committed, GELU: changed(one, "tinygrad", values={**way.values, **worse}, cost=calls)}
    found = texts(compare(committed, new))
    figures = [f"{each:.3g} ULP" for each in (worse["float32"].max, way.values["float32"].max)]
    assert found == {
        ("error", name): f"tinygrad, float32: {figures[0]}, was {figures[1]}",
        ("calls", name): f"tinygrad: {calls['calls']:.0f} calls, was {way.cost['calls']:g}",
    }
    without = {key: each for key, each in committed.items() if key != GELU}
    assert texts(compare(committed, without)) == {("gone", name): "gone"}
    assert texts(compare(without, committed)) == {("new", name): "new"}
    other = compare(committed, {**committed, GELU: replace(one, hash="0")})
    assert other.is_same and texts(other) == {("code", name): "its code changed"}


def test_the_command_compares_directories(tmp_path, committed):
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        text = (directory() / "pointwise.gelu.jsonl").read_text()
        (tmp_path / name / "pointwise.gelu.jsonl").write_text(text if name == "old" else text.partition("\n")[2])
    result = run("diff", tmp_path / "old", tmp_path / "new")
    assert result.exit_code == 1 and "rules that are gone (1)" in result.output
    assert run("diff", tmp_path / "old", tmp_path / "old").exit_code == 0
    data = json.loads(run("diff", tmp_path / "old", tmp_path / "new", "--json").stdout)
    assert data["same"] is False and data["changes"][0]["kind"] == "gone"
    code, text = said(run("diff", tmp_path / "old"))
    assert code == 2 and "is a directory of certificates: name another one" in text
    with pytest.raises(ArgumentError, match="has no certificates"):
        read(tmp_path)
