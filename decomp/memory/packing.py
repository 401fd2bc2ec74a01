"""Packs spans of time and bytes into as little memory as possible, so that spans that overlap in time do not overlap in
memory. This is dynamic storage allocation, which is NP-hard, so two greedy algorithms run and the better result is
used. The most bytes alive at one step are a lower bound, so that each plan can say how far it is from the optimum."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
import heapq

ALIGNMENT = 64
"""Bytes: a cache line, and the alignment of PyTorch's CPU allocator."""
MAX_MEAN_OVERLAP = 64
"""Packing by size is quadratic in the spans alive together, so it is tried up to this average number of them; else only
packing in order of time, in O(n log n)."""


@dataclass(frozen=True, slots=True)
class Span:
    """Memory needed from one step to another, both inclusive."""

    birth: int
    death: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Room:
    """Memory that is allocated anyway, and unused up to a step (exclusive)."""

    until: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Packing:
    """The places of spans."""

    places: tuple[tuple[int, int], ...]
    """By span: the index of its room (-1: the arena), and its offset there."""
    nbytes: int
    """The size of the arena."""


def align(nbytes: int) -> int:
    """Bytes, rounded up to a multiple of the alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


# Dynamic storage allocation: NP-complete (Garey and Johnson, "Computers and Intractability", 1979, problem SR2).
def pack(spans: Sequence[Span], rooms: Sequence[Room] = ()) -> Packing:
    """The better of packing by size, largest first, and in order of time. Only the first uses rooms."""
    by_time = _by_time(spans)
    if not spans or _meetings(spans) > MAX_MEAN_OVERLAP * len(spans):
        return by_time
    by_size = _by_size(spans, rooms)
    # Equal sizes go to the packing that uses the memory of results, as the arena may be smaller than its spans.
    return by_size if by_size.nbytes <= by_time.nbytes else by_time


def _meetings(spans: Sequence[Span]) -> int:
    """The number of pairs of spans that are alive together."""
    alive: list[int] = []
    pairs = 0
    for span in sorted(spans, key=lambda s: s.birth):
        while alive and alive[0] < span.birth:
            heapq.heappop(alive)
        pairs += len(alive)
        heapq.heappush(alive, span.death)
    return pairs


def _neighbours(spans: Sequence[Span]) -> list[list[int]]:
    """By span: the other spans alive together with it."""
    found: list[list[int]] = [[] for _ in spans]
    alive: list[tuple[int, int]] = []
    for i in sorted(range(len(spans)), key=lambda i: spans[i].birth):
        alive = [(death, j) for death, j in alive if death >= spans[i].birth]
        for _, j in alive:
            found[i].append(j)
            found[j].append(i)
        alive.append((spans[i].death, i))
    return found


def _by_size(spans: Sequence[Span], rooms: Sequence[Room]) -> Packing:
    """Best fit, largest first: each span goes into the tightest gap between placed spans that are alive with it."""
    neighbours = _neighbours(spans)
    places: list[tuple[int, int] | None] = [None] * len(spans)
    most = 0
    in_order = sorted(range(len(rooms)), key=lambda r: rooms[r].nbytes)
    # "Greedy by size" of Pisarchyk and Lee, "Efficient memory management for deep neural net inference"
    # (arXiv:2001.03288), with the tightest gap in place of the first.
    for i in sorted(range(len(spans)), key=lambda i: (-spans[i].nbytes, spans[i].birth)):
        size = align(spans[i].nbytes)
        taken: dict[int, list[tuple[int, int]]] = {}
        for j in neighbours[i]:
            there = places[j]
            if there is not None:
                taken.setdefault(there[0], []).append((there[1], there[1] + align(spans[j].nbytes)))
        # Rooms first, the smallest first: they cost nothing, and larger ones stay free for larger spans.
        for r in in_order:
            # What aligns the next span may end past the room, and the span itself may not: PyTorch would allocate the
            # room's memory again, larger (`Tensor.set_`).
            room = rooms[r].nbytes + size - spans[i].nbytes
            offset = _gap(taken.get(r, []), size, room) if spans[i].death < rooms[r].until else None
            if offset is not None:
                places[i] = r, offset
                break
        else:
            offset = _gap(taken.get(-1, []), size, None)
            assert offset is not None
            places[i] = -1, offset
            most = max(most, offset + size)
    return Packing(tuple(place for place in places if place is not None), most)


def _gap(taken: list[tuple[int, int]], size: int, limit: int | None) -> int | None:
    """The start of the tightest gap that fits; without one, the end of everything taken, unless over the limit."""
    best, found, end = None, None, 0
    for start, stop in sorted(taken):
        if start - end >= size and (best is None or start - end < best):
            best, found = start - end, end
        end = max(end, stop)
    if found is None and (limit is None or end + size <= limit):
        return end
    return found


def _by_time(spans: Sequence[Span]) -> Packing:
    """In order of birth, each into the smallest free block that fits, like a best-fit allocator at run time."""
    order = sorted(range(len(spans)), key=lambda i: (spans[i].birth, -spans[i].nbytes))
    offsets, free, dying = [0] * len(spans), _FreeBlocks(), list[tuple[int, int]]()
    for i in order:
        while dying and dying[0][0] < spans[i].birth:
            _, j = heapq.heappop(dying)
            free.give(offsets[j], align(spans[j].nbytes))
        offsets[i] = free.take(align(spans[i].nbytes))
        heapq.heappush(dying, (spans[i].death, i))
    return Packing(tuple((-1, offset) for offset in offsets), free.end)


class _FreeBlocks:
    """The free blocks below the high-water mark; adjacent blocks are merged."""

    def __init__(self) -> None:
        self.end = 0
        self._sizes: list[tuple[int, int]] = []
        self._starts: dict[int, int] = {}
        self._stops: dict[int, int] = {}

    def take(self, size: int) -> int:
        """Allocate from the smallest block that fits; returns its start. If no block fits, the memory grows."""
        # Best fit with merging of neighbours: Knuth, "The Art of Computer Programming", volume 1, section 2.5.
        at = bisect.bisect_left(self._sizes, (size, -1))
        if at < len(self._sizes):
            there, start = self._sizes[at]
            self._remove(start, there)
            if there > size:
                self._add(start + size, there - size)
            return start
        start = self.end
        if self.end in self._stops:  # the last block grows
            start = self._stops[self.end]
            self._remove(start, self.end - start)
        self.end = start + size
        return start

    def give(self, start: int, size: int) -> None:
        """Free a block."""
        if size == 0:
            return
        stop = start + size
        if start in self._stops:
            before = self._stops[start]
            self._remove(before, start - before)
            start = before
        if stop in self._starts:
            after = self._starts[stop]
            self._remove(stop, after - stop)
            stop = after
        self._add(start, stop - start)

    def _add(self, start: int, size: int) -> None:
        bisect.insort(self._sizes, (size, start))
        self._starts[start], self._stops[start + size] = start + size, start

    def _remove(self, start: int, size: int) -> None:
        del self._sizes[bisect.bisect_left(self._sizes, (size, start))]
        del self._starts[start], self._stops[start + size]
