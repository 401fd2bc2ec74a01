"""Makes the target of a converter: asks it about every op that there are sample calls of, and writes a target's file
with the calls that it converts and computes right, under conditions where those are not all calls of an op, and with
the reasons of those that are left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
import json
from typing import Any

import torch

from decomp.errors import ArgumentError, count_noun
from decomp.ir.dtypes import KINDS, unknown_in
from decomp.jobs import NO_PROGRESS, Progress, Threads
from decomp.tools.converting.asking import (
    AskedCall,
    ask,
    overload_named,
    overloads_to_ask,
)
from decomp.tools.converting.conditions import FileCondition, conditions_of
from decomp.tools.converting.converter import Converter
from decomp_rules.samples.in_models import ops_in_models

GROUP = 8
"""How many overloads are asked at once."""
_NO_RULE = "its registry does not have it"


@dataclass(frozen=True)
class ProbedOp:
    """What a converter does with the calls of one overload."""

    name: str
    """As `topk.default`."""
    calls: tuple[AskedCall, ...]
    conditions: tuple[FileCondition, ...] = ()
    problem: str = ""
    """Why the target does not have it; empty if it does."""

    @property
    def legal(self) -> bool:
        """Whether the target has it."""
        return not self.problem


@dataclass(frozen=True)
class Probe:
    """The answers of one version of a converter."""

    converter: str
    version: str
    ops: tuple[ProbedOp, ...]
    dtypes: tuple[str, ...]
    asked: tuple[str, ...] = ()
    """The dtypes that it was asked in; empty for all."""
    was_run: bool = True
    """Whether there is a runtime, by which it is known that the results are right."""

    @property
    def headline(self) -> str:
        """`openvino 2026.4.1 on torch 2.13.0 takes 300 of 800 overloads, 40 of them under conditions`."""
        legal = [op for op in self.ops if op.legal]
        some = sum(bool(op.conditions) for op in legal)
        torch_version = torch.__version__.partition("+")[0]
        return (
            f"{self.converter} {self.version} on torch {torch_version} converts {len(legal)} of "
            f"{count_noun(len(self.ops), 'overload')}{' and computes them right' * self.was_run}, "
            f"{some} of them under conditions{', and was not run' * (not self.was_run)}"
            f"{'; asked in ' * bool(self.asked)}{', '.join(self.asked)}"
        )

    def as_toml(self) -> str:
        """The file of the target."""
        return "\n".join(_lines(self))


def probe(
    converter: Converter,
    overloads: Iterable[str] | None = None,
    workers: int = 1,
    progress: Progress = NO_PROGRESS,
    dtypes: Sequence[str] = (),
) -> Probe:
    """Ask a converter about overloads, as `aten.topk.default`, by default all that the library has sample calls of, in
    dtypes, as `float32` or `integer`, by default in all. Raises `ArgumentError` for an unknown dtype, and
    `ConversionError` if the converter is not installed."""
    unknown = unknown_in(dtypes)
    if unknown is not None:
        raise ArgumentError(f"unknown dtype {unknown!r}; known are {', '.join(KINDS)}, and names as float32")
    version = converter.require()
    names = list(overloads) if overloads is not None else [str(each) for each in overloads_to_ask()]
    lacking = _lacking(converter, names)
    with Threads(workers) as threads:
        groups = _in_groups([name for name in names if name not in lacking], GROUP)
        found: dict[str, list[AskedCall]] = {}
        for done, answers in enumerate(threads.map(lambda group: ask(converter, group, dtypes=dtypes), groups), 1):
            for call in answers:
                found.setdefault(call.overload, []).append(call)
            progress(done, len(groups), groups[done - 1][-1])
    taken = _dtypes(found.values())
    ops = [_probed(name, found.get(name, []), name in lacking, taken) for name in names]
    probed = tuple(op for op in ops if op is not None)
    return Probe(converter.name, version, probed, taken, tuple(dtypes), converter.run is not None)


def _lacking(converter: Converter, names: Sequence[str]) -> set[str]:
    """The overloads that are not asked about: those that its registry does not have, unless models call them and
    PyTorch itself makes others of them, which converters let it do. None if there is no registry."""
    known = set(converter.registry()) if converter.registry is not None else set()
    if not known:
        return set()
    counted = {each.op for each in ops_in_models()}
    return {name for name in names if name not in known and not (name in counted and _is_composite(name))}


def _is_composite(name: str) -> bool:
    return bool(overload_named(name)._can_decompose())


def _in_groups(names: Sequence[str], size: int) -> list[list[str]]:
    return [list(names[i : i + size]) for i in range(0, len(names), size)]


def _dtypes(calls: Iterable[Sequence[AskedCall]]) -> tuple[str, ...]:
    """The dtypes in which at least half of the ops are right that are right in some dtype. No complex ones, in which
    few ops are asked: without them complex numbers become pairs of real ones."""
    asked: dict[str, list[bool]] = {}
    for some in calls:
        if not any(call.verdict == "right" for call in some):
            continue
        by_dtype: dict[str, list[bool]] = {}
        for call in some:
            is_real = len(call.dtypes) == 1 and not call.dtypes[0].startswith("complex")
            if is_real and call.verdict != "not exported":
                by_dtype.setdefault(call.dtypes[0], []).append(call.verdict == "right")
        for dtype, answers in by_dtype.items():
            asked.setdefault(dtype, []).append(any(answers))
    return tuple(sorted(dtype for dtype, answers in asked.items() if 2 * sum(answers) >= len(answers)))


def _probed(name: str, calls: Sequence[AskedCall], lacking: bool, dtypes: Sequence[str]) -> ProbedOp | None:
    """None for an op that no exported program calls."""
    short = name.partition(".")[2]
    if lacking:
        return ProbedOp(short, (), problem=f"refused: {_NO_RULE}")
    if not calls:
        return ProbedOp(short, (), problem="not asked: it has no sample call that runs here")
    calls = [call for call in calls if call.verdict != "not exported"]
    calls = [call for call in calls if all(dtype in dtypes for dtype in call.dtypes)]
    if not calls:
        return None
    wrong = [call for call in calls if call.verdict != "right"]
    conditions = conditions_of(calls) if len(wrong) < len(calls) else None
    if conditions is not None:
        return ProbedOp(short, tuple(calls), tuple(conditions))
    first = wrong[0]
    return ProbedOp(short, tuple(calls), problem=f"{first.verdict}: {first.text}, in {first.call}")


# The file.


def _lines(probe: Probe) -> Iterable[str]:
    legal, others = ([op for op in probe.ops if op.legal is which] for which in (True, False))
    unknown = [op.name for op in others if _NO_RULE in op.problem]
    yield f"# Made by `decomp probe {probe.converter}`; not edited by hand. At its end is what is left out, and why."
    yield f"name = {_quoted(probe.converter)}"
    yield f"description = {_quoted(probe.headline)}"
    yield "ops = ["
    yield from _wrapped(_quoted(op.name) for op in legal)
    yield "]"
    yield f"dtypes = [{', '.join(map(_quoted, probe.dtypes))}]"
    for condition, names in _shared(legal):
        yield ""
        yield "[[when]]"
        ops = [_quoted(name) for name in names]
        yield from [f"op = {ops[0]}"] if len(ops) == 1 else ["op = [", *_wrapped(ops), "]"]
        if condition.argument is not None:
            yield f"argument = {_quoted(condition.argument)}"
        yield f"{condition.check} = {_value(condition.value)}"
    some = [op for op in others if _NO_RULE not in op.problem]
    if some:
        yield ""
        yield "# Left out, as calls that it converts are wrong, or are refused for a reason that no condition states:"
        yield from (f"# {op.name}: {' '.join(op.problem.split())}"[:200] for op in some)
    if unknown:
        yield ""
        yield f"# Left out, as it has no rule for them ({len(unknown)}):"
        yield from (f"#{line[3:]}" for line in _wrapped(unknown))


def _shared(ops: Sequence[ProbedOp]) -> list[tuple[FileCondition, list[str]]]:
    """Each condition with the ops that have it."""
    found: dict[str, tuple[FileCondition, list[str]]] = {}
    for op in ops:
        for condition in op.conditions:
            found.setdefault(repr(condition), (condition, []))[1].append(op.name)
    return list(found.values())


def _wrapped(words: Iterable[str]) -> Iterable[str]:
    """Lines of at most 110 characters, indented by four."""
    line = "   "
    for word in words:
        if len(line) + len(word) > 108:
            yield line
            line = "   "
        line += f" {word},"
    if line.strip():
        yield line


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return _quoted(value) if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else repr(value)
