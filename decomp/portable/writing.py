"""A lowered program as two files: `program.json`, its calls, and `program.weights`, its parameters, buffers and
constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata as distributions
import json
from pathlib import Path
from typing import Any

import torch

from decomp.errors import ArgumentError, NotPortable
from decomp.files import naming_file, path_of_user, write_atomically
from decomp.ir.dtypes import name_of
from decomp.loading import load
from decomp.lowering import Lowering
from decomp.portable import weights as weight_files
from decomp.portable.recording import PortableRecorder, Weight
from decomp.records import one_row_a_line

KIND, FORMAT = "decomp program", 2


def save(lowering: Lowering, path: str | Path, weights: bool = True) -> Path:
    """Write a program, and its weights beside it. Raises `NotPortable` for what cannot be written, and `ArgumentError`
    if the files cannot."""
    path = path_of_user(path, "save")
    if path.suffix != ".json":
        raise ArgumentError(f"save: {path} must end in .json; the weights go beside it, into {path.stem}.weights")
    recorder = PortableRecorder(load(lowering, None, None, None))
    held = [each if weights else _without_values(each) for each in recorder.weights]
    _require_values(held, weights)
    placed = weight_files.place([each.value for each in held])
    beside = path.with_suffix(".weights")
    document = _document(lowering, recorder, held, placed, beside.name)
    with (
        naming_file(path, "save: cannot write"),
        write_atomically(beside) as unfinished,
        write_atomically(path) as described,
    ):
        weight_files.write(placed, unfinished)
        described.write_text(_text(document), encoding="utf-8")
    return path


def _without_values(weight: Weight) -> Weight:
    """A parameter or buffer alone: constants are part of what the program computes."""
    return weight if weight.kind == "constant" else replace(weight, value=None)


def _require_values(held: list[Weight], weights: bool) -> None:
    absent = [each for each in held if each.value is None and (weights or each.kind == "constant")]
    if not absent:
        return
    others = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
    remedy = "lower the model with its weights"
    if absent[0].kind != "constant":
        remedy += ", or write the program without them: save(path, weights=False), decomp lower --no-weights"
    raise NotPortable(
        f"the {absent[0].kind} {absent[0].name!r}{others} has no values (the meta device or fake tensors)\n"
        f"  to do: {remedy}"
    )


def _document(
    lowering: Lowering, recorder: PortableRecorder, held: list[Weight], placed: weight_files.Placed, file: str
) -> dict[str, Any]:
    return {
        "kind": KIND,
        "format": FORMAT,
        "target": lowering.target.name,
        "made_by": {"decomp": distributions.version("decomp"), "torch": torch.__version__},
        "narrower": {name_of(wide): name_of(narrow) for wide, narrow in lowering.target.narrower.items()},
        "weights": {"file": file, "bytes": placed.size},
        "symbols": [
            {"name": name, "min": facts.minimum, "max": facts.maximum, "example": facts.example}
            for name, facts in recorder.symbols.items()
        ],
        "tensors": [_described(each, offset) for each, offset in zip(held, placed.offsets)],
        "graphs": recorder.graphs,
    }


def _described(weight: Weight, offset: int | None) -> dict[str, Any]:
    tensor = weight.tensor if weight.value is None else weight.value
    contiguous = {} if tensor.is_contiguous() else {"strides": list(tensor.stride())}
    return {
        "name": weight.name,
        "kind": weight.kind,
        "dtype": name_of(tensor.dtype),
        "shape": list(tensor.shape),
        **contiguous,
        "offset": offset,
        "trains": weight.tensor.requires_grad,
    }


def _text(document: Mapping[str, Any]) -> str:
    """JSON with one line for each tensor, value and call."""
    graphs = ",\n".join(map(_rows, document["graphs"]))
    return _rows({**document, "graphs": []})[:-1].replace('"graphs": []\n', f'"graphs": [\n{graphs}\n]\n') + "}\n"


def _rows(table: Mapping[str, Any]) -> str:
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {_row(value)}" for name, value in table.items()) + "\n}"


def _row(value: Any) -> str:
    if isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
        return one_row_a_line(value).rstrip()
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
