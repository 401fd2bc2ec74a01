"""Reachability: a graph in networkx, and paths between many pairs of nodes in one pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import functools
from typing import Any

from torch import fx


@functools.cache
def networkx() -> Any:
    """The package, imported on first use: importing it takes as long as importing all of decomp."""
    import networkx

    return networkx


def as_networkx(graph: fx.Graph) -> Any:
    """The graph in networkx, with an edge from each input to its user."""
    out = networkx().DiGraph()
    for node in graph.nodes:
        out.add_node(node)
        out.add_edges_from((operand, node) for operand in node.all_input_nodes)
    return out


def reached_among(
    starts: set[fx.Node], ends: set[fx.Node], place: Mapping[fx.Node, int]
) -> dict[fx.Node, set[fx.Node]]:
    """For each of `ends`, those of `starts` on which it depends. `place` numbers the nodes of the graph. One pass from
    the first start to the last end: each node has a bit mask of the starts that reach it."""
    order = sorted(starts, key=place.__getitem__)
    bits = {node: 1 << i for i, node in enumerate(order)}
    last = max(place[node] for node in ends)
    masks: dict[fx.Node, int] = {}
    # Nodes before the first start cannot be reached, those after the last end are not needed.
    for node in _from(order[0]):
        # One machine word holds 64 starts, and Python's integers any
        # number: an `or` for each edge instead of a search for each pair.
        mask = bits.get(node, 0)
        for operand in node.all_input_nodes:
            mask |= masks.get(operand, 0)
        if mask:
            masks[node] = mask
        if place[node] >= last:
            break
    return {end: {node for node in order if masks.get(end, 0) & bits[node]} for end in ends}


def _from(node: fx.Node) -> Iterator[fx.Node]:
    while node.op != "root":
        yield node
        node = node.next
