"""A lowered graph held against its record, node by node: what stays is a copy of a source node with its operands
replaced, what was replaced is its expansion with its operands bound. Nothing else may stand there, and nothing of it
may be missing; so that a lost, swapped or rewired operand is as wrong as an invented one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from decomp.graphs.template import Stamp
from decomp.ir.call import is_projection, projected
from decomp.ir.respelling import canonical, respelled
from decomp.metadata.nonfinite_constants import same_constant
from decomp.proof.correspondence import NotAsRecorded, ValueLost

if TYPE_CHECKING:
    from decomp.proof.invariants import Work


def as_recorded(work: Work) -> str:
    """Every node of the lowered graph is one that the record of the lowering says is there. Says nothing without
    one."""
    stamps = work.correspondence.stamps
    if stamps is None:
        return ""
    walk = _Replay(work, stamps)
    for source in work.source_place:
        if source.op != "output":
            walk.visit(source)
    walk.require_nothing_left()
    return f"each of {walk.compared} nodes is a copy or of an expansion, with its operands bound as in the source"


class _Replay:
    """One walk over the source, taking the nodes that each source node made off a list."""

    def __init__(self, work: Work, stamps: Mapping[fx.Node, Stamp]) -> None:
        self.work, self.stamps = work, stamps
        self.compared = 0
        self.constants = _nodes_of_constants(work)
        self.values = self._current() if self.constants else work.values
        self.made: dict[fx.Node, list[fx.Node]] = {}
        shared = set(self.constants.values())
        for node in work.place:
            source = work.origin.get(node)
            if source is not None and node.op != "output" and node not in shared:
                self.made.setdefault(source, []).append(node)

    def _current(self) -> dict[fx.Node, Any]:
        """What stands for each value, where an exported program has inputs in the place of attributes."""
        tensors = self.work.correspondence.constants

        def current(node: fx.Node) -> fx.Node:
            if node.op != "get_attr" or node in self.work.place:
                return node
            return self.constants.get(id(tensors.get(str(node.target))), node)

        return {source: fx.node.map_arg(value, current) for source, value in self.work.values.items()}

    def visit(self, source: fx.Node) -> None:
        made = self.made.pop(source, ())
        stamp = self.stamps.get(source)
        if stamp is not None:
            self._require_stamped(source, stamp, iter(made))
        else:
            self._require_copied(source, made)

    def _require_copied(self, source: fx.Node, made: Any) -> None:
        found = self.values.get(source)
        if not made and self._is_taken_apart(source, found):
            return
        if not made and not source.users and found is None:
            return  # a call that the lowering proved to be without effect
        if len(made) != 1 or made[0] is not found or found is None:
            raise NotAsRecorded(f"{source.name!r} stays, so one copy of it stands for it", _first(made), source)
        node: fx.Node = made[0]
        self.compared += 1
        if node.op != source.op or not self._same_call(node, source):
            wanted = fx.node.map_arg((source.args, source.kwargs), lambda given: self.values.get(given, given))
            raise NotAsRecorded(
                f"{node.name!r} is no copy of {source.name!r}", node, source, expected=wanted,
                found=(node.args, node.kwargs),
            )  # fmt: skip

    def _is_taken_apart(self, source: fx.Node, found: Any) -> bool:
        """Whether a node took one of several results of a call that was replaced, and so needs none of its own."""
        results = self.values.get(source.args[0]) if source.args and isinstance(source.args[0], fx.Node) else None
        return type(results) is tuple and is_projection(source) and same(projected(source, results), found)

    def _same_call(self, node: fx.Node, source: fx.Node) -> bool:
        if isinstance(source.target, torch._ops.HigherOrderOperator):
            # The flags of a region may be switched off where its body says itself what they did.
            wanted = [self.values.get(given) for given in source.all_input_nodes]
            return node.target is source.target and same(list(node.all_input_nodes), wanted)
        return same_call(node, source.target, source.args, source.kwargs, self.values)

    def _require_stamped(self, source: fx.Node, stamp: Stamp, made: Iterator[fx.Node]) -> None:
        values = [self.values[given] for given in source.all_input_nodes]
        for entry in stamp.entries:
            if entry.op == "get_attr":
                values.append(self._constant(stamp.constants[entry.target], entry.target, source))
                continue
            args, kwargs = entry.arguments(values)
            if entry.target is operator.getitem and type(args[0]) is tuple:
                values.append(args[0][args[1]])
                continue
            node = next(made, None)
            if node is None:
                problem = f"of what replaces {source.name!r} the call of {entry.target} is missing"
                raise NotAsRecorded(problem, None, source)
            self.compared += 1
            if node.op != entry.op or not same_call(node, entry.target, args, kwargs):
                raise _other(node, source, (entry.target, args, kwargs), (node.target, node.args, node.kwargs))
            values.append(node)
        extra = next(made, None)
        if extra is not None:
            raise NotAsRecorded(f"{extra.name!r} is not in the expansion that replaces {source.name!r}", extra, source)
        if not same(stamp.outputs(values), self.values.get(source)):
            raise NotAsRecorded(f"what stands for {source.name!r} is not the result of its expansion", None, source)

    def _constant(self, tensor: torch.Tensor, name: str, source: fx.Node) -> fx.Node:
        found = self.constants.get(id(tensor))
        if found is None:
            raise ValueLost(f"the constant {name!r} of what replaces {source.name!r} is gone", source=source)
        return found

    def require_nothing_left(self) -> None:
        for source, made in self.made.items():
            raise NotAsRecorded(f"{made[0].name!r} comes from {source.name!r}, which is not in the source", made[0])


def _nodes_of_constants(work: Work) -> dict[int, fx.Node]:
    """The node of each constant that rules brought, by the identity of its tensor: an attribute, or the input that it
    became in an exported program."""
    constants = work.correspondence.constants
    return {
        id(constants[name]): node
        for node in work.place
        if node.op in ("get_attr", "placeholder") and (name := str(node.target)) in constants
    }


def _other(node: fx.Node, source: fx.Node, expected: Any, found: Any) -> NotAsRecorded:
    problem = f"{node.name!r} is not what the expansion that replaces {source.name!r} recorded"
    return NotAsRecorded(problem, node, source, expected=expected, found=found)


def _first(made: Any) -> fx.Node | None:
    return made[0] if made else None


def same_call(
    node: fx.Node, target: Any, args: Any, kwargs: Any, values: Mapping[fx.Node, Any] | None = None
) -> bool:
    """Whether a node makes this call, perhaps under the op's own name where the call has another."""
    if node.target is not target and node.target != target:
        if not isinstance(target, torch._ops.OpOverload) or node.target is not canonical(target):
            return False
        _, kwargs = respelled(target, len(args), kwargs)
    return same(node.args, args, values) and same(node.kwargs, kwargs, values)


def same(found: Any, expected: Any, values: Mapping[fx.Node, Any] | None = None) -> bool:
    """Whether two arguments are the same: nodes by identity (those of `expected` replaced by what stands for them in
    `values`), numbers with their type, so that 1, 1.0 and True differ; NaN is itself."""
    if isinstance(expected, fx.Node):
        wanted = expected if values is None else values.get(expected, expected)
        return found is wanted or (not isinstance(wanted, fx.Node) and same(found, wanted)) or _merged(found, wanted)
    if isinstance(expected, (tuple, list)):
        alike = isinstance(found, tuple if isinstance(expected, tuple) else list) and len(found) == len(expected)
        return alike and all([same(f, e, values) for f, e in zip(found, expected)])
    if isinstance(expected, dict):
        alike = isinstance(found, dict) and found.keys() == expected.keys()
        return alike and all([same(found[key], expected[key], values) for key in expected])
    if isinstance(expected, slice):
        ends = (found.start, found.stop, found.step) if isinstance(found, slice) else None
        return same(ends, (expected.start, expected.stop, expected.step), values)
    return same_constant(found, expected)


def _merged(found: Any, wanted: Any) -> bool:
    """torch.export leaves one of several nodes that take the same item; the others are erased."""
    return isinstance(found, fx.Node) and found.target is operator.getitem and getattr(wanted, "_erased", False)
