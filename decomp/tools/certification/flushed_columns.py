"""The column "flushed" of committed certificates, found for many rules without measuring anything else: which
certificates lack it, and jobs that find it in processes apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from decomp.tools.certification.certificate import AS_WRITTEN, Certificate, Way
from decomp.tools.certification.isolation import answered_apart, stop
from decomp.tools.certification.jobs import rule_named, target_named
from decomp.tools.measurement.measuring import flushed_verdicts

TOGETHER = 32
"""So many certificates are returned, and committed, at a time."""


def lacking(certificate: Certificate) -> bool:
    """Whether no way has the column, though there are results in float32 that it is about."""
    ways = list(_measured(certificate))
    return bool(ways) and not any(way.flushed for way in ways) and any("float32" in way.values for way in ways)


def with_columns(
    certificates: Sequence[Certificate], executor: Executor | None = None, timeout: float | None = None, seed: int = 0
) -> Iterator[list[Certificate]]:
    """The certificates with their columns found anew, some at a time; over an executor, or in one process. One whose
    rule hangs or crashes is returned as it is."""
    if executor is None:
        with ThreadPoolExecutor(1) as thread:
            yield from with_columns(certificates, thread, timeout, seed)
        return
    jobs = [FlushedJob(one.rule, tuple((w.name, w.level) for w in _measured(one)), seed) for one in certificates]
    waiting = [executor.submit(answered_apart, job, timeout) for job in jobs]
    try:
        for start in range(0, len(certificates), TOGETHER):
            pairs = zip(certificates[start : start + TOGETHER], waiting[start:])
            yield [_completed(certificate, future.result()) for certificate, future in pairs]
    except BaseException:  # an interrupt, above all: stop the rest
        stop(waiting)
        raise


@dataclass(frozen=True)
class FlushedJob:
    """The columns of some ways of a rule, each a name and a level, to be found in another process."""

    rule: str
    ways: tuple[tuple[str, str], ...]
    seed: int = 0

    def run(self) -> FlushedColumns:
        """Run them with and without flushing. Raises `LookupError` where the rule or a target is not found."""
        ways = [(None if name == AS_WRITTEN else target_named(name), level) for name, level in self.ways]
        found = flushed_verdicts(rule_named(self.rule)[0], ways, self.seed)
        return FlushedColumns(dict(zip(self.ways, found)))


@dataclass(frozen=True)
class FlushedColumns:
    """What a job found."""

    found: dict[tuple[str, str], dict[str, str]]

    def to_json(self) -> dict[str, Any]:
        """By name and level, verdicts by dtype."""
        return {"\n".join(place): verdicts for place, verdicts in self.found.items()}


def _completed(certificate: Certificate, answer: dict[str, Any] | str) -> Certificate:
    if isinstance(answer, str):
        return certificate
    split = ((place.partition("\n"), verdicts) for place, verdicts in answer.items())
    return certificate.with_flushed({(name, level): verdicts for (name, _, level), verdicts in split})


def _measured(certificate: Certificate) -> Iterator[Way]:
    return (way for way in certificate.ways if way.verdict == "measured")
