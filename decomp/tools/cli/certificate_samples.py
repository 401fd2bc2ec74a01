"""`decomp certify --sample`: some rules, drawn by a seed, measured with the installed PyTorch and compared with their
committed certificates, which are of one version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
import random
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text
import torch

import decomp
from decomp.tools.certification import certificates
from decomp.tools.certification.implementations import identity
from decomp.tools.certification.version_differences import KERNEL, RULE, VersionDifference, version_differences
from decomp.tools.cli.certificate_runs import CertificateRun
from decomp.tools.cli.open_table import OpenTable
from decomp.tools.cli.terminal import Unusable

DRAWN = 80
"""How many rules are drawn by default: about three minutes on two cores."""


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
        worse, changed = len(self.worse), len(self._of(KERNEL))
        return f"{drawn}: {worse} worse, {changed} whose kernel changed"

    @property
    def notes(self) -> list[str]:
        """What to know of the comparison."""
        then, here = self.machine
        found = [f"{self.unknown} rules have no certificate: they are for other versions"] if self.unknown else []
        return found + ([f"certified on {then}, measured on {here}"] if then and then != here else [])

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        then, here = self.torch
        data = {"torch": here, "certified_on": then, "drawn": self.drawn, "of": self.known, "seed": self.seed}
        return {**data, "notes": self.notes, "differences": [each.to_json() for each in self.differences]}


def compare_sample(
    rules: Sequence[decomp.Rule],
    count: int,
    run: CertificateRun,
    committed: Mapping[str, decomp.results.Certificate],
) -> SampleComparison:
    """Draw, measure and compare. The run's seed is that of the draw: the inputs are those of the certificates. Raises
    `Unusable` if no rule has a certificate."""
    known = sorted((rule for rule in rules if identity(rule) in committed), key=identity)
    if not known:
        raise Unusable("none of these rules has a certificate to compare with")
    drawn = random.Random(run.seed).sample(known, min(count, len(known)))
    before = {identity(rule): committed[identity(rule)] for rule in drawn}
    found = {one.rule: one for one in replace(run, seed=_only_seed(before)).measure(drawn)}
    differences = [
        difference
        for rule in sorted(drawn, key=identity)
        for difference in _differences(rule, found[identity(rule)], before[identity(rule)])
    ]
    machines = [one.machine for one in before.values() if one.machine]
    return SampleComparison(
        drawn=len(drawn),
        known=len(known),
        unknown=len(rules) - len(known),
        seed=run.seed,
        torch=(", ".join(sorted({one.torch for one in before.values()})), torch.__version__.partition("+")[0]),
        machine=(
            max(machines, key=machines.count, default=""),
            next((one.machine for one in found.values() if one.machine), ""),
        ),
        differences=tuple(differences),
    )


def _only_seed(committed: Mapping[str, decomp.results.Certificate]) -> int:
    """The seed of the certificates' inputs. Raises `Unusable` if they have several."""
    seeds = {one.seed for one in committed.values()}
    if len(seeds) > 1:
        raise Unusable(f"the certificates are of several seeds: {', '.join(map(str, sorted(seeds)))}")
    return seeds.pop()


def _differences(
    rule: decomp.Rule, now: decomp.results.Certificate, then: decomp.results.Certificate
) -> tuple[VersionDifference, ...]:
    return version_differences(now, then, certificates.changed_here(rule, then))


def sample_table(compared: SampleComparison) -> RenderableType:
    """A row for each difference: the rule, and what changed."""
    parts: list[RenderableType] = [Text(compared.headline, style="bold")]
    parts += [Text(note, style="dim") for note in compared.notes]
    if compared.differences:
        table = OpenTable("rule", "what changed", right=(False, False))
        for each in compared.differences:
            style = "red" if each.cause == RULE else ""
            table.add_row(Text(each.rule.partition(":")[2]), Text(str(each), style=style))
        parts += ["", table]
    return Group(*parts)
