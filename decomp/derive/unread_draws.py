"""Removal of random draws whose numbers nothing reads. In PyTorch such a draw moves the generator on, so that without
it later draws from the same seed are others; a runtime that draws numbers of its own has no such order to keep."""

from __future__ import annotations

from collections.abc import Iterator

from torch import fx

from decomp.graphs.rewrite import Rewrite
from decomp.ir.effects import EffectTable
from decomp.ir.module import ProgramGraph


def drop_unread_draws(own: ProgramGraph) -> ProgramGraph:
    """A functional graph without the random calls that no result, write or other effect depends on, and without the
    calls that only these read; the graph itself if there are none. Other draws stay, in their order."""
    effects = EffectTable(own.owner)
    unread = dict.fromkeys(_unread(own, effects))
    if not any(effects.of(node).most for node in unread):
        return own
    rewrite = Rewrite.of(own.graph, without=unread)
    for node in own.graph.nodes:
        if node not in unread:
            rewrite.copy(node)
    return own.rewritten(rewrite, "drop draws")


def _unread(own: ProgramGraph, effects: EffectTable) -> Iterator[fx.Node]:
    """Calls that do no more than compute or draw a value which nothing reads, those of the results first."""
    found, written = set[fx.Node](), {write.value for write in own.writes}
    for node in reversed(own.graph.nodes):
        if not node.op.startswith("call") or node in written or not found.issuperset(node.users):
            continue
        done = effects.of(node)
        if done.known and not done.kinds:
            found.add(node)
            yield node
