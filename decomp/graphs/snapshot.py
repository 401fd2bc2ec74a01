"""Snapshots: the calls of a graph at some moment, by name, so that later changes can be detected, in place or in a copy
of the graph."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import fx


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
    if not _same(node.args, before.args, became) or not _same(node.kwargs, before.kwargs, became):
        return None
    return {name: now for name, now in became.items() if now.name != name}


def _same(now: Any, before: Any, became: dict[str, fx.Node]) -> bool:
    if isinstance(before, fx.Node):
        return isinstance(now, fx.Node) and became.setdefault(before.name, now) is now
    if isinstance(before, (tuple, list)):
        return (
            isinstance(now, (tuple, list))
            and len(now) == len(before)
            and all(_same(a, b, became) for a, b in zip(now, before))
        )
    if isinstance(before, dict):
        return (
            isinstance(now, dict)
            and now.keys() == before.keys()
            and all(_same(now[key], value, became) for key, value in before.items())
        )
    if isinstance(before, slice):
        parts = (before.start, before.stop, before.step)
        return isinstance(now, slice) and _same((now.start, now.stop, now.step), parts, became)
    return type(now) is type(before) and (now == before or now != now and before != before)
