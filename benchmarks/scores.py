"""Can a published set of ops run PyTorch? The structural score of each target that ships, on one page.

    python -m benchmarks.scores PROOFS [TARGET ...] [--workers N]
    python -m benchmarks.scores --page

The first proves and scores targets, by default all, and writes `benchmarks/results/scores.json` and the page after
each; it goes on where it ended. The proofs are in the folder PROOFS: a complete one of the same target and PyTorch, as
`decomp prove -o` writes it, is taken as it is (delete it after a change of rules). The second writes the page alone."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
import datetime
import functools
import importlib
import json
from pathlib import Path
import sys
from typing import Any

import torch

from benchmarks.upgrades import ROOT, save
import decomp
from decomp.advice.jobs import Setting
from decomp.records import one_row_a_line
from decomp.tools.cli.configured_models import configured
from decomp.tools.proving.proving import prove, table_of
from decomp.tools.proving.records import TargetProof, some_of
from decomp.tools.scoring.pages import added
from decomp.tools.scoring.records import Figure, ScoreHalf, TargetScore
from decomp.tools.scoring.score import score
from decomp_rules import targets

RECORDS = ROOT / "benchmarks" / "results" / "scores.json"
PAGE = ROOT / "docs" / "results" / "scores.md"
BEST = 3
"""So many sets of ops to add are on the page."""
MOST = 12
"""So many ops that no set of ops is known to help are named."""
NARROW = ("tosa", "ttnn")
"""Targets without int64 that are scored with `narrow=True`: they count positions in int32."""
SOURCES: Mapping[str, str] = {
    "core_aten": "the tag `core` of PyTorch 2.13.0",
    "coreai": "the converter of Core AI, asked op by op (`decomp probe`), and not run",
    "coremltools": "the converter of Core ML, asked op by op (`decomp probe`)",
    "executorch": "the portable runtime, asked op by op (`decomp probe`)",
    "iree": "IREE's compiler, asked op by op (`decomp probe`)",
    "litert": "LiteRT's converter, asked op by op (`decomp probe`)",
    "luminal": "luminal's fifteen primitives",
    "onnx": "ONNX opset 21, operators that are no functions",
    "onnxruntime": "ONNX opset 21, with its functions",
    "openvino": "the converter of OpenVINO, asked op by op (`decomp probe`)",
    "prims": "the namespace `prims` of PyTorch 2.13.0",
    "stablehlo": "the specification of StableHLO",
    "tensorrt": "Torch-TensorRT's converters, as its sources of 2026-08-22 register them",
    "tinygrad": "what the frontend of tinygrad 0.14 emits",
    "torch_mlir": "torch-mlir's lowering to linalg, asked op by op (`decomp probe`)",
    "torch_onnx": "the ONNX exporter of PyTorch 2.13.0, asked op by op (`decomp probe`)",
    "tosa": "TOSA 1.0.2 of 2026-07-14, profiles PRO-INT and PRO-FP",
    "ttnn": "TT-NN as Tenstorrent's compiler for PyTorch calls it, 2026-02-24",
    "tvm": "the importer of TVM, asked op by op (`decomp probe`)",
}
"""By target: version and date of its list of ops; the files of the targets have more."""


def main(words: Sequence[str]) -> None:
    """Prove and score targets, or write the page."""
    parser = argparse.ArgumentParser("python -m benchmarks.scores", description=main.__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="where proofs are kept, and completed")
    parser.add_argument("names", nargs="*", help="the targets; by default all")
    parser.add_argument("--workers", type=int, help="processes that share the work")
    parser.add_argument("--page", action="store_true", help="write the page from the records")
    given = parser.parse_args(words)
    if given.page:
        save(PAGE, page(recorded()))
        return
    if given.folder is None:
        parser.error("a folder for the proofs is missing")
    for name in given.names or targets.names():
        found = scored(name, given.folder, given.workers)
        save(RECORDS, one_row_a_line({**recorded(), name: record(name, found)}))
        save(PAGE, page(recorded()))
        print(found.headline, flush=True)


def recorded() -> dict[str, Any]:
    """The committed records, by target."""
    found: dict[str, Any] = json.loads(RECORDS.read_text(encoding="utf-8")) if RECORDS.exists() else {}
    return found


def asked(name: str) -> tuple[decomp.Target, decomp.Options]:
    """A target, and the options that it is scored with."""
    return targets.get(name), decomp.Options(narrow=name in NARROW)


def scored(name: str, folder: Path, workers: int | None) -> TargetScore:
    """The score of a target, from its proof in a folder, which is made or completed."""
    path, ask = folder / f"{name}.json", functools.partial(asked, name)
    known = TargetProof.load(path) if path.exists() else None
    if known is None or not is_complete(known, Setting.of(*ask())):
        folder.mkdir(parents=True, exist_ok=True)
        known = prove(ask, known=known, executor=workers, header={"asked": name}, save=lambda proof: proof.save(path))
    return score(known, ask, configured=configured, executor=workers)


def is_complete(proof: TargetProof, setting: Setting) -> bool:
    """Whether a proof is of the target as it is now and of this PyTorch, and has every op of the table."""
    same = dict(proof.conditions) == dict(setting.matching.target.conditions())
    has_all = {*table_of(setting)} <= {*proof.ops, *proof.lost}
    return same and has_all and proof.header["torch"] == torch.__version__


def record(name: str, found: TargetScore) -> dict[str, Any]:
    """What is kept of a score: of what a set of ops is for, the first few."""
    half = found.structural.as_dict()
    for figure in half["figures"]:
        figure["lacks"] = [{**each, "of": each["of"][: BEST if each["add"] else MOST]} for each in figure["lacks"]]
    return {
        "date": datetime.date.today().isoformat(),
        "ops": len(targets.get(name)),
        "table": len(table_of(Setting.of(decomp.Target("none", []), decomp.Options()))),  # without a target's own ops
        "narrow": name in NARROW,
        "versions": dict(found.versions),
        "structural": half,
    }


# The page.


def page(records: Mapping[str, Any]) -> str:
    """The page of the records."""
    best = sorted(records, key=lambda name: -records[name]["structural"]["score"])
    missing = [name for name in targets.names() if name not in records]
    older = [name for name in best if of_older_table(records[name], records)]
    parts = [INTRODUCTION, "\n".join(_versions(records)), "\n".join(_table(records, best))]
    if older:
        parts.append(f"Of an earlier, smaller table of sample calls: {_names(older)}.")
    if missing:
        parts.append(f"Not scored yet: {_names(missing)}.")
    parts += ["\n".join(_target(name, records[name])) for name in best]
    return "\n\n".join(parts) + "\n"


def of_older_table(record: Mapping[str, Any], records: Mapping[str, Any]) -> bool:
    """Whether a score is of a smaller table of sample calls than that of another target."""
    return bool(record.get("table", 0) < max(each.get("table", 0) for each in records.values()))


def _names(targets: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in targets)


INTRODUCTION = """# Scores: can your op set run PyTorch?

How much of PyTorch reaches each set of ops by the rules of the library: four shares, and their mean. *Ops*: those of
which every sample call of the library's table is lowered into the set. *Calls*: of the calls that about a hundred real
models make. *Models*: the sample models. *LLMs*: small copies of 17 families of language models (GPT-2, GPT-NeoX,
BLOOM, OPT, Falcon, Llama, Mistral, Phi-3, Qwen2, Qwen3, Gemma 2, Gemma 3, Mixtral, Qwen2-MoE, gpt-oss, DeepSeek-V3,
Mamba), made from configurations of transformers. *Best to add*: the ops or dtypes that bring the most of them into
reach, each set by itself. Nothing was run: this is what the rules reach in the set of ops as it is published, not
whether a runtime computes it right.

`decomp score mychip.py:chip` makes the same for your chip, and runs its functions if it has any; see
[the command line](../guides/command-line.md)."""


def _versions(records: Mapping[str, Any]) -> Iterator[str]:
    known = {", ".join(f"{name} {version}" for name, version in each["versions"].items()) for each in records.values()}
    last = max((each["date"] for each in records.values()), default="")
    yield f"Measured with {'; '.join(sorted(known))}, {last}: `python -m benchmarks.scores PROOFS`."


def _table(records: Mapping[str, Any], names: Sequence[str]) -> Iterator[str]:
    yield "| target | its list of ops | entries | score | ops | calls | models | LLMs |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|"
    for name in names:
        each = records[name]
        shares = " | ".join(_share(figure) for figure in each["structural"]["figures"])
        narrow = ", in int32 (`narrow=True`)" * each["narrow"]
        source = f"{SOURCES.get(name, '')}{narrow}"
        yield f"| [`{name}`](#{name}) | {source} | {each['ops']} | **{each['structural']['score']:.1f}** | {shares} |"


def _share(figure: Mapping[str, Any]) -> str:
    return f"{100 * figure['reached'] / figure['total']:.1f}%" if figure["total"] else "not tried"


def _target(name: str, record: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {name}"
    yield ""
    yield f"`{name}`: {targets.get(name).description}."
    yield ""
    for figure in ScoreHalf.read(record["structural"]).figures:
        yield f"- {figure.unit}: {figure.reached:,} of {figure.total:,}{_best(figure)}{_hopeless(figure)}"


def _best(figure: Figure) -> str:
    sets = [f"`{added(each)}` ({each.gain:,})" for each in figure.lacks if each.add][:BEST]
    return f"; best to add: {'; '.join(sets)}" if sets else ""


def _hopeless(figure: Figure) -> str:
    """What no op of PyTorch is known to unblock."""
    rest = [each for each in figure.lacks if not each.add]
    names = dict.fromkeys(name for each in rest for name in each.of)
    gain = sum(each.gain for each in rest)
    return f"; no set of ops is known for {gain:,} (such as {some_of([*names], MOST)})" if rest else ""


if __name__ == "__main__":
    importlib.import_module("benchmarks.scores").main(sys.argv[1:])  # where other processes find its functions
