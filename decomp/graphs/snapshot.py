"""Snapshots: the calls of a graph at some moment, by name, so that later changes can be detected, in place or in a copy
of the graph."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import fx

from decomp.ir.arguments import equal


class RecordedNode(NamedTuple):
    """A node at the time of the snapshot."""

    op: str
    target: Any
    args: Any
    kwargs: Any


Snapshot = dict[str, RecordedNode]
"""The nodes of a graph by name."""


def snapshot(graph: fx.Graph) -> Snapshot:
    """The current nodes of `graph`."""
    return {node.name: RecordedNode(node.op, node.target, node.args, node.kwargs) for node in graph.nodes}


def is_as_recorded(node: fx.Node, before: RecordedNode) -> bool:
    """Whether a node still makes the recorded call, on operands of the same names."""
    if node.op != before.op or not same_target(node.target, before.target):
        return False
    if node.args is before.args and node.kwargs is before.kwargs:
        return True
    return renamed_operands(node, before) == {}


def same_target(one: Any, other: Any) -> bool:
    """Whether two call targets are the same."""
    return one is other or isinstance(one, str) and one == other


def renamed_operands(node: fx.Node, before: RecordedNode) -> dict[str, fx.Node] | None:
    """For each operand that changed, its former name and the current node; None if more than operands differs, or if
    one former operand became two."""
    became: dict[str, fx.Node] = {}

    def same(was: Any, now: Any) -> bool:
        if isinstance(was, fx.Node):
            return isinstance(now, fx.Node) and became.setdefault(was.name, now) is now
        # By type, as True, 1 and 1.0 are equal; NaN is the same as before although it does not equal itself.
        return type(now) is type(was) and (now == was or now != now and was != was)

    if not equal(before.args, node.args, same) or not equal(before.kwargs, node.kwargs, same):
        return None
    return {name: now for name, now in became.items() if now.name != name}
