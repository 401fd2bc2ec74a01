"""How records are written: JSON with one row a line."""

import json
from pathlib import Path

import pytest

from decomp.records import one_row_a_line

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"


def test_records_are_json_with_one_row_a_line():
    records = {"format": 1, "of": {"x": [{"a": None, "b": 0.1}, {"a": [1, 2]}], "y": []}, "machine": {"é": 2}}
    text = one_row_a_line(records)
    assert json.loads(text) == records
    assert text.split() == [
        "{",
        '"format":',
        "1,",
        '"of":',
        "{",
        '"x":',
        "[",
        '{"a":null,"b":0.1},',
        '{"a":[1,2]}',
        "],",
        '"y":',
        "[]",
        "},",
        '"machine":',
        '{"é":2}',
        "}",
    ]
    assert text.count("\n") == 11 and text.endswith("}\n")


@pytest.mark.parametrize("name", ["fused_vs_primitive", "lowering", "mutations", "rules"])
def test_the_committed_records_are_written_so(name):
    text = (RESULTS / f"{name}.json").read_text("utf-8")
    assert text == one_row_a_line(json.loads(text))
