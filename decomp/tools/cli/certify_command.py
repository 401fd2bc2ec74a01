"""`decomp certify`: select rules, measure them, and show the certificates."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.text import Text
import typer

import decomp
from decomp.tools.certification import TARGETS
from decomp.tools.cli.arguments import TARGET, TO
from decomp.tools.cli.executors import EXECUTOR
from decomp.tools.cli.flags import Words, command
from decomp.tools.cli.outputs import require_plot
from decomp.tools.cli.terminal import Unusable, note, print_json, saved, show

if TYPE_CHECKING:
    from decomp.tools.cli.certificate_runs import CertificateRun

DRAWN = 50
"""How many rules `--sample` draws by default: about three minutes on two cores."""

SAMPLE = (
    f"Draw {DRAWN} rules by --seed (--sample 20: that many), measure them here and compare them with the committed "
    "certificates, which are of one version of PyTorch. Shows the rules that differ by more than repeated "
    "measurements do, and what changed. Exits with 1 only if a rule is worse, not if PyTorch's kernel changed."
)


@command(shared="as_json")
def certify(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]", help="An op in any spelling, or the name of a rule; with --sample also a number."
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every rule of the library.")] = False,
    family: Annotated[
        str | None, typer.Option(help="The rules of one package or module of the library: nn, or nn.softmax.")
    ] = None,
    stale: Annotated[bool, typer.Option("--stale", help="Only rules that changed since they were measured.")] = False,
    accuracy: Annotated[
        list[str], typer.Option(help="Only these levels; by default the rule's own and looser ones.")
    ] = [],
    to: Annotated[list[str], typer.Option(*TO, metavar="TARGET", help=TARGET)] = list(TARGETS),
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
    sample: Annotated[bool, typer.Option("--sample", help=SAMPLE)] = False,
    plot: Annotated[Path | None, typer.Option(help="Plot errors over inputs, for rules with one argument.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes; by default one per core.")] = None,
    executor: Annotated[str | None, typer.Option(metavar="MODULE:CALLABLE", help=EXECUTOR)] = None,
    timeout: Annotated[float | None, typer.Option(help="The time limit of one rule in seconds.")] = None,
    seed: Annotated[int, typer.Option(help="Of random inputs; with --sample, of the draw.")] = 0,
    *,
    words: Words,
) -> None:
    """Measure rules against exact results and PyTorch's own, and compare with the committed certificates."""
    from decomp.rules.certificates import identity, read_committed
    from decomp.tools.cli.certificate_runs import CertificateRun

    require_plot(plot)
    run = CertificateRun(to, accuracy, workers, executor, timeout, seed)
    before = read_committed()
    if sample:
        _refuse_beside_sample(stale=stale, stored=stored, update=update, compiled=compiled, flushed=flushed, plot=plot)
        _compare_drawn(name, family, run, before, words.as_json)
        return
    chosen = _chosen(name, family, everything, stale, compiled or flushed, before)
    if stored:
        measured = [before[rule] for rule in map(identity, chosen) if rule in before]
    elif compiled or flushed:
        measured = run.measure_column(compiled, [before[identity(rule)] for rule in chosen], stale, update)
    else:
        measured = run.measure(chosen)
    worse = _worse(measured, before)
    _show_certificates(measured, worse, words.as_json)
    if plot is not None:
        _plot(chosen, run, plot)
    if update and not (compiled or flushed):
        _write(measured, before, run.levels, words.as_json)
    elif worse and not update:
        raise typer.Exit(1)


def _refuse_beside_sample(**given: object) -> None:
    """Raise `Unusable` if something was asked that a sample of rules is not for."""
    wrong = next((name for name, value in given.items() if value), None)
    if wrong is not None:
        raise Unusable(f"--sample only compares with the committed certificates: leave out --{wrong}")


def _compare_drawn(
    name: str | None,
    family: str | None,
    run: CertificateRun,
    before: Mapping[str, decomp.results.Certificate],
    as_json: bool,
) -> None:
    """Compare a sample of rules with their certificates. Exits with 1 if a rule got worse."""
    from decomp.tools.cli.certificate_samples import compare_sample, sample_table
    from decomp.tools.cli.rule_choice import chosen_rules

    count, name = (int(name), None) if name is not None and name.isdigit() else (DRAWN, name)
    chosen = chosen_rules(name, family, everything=name is None and family is None)
    compared = compare_sample(chosen, max(count, 1), run, before)
    if as_json:
        print_json(compared.to_json())
    else:
        show(sample_table(compared))
    if compared.worse:
        raise typer.Exit(1)


def _chosen(
    name: str | None,
    family: str | None,
    everything: bool,
    stale: bool,
    column_alone: bool,
    before: dict[str, decomp.results.Certificate],
) -> list[decomp.Rule]:
    """The rules to measure; for a column, those whose certificates are up to date. Raises `Unusable`, `UnknownOp`."""
    from decomp.rules.certificates import identity
    from decomp.tools.certification import certificates
    from decomp.tools.cli.rule_choice import chosen_rules

    chosen = chosen_rules(name, family, everything or stale)
    if column_alone:
        return _measured_already(chosen, before)
    return [rule for rule in chosen if not stale or certificates.why_stale(rule, before.get(identity(rule)))]


def _plot(chosen: list[decomp.Rule], run: CertificateRun, path: Path) -> None:
    from decomp.tools.certification.ulp_plot import plot_errors

    show(saved(plot_errors(chosen, run.targets, path)))


def _write(
    measured: list[decomp.results.Certificate],
    before: dict[str, decomp.results.Certificate],
    levels: tuple[str, ...],
    as_json: bool,
) -> None:
    from decomp.tools.certification import certificates

    complete = (one.with_compiled_of(before.get(one.rule)) for one in measured)
    written = certificates.commit(one.merged_into(before.get(one.rule), levels) for one in complete)
    show(Text(f"{len(written)} files of certificates written", style="bold") if not as_json else None)


def _worse(
    measured: list[decomp.results.Certificate], before: dict[str, decomp.results.Certificate]
) -> dict[str, tuple[str, ...]]:
    """How certificates are worse than the committed ones, by rule."""
    worse = {one.rule: one.worse_than(before[one.rule]) for one in measured if one.rule in before}
    return {rule: lines for rule, lines in worse.items() if lines}


def _measured_already(chosen: list[decomp.Rule], before: dict[str, decomp.results.Certificate]) -> list[decomp.Rule]:
    """The rules whose certificates are up to date. Prints how many others there are."""
    from decomp.rules.certificates import identity
    from decomp.tools.certification import certificates

    known = [rule for rule in chosen if not certificates.why_stale(rule, before.get(identity(rule)))]
    if len(known) < len(chosen):
        left = f"skipped: {len(chosen) - len(known)} rules that changed since they were measured"
        note(f"{left}; to do: decomp certify --stale --update")
    return known


def _show_certificates(
    measured: list[decomp.results.Certificate], worse: dict[str, tuple[str, ...]], as_json: bool
) -> None:
    from decomp.tools.certification import tables

    if as_json:
        print_json([one.to_json() for one in measured])
    elif len(measured) <= 4:
        for one in measured:
            show(tables.certificate_table(one), "")
        found = (f"{rule} is worse than its certificate: {line}" for rule, lines in worse.items() for line in lines)
        show(*(Text(line, style="red") for line in found))
    else:
        show(tables.summary(measured, worse))
