"""`decomp partition`: a model split between a chip and the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from rich.console import Group, RenderableType
from rich.text import Text
import typer

import decomp
from decomp.rules.keywords import PartitionOptions
from decomp.tools.cli.arguments import Model, To, load_target
from decomp.tools.cli.flags import Words, command
from decomp.tools.cli.terminal import print_json, show, working
from decomp.tools.open_table import OpenTable

if TYPE_CHECKING:
    from decomp.partitioning.outcome import Partition

TRANSFER = "The price of a byte that is transferred; 1 by default."
HOST_COST = "The price of a byte that a call reads or writes on the host; 100 by default."
PARTS = "The most parts on the target; by default any number."
HOST = "The device of the model, on which the other calls run."


@command(PartitionOptions)
def partition(
    model: Model,
    to: To,
    *,
    words: Words,
    transfer: Annotated[float | None, typer.Option("--transfer", metavar="PRICE", help=TRANSFER)] = None,
    host_cost: Annotated[float | None, typer.Option("--host-cost", metavar="PRICE", help=HOST_COST)] = None,
    host: Annotated[str, typer.Option("--host", metavar="DEVICE", help=HOST)] = "cpu",
    parts: Annotated[int | None, typer.Option("--parts", min=0, metavar="N", help=PARTS)] = None,
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Skip verification of the parts.")] = False,
) -> None:
    """Split a model between a target and the host: which calls cannot run on the target, or cost less on the host, and
    in how many parts it runs then, with prices in bytes or in the unit of the target's costs."""
    from decomp.tools.cli.tables import indented

    target, options = load_target(to), words.options(verify=not no_verify)
    program = words.program(model)
    with working(f"splitting {model} between {target.name} and {host}"):
        found = decomp.partition(
            program, to=target, host=host, transfer=transfer, host_cost=host_cost, parts=parts, options=options
        )
    with working(f"searching for the ops that {target.name} lacks"):
        advice = found.advice
    if words.as_json:
        print_json({**found.as_dict(), "advice": [each.as_dict() for each in advice]})
    else:
        show(partition_table(found), *(indented(f"  {each}") for each in advice))


def partition_table(found: Partition) -> RenderableType:
    """The parts, the price, and why calls are on the host."""
    from decomp.tools.cli.tables import indented

    return Group(Text(found.headline, style="bold"), OpenTable(found.table), *map(indented, found.remarks))
