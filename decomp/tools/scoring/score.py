"""The structural score of a target: how many ops of the table of sample calls reach it, how many of the calls that real
models make, and how many sample models. No hardware takes part, and nothing in it depends on the machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from decomp.errors import NotLowered, UnknownOp
from decomp.files import write_atomically
from decomp.ir.ops import op as op_of
from decomp.jobs import NO_PROGRESS, Failed, Progress, answers, can_travel, within
from decomp.lowering import lower
from decomp.tools.measurement.trials import silenced
from decomp.tools.proving.proving import Asked
from decomp.tools.proving.records import TargetProof
from decomp.tools.writing import one_row_a_line, read_record
from decomp_rules import samples
from decomp_rules.samples.in_models import ops_in_models

KIND, FORMAT = "decomp score", 1
TIMEOUT = 600.0
"""Seconds that a model may take."""


@dataclass(frozen=True, slots=True)
class Lack:
    """What the target would have to add, and what it would gain."""

    add: tuple[str, ...]
    """The smallest set of ops, or nothing if only a reason is known."""
    gain: int
    """How much more would be reached, in the unit of the figure."""
    of: tuple[str, ...]
    """The ops or models that wait for it."""


@dataclass(frozen=True)
class Figure:
    """One figure of a score."""

    name: str
    unit: str
    """What is counted."""
    reached: int
    total: int
    lacks: tuple[Lack, ...] = ()
    """What is not reached, that with most gain first; what no op is known to help comes last."""
    untried: tuple[str, ...] = ()
    """What is not counted, as there is no sample call of it."""

    @property
    def share(self) -> float:
        """From 0 to 1."""
        return self.reached / self.total if self.total else 0.0


@dataclass(frozen=True)
class TargetScore:
    """The score of a target."""

    target: str
    versions: Mapping[str, str]
    """Of PyTorch and this package."""
    derivation: Mapping[str, int]
    """How many sample calls are legal, derived, blocked and refused."""
    figures: tuple[Figure, ...]

    @property
    def value(self) -> float:
        """The mean of the figures, from 0 to 100."""
        return 100.0 * sum(each.share for each in self.figures) / len(self.figures) if self.figures else 0.0

    @property
    def headline(self) -> str:
        """`tinygrad: 98.3 of 100, structural`."""
        return f"{self.target}: {self.value:.1f} of 100, structural"

    def as_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        return {"score": round(self.value, 1), **asdict(self)}

    def save(self, path: Path) -> None:
        """Write as JSON. Raises `OSError`."""
        with write_atomically(path) as unfinished:
            text = one_row_a_line({"kind": KIND, "format": FORMAT, **self.as_dict()})
            unfinished.write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> TargetScore:
        """Read what `save` wrote. Raises `ArgumentError`, which names the file, and `OSError`."""
        return read_record(path, KIND, FORMAT, "score", "make it by decomp score TARGET -o FILE.json", _read)


def _read(data: Mapping[str, Any]) -> TargetScore:
    figures = []
    for each in data["figures"]:
        lacks = tuple(Lack(tuple(one["add"]), one["gain"], tuple(one["of"])) for one in each["lacks"])
        figures.append(Figure(**{**each, "lacks": lacks, "untried": tuple(each["untried"])}))
    return TargetScore(data["target"], data["versions"], data["derivation"], tuple(figures))


def score(
    proof: TargetProof,
    asked: Callable[[], Asked],
    *,
    models: Sequence[str] = tuple(samples.MODELS),
    executor: Executor | int | None = None,
    timeout: float | None = None,
    progress: Progress = NO_PROGRESS,
) -> TargetScore:
    """The score of a target, from its proof. `asked` makes target and options, here and in other processes; `models`
    are names of sample models, which are lowered."""
    jobs = [ModelJob(name, asked) for name in models]
    away = jobs if not jobs or can_travel(jobs[0]) else []
    here = ((job, job.run()) for job in jobs if job not in away)
    found: dict[str, tuple[str, ...] | None] = {}
    for job, answer in answers(away, executor, within(timeout or TIMEOUT), here):
        found[job.name] = () if isinstance(answer, Failed) else answer
        progress(len(found), len(jobs), job.name)
    # What follows a "+" is the build, for a CPU or for a version of CUDA.
    versions = {name: str(proof.header.get(name, "?")).partition("+")[0] for name in ("torch", "decomp")}
    figures = (of_ops(proof), of_calls_in_models(proof), _of_models({name: found[name] for name in models}))
    return TargetScore(proof.target, versions, proof.counts(), figures)


def of_ops(proof: TargetProof) -> Figure:
    """The ops of the table: each counts if all its sample calls reach the target."""
    tried = [op for op, calls in proof.ops.items() if calls] + list(proof.lost)
    waiting: dict[tuple[str, ...], list[str]] = {}
    reached = {*proof.reached}
    for op in tried:
        if op not in reached:
            waiting.setdefault(_needs(proof, op), []).append(op)
    lacks = [Lack(add, len(ops), tuple(ops)) for add, ops in waiting.items()]
    return Figure(
        "ops", "ops of the table of sample calls", len(reached), len(tried), _ordered(lacks), tuple(proof.untried)
    )


def _needs(proof: TargetProof, op: str) -> tuple[str, ...]:
    """All that the calls of an op wait for; nothing if that is unknown for one of them."""
    sets = [call.needs[0] if call.needs else () for call in proof.ops.get(op, ()) if not call.is_reached]
    return tuple(sorted({each for needs in sets for each in needs})) if sets and all(sets) else ()


def of_calls_in_models(proof: TargetProof) -> Figure:
    """The calls that about 100 real models make: those of an overload count if its sample calls reach the target; if it
    has none, those of its op, and for a call in place, those of the op that returns a new tensor."""
    waiting: Counter[tuple[tuple[str, ...], str]] = Counter()
    reached = total = 0
    untried = []
    for row in ops_in_models():
        op = _op_in(proof, row.op)
        if op is None:
            untried.append(row.op)
            continue
        calls = proof.ops[op]
        own = [call for call in calls if call.call.startswith(f"{row.op}(")] or calls
        total += row.calls
        if all(call.is_reached for call in own):
            reached += row.calls
        else:
            waiting[_needs(proof, op), op] += row.calls
    groups: dict[tuple[str, ...], list[tuple[str, int]]] = {}
    for (add, op), count in waiting.items():
        groups.setdefault(add, []).append((op, count))
    lacks = [Lack(add, sum(n for _, n in ops), tuple(op for op, _ in ops)) for add, ops in groups.items()]
    return Figure("calls", "calls of about 100 real models", reached, total, _ordered(lacks), tuple(untried))


def _op_in(proof: TargetProof, overload: str) -> str | None:
    """The op of an overload that the proof has sample calls of; None if it has none."""
    try:
        name = str(op_of(overload.rpartition(".")[0]))
    except UnknownOp:  # another version of PyTorch has it
        return None
    return name if proof.ops.get(name) else None


def _of_models(found: Mapping[str, tuple[str, ...] | None]) -> Figure:
    waiting: dict[tuple[str, ...], list[str]] = {}
    for name, needs in found.items():
        if needs is not None:
            waiting.setdefault(needs, []).append(name)
    lacks = [Lack(add, len(names), tuple(names)) for add, names in waiting.items()]
    reached = len(found) - sum(map(len, waiting.values()))
    return Figure("models", "sample models", reached, len(found), _ordered(lacks))


def _ordered(lacks: Sequence[Lack]) -> tuple[Lack, ...]:
    return tuple(sorted(lacks, key=lambda lack: (not lack.add, -lack.gain, lack.add, lack.of)))


@dataclass(frozen=True)
class ModelJob:
    """One sample model to lower, in another process."""

    name: str
    asked: Callable[[], Asked]

    def run(self) -> tuple[str, ...] | None:
        """None if it lowers; otherwise the ops that it needs, or nothing if these are unknown."""
        target, options = self.asked()
        module, args = samples.model(self.name)
        kwargs = args if isinstance(args, dict) else None
        try:
            with silenced(), torch.random.fork_rng(devices=[]):
                lower(module, to=target, args=None if kwargs else args, kwargs=kwargs, options=options, verify=False)
        except NotLowered as error:
            found = error.suggestion()
            return found.ops + found.dtypes if found is not None and not found.out_of_reach else ()
        except Exception:  # a capture or a rule may raise anything
            return ()
        return None
