"""Outputs that share memory with an input or with each other. If Dynamo splits a program into several graphs, the next
graph may write to one of them and read the other, so sharing must survive even if the target lacks the view and
computes a copy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import combinations, takewhile
from typing import Any

import torch
from torch import fx

from decomp.functionalize.alias_sets import storage_of
from decomp.functionalize.overlap import MemoryRange, memory_range_of, overlap
from decomp.ir.aliases import view_chain
from decomp.ir.call import metadata
from decomp.ops import aten

Pair = tuple[int, int]
"""The numbers of two outputs, in ascending order; or of an input, of which -1 is the first and -2 the second, and an
output."""


def shared_pairs(graph: fx.Graph) -> frozenset[Pair]:
    """The pairs that share an element, in a graph with metadata and flat outputs."""
    by_memory: dict[Any, list[tuple[int, MemoryRange]]] = defaultdict(list)
    for number, node in _numbered(graph):
        found = memory_range_of(metadata(node))
        if found is not None:
            # By storage first: pairs are only compared within one.
            by_memory[found.memory].append((number, found))
    return frozenset(
        (min(i, j), max(i, j))
        for group in by_memory.values()
        for (i, one), (j, two) in combinations(group, 2)
        # Two inputs that overlap are the caller's business.
        if max(i, j) >= 0 and overlap(one, two)
    )


def kept_pairs(lowered: fx.Graph) -> frozenset[Pair]:
    """The pairs of a lowered graph that share an element. A node that was copied from the source has the metadata that
    it had there, also where it is a view of what the target computes as a copy: its views have to lead to the same
    memory, too."""
    nodes = dict(_numbered(lowered))
    return frozenset((i, j) for i, j in shared_pairs(lowered) if _origin(nodes[i]) is _origin(nodes[j]))


def merged_pairs(source: fx.Graph, lowered: fx.Graph) -> frozenset[Pair]:
    """The pairs that are one tensor in a lowered graph but two in its source (a tensor and a view of all of it): an
    in-place change of the metadata of one, such as `t_`, would change the other."""
    return _same(lowered) - _same(source)


def separate_merged_outputs(source: fx.Graph, lowered: fx.Graph) -> None:
    """Replaces the second of each merged pair by a view, so that it is a tensor of its own again."""
    results, own = outputs_of(source), list(outputs_of(lowered))
    views: dict[fx.Node, fx.Node] = {}
    with lowered.inserting_before(lowered.output_node()):
        for _, i in sorted(merged_pairs(source, lowered)):
            if results[i] not in views:
                # A tensor object of its own on the same memory.
                views[results[i]] = lowered.call_function(aten.alias.default, (own[i],))
                views[results[i]].meta = dict(own[i].meta)
            own[i] = views[results[i]]
    lowered.output_node().args = (tuple(own),)


def view_bases(graph: fx.Graph, outputs: Collection[int]) -> dict[int, int]:
    """Maps each of these outputs that is a view to the number of its base: an input, counted as in a pair, or an
    output. A computed base that is not an output becomes one, appended to the others."""
    inputs, results = graph.find_nodes(op="placeholder"), list(outputs_of(graph))
    shown = {}
    for i in sorted(outputs):
        base = _computed(results[i])
        if base is results[i]:
            continue
        if base.op == "placeholder":
            shown[i] = -1 - inputs.index(base)
            continue
        # Its memory must be seen in the result of the compiled function,
        # so it is returned, and cut off after the views are made.
        if base not in results:
            results.append(base)
        shown[i] = results.index(base)
    graph.output_node().args = (tuple(results),)
    return shown


def outputs_of(graph: fx.Graph) -> Sequence[Any]:
    """The outputs of a graph that returns a flat list."""
    found = graph.output_node().args[0]
    assert isinstance(found, (list, tuple))
    return found


def _numbered(graph: fx.Graph) -> Iterator[tuple[int, fx.Node]]:
    """The inputs and outputs of a graph that are nodes, by their numbers in a pair."""
    yield from ((-1 - i, node) for i, node in enumerate(graph.find_nodes(op="placeholder")))
    yield from ((i, node) for i, node in enumerate(outputs_of(graph)) if isinstance(node, fx.Node))


def _same(graph: fx.Graph) -> frozenset[Pair]:
    by_node: dict[fx.Node, list[int]] = defaultdict(list)
    for number, node in _numbered(graph):
        if isinstance(metadata(node), torch.Tensor):
            by_node[node].append(number)
    return frozenset(pair for numbers in by_node.values() for pair in combinations(numbers, 2))


def _origin(node: fx.Node) -> fx.Node:
    """The base of a chain of views, as far as they have the memory of this node by their metadata."""
    memory = storage_of(metadata(node))
    return [*takewhile(lambda each: storage_of(metadata(each)) == memory, _tensors_viewed(node))][-1]


def _computed(node: fx.Node) -> fx.Node:
    """The base of a chain of views."""
    return _tensors_viewed(node)[-1]


def _tensors_viewed(node: fx.Node) -> list[fx.Node]:
    """The chain of views that a node is the end of, without the lists that views are taken out of."""
    return [each for each in view_chain(node) if isinstance(metadata(each), torch.Tensor)]
