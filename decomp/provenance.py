"""Provenance: one immutable record for each node of a lowered program, kept outside the program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import fx

from decomp.errors import source_line, spell_target
from decomp.ir.call import module_path


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a node comes from."""

    source: str
    """Name of the node of the source program."""
    op: str
    """The op that this node calls, as the source spells it."""
    line: str | None
    """The user's own source line, if the capture recorded it."""
    module: str
    """Qualified name of the module it belongs to; empty if unknown."""
    chain: tuple[tuple[str, str], ...]
    """The rules that created the node, outermost first, each with its file and line; empty for a copied node."""
    sources: tuple[str, ...] = ()
    """Names of all nodes of the source program that it replaces: several for a pattern."""
    pattern: str | None = None
    """File and line of the pattern that they matched; None if no pattern was replaced."""

    def __str__(self) -> str:
        rules = " → ".join(f"{name} ({where})" for name, where in self.chain) or "copied"
        place = f" in {self.module}" if self.module else ""
        several = f" with {', '.join(name for name in self.sources if name != self.source)}" if self.pattern else ""
        found = f", the pattern at {self.pattern}" if self.pattern else ""
        line = f"\n  {self.line}" if self.line else ""
        return f"{self.source} = {self.op}{several}{place}: {rules}{found}{line}"


def record(
    source: fx.Node, chain: tuple[Any, ...], sources: tuple[fx.Node, ...] = (), pattern: str | None = None
) -> Provenance:
    """The record of a node that the rules of `chain` derived from `source`, or from all `sources`, which matched the
    pattern defined at `pattern`."""
    return Provenance(
        source=source.name,
        op=spell_target(source.target),
        line=source_line(source),
        module=module_path(source.meta.get("nn_module_stack")),
        # Names and not rules: a record must not keep rules alive, and can be pickled.
        chain=tuple((rule.name, rule.location) for rule in chain),
        sources=tuple(node.name for node in sources or (source,)),
        pattern=pattern,
    )
