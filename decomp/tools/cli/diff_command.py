"""`decomp diff`: how two lowerings, or two proofs, differ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Group, RenderableType
from rich.text import Text
import typer

import decomp
from decomp.rules.keywords import PlanOptions
from decomp.tools.cli.arguments import load_target
from decomp.tools.cli.flags import Words, command
from decomp.tools.cli.outputs import require_output
from decomp.tools.cli.terminal import Unusable, print_json, saved, show, working

if TYPE_CHECKING:
    from decomp.locking.comparing import LockDifference
    from decomp.locking.lock import Lock
    from decomp.lowering import Lowering
    from decomp.tools.certification.rule_changes import RuleChanges
    from decomp.tools.proving.comparing import ProofDifference

LOCK, ONNX, PROOF = ".lock", ".onnx", ".json"
FEW = 12
"""How many changes of a kind are shown."""
TWO = (
    "A lock (a file that `decomp lower --lock FILE` wrote), or a model, which is lowered now; or, with another of the "
    "same kind, an ONNX file (of any exporter), a proof (that `decomp prove -o FILE.json` wrote), or a directory of "
    "certificates (as decomp_rules/certificates of a release)."
)
TO = "A target for the models: once for both, or once for each. With one model, it is lowered to each of two."
HTML = "Write a page, which shows what became of each call in both, side by side."


@command(PlanOptions)
def diff(
    old: Annotated[str, typer.Argument(metavar="OLD", help=TWO, show_default=False)],
    new: Annotated[str | None, typer.Argument(metavar="[NEW]", help="The same.", show_default=False)] = None,
    to: Annotated[list[str], typer.Option("--to", metavar="TARGET", help=TO)] = [],
    *,
    words: Words,
    lines: Annotated[bool, typer.Option("--lines", help="Show the programs as a unified diff, too.")] = False,
    everything: Annotated[bool, typer.Option("--all", help=f"Show more than {FEW} changes of a kind.")] = False,
    html: Annotated[Path | None, typer.Option("--html", metavar="PAGE", help=HTML, show_default=False)] = None,
) -> None:
    """Say how two lowerings differ: options, target, calls by op and module, cost, errors, rules, and how each call of
    the source is lowered; or how two ONNX files do, what two proofs reach, or what changed in the rules of a library.
    Exits with 1 if the programs, what is reached, or figures of rules differ."""
    from decomp.locking.comparing import compare

    if old.endswith(PROOF):
        _of_proofs(old, new, words.as_json, None if everything else FEW)
        return
    if Path(old).is_dir():
        _of_certificates(old, new, words.as_json, None if everything else FEW)
        return
    require_output("--html", html, ".html")
    both = tuple(zip((old, new or old), _two_targets(old, new, to)))
    if html is not None:
        _require_page([name for name, _ in both])
    sides = _Sides(words)
    found = compare(*(sides.lock(*each) for each in both))
    if html is not None:
        with working(f"writing {html}"):
            sides.write_page(html, (both[0][0], both[1][0]), found)
    if words.as_json:
        print_json(found.as_dict())
    else:
        show(difference_table(found, None if everything else FEW))
        if lines:
            typer.echo("\n".join(["", *found.lines]))
        show(saved(html) if html is not None else None)
    if not found.is_same_program:
        raise typer.Exit(1)


class _Sides:
    """What is compared: files that are read, and models that are lowered, each once."""

    def __init__(self, words: Any) -> None:
        self._words, self._options = words, words.options()
        self._models: dict[str, Any] = {}
        self._lowered: list[Lowering] = []

    def lock(self, name: str, target: str) -> Lock:
        from decomp.locking import onnx_files
        from decomp.locking.lock import Lock

        if name.endswith(LOCK):
            return Lock.load(Path(name))
        if name.endswith(ONNX):
            return onnx_files.read(Path(name))
        if not target:
            raise Unusable(f"{name} is not a lock (*{LOCK}), and a model needs --to TARGET")
        with working(f"lowering {name} to {target}"):
            if name not in self._models:
                self._models[name] = self._words.program(name)
            self._lowered.append(decomp.lower(self._models[name], to=load_target(target), options=self._options))
        return Lock.of(self._lowered[-1])

    def write_page(self, path: Path, names: tuple[str, str], found: LockDifference) -> None:
        """Write the page of the two that were lowered."""
        from decomp.page.differences import differences
        from decomp.page.writing import html_of_difference, save

        old, new = self._lowered
        save(path, lambda: html_of_difference(differences(old, new, names, found)))


def difference_table(found: LockDifference | ProofDifference | RuleChanges, most: int | None = None) -> RenderableType:
    """The changes by kind."""
    from decomp.locking.comparing import LockDifference
    from decomp.tools.cli.tables import change_groups

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
    _show(compare(TargetProof.load(Path(old)), TargetProof.load(Path(new))), as_json, most)


def _of_certificates(old: str, new: str | None, as_json: bool, most: int | None) -> None:
    """Show how the rules of two libraries differ, by their certificates. Exits with 1 if a figure does."""
    from decomp.tools.certification.rule_changes import compare, read

    if new is None or not Path(new).is_dir():
        raise Unusable(f"{old} is a directory of certificates: name another one to compare it with")
    _show(compare(read(Path(old)), read(Path(new))), as_json, most)


def _show(found: ProofDifference | RuleChanges, as_json: bool, most: int | None) -> None:
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
    if any(name.endswith(ONNX) for name in (old, new or "")) and not (
        old.endswith(ONNX) and (new or "").endswith(ONNX)
    ):
        raise Unusable(f"an ONNX file is compared with another one: OLD{ONNX} NEW{ONNX}")
    if new is None and (old.endswith(LOCK) or len(to) < 2):
        raise Unusable(f"{old}: name another to compare it with, or a model with two targets: MODEL --to A --to B")
    return (to[0], to[-1]) if to else ("", "")


def _require_page(names: Sequence[str]) -> None:
    """Raise `Unusable` if the programs cannot be shown as a page."""
    if any(name.endswith((LOCK, ONNX)) for name in names):
        raise Unusable(
            "--html shows two programs that are lowered now: name models, not files of what was made of them"
        )
