"""transformers' exporters patch torch, models and converters while they trace. Each patch, counted from their own
registries: what it does, and whether it is needed behind `decomp`, which patches nothing: the programs that need it are
converted as `torch.export` has them and lowered before, and compared with the eager model by the measure of
`verify="values"`; so is what the patch itself computes, run by PyTorch.

    python -m benchmarks.transformers_exporters openvino [NAME ...]
    python -m benchmarks.transformers_exporters --table

The first (also for executorch and onnx) completes `benchmarks/results/transformers_exporters.json`; both write the page
`docs/results/transformers.md`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
import functools
import importlib
from importlib import metadata
import inspect
from pathlib import Path
import sys
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from benchmarks import architectures, small_architectures
from benchmarks.conversion_trials import REFUSED, RIGHT, WRONG, Built, converter_of, record, recorded, tried
from benchmarks.conversions import Calls
from benchmarks.transformers_patches import CASES, KINDS, Patch, patch_of
import decomp
from decomp.errors import first_line
from decomp.files import write_atomically
from decomp.jobs import Failed, run_in_process
from decomp.records import one_row_a_line
from decomp.tables import Table
from decomp.validation.whole_programs import whole_programs
from decomp_rules import targets

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "transformers_exporters.json"
PAGE = ROOT / "docs" / "results" / "transformers.md"
TIMEOUT = 240.0
MODEL = "model: "
TRANSFORMERS = "transformers"
"""Under which name the patches are recorded."""
FAMILIES = """
    BERT GPT-2 Llama t5 bart whisper Wav2Vec2 dinov2 ConvNeXt mixtral gpt_oss mamba clip llava nllb-moe rwkv mra
""".split()
"""Models of transformers, of `small_architectures`: encoders, decoders, both, vision, speech, experts, state spaces."""


@dataclass(frozen=True)
class Registered:
    """A patch, fix or translation that an exporter registers."""

    converter: str
    """What it is for: "dynamo" for the capture, "onnx", "openvino", "executorch", or a delegate of that."""
    via: str
    """How it acts: "patch", "node fix", "program fix", "translation" or "input"."""
    name: str
    """Of its function."""
    paths: tuple[str, ...] = ()
    """What a patch replaces."""

    @property
    def known(self) -> Patch | None:
        return patch_of(self.converter, self.name)


def registered() -> list[Registered]:
    """All that transformers' exporters register, each function once for a converter."""
    for name in ("dynamo", "onnx", "openvino", "executorch"):
        importlib.import_module(f"transformers.exporters.exporter_{name}")
    from transformers.exporters import exporter_onnx, exporter_openvino, utils

    found: dict[tuple[str, str, str], list[str]] = {}
    for converter, patches in utils._PATCHES.items():
        for place, attribute, function in patches:
            found.setdefault((converter, "patch", function.__name__), []).append(f"{place}.{attribute}")
    for via, fixes in (("node fix", utils._FX_NODE_FIXES), ("program fix", utils._FX_PROGRAM_FIXES)):
        found |= {(converter, via, each.__name__): [] for converter, own in fixes.items() for each in own}
    translations = [each.__name__ for each in exporter_onnx._ONNX_TRANSLATION_TABLE.values()]
    found |= {("onnx", "translation", name): [] for name in translations}
    found |= {("onnx", "program fix", each.__name__): [] for each in exporter_onnx._IR_FIXES}
    found |= {("openvino", "translation", name): [] for name in _translations(exporter_openvino)}
    found |= {("dynamo", "input", each.__name__): [] for each in utils._EXPORT_INPUT_PREPARERS.values()}
    return [Registered(*key, tuple(paths)) for key, paths in sorted(found.items())]


def _translations(module: Any) -> list[str]:
    """The functions that translate a call for OpenVINO, or make such functions; its extensions do not name them."""
    named = [(name, each) for name, each in vars(module).items() if name.startswith("_convert_")]
    return [name for name, each in named if next(iter(inspect.signature(each).parameters)) in ("context", "op")]


# ONNX, by PyTorch's exporter and by the backend of this project.


def _by_torch(program: ExportedProgram) -> Any:
    found = torch.onnx.export(program, dynamo=True, verbose=False)
    assert found is not None
    return found.model_proto


def _by_backend(program: ExportedProgram) -> Any:
    from decomp_rules.backends import onnx_models

    return onnx_models.model_of(program)


def _run(model: Any, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    fed = {given.name: x.numpy() for given, x in zip(session.get_inputs(), inputs)}
    return [torch.from_numpy(each) for each in session.run(None, fed)]


_ONNX: Mapping[str, Any] = dict(package="onnx", at_least="1.16", target=targets.get("onnxruntime"), run=_run)
TORCH_ONNX = decomp.Converter("torch.onnx", convert=_by_torch, **_ONNX)
OWN_ONNX = decomp.Converter("onnx", convert=_by_backend, **_ONNX)
CONVERTERS = {
    "openvino": ("openvino", "openvino"),
    "executorch": ("executorch", "executorch"),
    "onnx": (f"{__name__}:TORCH_ONNX", f"{__name__}:OWN_ONNX"),
}
"""By name: what converts a program as exported, and what a lowered one."""


def built(kind: str, name: str) -> Built:
    """A case and its inputs, the same each time."""
    if name.startswith(MODEL):
        return small_architectures.built(kind, name.removeprefix(MODEL))
    torch.manual_seed(0)
    function, args = CASES[name]()
    return Calls(function), args


class UnderPatches(nn.Module):
    """A model that is run under the patches of an exporter, by PyTorch."""

    def __init__(self, converter: str, model: nn.Module) -> None:
        super().__init__()
        self.converter, self.model = converter, model

    def forward(self, *args: torch.Tensor) -> Any:
        from transformers.exporters.utils import apply_patches

        with apply_patches(self.converter):
            return self.model(*args)


@dataclass(frozen=True)
class PatchTrial:
    """A case run by PyTorch under the patches for a converter."""

    converter: str
    name: str

    def run(self) -> tuple[str, str]:
        """Whether the patches compute what PyTorch does, in a process that ends with them."""
        importlib.import_module(f"transformers.exporters.exporter_{self.converter}")
        model, args = built("case", self.name)
        try:
            whole_programs(model, UnderPatches(self.converter, model), args, {}, gradients=False)
        except decomp.VerificationError as error:
            return WRONG, first_line(error)
        except Exception as error:  # a patch may raise anything
            return REFUSED, f"{type(error).__name__}: {first_line(error)}"
        return RIGHT, ""


def _tried(converter: str, name: str, way: str) -> dict[str, Any]:
    if way == "patched":
        answer = run_in_process(PatchTrial(converter, name), TIMEOUT)
        verdict, text = (REFUSED, str(answer)) if isinstance(answer, Failed) else answer
        return {"name": name, "patched": verdict, "patched_text": text}
    by = CONVERTERS[converter][way == "lowered"]
    return tried(by, __name__, "case", name, TIMEOUT, [way])


def cases_of(converter: str, patches: Sequence[Registered]) -> list[str]:
    """The programs that need a patch of this exporter, and the models, unless they are among those that
    `benchmarks.architectures` converts."""
    own = [each for each in patches if _is_of(each, converter)]
    named = [case for each in own if each.known for case in each.known.cases]
    models = [f"{MODEL}{family}" for family in FAMILIES]
    return [case for case in dict.fromkeys([*named, *models]) if converter == "onnx" or not case.startswith(MODEL)]


def _is_of(patch: Registered, converter: str) -> bool:
    return patch.converter.partition(".")[0] == converter


def measure(converter: str, names: Sequence[str]) -> None:
    """Complete the rows of a converter, or make these again."""
    facts = {"version": converter_of(CONVERTERS[converter][0]).require(), "torch": torch.__version__.partition("+")[0]}
    patches = registered()
    cases = cases_of(converter, patches)
    by_hand = [
        case for each in patches if _is_hand_written(each, converter) and each.known for case in each.known.cases
    ]
    models = [case for case in cases if case.startswith(MODEL)]
    jobs = [(case, way) for case in cases if case not in models for way in ("lowered", "exported")]
    jobs += [(case, "patched") for case in dict.fromkeys(by_hand) if case not in models]
    jobs += [(model, way) for model in models for way in ("lowered", "exported")]
    record(RESULTS, converter, facts, cases, names, jobs, functools.partial(_tried, converter))
    counted = {"version": metadata.version("transformers"), "rows": [asdict(each) for each in patches]}
    with write_atomically(RESULTS) as unfinished:
        unfinished.write_text(one_row_a_line(recorded(RESULTS) | {TRANSFORMERS: counted}), encoding="utf-8")


def _is_hand_written(patch: Registered, converter: str) -> bool:
    """Whether a patch replaces a function of PyTorch by others."""
    return _is_of(patch, converter) and patch.via == "patch" and patch.known is not None and patch.known.kind == "op"


# The page.

_TEXT = """\
The exporters of transformers {transformers} export to ONNX, OpenVINO and ExecuTorch by patching torch, models and
converters while they trace. Counted from their own registries, each function once for a converter. Kinds:

{kinds}

For each patch of the first kind there are small programs that need it (those that its docstring names). Each is
converted as `torch.export` has it, and lowered by `decomp` to the converter's target and converted, without a patch of
anything; it runs on the CPU, and its results are compared with the eager program in float64 by the measure of
`verify="values"`. *As exported* is what PyTorch and the converter do without patches; *by the patch* whether PyTorch,
run under the patch, still computes the program. Models that a patch of the capture is for are captured without it, for
[OpenVINO](architectures.md). `python -m benchmarks.transformers_exporters CONVERTER` makes the records,
`benchmarks/results/transformers_exporters.json`, and this page."""
LETTERS = {"openvino": "OpenVINO", "executorch": "ExecuTorch", "onnx": "ONNX Runtime"}


def page(records: Mapping[str, Any], models: Mapping[str, Any]) -> str:
    """The page of the records; `models`: those of `benchmarks.architectures`."""
    return "\n".join(_lines(records, models)) + "\n"


def _lines(records: Mapping[str, Any], models: Mapping[str, Any]) -> Iterator[str]:
    counted = records[TRANSFORMERS]
    patches = [Registered(**{**row, "paths": tuple(row["paths"])}) for row in counted["rows"]]
    records = {name: records[name] for name in CONVERTERS if name in records}
    kinds = "\n".join(f"- *{kind}*: {text}" for kind, text in KINDS.items())
    yield "# Exporters of transformers, patch by patch"
    yield ""
    yield from _TEXT.format(transformers=counted["version"], kinds=kinds).splitlines()
    yield ""
    rows = {name: {row["name"]: row for row in made["rows"]} for name, made in records.items()}
    for name, made in models.items():
        rows.get(name, {}).update({f"{MODEL}{row['name']}": row for row in made["rows"]})
    for name, made in records.items():
        yield f"- {LETTERS[name]}: {name} {made['version']} on torch {made['torch']}, {made['date']}"
    yield ""
    yield from _totals(rows, patches)
    yield from ("", "## Models", "", *_models(rows).markdown())
    for name in ("dynamo", *rows):
        title = LETTERS.get(name, "The capture itself")
        yield from ("", f"## {title}", "", *_patches(name, rows, patches).markdown())


def _totals(rows: Mapping[str, Any], patches: Sequence[Registered]) -> Iterator[str]:
    columns = (
        "for",
        ">patches",
        *(f">{kind}" for kind in KINDS),
        ">op: right behind decomp",
        ">as exported",
        ">by the patch",
    )
    lines = []
    for name in ("dynamo", *CONVERTERS):
        own = [each for each in patches if _is_of(each, name)]
        ops = [each.known.cases for each in own if each.known and each.known.kind == "op"]
        found = rows.get(name, {})
        right = [sum(all(_is_right(found, c, way) for c in cases) for cases in ops) for way in ("lowered", "exported")]
        patched = [row["patched"] for row in found.values() if "patched" in row]
        counted = [sum(each.known is not None and each.known.kind == kind for each in own) for kind in KINDS]
        by_patch = f"{patched.count(RIGHT)} of {len(patched)} programs" if patched else ""
        lines.append((LETTERS.get(name, "the capture"), len(own), *counted, *right, by_patch))
    yield from Table(columns, lines).markdown()


def _is_right(rows: Mapping[str, Any], case: str, way: str) -> bool:
    return bool(rows.get(case, {}).get(way) == RIGHT)


def _models(rows: Mapping[str, Any]) -> Table:
    columns = [f"{LETTERS[name]}: {way}" for name in rows for way in ("as exported", "behind `decomp`")]
    names = [f"{MODEL}{family}" for family in FAMILIES]
    lines = [
        (each.removeprefix(MODEL), *(own.get(each, {}).get(way, "–") for own in rows.values() for way in _WAYS))
        for each in names
    ]
    return Table(("model", *columns), lines)


_WAYS = ("exported", "lowered")


def _patches(name: str, rows: Mapping[str, Any], patches: Sequence[Registered]) -> Table:
    columns = ("patch", "of", "kind", "what it does", "program", "as exported", "by the patch", "behind `decomp`")
    lines = []
    for each in patches:
        if _is_of(each, name):
            patch = each.known or Patch("not known", "newer than this table")
            about = (f"`{each.name}`", each.via, patch.kind, patch.what)
            lines += [(*about, *_verdicts(case, rows.get(name) or rows["openvino"])) for case in patch.cases]
            lines += [(*about, "", "", "", "")] * (not patch.cases)
    return Table(columns, lines)


def _verdicts(case: str, rows: Mapping[str, Any]) -> Sequence[str]:
    row = rows.get(case, {})
    return (case, *(row.get(way, "–") for way in ("exported", "patched", "lowered")))


def main(words: list[str]) -> None:
    """Measure, if a converter is named, and write the page."""
    if words != ["--table"]:
        converter, *names = words or [""]
        if converter not in CONVERTERS:
            sys.exit(f"there is no {converter!r}. Available: {', '.join(CONVERTERS)}")
        measure(converter, names)
    with write_atomically(PAGE) as unfinished:
        unfinished.write_text(page(recorded(RESULTS), recorded(architectures.RESULTS)), encoding="utf-8")


if __name__ == "__main__":
    importlib.import_module("benchmarks.transformers_exporters").main(sys.argv[1:])  # where other processes find it
