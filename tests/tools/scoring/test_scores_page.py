"""The page of the scores of the targets that ship."""

import torch

from benchmarks.scores import NARROW, PAGE, SOURCES, is_complete, page, record, recorded
import decomp
from decomp.advice.jobs import Setting
from decomp.tools.proving.proving import table_of
from decomp.tools.proving.records import ProvedCall, TargetProof
from decomp.tools.scoring.records import Figure, Lack, ScoreHalf, TargetScore
from decomp_rules import targets

LACKS = (Lack(("sqrt",), 3, ("aten.a", "aten.b", "aten.c", "aten.d")), Lack((), 2, ("aten.e",)))
SCORE = TargetScore(
    "tosa",
    {"torch": "2.13.0", "decomp": "0.2.0"},
    ScoreHalf((Figure("ops", "ops of the table", 5, 10, LACKS), Figure("families", "families", 0, 0, note="no")), {}),
)


def test_the_page_is_that_of_the_records():
    assert PAGE.read_text(encoding="utf-8") == page(recorded())


def test_every_target_that_ships_has_a_source_and_those_that_are_narrowed_have_no_int64():
    assert set(SOURCES) == set(targets.names())
    assert all(not targets.get(name).knows_dtype(torch.int64) for name in NARROW)


def test_the_page_has_shares_the_best_ops_to_add_what_cannot_be_reached_and_what_was_not_scored():
    kept = record("tosa", SCORE)
    assert kept["structural"]["figures"][0]["lacks"][0]["of"] == ("aten.a", "aten.b", "aten.c")
    text = page({"tosa": kept})
    assert "in int32 (`narrow=True`) | " in text and "| **50.0** | 50.0% | not tried |" in text
    assert "- ops of the table: 5 of 10; best to add: `sqrt` (3); no set of ops is known for 2 (such as e)\n" in text
    assert "Not scored yet: `core_aten`, `coreai`, `coremltools`, `executorch`, `iree`, " in text


def test_the_page_names_scores_of_a_smaller_table():
    kept = record("tosa", SCORE)
    older = {name: each for name, each in kept.items() if name != "table"}
    text = page({"tosa": kept, "onnx": older, "prims": {**kept, "table": kept["table"] - 1}})
    assert "\n\nOf an earlier, smaller table of sample calls: `onnx`, `prims`.\n\n" in text
    assert "earlier" not in page({"tosa": kept})


def test_a_proof_of_another_target_or_without_an_op_of_the_table_is_not_complete():
    setting = Setting.of(targets.luminal, decomp.Options())
    header = {"torch": torch.__version__}
    conditions = dict(setting.matching.target.conditions())
    call = {"aten.add": (ProvedCall("aten.add.Tensor()", "legal"),)}
    assert not is_complete(TargetProof(header, "luminal", conditions, {}, call, {}), setting)
    every = dict.fromkeys(table_of(setting), ())
    assert is_complete(TargetProof(header, "luminal", conditions, {}, every, {}), setting)
    assert not is_complete(TargetProof(header, "luminal", {**conditions, "aten.add": ""}, {}, every, {}), setting)
