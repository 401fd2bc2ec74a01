"""One program in front of one converter: as exported, after PyTorch's own `run_decompositions()`, and lowered by
`decomp` to the target of that converter. Each is converted in another process, run there, and compared with the source
in float64 by the measure of `verify="values"`. The three ways share one export, and a converter has converted a small
model before, so that the seconds of a conversion are those of the program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
import functools
import importlib
import json
import math
from pathlib import Path
import re
import time
from typing import Any
import warnings

import torch
from torch import nn
from torch.export import ExportedProgram

import decomp
from decomp.capture.exporting import export
from decomp.derive.rule_selection import RuleSelection
from decomp.errors import first_line
from decomp.files import write_atomically
from decomp.jobs import Failed, run_in_process
from decomp.proof.correspondence import CaptureDiffers
from decomp.records import one_row_a_line
from decomp.rules.options import Options
from decomp.tools.cli.terminal import progressing
from decomp.tools.converting.conversion import Results, conversion
from decomp.tools.converting.converter import Converter
from decomp.torch_internals import pytree
from decomp.validation.draws import drawn_values
from decomp.validation.whole_programs import NOT_COMPARED, require_as_captured, whole_programs
from decomp_rules import converters

TIMEOUT = 300.0
RIGHT, WRONG, REFUSED, CRASHES = "right", "wrong", "refused", "crashes"
CONVERTED = "converted"
"""Without a runtime, which would say whether it is right."""
RANDOM = "random"
"""Converted and run, but all results depend on random numbers, which each runtime draws itself."""
Built = tuple[nn.Module, tuple[Any, ...]]


@dataclass(frozen=True)
class Row:
    """What a converter makes of one program."""

    name: str
    kind: str
    """"op", "model" or "architecture"."""
    exported: str = ""
    """As exported: one of right, wrong, refused, crashes, random, and converted where there is no runtime; empty if it
    was not tried, as are the others."""
    exported_text: str = ""
    lowered: str = ""
    """The same, lowered before."""
    lowered_text: str = ""
    calls: int = 0
    """Of the exported program."""
    lowered_calls: int = 0
    decomposed: str = ""
    """The same, after `run_decompositions()`."""
    decomposed_text: str = ""
    exported_seconds: float = 0.0
    """Of the processor, for the conversion, with what is done to the exported program before it; 0 if it was not
    recorded."""
    decomposed_seconds: float = 0.0
    lowered_seconds: float = 0.0
    conversions: int = 1
    """How many were timed in each way. The least time counts, as the first conversion of a program takes longer."""


@dataclass(frozen=True)
class Found:
    """What a converter makes of one program in one of the ways."""

    verdict: str
    text: str = ""
    calls: int = 0
    seconds: float = 0.0
    """Of the processor, 0 if nothing was converted."""


WAYS = ("lowered", "decomposed", "exported")
"""In which a program is handed over. A converter may change what it is given, so the exported program is the last."""


@dataclass(frozen=True)
class ProgramTrial:
    """One program, converted in one of the ways."""

    converter: str
    module: str
    """Of the benchmarks: its function `built` makes the program."""
    kind: str
    name: str
    way: str
    conversions: int = 1
    """How many are timed."""

    def run(self) -> Found:
        """What became of it, in a process that has converted before."""
        warnings.simplefilter("ignore")
        converter = _warm(self.converter, self.way)
        try:
            return converted_by(converter, self.way, *self._captured(converter), self.conversions)
        except decomp.DecompError as error:
            return Found(REFUSED, str(error).splitlines()[0][:160])
        except Exception as error:  # a converter may raise anything
            return Found(REFUSED, f"{type(error).__name__}: {_line(error)}")

    def _captured(self, converter: Converter) -> Captured:
        """A program that `torch.export` refuses by default may be captured in front of `decomp`, as it traces by Dynamo
        then, with rules in place of calls that PyTorch cannot run on fake tensors."""
        try:
            return _exported(self.module, self.kind, self.name)
        except Exception:  # of any class, from the model's own code
            if self.way != "lowered":
                raise
            model, args = importlib.import_module(self.module).built(self.kind, self.name)
            infer = RuleSelection.of(converter.target, Options.of({"training": False})).infer
            return model, args, export(model, args, None, None, infer)


Captured = tuple[nn.Module, tuple[Any, ...], ExportedProgram]


@functools.lru_cache(maxsize=1)
def _exported(module: str, kind: str, name: str) -> Captured:
    model, args = importlib.import_module(module).built(kind, name)
    return model, args, torch.export.export(model, args)


@functools.cache
def _warm(name: str, way: str) -> Converter:
    """The converter, its package and the library of rules imported: it has converted a small model in this way."""
    converter = converter_of(name)
    if converter.prepare is not None:
        converter.prepare()
    model, args = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), (torch.ones(2, 4),)
    converted_by(converter, way, model, args, torch.export.export(model, args))
    return converter


def converter_of(name: str) -> Converter:
    """The converter called so, or the one that a module has, named as `module:NAME`."""
    module, _, attribute = name.partition(":")
    found: Converter = getattr(importlib.import_module(module), attribute) if attribute else converters.get(name)
    return found


def converted_by(
    converter: Converter,
    way: str,
    model: nn.Module,
    args: tuple[Any, ...],
    program: ExportedProgram,
    conversions: int = 1,
) -> Found:
    """What the converter makes of an exported program, and the least time of so many conversions. Raises what it
    raises."""
    seconds = math.inf
    for _ in range(conversions):
        began = time.process_time()
        try:
            made, given = HANDED[way](converter, program)
        except decomp.NotLowered as error:
            ops = ", ".join(dict.fromkeys(blocker.op for blocker in error.blockers))
            return Found(REFUSED, f"not lowered: {ops}")
        seconds = min(seconds, time.process_time() - began)
    calls = sum(node.op == "call_function" for node in given.graph.nodes)
    return Found(*_compared(converter, made, given, program, model, args), calls, round(seconds, 3))


Handed = tuple[Any, ExportedProgram]


def _as_exported(converter: Converter, program: ExportedProgram) -> Handed:
    return converter.convert(program), program


def _decomposed(converter: Converter, program: ExportedProgram) -> Handed:
    program = program.run_decompositions()
    return converter.convert(program), program


def _lowered(converter: Converter, program: ExportedProgram) -> Handed:
    found = conversion(program, converter, None, None, None, None, False, {"verify": False})
    return found.result, found.lowering.result


HANDED = {"exported": _as_exported, "decomposed": _decomposed, "lowered": _lowered}


def _compared(
    converter: Converter,
    made: Any,
    given: ExportedProgram,
    captured: ExportedProgram,
    model: nn.Module,
    args: tuple[Any, ...],
) -> tuple[str, str]:
    """The verdict, and the first line of what differs. Where the exported program computes something else than the
    model, it is the source."""
    if converter.run is None:
        return CONVERTED, ""
    results = Results(given, converter.run(made, pytree.tensors_in(args)))
    found = _verdict(model, results, given, args)
    if found[0] == WRONG:
        try:
            require_as_captured(model, captured, args, {})
        except CaptureDiffers:
            verdict, text = _verdict(captured, results, given, args)
            return verdict, text or CAPTURED_OTHERWISE
    return found


CAPTURED_OTHERWISE = "compared with the exported program, which computes something else than the model"


def _verdict(source: Any, results: Results, given: ExportedProgram, args: tuple[Any, ...]) -> tuple[str, str]:
    try:
        said = whole_programs(source, results, args, {}, gradients=False, drawn=drawn_values(source, given))
    except decomp.VerificationError as error:
        return WRONG, first_line(error).removeprefix("result of the lowered program differs: it ")
    except (RuntimeError, ValueError, IndexError) as error:  # other results, or other numbers of them
        return WRONG, first_line(error)
    return (RANDOM, "all results depend on random numbers") if said == NOT_COMPARED else (RIGHT, "")


def _line(error: BaseException) -> str:
    """The last line of a message, where converters say what failed; the first, if what follows is PyTorch's account of
    the node that it was at."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    return lines[0 if any(line.startswith("While executing") for line in lines) else -1][:160]


def tried(
    converter: str,
    module: str,
    kind: str,
    name: str,
    timeout: float = TIMEOUT,
    ways: Sequence[str] = WAYS,
    conversions: int = 1,
) -> dict[str, Any]:
    """The fields of a program's row for some ways, each a job in another process, so that a crash or a hang is an
    answer."""
    fields: dict[str, Any] = {"name": name, "kind": kind, "conversions": conversions}
    for way in ways:
        answer = run_in_process(ProgramTrial(converter, module, kind, name, way, conversions), timeout)
        found = Found(CRASHES, str(answer)) if isinstance(answer, Failed) else answer
        fields |= {way: found.verdict, f"{way}_text": without_folders(found.text), f"{way}_seconds": found.seconds}
        fields |= {CALLS[way]: found.calls} if way in CALLS else {}
    return fields


def without_folders(text: str) -> str:
    """A message with the name of a file in the place of its whole path, which is this machine's alone."""
    return re.sub(r"(?<![\w/.])/(?:[\w.+-]+/)+(?=[\w.+-])", "", text)


CALLS = {"exported": "calls", "lowered": "lowered_calls"}
"""The fields with the number of calls."""


def record(
    path: Path,
    key: str,
    facts: Mapping[str, str],
    names: Sequence[str],
    again: Sequence[str],
    jobs: Sequence[tuple[str, str]],
    run: Callable[[str, str], dict[str, Any]],
) -> None:
    """Complete the rows of `names` in the record `key` of a file: for each name and way of `jobs`, `run(name, way)`
    gives these fields of the row. What is there is kept, if it was made with the same `facts`, except the rows of
    `again`, which alone are made where there are any. Each is written as it is found."""
    old = recorded(path).get(key, {})
    is_same = all(old.get(fact) == value for fact, value in facts.items())
    rows = {row["name"]: row for row in old.get("rows", ()) if is_same}
    missing = [(name, way) for name, way in jobs if (name in again if again else not rows.get(name, {}).get(way))]
    kept = {name: rows.get(name, {}) for name, _ in missing if name not in again}
    with progressing() as report:
        for done, (name, way) in enumerate(missing, 1):
            rows[name] = kept[name] = kept.get(name, {}) | run(name, way)
            ordered = [rows[each] for each in names if each in rows]
            made = {**facts, "date": date.today().isoformat(), "rows": ordered}
            with write_atomically(path) as unfinished:
                unfinished.write_text(one_row_a_line(recorded(path) | {key: made}), encoding="utf-8")
            report(done, len(missing), f"{name}, {way}: {rows[name][way]}")


def recorded(path: Path) -> dict[str, Any]:
    """The records of a file, by converter; none if there is no file."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def counts(verdicts: Sequence[str]) -> str:
    """How many are right, wrong and refused, as cells of a table."""
    if not any(verdicts):
        return "– | – | –"
    refused = sum(verdict in (REFUSED, CRASHES) for verdict in verdicts)
    if CONVERTED in verdicts:
        return f"{verdicts.count(CONVERTED)} converted | – | {refused}"
    drawn = f" and {verdicts.count(RANDOM)} random" if RANDOM in verdicts else ""
    return f"{verdicts.count(RIGHT)}{drawn} | {verdicts.count(WRONG)} | {refused}"
