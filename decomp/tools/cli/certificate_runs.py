"""Measurements that `decomp certify` asks for: certificates of rules, or one column of those that are committed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import decomp
from decomp.tools.certification import certificates, compiled_columns
from decomp.tools.certification.certifying import levels_of
from decomp.tools.cli.arguments import load_target
from decomp.tools.cli.executors import chosen_executor
from decomp.tools.cli.terminal import progressing
from decomp.tools.measurement.joint_graphs import require_compiler

Certificates = list[decomp.results.Certificate]


@dataclass(frozen=True)
class CertificateRun:
    """How rules are measured."""

    to: Sequence[str]
    """The targets, as given on the command line."""
    accuracy: Sequence[str]
    """The levels; none: the rule's own and looser ones."""
    workers: int | None
    executor: str | None
    timeout: float | None
    seed: int

    @property
    def targets(self) -> list[decomp.Target]:
        """The targets. Raises `Unusable`."""
        return [load_target(each) for each in self.to]

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels, from the strictest. Raises `ArgumentError`."""
        return levels_of(self.accuracy or None)

    def measure(self, rules: Sequence[decomp.Rule]) -> Certificates:
        """The certificates of rules."""
        targets = self.targets
        with chosen_executor(self.executor, self.workers) as pool:
            found = decomp.certify(
                rules,
                to=targets,
                accuracy=self.accuracy or None,
                seed=self.seed,
                executor=pool,
                timeout=self.timeout,
            )
        return list(found.values()) if isinstance(found, decomp.results.Certificates) else [found]

    def measure_column(self, of_compiled: bool, asked: Certificates, stale: bool, update: bool) -> Certificates:
        """Committed certificates with the column "compiled", or else "flushed", measured again; with `stale` only those
        that lack it. `update`: write each."""
        if of_compiled:
            require_compiler()
        lacking = compiled_columns.uncompiled if of_compiled else compiled_columns.unflushed
        with_column = compiled_columns.with_columns if of_compiled else compiled_columns.with_flushed
        asked = [one for one in asked if not stale or lacking(one)]
        with chosen_executor(self.executor, self.workers) as pool:
            return _with_columns(with_column(asked, pool, self.timeout, self.seed), len(asked), update)


def _with_columns(batches: Iterator[Certificates], count: int, update: bool) -> Certificates:
    """Certificates with one column measured again. Each is written when it is done, so that an interruption loses only
    the running ones."""
    found: Certificates = []
    with progressing() as report:
        for batch in batches:
            found += batch
            report(len(found), count, batch[-1].rule)
            if update:
                certificates.commit(batch)
    return found
