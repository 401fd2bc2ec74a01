"""The graph that is searched for patterns: the terms of its nodes, and whether a set of nodes can be replaced by one
call."""

from __future__ import annotations

from collections.abc import Collection, Iterable
import functools
import itertools
from typing import TYPE_CHECKING, Any

from torch import fx, nn

from decomp.ir.arguments import equal
from decomp.ir.effects import Effect, EffectTable, looks_only
from decomp.metadata.nonfinite_constants import same_constant
from decomp.patterns.terms import Terms, op_name

if TYPE_CHECKING:
    from decomp.patterns.found import Match

_CHEAP = frozenset(
    f"aten.{name}"
    for name in "t transpose permute numpy_T mT view reshape _unsafe_view expand alias dropout clone".split()
)
"""Ops that compute nothing: if other calls use the result of one, it is kept next to the replacement of the match."""


class SearchGraph:
    """A graph with lazily computed tables."""

    def __init__(self, graph: fx.Graph, owner: nn.Module | None = None, kept: frozenset[fx.Node] = frozenset()) -> None:
        self.graph, self.owner, self.kept = graph, owner, kept
        self.terms = Terms()

    @functools.cached_property
    def place(self) -> dict[fx.Node, int]:
        """The index of each node in the graph."""
        return {node: i for i, node in enumerate(self.graph.nodes)}

    @functools.cached_property
    def _effects(self) -> EffectTable:
        return EffectTable(self.owner)

    def _counted(self, effect: Effect) -> list[int]:
        """For each node: how many calls up to and including it have an effect."""
        return list(itertools.accumulate(effect in self._effects.of(node).kinds for node in self.place))

    @functools.cached_property
    def _writes(self) -> list[int]:
        return self._counted(Effect.MUTATION)

    @functools.cached_property
    def _regions(self) -> list[int]:
        return self._counted(Effect.REGION)

    def same_value(self, a: Any, b: Any) -> bool:
        """Whether two arguments are the same value: the same node, reads of the same attribute, or equal constants."""
        return equal(a, b, _is_same)

    def with_inner(
        self, placed: Collection[fx.Node], through: Iterable[fx.Node], outputs: Collection[fx.Node]
    ) -> set[fx.Node]:
        """The nodes that a replacement of a match removes: its calls; nodes that only pass values between them; and
        nodes that only inspect inner values, such as unused size reads."""
        covered = set(placed)
        for node in sorted(set(through) - covered, key=self.place.__getitem__, reverse=True):
            if op_name(node) not in _CHEAP or all(user in covered or looks_only(user) for user in node.users):
                covered.add(node)
        for node in [*covered]:
            if node not in outputs:
                # A read of the shape of an inner value goes with it; the value is known from metadata.
                covered.update(user for user in node.users if looks_only(user))
        return covered

    def why_not(self, match: Match) -> str | None:
        """Why a match cannot be replaced, or None if it can."""
        covered = set(match.nodes)
        for node in match.nodes:
            reason = self._why_kept(node, covered) if node not in match.outputs else None
            if reason is not None:
                return reason
        effects = self._why_effects(match)
        return effects or self._why_between(match) or self._why_out_of_order(match, covered)

    def _why_kept(self, node: fx.Node, covered: set[fx.Node]) -> str | None:
        """Why an inner value of a match is needed elsewhere, or None."""
        if node in self.kept:
            return f"{node.name} is written back to an input or buffer"
        user = next((user for user in node.users if user not in covered), None)
        if user is None:
            return None
        if user.op == "output":
            return f"{node.name} is returned, too"
        return f"{node.name} is used elsewhere, by {user.name}"

    def _why_effects(self, match: Match) -> str | None:
        own = {match.placed[node]: node for node in match.placed}
        for node in match.nodes:
            effects = self._effects.of(node)
            # An op of a user's library has unknown effects. If the pattern
            # calls the very same, its author has said that it may be replaced.
            stated = node in own and own[node].target is node.target
            if effects or not effects.known and not stated:
                return f"{node.name} has effects ({effects})"
        return None

    def _why_between(self, match: Match) -> str | None:
        """Why the nodes of a match cannot be moved to one place, or None."""
        first, last = self.place[match.nodes[0]], self.place[match.nodes[-1]]
        # A replacement is one call, which is in one region only.
        if self._regions[first] != self._regions[last]:
            ends = f"{match.nodes[0].name} and {match.nodes[-1].name}"
            return f"a no_grad or autocast region begins or ends between {ends}"
        if self._writes[first] != self._writes[last]:
            writing = next(n for n, i in self.place.items() if first <= i <= last and self._mutates(n))
            return f"{writing.name} writes to a tensor in between"
        return None

    def _mutates(self, node: fx.Node) -> bool:
        return Effect.MUTATION in self._effects.of(node).kinds

    def _why_out_of_order(self, match: Match, covered: set[fx.Node]) -> str | None:
        """Why there is no place after all inputs and before all uses of the outputs, or None."""
        if len(set(match.outputs)) < len(match.outputs):
            return "two of its outputs are one value"
        # A match is where its last call is: what uses an output before that would read a later value.
        users = [self.place[user] for node in match.outputs for user in node.users if user not in covered]
        known = max((self.place[node] for node in match.inputs), default=-1)
        if users and min(users) <= known:
            return "one of its outputs is used before all its inputs are known"
        inside = next((node for node in match.inputs if node in covered), None)
        return f"{inside.name} is both an input of the match and inside it" if inside is not None else None


def _is_same(a: Any, b: Any) -> bool:
    if isinstance(a, fx.Node) and isinstance(b, fx.Node):
        # Traces read a weight once for each use.
        return a is b or a.op == b.op == "get_attr" and a.target == b.target
    return not isinstance(a, fx.Node) and not isinstance(b, fx.Node) and same_constant(a, b)
