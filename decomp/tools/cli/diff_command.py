"""`decomp diff`: how two lowerings, or two proofs, differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Group, RenderableType
from rich.text import Text
import typer

import decomp
from decomp.rules.keywords import PlanOptions
from decomp.tools.cli.arguments import load_target
from decomp.tools.cli.flags import Words, command
from decomp.tools.cli.terminal import Unusable, print_json, show, working

if TYPE_CHECKING:
    from decomp.tools.locking.comparing import LockDifference
    from decomp.tools.locking.lock import Lock
    from decomp.tools.proving.comparing import ProofDifference

SUFFIX, PROOF = ".lock", ".json"
FEW = 12
"""How many changes of a kind are shown."""
TWO = (
    "A lock (a file that `decomp lower --lock FILE` wrote), or a model, which is lowered now; or a proof (that "
    "`decomp prove -o FILE.json` wrote), with another one."
)
TO = "A target for the models: once for both, or once for each. With one model, it is lowered to each of two."


@command(PlanOptions)
def diff(
    old: Annotated[str, typer.Argument(metavar="OLD", help=TWO, show_default=False)],
    new: Annotated[str | None, typer.Argument(metavar="[NEW]", help="The same.", show_default=False)] = None,
    to: Annotated[list[str], typer.Option("--to", metavar="TARGET", help=TO)] = [],
    *,
    words: Words,
    lines: Annotated[bool, typer.Option("--lines", help="Show the programs as a unified diff, too.")] = False,
    everything: Annotated[bool, typer.Option("--all", help=f"Show more than {FEW} changes of a kind.")] = False,
) -> None:
    """Say how two lowerings differ: options, target, calls by op and module, rules, and how each call of the source is
    lowered; or what two proofs reach. Exits with 1 if the lowered programs, or what is reached, differ."""
    from decomp.tools.locking.comparing import compare
    from decomp.tools.locking.lock import Lock

    if old.endswith(PROOF):
        _of_proofs(old, new, words.as_json, None if everything else FEW)
        return
    first, last = _two_targets(old, new, to)
    options = words.options()
    models: dict[str, Any] = {}

    def lower(name: str, target: str) -> Lock:
        if name not in models:
            models[name] = words.program(name)
        return Lock.of(decomp.lower(models[name], to=load_target(target), options=options))

    found = compare(_lock(old, first, lower), _lock(new or old, last, lower))
    if words.as_json:
        print_json(found.as_dict())
    else:
        show(difference_table(found, None if everything else FEW))
        if lines:
            typer.echo("\n".join(["", *found.lines]))
    if not found.is_same_program:
        raise typer.Exit(1)


def difference_table(found: LockDifference | ProofDifference, most: int | None = None) -> RenderableType:
    """The changes by kind."""
    from decomp.tools.cli.tables import change_groups
    from decomp.tools.locking.comparing import LockDifference

    groups = ((title, "bold", [f"{each.about}: {each.text}" for each in changes]) for title, changes in found.by_kind())
    parts: list[RenderableType] = [Text(found.headline, style="bold"), *change_groups(groups, most)]
    if found.changes and isinstance(found, LockDifference) and found.is_same_program:
        parts += ["", Text("The lowered programs are the same.")]
    return Group(*parts)


def _of_proofs(old: str, new: str | None, as_json: bool, most: int | None) -> None:
    """Show how two proofs differ. Exits with 1 if what they reach, or how, does."""
    from decomp.tools.proving.comparing import compare
    from decomp.tools.proving.records import TargetProof

    if new is None or not new.endswith(PROOF):
        raise Unusable(f"{old}: name another proof to compare it with: OLD.json NEW.json")
    found = compare(TargetProof.load(Path(old)), TargetProof.load(Path(new)))
    if as_json:
        print_json(found.as_dict())
    else:
        show(difference_table(found, most))
    if not found.is_same:
        raise typer.Exit(1)


def _two_targets(old: str, new: str | None, to: Sequence[str]) -> tuple[str, str]:
    """The target of each model; empty where none is given. Raises `Unusable`."""
    if len(to) > 2:
        raise Unusable("--to TARGET: at most two, one for each")
    if new is None and (old.endswith(SUFFIX) or len(to) < 2):
        raise Unusable(f"{old}: name another to compare it with, or a model with two targets: MODEL --to A --to B")
    return (to[0], to[-1]) if to else ("", "")


def _lock(name: str, target: str, lower: Callable[[str, str], Lock]) -> Lock:
    from decomp.tools.locking.lock import Lock

    if name.endswith(SUFFIX):
        return Lock.load(Path(name))
    if not target:
        raise Unusable(f"{name} is not a lock (*{SUFFIX}), and a model needs --to TARGET")
    with working(f"lowering {name} to {target}"):
        return lower(name, target)
