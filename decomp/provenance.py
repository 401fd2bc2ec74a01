"""Provenance: one immutable record for each node of a lowered program, kept beside the program and not in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import fx

from decomp.errors import source_line, spelled
from decomp.ir.call import module_path


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a node comes from."""

    source: str
    """Name of the node of the source program."""
    op: str
    """What that node calls, as the source spells it."""
    line: str | None
    """The user's own source line, if the capture recorded it."""
    module: str
    """Qualified name of the module it belongs to; empty if unknown."""
    chain: tuple[tuple[str, str], ...]
    """The rules that made the node, outermost first, each with its file and line; empty for a copied node."""

    def __str__(self) -> str:
        rules = " → ".join(f"{name} ({where})" for name, where in self.chain) or "copied"
        place = f" in {self.module}" if self.module else ""
        return f"{self.source} = {self.op}{place}: {rules}" + (f"\n  {self.line}" if self.line else "")


def record(source: fx.Node, chain: tuple[Any, ...]) -> Provenance:
    """The record of a node that came from `source` by the rules of `chain`."""
    return Provenance(
        source=source.name,
        op=spelled(source.target),
        line=source_line(source),
        module=module_path(source.meta.get("nn_module_stack")),
        chain=tuple((rule.name, rule.location) for rule in chain),
    )
