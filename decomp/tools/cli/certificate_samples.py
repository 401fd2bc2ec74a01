"""`decomp certify --sample`: some rules, drawn by a seed, measured with the installed PyTorch and compared with their
committed certificates, which are of one version."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
import contextlib
from dataclasses import dataclass, replace
import os
import random
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text
import torch

import decomp
from decomp.rules.certificates import identity
from decomp.tables import Table
from decomp.tools.certification import certificates
from decomp.tools.certification.version_differences import (
    KERNEL,
    PROCESSOR,
    RULE,
    VersionDifference,
    of_processor,
    recurs,
    version_differences,
)
from decomp.tools.cli.certificate_runs import CertificateRun
from decomp.tools.cli.executors import cores
from decomp.tools.cli.terminal import Unusable
from decomp.tools.open_table import OpenTable

VERSION = torch.__version__.partition("+")[0]
PLAIN_KERNELS = "kernels without vector instructions"

Certified = Mapping[str, decomp.results.Certificate]
"""Certificates by rule."""


@dataclass(frozen=True)
class SampleComparison:
    """The rules that were drawn, and how they differ from their certificates."""

    drawn: int
    known: int
    """How many rules there were to draw from."""
    unknown: int
    """How many rules have no certificate, as the reference version leaves them out."""
    seed: int
    torch: tuple[str, str]
    """The versions of PyTorch: of the certificates, and here."""
    machine: tuple[str, str]
    """The processors: of most of the certificates, and here."""
    differences: tuple[VersionDifference, ...]

    @property
    def worse(self) -> list[str]:
        """The rules whose results got worse."""
        return self._of(RULE)

    def _of(self, cause: str) -> list[str]:
        return list(dict.fromkeys(each.rule for each in self.differences if each.cause == cause))

    @property
    def headline(self) -> str:
        """What was compared, and how it ended."""
        then, here = self.torch
        drawn = f"{self.drawn} of {self.known:,} rules (seed {self.seed}) on torch {here}, certified on torch {then}"
        if not self.differences:
            return f"{drawn}: none differs"
        counts = [f"{len(self.worse)} worse", f"{len(self._of(KERNEL))} whose kernel changed"]
        processor = len(self._of(PROCESSOR))
        return f"{drawn}: {', '.join([*counts, *([f'{processor} by the processor'] if processor else [])])}"

    @property
    def notes(self) -> list[str]:
        """What to know of the comparison."""
        then, here = self.machine
        found = [f"{self.unknown} rules have no certificate: torch {self.torch[0]} leaves them out"]
        return found[: self.unknown] + ([f"certified on {then}, measured on {here}"] if then not in ("", here) else [])

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        then, here = self.torch
        data = {"torch": here, "certified_on": then, "drawn": self.drawn, "of": self.known, "seed": self.seed}
        return {**data, "notes": self.notes, "differences": [each.to_json() for each in self.differences]}


def compare_sample(
    rules: Sequence[decomp.Rule],
    count: int,
    run: CertificateRun,
    committed: Certified,
) -> SampleComparison:
    """Draw, measure and compare. The run's seed is that of the draw: the inputs are those of the certificates. Raises
    `Unusable` if no rule has a certificate."""
    known = sorted((rule for rule in rules if identity(rule) in committed), key=identity)
    if not known:
        raise Unusable("none of these rules has a certificate to compare with")
    drawn = random.Random(run.seed).sample(known, min(count, len(known)))
    before = {identity(rule): committed[identity(rule)] for rule in drawn}
    work = _RulesToMeasure({identity(rule): rule for rule in drawn}, before, replace(run, seed=_only_seed(before)))
    found = work.measured()
    machines = [one.machine for one in before.values() if one.machine]
    return SampleComparison(
        drawn=len(drawn),
        known=len(known),
        unknown=len(rules) - len(known),
        seed=run.seed,
        torch=(", ".join(sorted({one.torch for one in before.values()})), VERSION),
        machine=(
            max(machines, key=machines.count, default=""),
            next((one.machine for one in found.values() if one.machine), ""),
        ),
        differences=tuple(work.differences(found)),
    )


@dataclass(frozen=True)
class _RulesToMeasure:
    """Rules by identity, with their certificates, to be measured."""

    rules: Mapping[str, decomp.Rule]
    before: Certified
    run: CertificateRun

    def measured(self) -> Certified:
        """The certificates of the rules here."""
        return {one.rule: one for one in self.run.measure(list(self.rules.values()))}

    def differences(self, found: Certified) -> Iterator[VersionDifference]:
        """How the rules differ here. Where a certificate is of another processor, its part is separated from
        that of the version by measuring once more, with the kernels that PyTorch has for any processor."""
        differing = {name: each for name in sorted(found) if (each := self._against(found[name]))}
        elsewhere = [name for name in differing if self._is_of_another_processor(found[name])]
        again = self._on_any_processor([name for name in elsewhere if self.before[name].torch != VERSION])
        for name, each in differing.items():
            then = self.before[name]
            if name not in elsewhere:
                yield from each
            elif then.torch == VERSION and not certificates.changed_here(self.rules[name], then):
                yield from (of_processor(one, f"PyTorch is the same; certified on {then.machine}") for one in each)
            else:
                yield from (self._attributed(one, again.get(name, each), then.machine) for one in each)

    def _against(self, now: decomp.results.Certificate) -> tuple[VersionDifference, ...]:
        then = self.before[now.rule]
        return version_differences(now, then, certificates.changed_here(self.rules[now.rule], then))

    @staticmethod
    def _attributed(found: VersionDifference, again: Iterable[VersionDifference], machine: str) -> VersionDifference:
        if recurs(found, again):
            return replace(found, why=f"{found.why}; certified on {machine}")
        return of_processor(found, f"not with {PLAIN_KERNELS}; certified on {machine}")

    def _is_of_another_processor(self, now: decomp.results.Certificate) -> bool:
        then = self.before[now.rule].machine
        return bool(now.machine and then) and now.machine != then

    def _on_any_processor(self, names: Sequence[str]) -> dict[str, tuple[VersionDifference, ...]]:
        """How these rules differ with kernels without vector instructions, which a process chooses when it starts."""
        if not names or self.run.executor is not None:
            return {}
        run = replace(self.run, workers=self.run.workers or cores())
        work = replace(self, rules={name: self.rules[name] for name in names}, run=run)
        with _environment("ATEN_CPU_CAPABILITY", "default"):
            return {name: self._against(one) for name, one in work.measured().items()}


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """A variable of the environment that processes started meanwhile have."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _only_seed(committed: Certified) -> int:
    """The seed of the certificates' inputs. Raises `Unusable` if they have several."""
    seeds = {one.seed for one in committed.values()}
    if len(seeds) > 1:
        raise Unusable(f"the certificates are of several seeds: {', '.join(map(str, sorted(seeds)))}")
    return seeds.pop()


def sample_table(compared: SampleComparison) -> RenderableType:
    """A row for each difference: the rule, and what changed."""
    parts: list[RenderableType] = [Text(compared.headline, style="bold")]
    parts += [Text(note, style="dim") for note in compared.notes]
    if compared.differences:
        styles = {RULE: "red", PROCESSOR: "dim"}
        rows = [
            (each.rule.partition(":")[2], Text(str(each), style=styles.get(each.cause, "")))
            for each in compared.differences
        ]
        parts += ["", OpenTable(Table(("rule", "what changed"), rows))]
    return Group(*parts)
