"""`decomp certify`: select rules, measure them, and show the certificates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
import contextlib
from pathlib import Path
import sys
from typing import Annotated, Any

from rich.text import Text
import typer

import decomp
from decomp._library import library
from decomp.tools.certification import certificates, compiled_columns, tables
from decomp.tools.certification.certifying import levels_of
from decomp.tools.certification.implementations import identity
from decomp.tools.certification.isolation import stop
from decomp.tools.cli.arguments import TARGET, TO, Debug, Json, load_target, near
from decomp.tools.cli.executors import EXECUTOR, made_executor
from decomp.tools.cli.extras import require_matplotlib
from decomp.tools.cli.terminal import Unusable, print_json, progressing, report_errors, saved, show
from decomp.tools.measurement.joint_graphs import require_compiler


def certify(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="An op in any spelling, or the name of a rule.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every rule of the library.")] = False,
    family: Annotated[
        str | None, typer.Option(help="The rules of one package or module of the library: nn, or nn.softmax.")
    ] = None,
    stale: Annotated[bool, typer.Option("--stale", help="Only rules that changed since they were measured.")] = False,
    accuracy: Annotated[
        list[str], typer.Option(help="Only these levels; by default the rule's own and looser ones.")
    ] = [],
    to: Annotated[list[str], typer.Option(*TO, metavar="TARGET", help=TARGET)] = list(certificates.TARGETS),
    stored: Annotated[
        bool, typer.Option("--stored", help="Show the committed certificates without measuring.")
    ] = False,
    update: Annotated[bool, typer.Option("--update", help="Write the measured certificates.")] = False,
    compiled: Annotated[
        bool,
        typer.Option(
            "--compiled",
            help="Measure only the column 'compiled': each rule compiled by Inductor on tinygrad and luminal, compared "
            "with the same program run call by call. With --stale, only rules that lack it.",
        ),
    ] = False,
    flushed: Annotated[
        bool,
        typer.Option(
            "--flushed",
            help="Measure only the column 'flushed': whether finite results stay finite when subnormal numbers are "
            "flushed to zero. With --stale, only rules that lack it.",
        ),
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="Plot errors over inputs, for rules with one argument.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes; by default one per core.")] = None,
    executor: Annotated[str | None, typer.Option(metavar="MODULE:CALLABLE", help=EXECUTOR)] = None,
    timeout: Annotated[float | None, typer.Option(help="The time limit of one rule in seconds.")] = None,
    seed: int = 0,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure rules against exact results and PyTorch's own, and compare with the committed certificates."""
    with report_errors(debug, as_json):
        require_matplotlib(plot)
        before = certificates.read_committed()
        chosen = _chosen_rules(name, family, everything or stale)
        if compiled or flushed:
            chosen = _measured_already(chosen, before)
        elif stale:
            chosen = [rule for rule in chosen if certificates.why_stale(rule, before.get(identity(rule)))]
        if stored:
            measured = [before[rule] for rule in map(identity, chosen) if rule in before]
        elif compiled or flushed:
            lacking = compiled_columns.uncompiled if compiled else compiled_columns.unflushed
            asked = [before[identity(rule)] for rule in chosen]
            asked = [one for one in asked if not stale or lacking(one)]
            found_anew = compiled_columns.with_columns if compiled else compiled_columns.with_flushed
            if compiled:
                require_compiler()
            with _executor(executor, workers) as pool:
                measured = _with_columns(found_anew(asked, pool, timeout, seed), len(asked), update)
        else:
            targets = [load_target(each) for each in to]
            with _executor(executor, workers) as pool:
                found = decomp.certify(
                    chosen, to=targets, accuracy=accuracy or None, seed=seed, executor=pool, timeout=timeout
                )
            measured = list(found.values()) if isinstance(found, decomp.results.Certificates) else [found]
        worse = _worse(measured, before)
        _show_certificates(measured, worse, as_json)
        if plot is not None:
            from decomp.tools.certification.ulp_plot import plot_errors

            show(saved(plot_errors(chosen, [load_target(each) for each in to], plot)))
        if update and not (compiled or flushed):
            levels = levels_of(accuracy or None)
            complete = (one.with_compiled_of(before.get(one.rule)) for one in measured)
            written = certificates.commit(one.merged_into(before.get(one.rule), levels) for one in complete)
            show(Text(f"{len(written)} files of certificates written", style="bold") if not as_json else None)
        elif worse and not update:
            raise typer.Exit(1)


def _worse(
    measured: list[decomp.results.Certificate], before: dict[str, decomp.results.Certificate]
) -> dict[str, tuple[str, ...]]:
    """How certificates are worse than the committed ones, by rule."""
    worse = {one.rule: one.worse_than(before[one.rule]) for one in measured if one.rule in before}
    return {rule: lines for rule, lines in worse.items() if lines}


def _measured_already(chosen: list[decomp.Rule], before: dict[str, decomp.results.Certificate]) -> list[decomp.Rule]:
    """The rules whose certificates are up to date. Prints how many others there are."""
    known = [rule for rule in chosen if not certificates.why_stale(rule, before.get(identity(rule)))]
    if len(known) < len(chosen):
        left = f"skipped: {len(chosen) - len(known)} rules that changed since they were measured"
        print(f"{left}; to do: decomp certify --stale --update", file=sys.stderr)
    return known


def _with_columns(
    batches: Iterator[list[decomp.results.Certificate]], count: int, update: bool
) -> list[decomp.results.Certificate]:
    """Certificates with one column measured again. Each is written when it is done, so that an interruption loses only
    the running ones."""
    found: list[decomp.results.Certificate] = []
    with progressing() as report:
        for batch in batches:
            found += batch
            report(len(found), count, batch[-1].rule)
            if update:
                certificates.commit(batch)
    return found


def _chosen_rules(name: str | None, family: str | None, everything: bool) -> list[decomp.Rule]:
    """The rules to certify. Raises `Unusable`, `UnknownOp`."""
    rules = list(library())
    if name is not None:
        named = [rule for rule in rules if rule.name == name]
        rules = list(library().of(decomp.op(name))) if not named else _of_op_or_name(name, named)
        if not rules:
            raise Unusable(f"there is no rule for {decomp.op(name)}")
    elif family is not None:
        known = sorted({name for rule in rules for name in _families(rule)})
        rules = [rule for rule in rules if family in _families(rule)]
        if not rules:
            raise Unusable(f"no family {family!r}.{near(family, known)} Available: {', '.join(known)}")
    elif not everything:
        raise Unusable("which rules? Name an op, or pass --family FAMILY, --stale or --all")
    return rules


def _families(rule: decomp.Rule) -> tuple[str, str, str]:
    """The names of a rule's family: the package, the module in it, the module's own name."""
    module = certificates.family(rule)
    return module.partition(".")[0], module, module.rpartition(".")[2]


def _of_op_or_name(name: str, named: list[decomp.Rule]) -> list[decomp.Rule]:
    """The rules of a name, where ops take precedence: `relu` is an op and a rule, `sort_scattered` only a rule."""
    try:
        return list(library().of(decomp.op(name))) or named
    except decomp.UnknownOp:
        return named


class _Threads(ThreadPoolExecutor):
    """Threads that keep the futures of their jobs."""

    def __init__(self, count: int | None) -> None:
        super().__init__(count)
        self.begun: list[Future[Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(fn, *args, **kwargs)
        self.begun.append(future)
        return future


@contextlib.contextmanager
def _executor(name: str | None, workers: int | None) -> Iterator[Executor | None]:
    """The executor that `module:callable` returns, or threads that each measure in a process of their own."""
    if name is None and workers is None:
        yield None
    elif name is None:
        threads = _Threads(workers)
        try:
            yield threads
        except BaseException:  # also for an interrupt while jobs are still being submitted
            threads.shutdown(wait=False, cancel_futures=True)
            stop(threads.begun)
            raise
        threads.shutdown()
    else:
        with made_executor(name) as made:
            yield made


def _show_certificates(
    measured: list[decomp.results.Certificate], worse: dict[str, tuple[str, ...]], as_json: bool
) -> None:
    if as_json:
        print_json([one.to_json() for one in measured])
    elif len(measured) <= 4:
        for one in measured:
            show(tables.certificate_table(one), "")
        found = (f"{rule} is worse than its certificate: {line}" for rule, lines in worse.items() for line in lines)
        show(*(Text(line, style="red") for line in found))
    else:
        show(tables.summary(measured, worse))
