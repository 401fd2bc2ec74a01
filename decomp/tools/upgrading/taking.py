"""Taking a snapshot: an op at a time in processes of their own, so that a kernel that crashes costs one op, and the
models in this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
from dataclasses import dataclass, field, replace
import functools
from importlib import metadata
import platform
from typing import Any

import torch

from decomp.advice.jobs import Setting
from decomp.costs.machine import describe_machine
from decomp.ir.ops import op as op_of, resolve
from decomp.jobs import NO_PROGRESS, Failed, Progress, answers, within
from decomp.rules.library import library, samples as library_samples
from decomp.samples import Sample
from decomp.tools.upgrading.kernels import behaviours, numbers_of
from decomp.tools.upgrading.reaching import model_record, reached
from decomp.tools.upgrading.records import KINDS, TIMEOUT, CallRecord, ModelRecord, VersionRecord
from decomp.torch_internals.schemas import lacking_ops


@dataclass(frozen=True)
class OpRecord:
    """The calls of one op, and the points that they were tried on."""

    calls: tuple[CallRecord, ...]
    points: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class OpJob:
    """One op to record, in another process, which builds `setting` again."""

    op: str
    setting: Callable[[], Setting]
    kinds: tuple[str, ...] = KINDS

    def run(self) -> OpRecord:
        """Look at its sample calls."""
        library()  # which registers what is not PyTorch's from the start, as the ops of quantised programs
        points: dict[str, tuple[str, ...]] = {}
        with torch.random.fork_rng(devices=[]):
            return OpRecord(tuple(self._call(each, points) for each in calls_of(self.op)), points)

    def _call(self, sample: Sample, points: dict[str, tuple[str, ...]]) -> CallRecord:
        derives = "derivations" in self.kinds
        record = reached(sample, _made(self.setting)) if derives else CallRecord(str(sample))
        found = behaviours(sample, points) if "kernels" in self.kinds else {}
        draws = torch.Tag.nondeterministic_seeded in sample.tags
        return replace(record, numbers=numbers_of(sample), draws=draws, behaviours=found)


@functools.cache
def _made(setting: Callable[[], Setting]) -> Setting:
    """Made once in each process."""
    return setting()


def calls_of(name: str) -> tuple[Sample, ...]:
    """The library's sample calls of an op, and those at the edges of what it defines."""
    samples = library_samples()
    if name in samples.FUNCTIONS:
        found: tuple[Sample, ...] = samples.calls_of(name)
        return found
    packet = op_of(name).packet
    return (*samples.calls_of(packet), *samples.edges_of(packet)) if packet is not None else ()


def ops_of(setting: Setting) -> list[str]:
    """The ops that a snapshot is of: those of the rules, and the target's own."""
    names = {str(rule.op): rule.op for rule in setting.matching.rules}
    names.update((str(op), op) for op in (resolve(each).op for each in setting.matching.target))
    return sorted(name for name, op in names.items() if op.packet is not None or calls_of(name))


def take(
    setting: Callable[[], Setting],
    models: Mapping[str, Callable[[], Any]],
    *,
    ops: Sequence[str] | None = None,
    kinds: Sequence[str] = KINDS,
    workers: int | None = None,
    timeout: float = TIMEOUT,
    asked: Mapping[str, Any] | None = None,
    progress: Progress = NO_PROGRESS,
) -> VersionRecord:
    """A snapshot of the installed PyTorch.

    `setting` makes target, rules and options, here and in other processes; `models` make `ExportedProgram`s, by name.
    `ops`: those to look at, in any spelling; by default all of the rules and of the target. `kinds`: which of `KINDS`.
    `workers`: processes, by default one a core. `timeout`: seconds that an op may take. `asked`: for the header.
    Raises `UnknownOp`."""
    made = setting()
    names = ops_of(made) if ops is None else sorted({str(op_of(each)) for each in ops})
    names = names if {"derivations", "kernels"} & {*kinds} else []
    models = models if "models" in kinds else {}
    total, found, lost = len(names) + len(models), {}, {}
    points: dict[str, tuple[str, ...]] = {}
    jobs = [OpJob(name, setting, tuple(kinds)) for name in names]
    with _one_thread():
        for done, (job, answer) in enumerate(answers(jobs, workers, within(timeout)), 1):
            if isinstance(answer, Failed):
                lost[job.op] = str(answer)
            else:
                found[job.op] = answer.calls
                points.update(answer.points)
            progress(done, total, job.op)
        lowered: dict[str, ModelRecord] = {}
        for done, (name, make) in enumerate(models.items(), len(names) + 1):
            progress(done - 1, total, name)
            lowered[name] = model_record(make, made)
    return VersionRecord(
        {**_header(), **(asked or {})},
        made.matching.target.name,
        dict(made.matching.target.conditions()),
        tuple(lacking_ops()),
        dict(sorted(found.items())),
        dict(sorted(lost.items())),
        lowered,
        dict(sorted(points.items())),
    )


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Sums are added in the same order on every machine."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)


def _header() -> dict[str, Any]:
    machine = describe_machine(torch.device("cpu"))
    try:
        version = metadata.version("decomp")
    except metadata.PackageNotFoundError:
        version = "?"
    kept = {name: machine[name] for name in ("processor", "vectors", "system")}
    return {"torch": torch.__version__, "decomp": version, "python": platform.python_version(), **kept}
