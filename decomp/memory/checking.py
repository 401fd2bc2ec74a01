"""Verifies a plan by running the program symbolically: memory contains the names of results instead of numbers. Each
result overwrites whatever is at its place, and each value that is read must still be there. Of the plan only the places
are trusted, not how they were chosen."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from decomp.costs.memory import homes_in
from decomp.costs.sizes import nbytes, tensors_of
from decomp.errors import DecompError, describe
from decomp.ir.call import metadata
from decomp.memory.forms import is_dense, operands_written_over, storage_layout
from decomp.memory.lifetimes import find_shared_memory
from decomp.memory.packing import ALIGNMENT
from decomp.memory.placing import ARENA, Buffer, Placement


class UnsoundPlan(DecompError):
    """A memory plan would change what the program computes: a bug in this package, or the plan was modified."""


@dataclass
class _Memory:
    """The contents of one block of memory: intervals in order, without overlap, and the result in each."""

    starts: list[int] = field(default_factory=list)
    stops: list[int] = field(default_factory=list)
    owners: list[fx.Node] = field(default_factory=list)

    def put(self, owner: fx.Node, start: int, stop: int) -> list[fx.Node]:
        """Write a result to an interval; returns the results that it overwrites."""
        # Intervals that only touch do not overlap: their ends are exclusive.
        first = bisect.bisect_right(self.stops, start)
        last = bisect.bisect_left(self.starts, stop)
        # A tensor without elements overwrites nothing.
        gone = self.owners[first:last] if stop > start else []
        if stop > start:
            self.starts[first:last], self.stops[first:last], self.owners[first:last] = [start], [stop], [owner]
        return gone


def verify_placement(graph: fx.Graph, root: Any, placement: Placement) -> None:
    """Raises `UnsoundPlan` with the first step at which the plan changes what the program computes."""
    _MemoryCheck(placement, homes_in(graph, lambda node: find_shared_memory(node, root))).run(graph)


class _MemoryCheck:
    def __init__(self, placement: Placement, homes: dict[fx.Node, tuple[fx.Node, ...]]) -> None:
        self.placement, self.homes = placement, homes
        self.memories: dict[Any, _Memory] = {}
        self.gone: dict[fx.Node, fx.Node] = {}
        """Maps overwritten results to the node that overwrote them."""

    def run(self, graph: fx.Graph) -> None:
        for node in graph.nodes:
            self._reads(node, node.all_input_nodes)
            if node.op == "output":
                self._leaves(node)
            elif node in self.placement.of:
                self._writes(node, self.placement.of[node])
            elif node in self.placement.over:
                raise _unsound(node, "is written over an operand, but the plan has no memory for it")

    def _reads(self, node: fx.Node, used: list[fx.Node]) -> None:
        for value in used:
            for home in self.homes[value]:
                if home in self.gone:
                    raise _unsound(node, f"reads {value.name}, which {self.gone[home].name} has overwritten")

    def _writes(self, node: fx.Node, buffer: Buffer) -> None:
        memory, start = self._where(node, buffer)
        size = sum(map(nbytes, tensors_of(node)))
        gone = self.memories.setdefault(memory, _Memory()).put(node, start, start + size)
        over = self.placement.over.get(node)
        if over is not None:
            self._over(node, over, buffer)
        # All storages that the operands may be in, as a view may be of one of several.
        read = {home for value in node.all_input_nodes for home in self.homes[value]}
        for owner in gone:
            if owner in read and not (over is not None and self.homes[over] == (owner,)):
                raise _unsound(node, f"is written over {owner.name}, which it reads, but not in place")
            self.gone[owner] = node

    def _where(self, node: fx.Node, buffer: Buffer) -> tuple[Any, int]:
        """The memory of a result, and its offset there."""
        if not buffer.memory:
            return buffer.head.node, 0
        if buffer.offset % ALIGNMENT:
            raise _unsound(node, f"is at byte {buffer.offset}, not a multiple of {ALIGNMENT}")
        limit = self.placement.arena
        if buffer.memory != ARENA:
            room: Any = buffer.memory
            limit = sum(map(nbytes, tensors_of(room)))
            if self.placement.of[room].memory:
                raise _unsound(node, f"is in the memory of {room.name}, which has no memory of its own")
        size = sum(map(nbytes, tensors_of(node)))
        if buffer.offset < 0 or buffer.offset + size > limit:
            raise _unsound(node, f"is at bytes {buffer.offset} to {buffer.offset + size} of {limit}")
        return buffer.memory, buffer.offset

    def _over(self, node: fx.Node, operand: fx.Node, buffer: Buffer) -> None:
        """Require that a result is in the memory of the operand that it overwrites, and that its op allows this."""
        homes = self.homes[operand]
        if len(homes) != 1 or self.placement.of.get(homes[0]) is not buffer:
            raise _unsound(node, f"is written over {operand.name}, whose memory is elsewhere, or not owned by the plan")
        if operand not in operands_written_over(node):
            raise _unsound(node, f"is written over {operand.name}, but is not elementwise in operands of its layout")
        sharing = [value for value in node.all_input_nodes if homes[0] in self.homes[value]]
        if any(storage_layout(metadata(value)) != storage_layout(metadata(operand)) for value in sharing):
            raise _unsound(node, f"is written over {operand.name}, but also reads it with other strides")
        if not is_dense(metadata(homes[0])) or nbytes(metadata(homes[0])) != nbytes(metadata(node)):
            raise _unsound(node, f"is written over {operand.name}, which is only a part of its memory")

    def _leaves(self, node: fx.Node) -> None:
        for value in node.all_input_nodes:
            for home in self.homes[value]:
                buffer = self.placement.of.get(home)
                if buffer is not None and buffer.memory:
                    raise _unsound(node, f"returns {value.name}, which is in memory of the plan")


def _unsound(node: fx.Node, why: str) -> UnsoundPlan:
    return UnsoundPlan(f"the memory plan is unsound: {node.name} {why}\n  at {describe(node)}")
