"""The tables of the results are those of the committed records."""

from pathlib import Path

import pytest

from benchmarks import architectures, small_architectures, transformers_exporters
from benchmarks.conversion_trials import record, recorded, without_folders
from benchmarks.conversions import MODELS, OPS, RESULTS, tables
from benchmarks.transformers_patches import CASES, KINDS, PATCHES

ROOT = Path(__file__).resolve().parents[3]


def test_the_results_have_the_tables_of_the_records():
    page = (ROOT / "docs" / "results" / "converters.md").read_text(encoding="utf-8")
    shown = page.partition("<!-- trial -->\n")[2].partition("<!-- end -->")[0]
    assert shown.strip() == tables(recorded(RESULTS)).strip()


def test_a_record_has_a_row_for_each_program_and_what_it_was_made_with():
    for made in recorded(RESULTS).values():
        assert [row["name"] for row in made["rows"]] == [*OPS, *MODELS]
        assert all(made[key] for key in ("version", "torch", "date", "command"))


def test_a_record_has_the_names_of_files_and_no_folders_of_a_machine():
    assert without_folders('at loc("/home/me/model.py":41:0), 3/4 of x/y') == 'at loc("model.py":41:0), 3/4 of x/y'
    for made in recorded(RESULTS).values():
        texts = [str(value) for row in made["rows"] for key, value in row.items() if key.endswith("_text")]
        assert [*map(without_folders, texts)] == texts


def test_the_page_of_architectures_is_that_of_the_records():
    found = recorded(architectures.RESULTS)
    assert architectures.PAGE.read_text(encoding="utf-8") == architectures.page(found)
    assert max(len(made["rows"]) for made in found.values()) >= 100


def test_the_page_of_transformers_exporters_is_that_of_the_records():
    found = recorded(transformers_exporters.RESULTS), recorded(architectures.RESULTS)
    assert transformers_exporters.PAGE.read_text(encoding="utf-8") == transformers_exporters.page(*found)


def test_each_recorded_patch_is_known_and_its_programs_exist():
    rows = recorded(transformers_exporters.RESULTS)[transformers_exporters.TRANSFORMERS]["rows"]
    some = [transformers_exporters.Registered(**row) for row in rows]
    assert len(some) > 150 and [each.name for each in some if each.known is None] == []
    assert {each.kind for each in PATCHES.values()} == {*KINDS}
    named = {case for each in PATCHES.values() for case in each.cases}
    models = {case for case in named if case.startswith(transformers_exporters.MODEL)}
    assert named - models == {*CASES}
    assert {case.removeprefix(transformers_exporters.MODEL) for case in models} <= {*small_architectures.names()}


@pytest.mark.parametrize("name", ["rfft", "histc", "stable sort"])
def test_a_case_is_a_module_and_inputs_that_it_takes(name):
    model, args = transformers_exporters.built("case", name)
    assert model(*args) is not None


def test_a_record_goes_on_where_it_was_stopped(tmp_path):
    path, made = tmp_path / "rows.json", []

    def run(name, way):
        made.append((name, way))
        if len(made) == 3:
            raise KeyboardInterrupt
        return {"name": name, way: len(made)}

    jobs = [(name, way) for way in ("one", "other") for name in ("a", "b")]
    given = path, "mine", {"version": "1"}, ["a", "b"]
    with pytest.raises(KeyboardInterrupt):
        record(*given, [], jobs, run)
    record(*given, [], jobs, run)
    assert made == [("a", "one"), ("b", "one"), ("a", "other"), ("a", "other"), ("b", "other")]
    assert recorded(path)["mine"]["rows"] == [{"name": "a", "one": 1, "other": 4}, {"name": "b", "one": 2, "other": 5}]
    record(*given, ["b"], jobs, run)
    assert made[5:] == [("b", "one"), ("b", "other")]
    record(path, "mine", {"version": "2"}, ["a", "b"], [], jobs[:1], run)
    assert recorded(path)["mine"]["rows"] == [{"name": "a", "one": 8}]


def test_a_way_without_a_verdict_is_tried(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text('{"mine": {"version": "1", "rows": [{"name": "a", "one": "right", "other": ""}]}}')
    jobs = [("a", "one"), ("a", "other")]
    record(path, "mine", {"version": "1"}, ["a"], [], jobs, lambda name, way: {way: "wrong"})
    assert recorded(path)["mine"]["rows"] == [{"name": "a", "one": "right", "other": "wrong"}]


def test_the_page_of_architectures_says_which_were_tried_in_which_ways():
    names = small_architectures.names()
    rows = [{"name": name, "kind": "architecture", "exported": "right", "lowered": "right"} for name in names[::4]]
    for row in rows[::3]:
        row["decomposed"] = "right"
    made = {"version": "1", "torch": "2.13.0", "date": "2026-11-28", "rows": rows}
    every, some = (f"{len(names[::step])} of {len(names)}, one in {step}" for step in (4, 12))
    line = f"- mine 1 on torch 2.13.0, 2026-11-28: {every} (as exported, `decomp`); {some} (`run_decompositions()`)"
    assert line in architectures.page({"mine": made}).splitlines()
    one = {"mine": made | {"rows": [row | {"decomposed": "wrong"} for row in rows]}}
    assert f"- mine 1 on torch 2.13.0, 2026-11-28: {every}" in architectures.page(one).splitlines()
    others = {"mine": made | {"rows": one["mine"]["rows"][1:3]}}
    found = f"2 of {len(names)}, those with a verdict in the table"
    assert f"- mine 1 on torch 2.13.0, 2026-11-28: {found}" in architectures.page(others).splitlines()


def test_every_nth_architecture_is_asked_for_by_a_number():
    with pytest.raises(SystemExit) as raised:
        architectures.main(["litert", "--every", "0"])
    assert str(raised.value) == "--every takes a number, 1 or more, and got '0'"
