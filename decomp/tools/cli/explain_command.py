"""`decomp explain`: the rules of an op and how sample calls of it are lowered; or a model, and its page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from rich.text import Text
import typer

import decomp
from decomp.rules.keywords import PlanOptions
from decomp.tools.cli.arguments import MODEL, ToOrNone, load_target
from decomp.tools.cli.flags import Words, command
from decomp.tools.cli.outputs import require_output
from decomp.tools.cli.terminal import Unusable, saved, show, working

OP = f"An op in any spelling: relu, F.relu, aten.sum, nn.GELU. Or a model: {MODEL[0].lower()}{MODEL[1:]}"
HTML = (
    "Write a page of the model, one file without network: its stages, the rules and the alternatives of each call, and "
    "what was verified."
)


@command(PlanOptions, shared="dynamic trust imports")
def explain(
    what: Annotated[str, typer.Argument(metavar="OP|MODEL", help=OP, show_default=False)],
    to: ToOrNone = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="PAGE", help=HTML, show_default=False)] = None,
    *,
    words: Words,
) -> None:
    """Show the rules of an op, and how sample calls of it are lowered to a target; or what becomes of a model on a
    target, and why, also as a page. Exits with 1 if calls of the model are blocked."""
    from decomp.tools.cli import tables

    require_output("--html", html, ".html")
    options, target = words.options(), load_target(to) if to is not None else None
    if not _is_model(what, html):
        if html is not None:
            raise Unusable(f"--html shows a model, and {what} is an op")
        _explain_op(decomp.op(what), target, options)
        return
    if target is None:
        raise Unusable(f"--to is missing: {what} is a model, which is explained for a target")
    program = words.program(what)
    with working(f"lowering {what} to {target.name}"):
        lowering = decomp.lower(program, to=target, options=options, partial=True, verify="values")
    if html is not None:
        with working(f"writing {html}"):
            lowering.html(html, what)
    report = lowering.report()
    show(tables.report_table(report), "", Text(str(lowering.plan)))
    show(tables.checks_table(report) if words.verbose else None)
    show(saved(html) if html is not None else None)
    if lowering.blockers:
        raise typer.Exit(1)


def _is_model(what: str, html: Path | None) -> bool:
    """Whether a name is that of a model. `lstm` is an op and a sample model: it is the model where a page is asked
    for."""
    from decomp_rules import samples

    if what.endswith(".pt2") or ":" in what:
        return True
    return what in samples.MODELS and (html is not None or not _is_op(what))


def _is_op(what: str) -> bool:
    try:
        return decomp.op(what) is not None
    except decomp.errors.UnknownOp:
        return False


def _explain_op(found: decomp.Op, target: decomp.Target | None, options: decomp.Options) -> None:
    from decomp.tools.cli import tables
    from decomp.tools.explaining import routes

    taken: list[Any] = []
    if target is not None and found.packet is not None:
        from decomp_rules import samples

        with working(f"lowering sample calls of {found}"):
            taken = routes(samples.calls_of(found.packet), target, options)
    show(tables.explanation(found, options.chosen_rules.of(found), taken, target))
