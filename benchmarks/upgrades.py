"""What each PyTorch changed for the library's own targets: the page `docs/upgrades.md`, made from records that are made
from snapshots of each version.

    decomp snapshot gpt mlp resnet lstm unet encoder vit --to tinygrad -o SNAPSHOTS/tinygrad-2.13.json
    python -m benchmarks.upgrades SNAPSHOTS

The first is run where each version is installed, for each target (with `--only derivations --only models` for all but
the first, as kernels are the same for all). The second compares them, and writes records and page; without a directory
it writes the page from the records that are committed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
import datetime
from itertools import pairwise
import json
from pathlib import Path
import sys
from typing import Any

from decomp.files import write_atomically
from decomp.records import one_row_a_line
from decomp.tools.upgrading.comparing import Upgrade, compare
from decomp.tools.upgrading.lines import KINDS
from decomp.tools.upgrading.records import VersionRecord

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "benchmarks" / "results" / "upgrades.json"
PAGE = ROOT / "docs" / "upgrades.md"
KERNELS = "PyTorch"
"""The row of what does not depend on a target: kernels, and which ops exist."""
SHORT = ("layout", "digits", "words")
"""Kinds of which only the number of changes is shown."""
OF_PYTORCH = ("gone", "new")
MOST = 25
"""The most lines of a kind on the page."""


def main() -> None:
    """Make the records, if there are snapshots, and the page."""
    if len(sys.argv) > 1:
        save(RECORDS, one_row_a_line(recorded(Path(sys.argv[1]))))
    save(PAGE, page(json.loads(RECORDS.read_text(encoding="utf-8"))))


def save(path: Path, text: str) -> None:
    """Write a file, whole or not at all."""
    path.parent.mkdir(exist_ok=True)
    with write_atomically(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


# Records


def recorded(snapshots: Path) -> dict[str, Any]:
    """What changed between neighbouring versions, for each target of which there are snapshots."""
    found = [VersionRecord.load(path) for path in sorted(snapshots.glob("*.json"))]
    by_target: dict[str, list[VersionRecord]] = {}
    for each in sorted(found, key=lambda record: record.version):
        by_target.setdefault(each.target, []).append(each)
    first = next(records for records in by_target.values() if records[0].points)
    changes: list[dict[str, Any]] = []
    for old, new in pairwise(first):
        changes += _rows(KERNELS, compare(_kernels(old), _kernels(new)))
    models = []
    for target, records in sorted(by_target.items()):
        for old, new in pairwise(records):
            upgrade = compare(_derivations(old), _derivations(new))
            changes += [row for row in _rows(target, upgrade) if row["kind"] not in OF_PYTORCH]
            models.append({"target": target, "old": old.version, "new": new.version, "models": list(upgrade.models)})
    return {
        "date": datetime.date.today().isoformat(),
        "versions": [dict(each.header) for each in first],
        "targets": sorted(by_target),
        "calls": [{"torch": each.version, "calls": sum(map(len, each.ops.values()))} for each in first],
        "changes": changes,
        "models": models,
    }


def _kernels(record: VersionRecord) -> VersionRecord:
    """A snapshot without the answers that depend on the target."""
    ops = {op: tuple(replace(call, verdict="") for call in calls) for op, calls in record.ops.items()}
    return replace(record, ops=ops, models={}, primitives={})


def _derivations(record: VersionRecord) -> VersionRecord:
    """A snapshot without kernels."""
    ops = {op: tuple(replace(call, behaviours={}) for call in calls) for op, calls in record.ops.items()}
    return replace(record, ops=ops)


def _rows(target: str, upgrade: Upgrade) -> Iterator[dict[str, Any]]:
    """The changes of one upgrade, those of `SHORT` as numbers."""
    head = {"target": target, "old": upgrade.old, "new": upgrade.new}
    for line in upgrade.changes:
        if line.kind not in SHORT:
            yield {**head, "kind": line.kind, "text": line.text}
    for kind, count in sorted(Counter(line.kind for line in upgrade.changes if line.kind in SHORT).items()):
        yield {**head, "kind": kind, "count": count}


# The page


def page(records: Mapping[str, Any]) -> str:
    """The page of the records."""
    steps = list(dict.fromkeys((row["old"], row["new"]) for row in records["models"]))
    names = [KERNELS, *records["targets"]]
    parts = [
        "# What each PyTorch changed",
        _introduction(records),
        "\n".join(_summary(records["changes"], steps, names)),
        *(_step(records, old, new, names) for old, new in steps),
    ]
    return "\n\n".join(parts) + "\n"


def _introduction(records: Mapping[str, Any]) -> str:
    versions = records["versions"]
    calls, machine = records["calls"][-1]["calls"], versions[-1]
    return f"""What changed for the library's own targets from each version of PyTorch to the next: in PyTorch's own
kernels, over {calls:,} calls of its ops, and in how ops and models reach each target. A backend of your own, and your
models, are asked in the same way:

```
decomp snapshot MODEL… --to mychip.py:chip -o {_short(versions[0]["torch"])}.json      (where that version is installed)
decomp upgrade {_short(versions[0]["torch"])}.json {_short(versions[-1]["torch"])}.json
```

Seen on {records["date"]} with {", ".join(each["torch"] for each in versions)}, Python {machine["python"]}, on the CPU
({machine["processor"]}, {machine["vectors"]}; where integers overflow, another processor may do otherwise). Made by

```
decomp snapshot {" ".join(versions[0]["models"])} --to TARGET -o SNAPSHOTS/TARGET-VERSION.json
python -m benchmarks.upgrades SNAPSHOTS
```

from records that are committed (`benchmarks/results/upgrades.json`). Numbers of changes, the gravest kinds first:"""


def _summary(
    changes: Sequence[Mapping[str, Any]], steps: Iterable[tuple[str, str]], names: Sequence[str]
) -> Iterator[str]:
    """A row a step and target that changed, a column a kind."""
    kinds = [kind for kind in KINDS if any(row["kind"] == kind for row in changes)]
    yield f"| | for | {' | '.join(KINDS[kind].short for kind in kinds)} |"
    yield f"|---|---|{'--:|' * len(kinds)}"
    for old, new in steps:
        for name in names:
            rows = [row for row in changes if (row["old"], row["new"], row["target"]) == (old, new, name)]
            counts = Counter[str]()
            for row in rows:
                counts[row["kind"]] += row.get("count", 1)
            cells = (str(counts[kind] or "") for kind in kinds)
            yield f"| {_short(old)} → {_short(new)} | {_titled(name)} | {' | '.join(cells)} |"


def _step(records: Mapping[str, Any], old: str, new: str, names: Sequence[str]) -> str:
    """What changed from one version to the next."""
    changes = [row for row in records["changes"] if (row["old"], row["new"]) == (old, new) and "text" in row]
    lines = [f"## {_short(old)} → {_short(new)}"]
    for name in names:
        mine = [row for row in changes if row["target"] == name]
        models = _models(records["models"], old, new, name)
        if not mine and not models:
            continue
        lines += ["", f"### {_titled(name)}"]
        for kind in dict.fromkeys(row["kind"] for row in mine):
            texts = [row["text"] for row in mine if row["kind"] == kind]
            lines += ["", f"{KINDS[kind].title[0].upper()}{KINDS[kind].title[1:]}:", ""]
            lines += [f"- {text}" for text in texts[:MOST]]
            lines += [f"- and {len(texts) - MOST} more"] if len(texts) > MOST else []
        lines += ["", models] if models else []
    return "\n".join(lines)


def _models(rows: Iterable[Mapping[str, Any]], old: str, new: str, target: str) -> str:
    found = [row["models"] for row in rows if (row["old"], row["new"], row["target"]) == (old, new, target)]
    return f"Models: {'; '.join(found[0])}." if found and found[0] else ""


def _titled(name: str) -> str:
    return name if name == KERNELS else f"`{name}`"


def _short(version: str) -> str:
    """`2.13` of `2.13.0+cpu`."""
    return ".".join(version.split(".")[:2])


if __name__ == "__main__":
    main()
