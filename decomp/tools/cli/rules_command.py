"""`decomp rules`, `lint` and `targets`: what the library has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from rich.text import Text
import typer

import decomp
from decomp.errors import first_line
from decomp.files import write_atomically
from decomp.tools.cli.arguments import TARGET, TO, attribute, load_target
from decomp.tools.cli.flags import Words, command
from decomp.tools.cli.outputs import require_output, require_plot
from decomp.tools.cli.terminal import Unusable, print_json, saved, show

HEADER = "Write the ops of the target as a C header: their numbers, and structs of their arguments."
RULES = "package.module:name of rules, or of a table of functions by op; by default the rules of the library."


@command(shared="")
def rules(
    text: Annotated[
        str, typer.Argument(metavar="[FILTER]", help="Only rules whose op, name or file contains this.")
    ] = "",
    limitations: Annotated[
        bool, typer.Option("--limitations", help="List the ops that cannot be decomposed, and why.")
    ] = False,
    to: Annotated[
        str | None,
        typer.Option(*TO, metavar="TARGET", help="Compare the errors and calls of one op's rules on a target."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Plot errors over calls, with --to.")] = None,
) -> None:
    """List the rules of the library or its declared limitations, or show what accuracy costs on a target."""
    from decomp.rules.certificates import read_committed
    from decomp.rules.library import library
    from decomp.tools.cli import tables

    require_plot(plot)
    if to is not None:
        _show_front(text, load_target(to), plot)
        return
    if limitations:
        declared = [each for each in library().limitations if text in str(each)]
        if not declared:
            raise Unusable(f"no limitation with {text!r} in its op or reason")
        show(tables.limitations_table(declared))
        show(Text(f"{len(declared)} limitations of {len({each.op for each in declared})} ops"))
        return
    found = [rule for rule in library() if text in f"{rule.op} {rule}"]
    if not found:
        raise Unusable(f"no rule with {text!r} in its op, name or file")
    show(tables.rules_table(sorted(found, key=lambda rule: str(rule.op)), read_committed()))
    show(Text(f"{len(found)} rules for {len({rule.op for rule in found})} ops"))


def _show_front(op: str, target: decomp.Target, plot: Path | None) -> None:
    """Show the alternatives for an op on a target. Raises `Unusable`, `UnknownOp`, `ArgumentError`."""
    from decomp.rules.certificates import read_committed
    from decomp.rules.library import library
    from decomp.tools.certification import fronts
    from decomp.tools.certification.tables import front_table

    found = library().of(decomp.op(op)) if op else ()
    if not found:
        raise Unusable(f"there is no rule for {decomp.op(op)}" if op else "which op? decomp rules exp --to tinygrad")
    ways = fronts.front(found, target, read_committed())
    show(front_table(ways))
    if plot is not None:
        show(saved(fronts.plot_front(ways, plot)))


@command(shared="as_json")
def lint(
    name: Annotated[str | None, typer.Argument(metavar="[RULES]", help=RULES, show_default=False)] = None,
    *,
    words: Words,
) -> None:
    """Compare the parameters of rules with the schemas of their ops. Exits with 1 if one contradicts its schema."""
    from decomp.rules.library import library
    from decomp.tools.cli import tables

    checked = library() if name is None else attribute(name)
    if not isinstance(checked, (decomp.Rules, Mapping)):
        raise Unusable(f"{name} must be a decomp.Rules or a table of functions by op, not {type(checked).__name__}")
    findings = decomp.lint(checked)
    if words.as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        show(tables.findings_table(findings) if findings else None)
        count = len(list(checked))
        show(Text(f"{len(findings)} findings in {count} {'rules' if count != 1 else 'rule'}"))
    if findings:
        raise typer.Exit(1)


@command(shared="")
def targets(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help=TARGET, show_default=False)] = None,
    header: Annotated[Path | None, typer.Option(help=HEADER, show_default=False)] = None,
) -> None:
    """List the targets, or the ops of one."""
    from decomp.tools.cli import tables

    if header is not None:
        _write_header(name, header)
        return
    if name is not None:
        show(tables.target_table(load_target(name)))
        return
    from decomp_rules import targets as known

    show(tables.targets_table(known.get(each) for each in known.names()))


def _write_header(name: str | None, path: Path) -> None:
    """Write the C header of a target. Raises `Unusable`."""
    from decomp.portable.header import header

    if name is None:
        raise Unusable(f"--header {path}: of which target? decomp targets tinygrad --header {path}")
    require_output("--header", path)
    text = header(load_target(name))
    try:
        with write_atomically(path) as unfinished:
            unfinished.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Unusable(f"cannot write {path}: {error.strerror or first_line(error)}") from error
    show(saved(path))
