"""Contracts each match into one call of its pattern. Such a call is then planned, expanded and verified like any
other."""

from __future__ import annotations

from collections.abc import Sequence
import operator
from typing import Any

from torch import fx

from decomp.graphs.rewrite import Rewrite
from decomp.ir.call import metadata
from decomp.patterns.found import Match

# Metadata of one result, which the call of several does not have.
_OF_ONE_VALUE = ("val", "example_value", "tensor_meta")


def contract(graph: fx.Graph, matches: Sequence[Match]) -> tuple[Rewrite, dict[fx.Node, Match]]:
    """Contract matches that share no node; matches that cannot be ordered among the others are left out. Remaining
    nodes and the outputs of matches keep their names. Returns the rewrite, and for each call of a pattern in the new
    graph the match that it replaces."""
    matches = list(matches)
    # Removing one may make room for another, so places are computed again.
    while isinstance(before := _places(graph, matches), Match):
        matches.remove(before)
    rewrite = Rewrite.of(graph)
    covered = {node for match in matches for node in match.nodes}
    made: dict[fx.Node, Match] = {}
    for node in graph.nodes:
        for match in before.get(node, ()):
            made[_call(rewrite, match)] = match
        if node not in covered:
            rewrite.copy(node)
    return rewrite, made


def _places(graph: fx.Graph, matches: Sequence[Match]) -> dict[fx.Node, list[Match]] | Match:
    """For each node, the matches to insert before it: a match with a single output goes where that was, one with
    several before the first use of any. Inserting a match can make another impossible, which would be used before its
    own inputs are computed; such a match is returned instead."""
    place = {node: i for i, node in enumerate(graph.nodes)}
    owner = {node: match for match in matches for node in match.nodes}
    wanted: dict[int, list[Match]] = {}
    for match in matches:
        users = [place[user] for node in match.outputs for user in node.users if owner.get(user) is not match]
        several = len(match.outputs) > 1
        # Several outputs are known together, so the call comes before
        # the first use of any; its inputs must be known by then.
        first = min([place[match.nodes[-1]], *users]) if several else place[match.root]
        wanted.setdefault(first, []).append(match)
    order: dict[Match, int] = {}
    nodes = list(place)
    for at in sorted(wanted):
        # A topological sort by depth-first search, with a stack:
        # `before` are matches whose outputs are inputs of this one.
        waiting = list(reversed(wanted[at]))
        while waiting:
            match = waiting[-1]
            if match in order:
                waiting.pop()
                continue
            before = [owner[node] for node in match.inputs if node in owner and owner[node] not in order]
            if any(place[node] >= at for node in match.inputs if node not in owner):
                return match
            # Two matches that need each other's outputs.
            if any(each in waiting for each in before):
                return match
            if before:
                waiting += before
            else:
                order[waiting.pop()] = at
    found: dict[fx.Node, list[Match]] = {}
    for match, at in order.items():
        found.setdefault(nodes[at], []).append(match)
    return found


def _call(rewrite: Rewrite, match: Match) -> fx.Node:
    """Insert the call of the pattern that replaces a match."""
    pattern, values = match.pattern, rewrite.values
    args = fx.node.map_arg(tuple(match.bound.get(name) for name in pattern.variables), values.__getitem__)
    # The user finds the result under the name that it had.
    name = match.root.name if pattern.single else rewrite.free(pattern.name)
    new: fx.Node = rewrite.create("call_function", pattern, args, {}, name)
    rewrite.origin[new], rewrite.several[new] = match.root, match.nodes
    if pattern.single:
        new.meta.update(match.root.meta)
        rewrite.replace(match.root, new)
        return new
    new.meta.update({key: value for key, value in match.root.meta.items() if key not in _OF_ONE_VALUE})
    results = tuple(metadata(node) for node in match.outputs)
    if all(result is not None for result in results):
        new.meta["val"] = results
    for i, node in enumerate(match.outputs):
        item = rewrite.create("call_function", operator.getitem, (new, i), {}, node.name)
        item.meta.update(node.meta)
        rewrite.origin[item] = node
        rewrite.replace(node, item)
    return new


def price_call(graph: fx.Graph, match: Match, inputs: dict[fx.Node, fx.Node]) -> fx.Node:
    """The same call in a separate graph, so that it can be priced before contraction. `inputs` maps each input to its
    placeholder."""
    pattern = match.pattern

    def given(node: fx.Node) -> fx.Node:
        if node not in inputs:
            inputs[node] = graph.placeholder(node.name)
            inputs[node].meta.update(node.meta)
        return inputs[node]

    args: Any = fx.node.map_arg(tuple(match.bound.get(name) for name in pattern.variables), given)
    call = graph.call_function(pattern, args)
    results = tuple(metadata(node) for node in match.outputs)
    if all(result is not None for result in results):
        call.meta["val"] = results[0] if pattern.single else results
    if not pattern.single:
        for i, node in enumerate(match.outputs):
            item = graph.call_function(operator.getitem, (call, i))
            item.meta.update(node.meta)
            if any(user not in match.nodes for user in node.users):
                # Marks the result as read outside: which results are read decides about the price.
                graph.call_function(operator.pos, (item,))
    return call
