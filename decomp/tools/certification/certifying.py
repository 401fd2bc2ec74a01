"""`certify`: measure rules and return certificates, in this process or over an executor of the user's choice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
import contextlib
import sys
from typing import Any

import torch

from decomp.errors import ArgumentError, boundary
from decomp.ir.ops import op as op_of
from decomp.jobs import Failed, Progress, answers, within
from decomp.rules.accuracy import LEVELS, require_level
from decomp.rules.certificate import Certificate, Certificates
from decomp.rules.options import OF_CERTIFY
from decomp.rules.rules import Rule, Rules
from decomp.rules.target import Target
from decomp.samples import samples_of
from decomp.tools.certification.jobs import CertificationJob, certificate_of, job
from decomp.tools.measurement.measuring import measure_rule

FEW = 3
"""Up to this many rules are measured in this process by default: starting another takes seconds."""


@boundary("certify", OF_CERTIFY)
def certify(
    rule_or_rules: Any,
    *,
    to: Target | Iterable[Target] | None = None,
    samples: Any = None,
    dtypes: Sequence[torch.dtype] | None = None,
    accuracy: str | Iterable[str] | None = None,
    seed: int = 0,
    executor: Executor | None = None,
    timeout: float | None = None,
    progress: Progress | bool | None = None,
) -> Certificate | Certificates:
    """Measure rules, and return a `Certificate` of one, `Certificates` of several: errors in ULP next to PyTorch's own,
    special values, dtypes, strides, gradients, symbolic sizes.

    One is a `Rule`, several are the value of `rules["relu"]` or a `Rules`. `to`: also measure each rule lowered to
    these targets, at its own level of accuracy, and at looser ones where it is lowered differently. `accuracy`: the
    levels to measure. `samples`: for one rule the argument tuples of some calls, or `decomp.Sample`s; for several a
    dict of such lists by op; by default those of the library. `dtypes`: some of float32, bfloat16, float16 and float64,
    by default all. `executor`: any `concurrent.futures.Executor`; by default one process per core, and this process for
    up to three rules without a `timeout`. A rule that takes more than `timeout` seconds (180), or that crashes, gets a
    certificate with an `error`. `progress`: a function, True for a bar, False for none; by default a bar for many rules
    on a terminal. Raises `ValueError` for a single rule without samples.
    """
    rules = _listed(rule_or_rules)
    targets = [to] if isinstance(to, Target) else list(to or ())
    given = rule_or_rules if isinstance(rule_or_rules, Rules) else None
    levels = levels_of(accuracy)
    jobs = [(rule, job(rule, targets, _samples(samples, rule), dtypes, seed, levels)) for rule in rules]
    if isinstance(rule_or_rules, Rule) and executor is None and timeout is None:
        return measure_rule(rule_or_rules, targets, jobs[0][1].samples, dtypes, seed, None, levels)
    away = [one for rule, one in jobs if _runs_elsewhere(rule, one, len(jobs), executor, timeout)]
    elsewhere = {one.rule for one in away}
    here = ((one, _measured_here(rule, one, targets, given)) for rule, one in jobs if one.rule not in elsewhere)
    done: dict[str, Certificate] = {}
    with _shown(progress, len(jobs)) as report:
        for one, answer in answers(away, executor, within(timeout), here):
            done[one.rule] = certificate_of(one, answer)
            report(len(done), len(jobs), one.rule)
    found = Certificates({one.rule: done[one.rule] for _, one in jobs})
    return found[jobs[0][1].rule] if isinstance(rule_or_rules, Rule) else found


def levels_of(accuracy: str | Iterable[str] | None) -> tuple[str, ...]:
    """Levels of accuracy, from the strictest; all of them for None. Raises `ArgumentError`."""
    named = LEVELS if accuracy is None else (accuracy,) if isinstance(accuracy, str) else tuple(accuracy)
    return tuple(sorted({require_level(each, "accuracy=") for each in named}, key=LEVELS.index))


def _listed(rule_or_rules: Any) -> list[Rule]:
    """The rules to measure. Raises `ArgumentError`."""
    if isinstance(rule_or_rules, Rule):
        return [rule_or_rules]
    rules = list(rule_or_rules) if isinstance(rule_or_rules, Iterable) else [rule_or_rules]
    wrong = [type(rule).__name__ for rule in rules if not isinstance(rule, Rule)]
    if wrong:
        raise ArgumentError(f'certify takes a rule or several, such as rules["relu"], not {wrong[0]}')
    return rules


def _samples(samples: Any, rule: Rule) -> Any:
    """The samples given for this rule, if any."""
    if isinstance(samples, Mapping):
        by_op = {op_of(spelling): listed for spelling, listed in samples.items()}
        samples = by_op.get(rule.op)
    return samples_of(rule, samples) if samples is not None else None


def _runs_elsewhere(
    rule: Rule, one: CertificationJob, count: int, executor: Executor | None, timeout: float | None
) -> bool:
    """Whether jobs go to other processes: if they can be pickled, and there are many or the user requested it."""
    return (count > FEW or executor is not None or timeout is not None) and one.can_travel(rule)


def _measured_here(
    rule: Rule, one: CertificationJob, targets: list[Target], rules: Rules | None
) -> Certificate | Failed:
    try:
        return measure_rule(rule, targets, one.samples, one.dtypes, one.seed, rules, one.levels)
    except Exception as error:  # as in a process of its own, only this rule is lost
        return Failed(f"{type(error).__name__}: {error}")


@contextlib.contextmanager
def _shown(progress: Progress | bool | None, total: int) -> Iterator[Progress]:
    """Shows progress by the user's function, a bar, lines of text, or not at all."""
    if callable(progress):
        yield progress
    elif progress is False or progress is None and (total <= FEW or not sys.stderr.isatty()):
        yield lambda done, total, rule: None
    else:
        with _bar(total) as report:
            yield report


@contextlib.contextmanager
def _bar(total: int) -> Iterator[Progress]:
    """A progress bar on standard error, if rich is installed; otherwise occasional lines."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress as Bar, TextColumn, TimeRemainingColumn
    except ModuleNotFoundError:
        yield _lines
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines
        return
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda done, total, rule: bar.update(task, completed=done, description=rule.rpartition(":")[2])


def _lines(done: int, total: int, rule: str) -> None:
    if done % max(1, total // 20) == 0 or done == total:
        print(f"{done} of {total} rules measured", file=sys.stderr, flush=True)
