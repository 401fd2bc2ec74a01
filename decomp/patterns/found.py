"""The results of a search for patterns: matches, and near misses with the reason why each is not a match."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from decomp.errors import NotPortable
from decomp.ir.call import metadata
from decomp.patterns.pattern import Pattern


@dataclass(frozen=True, eq=False)
class Match:
    """Calls of a program that match a pattern and can be replaced: nothing else uses their intermediate results."""

    pattern: Pattern
    root: fx.Node
    """The node of the program that matches the pattern's last output."""
    nodes: tuple[fx.Node, ...]
    """The nodes that a replacement of the match removes, in program order."""
    outputs: tuple[fx.Node, ...]
    """The nodes that match the pattern's outputs, in the pattern's order."""
    bound: Mapping[str, Any]
    """The value of each free variable, by name: a node, a number, None, or a list of these."""
    placed: Mapping[fx.Node, fx.Node] = field(repr=False)
    """Maps each call of the pattern to the node that matches it."""
    sources: tuple[fx.Node, ...] = field(default=(), repr=False)
    """The matched nodes of the original program, if it was captured for the search: a module call counts as one
    node."""

    def __reduce__(self) -> tuple[Any, ...]:
        raise NotPortable(
            "a Match cannot be pickled: it holds nodes of your program\n  to do: pickle str(match), or the names of "
            "match.nodes"
        )

    def __copy__(self) -> Match:
        return self

    def __deepcopy__(self, memo: Any) -> Match:
        return self

    def __getitem__(self, name: str) -> Any:
        """The value of a free variable; for a tensor its metadata (shape, dtype, device), or its node if the program
        has no metadata. Raises `KeyError`."""
        return fx.node.map_aggregate(self.bound[name], _known)

    @property
    def inputs(self) -> tuple[fx.Node, ...]:
        """The distinct nodes among the values of free variables, in order."""
        found: dict[fx.Node, None] = {}
        fx.node.map_arg(tuple(self.bound.values()), lambda node: found.setdefault(node))
        return tuple(found)

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={value}" for name, value in self.bound.items())
        return f"{self.pattern.name} at {self.root.name} ({', '.join(n.name for n in self.nodes)}): {shown}"


def _known(value: Any) -> Any:
    found = metadata(value) if isinstance(value, fx.Node) else None
    return value if found is None else found


@dataclass(frozen=True, eq=False)
class NearMiss:
    """A place where a pattern matches in part, or matches but cannot be replaced."""

    pattern: Pattern
    root: fx.Node
    reason: str
    found: int
    """How many calls of the pattern are matched."""
    nodes: tuple[fx.Node, ...] = field(default=(), repr=False)
    """The nodes that match these calls."""

    def __reduce__(self) -> tuple[Any, ...]:
        raise NotPortable("a NearMiss cannot be pickled: it holds nodes of your program\n  to do: pickle str(miss)")

    def __copy__(self) -> NearMiss:
        return self

    def __deepcopy__(self, memo: Any) -> NearMiss:
        return self

    def __str__(self) -> str:
        calls = len(self.pattern.calls)
        return f"{self.pattern.name} at {self.root.name}, {self.found} of {calls} calls: {self.reason}"
