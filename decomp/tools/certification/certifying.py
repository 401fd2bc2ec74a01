"""`certify`: measure rules and return certificates, in this process or over an executor of the user's choice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed
import contextlib
import os
import sys
from typing import Any

import torch

from decomp.errors import ArgumentError, boundary
from decomp.ir.ops import op as op_of
from decomp.rules.accuracy import LEVELS, require_level
from decomp.rules.options import OF_CERTIFY
from decomp.rules.rules import Rule, Rules
from decomp.rules.target import Target
from decomp.samples import samples_of
from decomp.tools.certification.certificate import Certificate, Certificates
from decomp.tools.certification.isolation import failed_certificate, measure_in_process, stop
from decomp.tools.certification.jobs import CertificationJob, job
from decomp.tools.measurement.measuring import measure_rule

FEW = 3
"""Up to this many rules are measured in this process by default: starting another takes seconds."""

Progress = Callable[[int, int, str], None]
"""Called with the number of finished rules, the total, and the last rule."""


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
    """Measure rules: errors in ULP next to PyTorch's own, special values, dtypes, strides, gradients, symbolic sizes.

    Returns a `Certificate` for one `Rule`, `Certificates` by rule for several (the value of `rules["relu"]`, a
    `Rules`). `to`: also measure each rule lowered to these targets, at its own level of accuracy, and at looser ones
    where it is lowered differently. `accuracy`: the levels to measure. `samples`: for one rule the argument tuples of
    some calls, or `decomp.Sample`s; for several a dict of such lists by op; by default those of the library. `dtypes`:
    some of float32, bfloat16, float16 and float64, by default all. `executor`: any `concurrent.futures.Executor`; by
    default one process per core, and this process for up to three rules without a `timeout`. A rule that takes more
    than `timeout` seconds (180), or that crashes, gets a certificate with an `error`. `progress`: a function, True for
    a bar, False for none; by default a bar for many rules on a terminal. Raises `ValueError` for a single rule without
    samples.
    """
    rules = _listed(rule_or_rules)
    targets = [to] if isinstance(to, Target) else list(to or ())
    given = rule_or_rules if isinstance(rule_or_rules, Rules) else None
    levels = levels_of(accuracy)
    jobs = [(rule, job(rule, targets, _samples(samples, rule), dtypes, seed, levels)) for rule in rules]
    if isinstance(rule_or_rules, Rule) and executor is None and timeout is None:
        return measure_rule(rule_or_rules, targets, jobs[0][1].samples, dtypes, seed, None, levels)
    with _shown(progress, len(jobs)) as report:
        away = {one.rule for rule, one in jobs if _runs_elsewhere(rule, one, len(jobs), executor, timeout)}
        here = _with_progress([(rule, one) for rule, one in jobs if one.rule not in away], report, len(jobs))
        done = {one.rule: _measured_here(rule, one, targets, given) for rule, one in here}
        done |= _over(executor, [one for rule, one in jobs if one.rule not in done], timeout, report, len(jobs))
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


def _measured_here(rule: Rule, one: CertificationJob, targets: list[Target], rules: Rules | None) -> Certificate:
    try:
        return measure_rule(rule, targets, one.samples, one.dtypes, one.seed, rules, one.levels)
    except Exception as error:  # as in a process of its own, only this rule is lost
        return failed_certificate(one, f"{type(error).__name__}: {error}")


def _with_progress(
    jobs: list[tuple[Rule, CertificationJob]], report: Progress, total: int
) -> Iterator[tuple[Rule, CertificationJob]]:
    for i, (rule, one) in enumerate(jobs):
        yield rule, one
        report(i + 1, total, one.rule)


def _over(
    executor: Executor | None, jobs: list[CertificationJob], timeout: float | None, report: Progress, total: int
) -> dict[str, Certificate]:
    """Measure each job in a separate process, over the executor; by default over threads that each have a process."""
    if not jobs:
        return {}
    if executor is None:
        with ThreadPoolExecutor(min(len(jobs), os.cpu_count() or 1)) as threads:
            return _over(threads, jobs, timeout, report, total)
    waiting: dict[Future[Certificate], CertificationJob] = {
        executor.submit(measure_in_process, one, timeout): one for one in jobs
    }
    done: dict[str, Certificate] = {}
    before = total - len(jobs)
    # Futures of other libraries (dask) need not be `concurrent.futures.Future`s, as as_completed requires.
    all_standard = all(isinstance(future, Future) for future in waiting)
    try:
        for future in as_completed(waiting) if all_standard else waiting:
            one = waiting[future]
            done[one.rule] = _result(future, one)
            report(before + len(done), total, one.rule)
    except BaseException:  # also for an interrupt: stop the rest
        stop(waiting)
        raise
    return done


def _result(future: Future[Certificate], one: CertificationJob) -> Certificate:
    try:
        return future.result()
    except Exception as error:  # a broken pool loses its pending jobs
        return failed_certificate(one, f"the executor lost it: {type(error).__name__}: {error}")


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
