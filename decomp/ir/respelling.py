"""One overload per computation: ATen has several names for some ops (`__and__` and `bitwise_and`, `multiply` and
`mul`), but a backend dispatches on one. The canonical name is that of the op in `ops.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
import functools
from typing import Any

import torch
from torch import fx

from decomp.ir.ops import of_function, types_of
from decomp.ir.schema import parameters


@functools.cache
def canonical(overload: torch._ops.OpOverload) -> torch._ops.OpOverload:
    """The overload of the op's own name that computes the same; `overload` itself if that is its name, or if the op has
    no overload with the same arguments."""
    spelling = of_function(overload)
    packet = spelling.op.packet
    if packet is None or packet is overload._overloadpacket or overload._schema.is_mutable:
        return overload
    own = getattr(packet, spelling.overload or "", overload)
    return own if types_of(own) == types_of(overload) else overload


def respell(graph: fx.Graph, aliases: Iterable[torch._ops.OpOverload]) -> None:
    """Give every call of `aliases` in `graph` its canonical overload."""
    for alias in aliases:
        for node in graph.find_nodes(op="call_function", target=alias, sort=False):
            node.target, node.kwargs = respelled(alias, len(node.args), node.kwargs)


def respelled(
    alias: torch._ops.OpOverload, positional: int, given: Mapping[str, Any]
) -> tuple[torch._ops.OpOverload, dict[str, Any]]:
    """The canonical overload for a call of `alias` with this many positional arguments, and its keywords: renamed, and
    with differing defaults made explicit."""
    own = canonical(alias)
    pairs = list(zip(parameters(alias), parameters(own)))
    kwargs = {theirs.name: given[ours.name] for ours, theirs in pairs if ours.name in given}
    for ours, theirs in pairs[positional:]:
        # Two names of one op may have different defaults; the call keeps the one that it was written with.
        if theirs.name not in kwargs and ours.default != theirs.default:
            kwargs[theirs.name] = ours.default
    return own, kwargs
