"""Folding by provenance: finds the calls of a lowering's source that can be restored in the lowered program. A call can
be restored if the nodes between the images of its operands and of its results are still those that the lowering
recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
import functools
import operator
from typing import Any

from torch import fx

from decomp.derive.decisions import Derived
from decomp.errors import spell_target
from decomp.graphs.snapshot import Snapshot, is_as_recorded, renamed_operands, same_target
from decomp.ir.agreement import same_metadata
from decomp.ir.arguments import nodes_in
from decomp.ir.binding import BindingError
from decomp.ir.call import bound_call, is_projection, metadata
from decomp.ir.effects import EffectTable
from decomp.ir.module import ProgramGraph
from decomp.patterns.pattern import Pattern
from decomp.refolding.folding import Fold, Path
from decomp.refolding.outcome import MissedCall, RestoredCall
from decomp.rules.target import Target

FUSED = "several calls of the source that a pattern rule fused into one"
MERGED = "its value is now that of another call, by simplification"


@dataclass
class RecordedFindings:
    """The calls restored in one graph, and those missed."""

    folds: list[Fold] = field(default_factory=list)
    folded: list[RestoredCall] = field(default_factory=list)
    missed: list[MissedCall] = field(default_factory=list)


def find_recorded_folds(
    piece: ProgramGraph, host: fx.Graph, before: Snapshot, inputs: Mapping[fx.Node, fx.Node], to: Target | None
) -> RecordedFindings:
    """The calls of the source of `piece` that can be restored in `host`, the lowered graph in its current state;
    `before` is its state after lowering. `inputs` maps inputs of the recorded graph to nodes of `host` with other
    names. `to`: the ops that are wanted; all if None."""
    return _RecordWalk(piece, host, before, inputs, to).found


class _Broken(Exception):
    """A call cannot be restored; the message says why."""


class _RecordWalk:
    """One walk over the source of a lowered graph."""

    def __init__(
        self,
        piece: ProgramGraph,
        host: fx.Graph,
        before: Snapshot,
        inputs: Mapping[fx.Node, fx.Node],
        to: Target | None,
    ) -> None:
        self.piece, self.before, self.to = piece, before, to
        self.rewrite = piece.since_planned
        self.now = {node.name: node for node in host.nodes}
        self.inputs = inputs
        self.edited = {name for name, was in before.items() if not self._is_untouched(name, was)}
        self.strangers = self._strangers(host)
        self.effects = EffectTable(piece.planned.graph.owning_module)
        self.calls: dict[fx.Node, Fold] = {}
        self.spare: dict[fx.Node, Fold] = {}
        self.found = RecordedFindings()
        self.wanted = _wanted_in(to)
        for source, decision in (piece.planned.decisions or {}).items():
            # A value that has no image was dead, and has nothing to restore.
            if isinstance(decision, Derived) and source in self.rewrite.values:
                self._visit(source)

    def _is_untouched(self, name: str, was: Any) -> bool:
        node = self.now.get(name)
        return node is not None and is_as_recorded(node, was)

    def _strangers(self, host: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
        """For each recorded node: its users that were added or changed since."""
        found: dict[fx.Node, list[fx.Node]] = {}
        if not self.edited and len(self.now) == len(self.before):
            return found
        for node in host.nodes:
            if node.name not in self.before or node.name in self.edited:
                for operand in node.all_input_nodes:
                    found.setdefault(operand, []).append(node)
        return found

    def _visit(self, source: fx.Node) -> None:
        op = spell_target(source.target)
        illegal = FUSED if isinstance(source.target, Pattern) else self.wanted(source)
        if illegal is not None:
            self.found.missed.append(MissedCall(op, source.name, illegal, wanted=False))
            return
        try:
            fold, replaced = self._fold(source)
        except _Broken as broken:
            self.found.missed.append(MissedCall(op, source.name, str(broken)))
            return
        self.calls[source] = fold
        if not fold.gives:
            self.found.missed.append(MissedCall(op, source.name, MERGED, wanted=False))
            return
        self.found.folds.append(fold)
        self.found.folded.append(RestoredCall(op, source.name, replaced, "provenance"))

    def _fold(self, source: fx.Node) -> tuple[Fold, int]:
        """The fold that restores a source node, and how many nodes it replaces. Raises `_Broken`."""
        gives = self._results(source)
        # An unchanged graph needs no look at regions, which would cost as much as all the rest.
        renamed, region = self._region(source, gives) if self._is_suspect() else ({}, ())
        args, kwargs = fx.map_arg((source.args, source.kwargs), lambda node: self._operand(node, renamed))
        self._refuse_strangers(source, gives, region)
        parts: dict[Path, tuple[str, Any]] = {
            (user.args[1],): (user.name, user.meta)
            for user in source.users
            if user.target is operator.getitem and isinstance(user.args[1], int)
        }
        draws = tuple(self._draws.get(source, ()))
        fold = Fold(source.op, source.target, args, kwargs, gives, source.name, source.meta, draws, (), parts)
        return fold, self._counts.get(source, 1)

    def _is_suspect(self) -> bool:
        return bool(self.edited or self.strangers)

    @functools.cached_property
    def _counts(self) -> dict[fx.Node, int]:
        """How many nodes of the lowered graph come from each source node."""
        counts: dict[fx.Node, int] = {}
        for origin in self.rewrite.origin.values():
            counts[origin] = counts.get(origin, 0) + 1
        return counts

    @functools.cached_property
    def _draws(self) -> dict[fx.Node, list[fx.Node]]:
        """By source node: the nodes of its expansion that draw random numbers."""
        found: dict[fx.Node, list[fx.Node]] = {}
        for node in self.now.values():
            source = self._origins.get(node.name) if self.effects.of(node).most else None
            if source is not None:
                found.setdefault(source, []).append(node)
        return found

    def _results(self, source: fx.Node) -> dict[fx.Node, Path]:
        """The nodes that compute the results of a source node only. Raises `_Broken`."""
        gives: dict[fx.Node, Path] = {}
        for path, node in _places(self.rewrite.values[source]):
            if self.rewrite.origin.get(node) is not source or node.op == "get_attr":
                continue  # it is also the value of another call, or was constant-folded
            now = self.now.get(node.name)
            if now is None or node.name not in self.before:
                raise _Broken(f"its value {node.name!r} was removed")
            gives.setdefault(now, path)
        return gives

    def _region(self, source: fx.Node, gives: Mapping[fx.Node, Path]) -> tuple[dict[str, fx.Node], set[fx.Node]]:
        """The nodes that replace operands of a source node (by recorded name), and the nodes that compute it. Raises
        `_Broken` if these were changed in another respect."""
        given = (node for each in source.all_input_nodes for node in nodes_in(self.rewrite.values.get(each)))
        operands = {self.inputs.get(node, node).name for node in given}
        read: dict[str, fx.Node] = {}
        region, waiting = set(gives), list(gives)
        while waiting:
            node = waiting.pop()
            was = self.before.get(node.name)
            if was is None or node.op != was.op or not same_target(node.target, was.target):
                raise _Broken(f"{node.name!r} is another call now")
            renamed = renamed_operands(node, was)
            if renamed is None:
                raise _Broken(f"{node.name!r} was changed")
            for operand in nodes_in((was.args, was.kwargs)):
                now = renamed.get(operand.name) or self.now[operand.name]
                if operand.name in operands:
                    if read.setdefault(operand.name, now) is not now:
                        raise _Broken(f"{operand.name!r} was replaced in only some of its uses")
                elif now.name != operand.name:
                    raise _Broken(f"{node.name!r} reads {now.name!r} now, not {operand.name!r}")
                elif now not in region:
                    region.add(now)
                    waiting.append(now)
        return {name: now for name, now in read.items() if now.name != name}, region

    def _refuse_strangers(self, source: fx.Node, gives: Mapping[fx.Node, Path], region: Any) -> None:
        for node in region:
            if node in gives or self._origin_of(node) is not source:
                continue
            for user in self.strangers.get(node, ()):
                if user not in region:
                    raise _Broken(f"the intermediate value {node.name!r} is used by {user.name!r} now")

    def _origin_of(self, node: fx.Node) -> fx.Node | None:
        return self._origins.get(node.name)

    @functools.cached_property
    def _origins(self) -> dict[str, fx.Node]:
        return {node.name: source for node, source in self.rewrite.origin.items()}

    def _operand(self, operand: fx.Node, renamed: Mapping[str, fx.Node]) -> Any:
        """The operand of a restored call. Raises `_Broken`."""
        if operand in self.calls:
            return self._of_call(operand, renamed)
        if operand not in self.rewrite.values:
            return self._spare(operand)
        return fx.map_arg(self.rewrite.values[operand], lambda node: self._in_host(node, operand, renamed))

    def _of_call(self, operand: fx.Node, renamed: Mapping[str, fx.Node]) -> Any:
        """The operand that is a restored call itself, or the node by which the user has replaced its result."""
        value = self.rewrite.values[operand]
        if isinstance(value, fx.Node) and value.name in renamed or not self.calls[operand].gives:
            return fx.map_arg(value, lambda node: self._in_host(node, operand, renamed))
        return self.calls[operand]

    def _in_host(self, node: fx.Node, operand: fx.Node, renamed: Mapping[str, fx.Node]) -> fx.Node:
        now = self.inputs.get(node) or self.now.get(node.name)
        now = renamed.get(now.name if now is not None else node.name, now)
        if now is None:
            raise _Broken(f"its operand {operand.name!r} is no longer computed")
        if now.name != node.name and node not in self.inputs and not _alike(now, node):
            raise _Broken(f"its operand {operand.name!r} is now {now.name!r}, of another shape or dtype")
        return now

    def _spare(self, operand: fx.Node) -> Any:
        """A source call that simplification removed, restored because another call needs it. Raises `_Broken`."""
        if is_projection(operand) and operand.args[0] in self.calls and isinstance(operand.args[1], int):
            return self._spare_call(operand)
        # A call with an effect must not be made again.
        if operand.op not in ("call_function", "call_method") or self.effects.of(operand):
            raise _Broken(f"its operand {operand.name!r} is no longer computed")
        return self._spare_call(operand)

    def _spare_call(self, operand: fx.Node) -> Fold:
        if operand not in self.spare:
            args, kwargs = fx.map_arg((operand.args, operand.kwargs), lambda node: self._operand(node, {}))
            self.spare[operand] = Fold(operand.op, operand.target, args, kwargs, {}, operand.name, operand.meta)
        return self.spare[operand]


def _alike(now: fx.Node, before: fx.Node) -> bool:
    """Whether the metadata of two nodes is known and the same."""
    one, other = metadata(now), metadata(before)
    return one is not None and other is not None and same_metadata(other, one)


def _places(value: Any, path: Path = ()) -> Iterator[tuple[Path, fx.Node]]:
    """Each node of nested results with its path."""
    if isinstance(value, fx.Node):
        yield path, value
    elif isinstance(value, (tuple, list)):
        for i, item in enumerate(value):
            yield from _places(item, (*path, i))


def _wanted_in(to: Target | None) -> Any:
    """A function that returns why a call is not wanted; None if it is."""

    def why_not(node: fx.Node) -> str | None:
        if to is None:
            return None
        try:
            call = bound_call(node)
        except BindingError as error:
            return str(error)
        why = to.why_illegal(call) if call is not None else ""
        return None if why is None else f"not in {to.name}" + (f": {why}" if why else "")

    return why_not
