"""What a search for patterns finds: matches, and near misses with the reason why each is none."""

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
    """Calls of a program that are a pattern, and nothing else reads what only they compute."""

    pattern: Pattern
    root: fx.Node
    """The node of the program at which the pattern's last output was found."""
    nodes: tuple[fx.Node, ...]
    """The nodes that the pattern stands for, in the order of the program: what replaces the match replaces these."""
    outputs: tuple[fx.Node, ...]
    """Those of them that give what the pattern gives, in its order."""
    bound: Mapping[str, Any]
    """What each free variable stands for, by name: a node, a number, None, or a list of them."""
    placed: Mapping[fx.Node, fx.Node] = field(repr=False)
    """The node of the program for each call of the pattern."""
    sources: tuple[fx.Node, ...] = field(default=(), repr=False)
    """The nodes of the program as it was given, where it was captured for the search: a module that is called counts as
    one node."""

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
        """What a free variable stands for, a tensor as its metadata (shape, dtype, device); the node itself where the
        program has no metadata. Raises `KeyError`."""
        return fx.node.map_aggregate(self.bound[name], _known)

    @property
    def inputs(self) -> tuple[fx.Node, ...]:
        """The distinct nodes among what free variables stand for, in order."""
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
    """A place where a pattern was nearly found, or was found and may not be replaced."""

    pattern: Pattern
    root: fx.Node
    reason: str
    found: int
    """How many calls of the pattern were found."""
    nodes: tuple[fx.Node, ...] = field(default=(), repr=False)
    """The nodes that are these calls."""

    def __reduce__(self) -> tuple[Any, ...]:
        raise NotPortable("a NearMiss cannot be pickled: it holds nodes of your program\n  to do: pickle str(miss)")

    def __copy__(self) -> NearMiss:
        return self

    def __deepcopy__(self, memo: Any) -> NearMiss:
        return self

    def __str__(self) -> str:
        calls = len(self.pattern.calls)
        return f"{self.pattern.name} at {self.root.name}, {self.found} of {calls} calls: {self.reason}"
