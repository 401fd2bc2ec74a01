"""Jobs: measurements in a form that can be sent to another process. Rules are sent by name and looked up there in their
collection, since neither functions nor targets with conditions can be pickled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
import importlib
from typing import Any

import torch

from decomp.ir.ops import Op
from decomp.jobs import Failed, can_travel, run_in_process
from decomp.rules.accuracy import LEVELS
from decomp.rules.certificate import Certificate
from decomp.rules.certificates import identity, level_of
from decomp.rules.library import library
from decomp.rules.rules import Rule, Rules
from decomp.rules.sources import content_hash
from decomp.rules.target import Target
from decomp.samples import Sample
from decomp.tools.measurement.measuring import measure_rule


@dataclass(frozen=True)
class CertificationJob:
    """One rule to measure."""

    rule: str
    """Its identity."""
    targets: tuple[str | Target, ...] = ()
    """The targets, by name if they ship with the library."""
    samples: tuple[Sample, ...] | None = None
    dtypes: tuple[torch.dtype, ...] | None = None
    seed: int = 0
    levels: tuple[str, ...] = LEVELS
    """The levels of accuracy to measure."""
    hash: str = ""
    """The hash of the rule's code, for the certificate if it cannot be measured."""
    level: str = LEVELS[0]
    """The rule's own level, for the same."""
    device: str = ""
    """The device to measure on; empty: the CPU."""

    def run(self) -> Certificate:
        """Measure the rule. Raises `LookupError` for an unknown rule or target."""
        rule, rules = rule_named(self.rule)
        targets = [target_named(each) if isinstance(each, str) else each for each in self.targets]
        device = torch.device(self.device) if self.device else None
        found = measure_rule(rule, targets, self.samples, self.dtypes, self.seed, rules, self.levels, device)
        require_working(device)
        return found

    def can_travel(self, rule: Rule) -> bool:
        """Whether another process can find this rule and unpickle the rest."""
        try:
            found = rule_named(self.rule)[0].function is rule.function
        except (LookupError, ImportError, AttributeError, TypeError):
            return False
        return found and rule.function.__module__ != "__main__" and can_travel(self)


def measure_in_process(one: CertificationJob, timeout: float | None = None) -> Certificate:
    """The certificate of a job, measured in another process; one with an `error` if the rule hangs or crashes."""
    return certificate_of(one, run_in_process(one, timeout))


def certificate_of(one: CertificationJob, answer: Certificate | Failed) -> Certificate:
    """The answer to a job, or the certificate of a rule that could not be measured."""
    if not isinstance(answer, Failed):
        return answer
    version = torch.__version__.partition("+")[0]
    return Certificate(one.rule, one.hash, version, one.seed, error=str(answer), level=one.level)


def job(
    rule: Rule,
    targets: Sequence[Target],
    samples: Any,
    dtypes: Any,
    seed: int,
    levels: Sequence[str] = LEVELS,
    device: str = "",
) -> CertificationJob:
    """The job of measuring `rule`."""
    sent = tuple(target.name if _is_known(target) else target for target in targets)
    chosen = tuple(samples) if samples is not None else None
    kinds = tuple(dtypes) if dtypes is not None else None
    return CertificationJob(
        identity(rule), sent, chosen, kinds, seed, tuple(levels), content_hash([rule]), level_of(rule), device
    )


def require_working(device: torch.device | None) -> None:
    """End the process if a kernel failed on a CUDA device: whatever it measured since, and would measure, is void."""
    if device is not None and device.type == "cuda":
        try:
            torch.cuda.synchronize(device)
        except RuntimeError as error:
            raise SystemExit(f"the device failed: {error}") from error


def rule_named(name: str) -> tuple[Rule, Rules | None]:
    """The rule of this identity, and the collection of its module that contains it (None: the library). Raises
    `LookupError`."""
    place, _, op = name.rpartition(" for ")
    module_name, _, path = place.partition(":")
    for rule in library().of(Op(op)):
        if identity(rule) == name:
            return rule, None
    module = importlib.import_module(module_name)
    for rules in vars(module).values():
        if isinstance(rules, Rules):
            for rule in rules.of(Op(op)):
                if identity(rule) == name:
                    return rule, rules
    function: Any = module
    for part in path.split("."):
        function = getattr(function, part, None)
    if not callable(function):
        raise LookupError(f"no rule {name}")
    alone = Rules({Op(op): function})
    return next(iter(alone)), alone


def target_named(name: str) -> Target:
    """A target of the library. Raises `LookupError`."""
    from decomp_rules import targets

    target: Target = targets.get(name)
    return target


def _is_known(target: Target) -> bool:
    from decomp_rules import targets

    return target.name in targets.names() and targets.get(target.name) is target
