"""The page of what each PyTorch changed says what the committed records say, and the records what snapshots do."""

import json
from pathlib import Path

from benchmarks import upgrades
from decomp.tools.upgrading.records import Behaviour, CallRecord, ModelRecord, VersionRecord
from decomp.torch_internals import versions

ROOT = Path(upgrades.__file__).parent.parent


def committed():
    return json.loads(upgrades.RECORDS.read_text(encoding="utf-8"))


def test_the_page_is_made_from_the_committed_records():
    assert upgrades.PAGE.read_text(encoding="utf-8") == upgrades.page(committed())


def test_the_records_are_of_every_tested_version():
    found = [versions.version_of(each["torch"]) for each in committed()["versions"]]
    wanted = range(versions.OLDEST[1], versions.NEWEST[1] + 1)
    assert found == [(versions.OLDEST[0], minor) for minor in wanted]


def test_readme_links_to_the_page():
    assert "(../upgrades.md)" in (ROOT / "docs" / "guides" / "command-line.md").read_text(encoding="utf-8")


CALL = CallRecord("aten.relu.default(float32[2])", "legal", calls=1)


def snapshot(version, value, calls, target="chip"):
    behaviours = {"float32, as sampled": Behaviour((f"float32[1] {value:08d} {value}",))}
    call = CallRecord(CALL.call, "derived", ("by_where",), calls, behaviours=behaviours)
    models = {"gpt": ModelRecord({"aten.relu.default": 1}, {"aten.where.self": calls})}
    header = {"torch": version, "python": "3.11", "processor": "x", "vectors": "y", "models": ["gpt"]}
    return VersionRecord(header, target, {}, (), {"aten.relu": (call,)}, {}, models, {"k": ("float32[1] 0 1",)})


def test_records_tell_kernels_once_and_derivations_for_each_target(tmp_path):
    for target in ("chip", "npu"):
        for version, value, calls in (("2.13.0", 1, 3), ("2.14.1", 2, 3), ("2.15.0", 2, 4)):
            snapshot(version, value, calls, target).save(tmp_path / f"{target}-{version}.json")
    found = upgrades.recorded(tmp_path)
    told = [(row["target"], row["new"], row["kind"]) for row in found["changes"]]
    assert told == [
        ("PyTorch", "2.14.1", "meaning"),
        ("chip", "2.15.0", "derived"),
        ("chip", "2.15.0", "derived"),
        ("npu", "2.15.0", "derived"),
        ("npu", "2.15.0", "derived"),
    ]
    page = upgrades.page(found)
    assert "| 2.13 → 2.14 | PyTorch | 1 |  |" in page and "| 2.14 → 2.15 | `chip` |  | 2 |" in page
    assert "- `relu`: value was 1, is 2: aten.relu.default(float32[2]), float32, as sampled" in page
    assert "Models: gpt: 4 calls, were 3." in page
