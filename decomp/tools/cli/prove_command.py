"""`decomp prove`: which ops reach a target, over the whole table of sample calls, and what the others wait for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Group, RenderableType
from rich.text import Text
import typer

from decomp.errors import count_noun
from decomp.jobs import Progress
from decomp.rules.keywords import AdviseOptions
from decomp.tables import Table
from decomp.tools.cli.arguments import ToOrNone
from decomp.tools.cli.executors import EXECUTOR, chosen_executor
from decomp.tools.cli.flags import Words, command
from decomp.tools.cli.outputs import require_output
from decomp.tools.cli.terminal import Unusable, print_json, progressing, saved, show
from decomp.tools.open_table import OpenTable
from decomp.tools.proving.records import REFUSED, TIMEOUT, VERDICTS, TargetProof, some_of

if TYPE_CHECKING:
    from decomp.tools.proving.checking import CheckedProof

LONGEST = 150
"""The most characters of a reason that are shown."""
FEW = 12
"""So many rows of a table are shown, unless all are asked for."""
RECORDED = ("keep", "accuracy", "max_ulp", "training", "freeze", "narrow")
"""The options that a check takes from the file: those that do not name code."""
OUTPUT = "The file to write, .json. Where it is there already, of the same target, rules and versions, it goes on."
CHECK = "Check the file of a proof again, without running a rule."
OP = "Only this op (may be repeated)."
WORKERS = "Processes; by default one a core."


@command(AdviseOptions, shared="imports as_json")
def prove(
    to: ToOrNone = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help=OUTPUT, show_default=False)] = None,
    checked: Annotated[Path | None, typer.Option("--check", metavar="FILE", help=CHECK, show_default=False)] = None,
    op: Annotated[list[str], typer.Option("--op", metavar="OP", help=OP)] = [],
    *,
    words: Words,
    workers: Annotated[int | None, typer.Option(min=1, metavar="N", help=WORKERS)] = None,
    executor: Annotated[str | None, typer.Option(metavar="MODULE:CALLABLE", help=EXECUTOR)] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that one op may take.")] = TIMEOUT,
    everything: Annotated[bool, typer.Option("--all", help=f"Show more than {FEW} rows.")] = False,
) -> None:
    """Show which ops reach a target, over the whole table of sample calls: by which derivation, and for those that do
    not the smallest set of ops that the target would have to add. With --check, exits with 1 if a proof is wrong."""
    most = None if everything else FEW
    if checked is not None:
        _check(checked, to, words, workers, executor, timeout, most)
        return
    if to is None:
        raise Unusable("name a target: --to TARGET")
    require_output("-o", output, ".json")
    with chosen_executor(executor, workers) as pool, progressing() as report:
        found = proved_to_file(to, output, op, words, pool, timeout, report)
    if words.as_json:
        print_json(found.as_dict())
    else:
        show(proof_table(found, most), saved(output) if output is not None else None)


def proved_to_file(
    to: str,
    path: Path | None,
    ops: Sequence[str],
    words: Words,
    pool: Executor | None,
    timeout: float,
    report: Progress,
) -> TargetProof:
    """The proof of a target, gone on with and written at a path. Raises `Unusable`, `ArgumentError`."""
    from decomp.tools.proving.proving import prove

    options = {name: words.written[name] for name in RECORDED if words.written.get(name)}
    return prove(
        functools.partial(words.asked, to),
        ops=ops or None,
        known=TargetProof.load(path) if path is not None and path.exists() else None,
        executor=pool,
        timeout=timeout,
        header={"asked": to, "options": options},
        progress=report,
        save=(lambda proof: None) if path is None else functools.partial(_save, path),
    )


def _save(path: Path, proof: TargetProof) -> None:
    try:
        proof.save(path)
    except OSError as error:
        raise Unusable(f"cannot write {path}: {error.strerror or error}") from error


def proof_table(proof: TargetProof, most: int | None = None) -> RenderableType:
    """How many calls reach the target, and what the others wait for, most calls first."""
    from decomp.tools.cli.tables import indented

    rows = [(VERDICTS[verdict], count) for verdict, count in proof.counts().items() if count]
    parts: list[RenderableType] = [Text(proof.headline, style="bold"), "", OpenTable(Table(("", ">calls"), rows))]
    groups = [(_added(needs), count, some_of(ops)) for needs, ops, count in proof.blocking_sets()]
    if groups:
        columns = ("smallest set to add", ">calls", "of these ops")
        parts += ["", OpenTable(Table(columns, groups[:most])), *more_of(len(groups), most)]
    if proof.untried:
        parts += ["", indented(f"without a sample call: {', '.join(map(_short, proof.untried))}")]
    refused = _refused(proof)
    lost = [f"{op}: {why}" for op, why in proof.lost.items()]
    for title, lines in (("cannot be lowered", refused), ("without an answer", lost)):
        parts += ["", Text(title, style="red"), *(indented(f"  {line}") for line in lines[:most])] if lines else []
        parts += more_of(len(lines), most)
    return Group(*parts)


def _refused(proof: TargetProof) -> list[str]:
    """The calls that cannot be lowered, by op and reason."""
    found = Counter((op, call.reason) for op, calls in proof.ops.items() for call in calls if call.verdict == REFUSED)
    return [f"{_short(op)} ({count_noun(count, 'call')}): {_cut(why)}" for (op, why), count in found.items()]


def _cut(reason: str) -> str:
    return reason if len(reason) <= LONGEST else f"{reason[:LONGEST].rpartition(' ')[0]} …"


def more_of(count: int, most: int | None) -> list[RenderableType]:
    """How many rows are not shown, and how to see them."""
    return [Text(f"and {count - most} more (--all)")] if most is not None and count > most else []


def _added(needs: Sequence[str]) -> str:
    return ", ".join(map(_short, needs)) or "none but the op itself"


def _short(op: str) -> str:
    return op.removeprefix("aten.")


def _check(
    path: Path,
    to: str | None,
    words: Words,
    workers: int | None,
    executor: str | None,
    timeout: float,
    most: int | None,
) -> None:
    """Check the proof of a file. Exits with 1 if a call is not as it says."""
    from decomp.tools.proving.checking import check

    proof = TargetProof.load(path)
    named = str(proof.header.get("asked", proof.target))
    if to is None and ":" in named:
        raise Unusable(f"{path}: it is of {named}, which is code: name the target by --to")
    to = to or named
    recorded = {name: proof.header.get("options", {}).get(name) for name in RECORDED}
    words = Words({name: given or recorded.get(name) or given for name, given in words.written.items()})
    asked = functools.partial(words.asked, to)
    with chosen_executor(executor, workers) as pool, progressing() as report:
        found = check(proof, asked, executor=pool, timeout=timeout, progress=report)
    if words.as_json:
        print_json(found.as_dict())
    else:
        show(checked_table(found, most))
    if not found.ok:
        raise typer.Exit(1)


def checked_table(found: CheckedProof, most: int | None = None) -> RenderableType:
    """How many calls are as the proof says, and which are not."""
    from decomp.tools.cli.tables import indented
    from decomp.tools.proving.checking import KINDS

    rows = [(KINDS[kind], count) for kind, count in found.counts.items() if count]
    parts: list[RenderableType] = [Text(found.headline, style="bold")]
    parts += [indented(f"  note: {note}") for note in found.notes]
    parts += ["", OpenTable(Table(("", ">calls"), rows))]
    faults = found.faults
    parts += ["", *(indented(f"  {call}: {why}") for call, why in faults[:most])] if faults else []
    return Group(*parts, *more_of(len(faults), most))
