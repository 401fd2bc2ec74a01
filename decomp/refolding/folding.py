"""Applies folds to a graph. A fold is one call whose results replace values that the graph computes by other nodes. The
graph is copied with the calls of all folds, and without nodes that are no longer used. Each call is placed where its
first result was, or earlier if another call needs it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
import operator
from typing import Any, TypeAlias

from torch import fx

from decomp.errors import DecompError
from decomp.graphs.rewrite import Rewrite
from decomp.ir.effects import EffectTable

Path = tuple[int, ...]
"""The indices of a tensor in nested results; empty for an op that returns one tensor."""


@dataclass(frozen=True, eq=False)
class Fold:
    """A call that computes values of a graph."""

    op: str
    """The kind of call: "call_function", "call_method", …"""
    target: Any
    args: Any
    """Arguments, whose operands are nodes of the graph or other folds."""
    kwargs: Any
    gives: Mapping[fx.Node, Path]
    """The nodes whose values the call computes, each with its path in the results."""
    name: str
    meta: Mapping[str, Any]
    draws: tuple[fx.Node, ...] = ()
    """The nodes that draw random numbers and are replaced by the call, which draws its own."""
    gone: tuple[fx.Node, ...] = ()
    """Nodes without users that the fold removes: they only inspect intermediate values."""
    parts: Mapping[Path, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)
    """Names and metadata for the projections of results, where they are known."""
    origin: fx.Node | None = None
    """The node recorded as origin if the call computes no value of the graph."""


class Circular(DecompError):
    """A fold has operands that depend on its own results."""

    def __init__(self, fold: Fold) -> None:
        self.fold = fold
        super().__init__(f"{fold.name!r} depends on itself")


Item: TypeAlias = "fx.Node | Fold"
"""An element of the new graph: a node that stays, or a fold."""


def apply_folds(
    graph: fx.Graph, folds: Iterable[Fold], effects: EffectTable, dropped: Collection[fx.Node] = ()
) -> Rewrite:
    """A copy of `graph` in which `folds` replace the nodes that computed their values, without those of `dropped` that
    are unused then. Raises `Circular`."""
    return _Folding(graph, folds, effects, dropped).rewrite


class _Folding:
    """The copy of one graph."""

    def __init__(
        self, graph: fx.Graph, folds: Iterable[Fold], effects: EffectTable, dropped: Collection[fx.Node]
    ) -> None:
        folds = tuple(folds)
        self.giver = {node: fold for fold in folds for node in fold.gives}
        self.drawn = {node: fold for fold in folds for node in fold.draws}
        self.gone = {node for fold in folds for node in fold.gone}
        self.uses: dict[Item, int] = {}
        self.read: set[fx.Node] = set()
        """The values of folds that are used."""
        self.needed = self._needed(graph, effects)
        kept = [node for node in graph.nodes if node in self.needed]
        self.rewrite = Rewrite.of(graph)
        # Names of nodes that disappear are free for the folds.
        self.rewrite.names = {node.name for node in kept}
        self.calls: dict[Fold, fx.Node] = {}
        self.taken: dict[tuple[Fold, Path], fx.Node] = {}
        for node in graph.nodes:
            # A draw keeps its place in the order of draws, or other random numbers would be drawn.
            item: Item = self.drawn.get(node) or self.giver.get(node) or node
            if item in self.needed and not (node in dropped and not self.uses.get(node)):
                self._make(item)

    def _needed(self, graph: fx.Graph, effects: EffectTable) -> set[Item]:
        """Everything that outputs and effects need, and nodes that were unused in the original graph."""
        needed: set[Item] = set()
        for node in graph.nodes:
            root = self._root(node, effects)
            waiting = [root] if root is not None and root not in needed else []
            needed.update(waiting)
            while waiting:
                for operand in self._operands(waiting.pop()):
                    self.uses[operand] = self.uses.get(operand, 0) + 1
                    if operand not in needed:
                        needed.add(operand)
                        waiting.append(operand)
        return needed

    def _root(self, node: fx.Node, effects: EffectTable) -> Item | None:
        """The item that has to be in the new graph for a node even if its value is unused, or None."""
        if node in self.drawn or node in self.gone:
            return self.drawn.get(node)
        # What was unused before stays: deleting it is no business of folding.
        if node.op in ("placeholder", "output") or not node.users and node not in self.giver:
            return node
        found = effects.of(node)
        return node if node not in self.giver and (found or not found.known) else None

    def _operands(self, item: Item) -> list[Item]:
        if isinstance(item, fx.Node):
            return [self._giver(node) for node in item.all_input_nodes]
        found: list[Item] = []
        fx.node.map_aggregate((item.args, item.kwargs), lambda leaf: self._note(leaf, found))
        return found

    def _note(self, leaf: Any, found: list[Item]) -> Any:
        if isinstance(leaf, (fx.Node, Fold)):
            found.append(self._giver(leaf) if isinstance(leaf, fx.Node) else leaf)
        return leaf

    def _giver(self, node: fx.Node) -> Item:
        self.read.add(node)
        return self.giver.get(node, node)

    def _make(self, item: Item) -> None:
        """Add an item to the new graph, after everything that it needs (depth first, without recursion)."""
        values = self.rewrite.values
        # The usual case, without the stack.
        if isinstance(item, fx.Node) and item not in values and all(n in values for n in item.all_input_nodes):
            self.rewrite.copy(item)
            return
        waiting, open_ = [item], set[Item]()
        while waiting:
            current = waiting[-1]
            missing = [] if self._made(current) else [o for o in self._operands(current) if not self._made(o)]
            # Met again below itself: its operands need its own result.
            if missing and current in open_:
                raise Circular(next(each for each in (current, *open_) if isinstance(each, Fold)))
            if missing:
                open_.add(current)
                waiting += missing
                continue
            waiting.pop()
            open_.discard(current)
            if isinstance(current, Fold):
                self._call(current)
            elif current not in self.rewrite.values:
                self.rewrite.copy(current, self._value_of)

    def _made(self, item: Item) -> bool:
        return item in self.calls if isinstance(item, Fold) else item in self.rewrite.values

    def _value_of(self, operand: Any) -> Any:
        """The image of an operand in the new graph."""
        if isinstance(operand, Fold):
            return self.calls[operand]
        if isinstance(operand, fx.Node):
            return self.rewrite.values[operand]
        return operand

    def _call(self, fold: Fold) -> None:
        if fold in self.calls:
            return
        args, kwargs = fx.node.map_aggregate((fold.args, fold.kwargs), self._value_of)
        new = self._create(fold.op, fold.target, args, kwargs, fold.name, fold.meta)
        self.calls[fold] = new
        if fold.origin is not None:
            self.rewrite.origin[new] = fold.origin
        for node, path in fold.gives.items():
            self.rewrite.origin.setdefault(new, node)
            if not path or node in self.read:
                self.rewrite.values[node] = self._part(fold, path)

    def _part(self, fold: Fold, path: Path) -> fx.Node:
        """The node for one of several results, made of `getitem` calls that are added once."""
        node = self.calls[fold]
        for depth in range(1, len(path) + 1):
            place = path[:depth]
            found = self.taken.get((fold, place))
            if found is None:
                name, meta = fold.parts.get(place, (f"{node.name}_{path[depth - 1]}", {}))
                found = self._create("call_function", operator.getitem, (node, path[depth - 1]), {}, name, meta)
                self.rewrite.origin[found] = self.rewrite.origin[node]
                self.taken[fold, place] = found
            node = found
        return node

    def _create(self, op: str, target: Any, args: Any, kwargs: Any, name: str, meta: Mapping[str, Any]) -> fx.Node:
        new = self.rewrite.create(op, target, args, kwargs, self.rewrite.free(name))
        new.meta.update(meta)
        return new
