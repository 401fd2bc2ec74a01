"""The columns "compiled" and "flushed" of committed certificates: which implementations have or lack them, and how they
are measured, for many at a time, in a separate process. Nothing else in a certificate is changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

from decomp.jobs import Failed, answers, run_in_process, within
from decomp.rules.accuracy import DEFAULT, LEVELS
from decomp.rules.certificate import AS_WRITTEN, NOT_COMPILED, Certificate, Implementation
from decomp.tools.certification.jobs import rule_named, target_named
from decomp.tools.measurement.as_compiled import columns
from decomp.tools.measurement.measuring import flushed_verdicts

TARGETS = ("tinygrad", "luminal")
"""The targets whose programs are compiled. For the ops of `core_aten`, Inductor has decompositions of its own."""
MOST_CALLS = 250
"""A program with more calls is not compiled: it would take g++ minutes. One in twenty is such a program."""
WAYS, CALLS = 32, 900
"""The most implementations, and the most calls of their programs, in one job."""
TIMEOUT = 1200.0
"""The time limit of a job in seconds."""

ColumnKey = tuple[str, str, str]
"""The identity of a rule, a target, a level."""
Columns = dict[ColumnKey, tuple[dict[str, str], tuple[str, ...]]]
"""Verdicts by dtype and the fingerprints of the programs."""


def compilable(certificate: Certificate) -> list[Implementation]:
    """The implementations that have the column: those of each target's default lowering."""
    level = max(DEFAULT, certificate.level, key=LEVELS.index)
    found = [way for name in TARGETS if (way := certificate.way(name, level)) is not None]
    return [way for way in found if way.verdict == "measured"]


def uncompiled(certificate: Certificate) -> bool:
    """Whether an implementation lacks the column, or its rules changed since."""
    return any(not way.compiled for way in compilable(certificate))


def with_columns(
    certificates: Sequence[Certificate], executor: Executor | None = None, timeout: float | None = None, seed: int = 0
) -> Iterator[list[Certificate]]:
    """The certificates with their columns measured again, job by job, the cheapest programs first; over an executor, or
    one job after the other."""
    batches = list(_batches(sorted(certificates, key=_cost)))
    jobs = [ColumnJob(tuple(_places(batch)), timeout or TIMEOUT, seed) for batch in batches]
    asked = {id(job): batch for job, batch in zip(jobs, batches)}
    for job, found in answers(jobs, executor or 1, find_in_process):
        yield [_completed(each, {} if isinstance(found, Failed) else found) for each in asked[id(job)]]


@dataclass(frozen=True)
class ColumnJob:
    """The columns of some implementations, to be measured in another process."""

    ways: tuple[ColumnKey, ...]
    timeout: float = TIMEOUT
    seed: int = 0

    def run(self) -> Columns:
        """Compile and compare. Raises `LookupError` for an unknown rule or target."""
        ways = [(rule_named(rule)[0], target_named(target), level) for rule, target, level in self.ways]
        found = zip(self.ways, columns(ways, MOST_CALLS, self.seed))
        return {way: (column.verdicts, column.programs) for way, column in found}


def find_in_process(job: ColumnJob) -> Columns:
    """The result of a job run in a process of its own. A job that crashes or hangs is split in halves, down to the
    implementation at fault."""
    if not job.ways:
        return {}
    answer: Columns | Failed = run_in_process(job, job.timeout)
    if not isinstance(answer, Failed):
        return answer
    if len(job.ways) == 1:
        said = answer if answer.startswith("crashes") else f"{NOT_COMPILED}: {answer[:160]}"
        return {job.ways[0]: ({"all": said}, ())}
    middle = len(job.ways) // 2
    first, second = (replace(job, ways=half) for half in (job.ways[:middle], job.ways[middle:]))
    return find_in_process(first) | find_in_process(second)


def _batches(certificates: Sequence[Certificate]) -> Iterator[list[Certificate]]:
    batch: list[Certificate] = []
    ways, calls = 0, 0.0
    for each in certificates:
        cost = _cost(each)
        count = len(list(_places([each])))
        if batch and (ways + count > WAYS or calls + cost > CALLS):
            yield batch
            batch, ways, calls = [], 0, 0.0
        batch.append(each)
        ways, calls = ways + count, calls + cost
    if batch:
        yield batch


def _cost(certificate: Certificate) -> float:
    """The number of calls of the programs to compile."""
    return sum(way.cost.get("calls", 0.0) for way in compilable(certificate) if not _too_large(way))


def _places(batch: Sequence[Certificate]) -> Iterator[ColumnKey]:
    return ((each.rule, way.name, way.level) for each in batch for way in compilable(each) if not _too_large(way))


def _too_large(way: Implementation) -> str:
    """The verdict on a program that is too large to compile; empty for others."""
    calls = way.cost.get("calls", 0.0)
    return f"{NOT_COMPILED}: {calls:,g} calls, more than {MOST_CALLS}" if calls > MOST_CALLS else ""


def _completed(certificate: Certificate, found: Columns) -> Certificate:
    large = [way for way in compilable(certificate) if _too_large(way)]

    def completed(way: Implementation) -> Implementation:
        answer = found.get((certificate.rule, way.name, way.level))
        if answer is None and way in large:
            return replace(way, compiled={"all": _too_large(way)}, programs=())
        return way if answer is None else replace(way, compiled=answer[0], programs=answer[1])

    return replace(certificate, ways=tuple(map(completed, certificate.ways)))


# flushed


def unflushed(certificate: Certificate) -> bool:
    """Whether no implementation has the column, although there are results in float32."""
    ways = list(_measured(certificate))
    return bool(ways) and not any(way.flushed for way in ways) and any("float32" in way.values for way in ways)


def with_flushed(
    certificates: Sequence[Certificate], executor: Executor | None = None, timeout: float | None = None, seed: int = 0
) -> Iterator[list[Certificate]]:
    """The certificates with their columns measured again, some at a time; over an executor, or in one process. One
    whose rule hangs or crashes is returned unchanged."""
    jobs = [FlushedJob(one.rule, tuple((w.name, w.level) for w in _measured(one)), seed) for one in certificates]
    asked, batch = {one.rule: one for one in certificates}, list[Certificate]()
    for job, answer in answers(jobs, executor or 1, within(timeout)):
        batch.append(asked[job.rule] if isinstance(answer, Failed) else asked[job.rule].with_flushed(answer))
        if len(batch) == WAYS:
            yield batch
            batch = []
    if batch:
        yield batch


@dataclass(frozen=True)
class FlushedJob:
    """The columns of some implementations of a rule, by name and level, to be measured in another process."""

    rule: str
    ways: tuple[tuple[str, str], ...]
    seed: int = 0

    def run(self) -> dict[tuple[str, str], dict[str, str]]:
        """Run them with and without flushing. Raises `LookupError` for an unknown rule or target."""
        ways = [(None if name == AS_WRITTEN else target_named(name), level) for name, level in self.ways]
        found = flushed_verdicts(rule_named(self.rule)[0], ways, self.seed)
        return dict(zip(self.ways, found))


def _measured(certificate: Certificate) -> Iterator[Implementation]:
    return (way for way in certificate.ways if way.verdict == "measured")
