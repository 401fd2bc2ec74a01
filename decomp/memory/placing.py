"""Where the memory of a program goes: which results take the place of an operand that dies with the call (a buffer is a
chain of such), and which buffers lie in the arena, at which offset. The others have memory of their own, as they have
without a plan: results that leave the program, of sizes that vary, of calls that have no `out=` form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import fx

from decomp.ir.call import metadata
from decomp.memory.forms import form_of, geometry, is_dense, is_static, operands_written_over
from decomp.memory.lifetimes import RESULT, Lifetimes, LiveStorage, profile
from decomp.memory.packing import ALIGNMENT, Room, Span, pack, widest

ARENA = "arena"
SMALLEST = ALIGNMENT
"""Bytes of a result in the arena, at least: what is smaller takes more there than by itself."""
SLACK = 1.1
"""An arena, which is held from its first use to its last, may take so many times the peak of memory that is freed piece
by piece."""


@dataclass(slots=True)
class Buffer:
    """Memory that several results have one after the other, each written over the one before it."""

    storages: list[LiveStorage]
    memory: fx.Node | str = ""
    """`ARENA`; or the result, given by its node, in whose memory it lies until that is made; or nothing, for memory of
    its own."""
    offset: int = 0
    """Bytes from the beginning of that memory."""
    early: int | None = None
    """The step at which its own memory is made, if others use it before."""

    @property
    def head(self) -> LiveStorage:
        return self.storages[0]

    @property
    def nbytes(self) -> int:
        return self.head.nbytes

    @property
    def birth(self) -> int:
        return self.head.birth

    @property
    def death(self) -> int:
        return self.storages[-1].death

    @property
    def leaves(self) -> bool:
        """Whether what is in it at last leaves the program."""
        return self.storages[-1].kind == RESULT

    @property
    def span(self) -> Span:
        return Span(self.birth, self.death, self.nbytes)


@dataclass(slots=True)
class Placement:
    """Where everything goes."""

    lifetimes: Lifetimes
    buffers: list[Buffer]
    of: dict[fx.Node, Buffer]
    """By the node that makes a storage."""
    over: dict[fx.Node, fx.Node]
    """By node, the operand in whose place its result is written."""
    arena: int = 0
    """Bytes."""
    profile: list[int] = field(default_factory=list)
    """Bytes held, by step."""

    @property
    def peak(self) -> int:
        """Bytes held at the widest step, beyond inputs and constants."""
        return max(self.profile, default=0)

    @property
    def lower_bound(self) -> int:
        """Bytes alive at the widest step: what no packing of these buffers goes below."""
        return max(profile(((b.birth, b.death, b.nbytes) for b in self.buffers), self.lifetimes), default=0)

    def in_arena(self) -> list[Buffer]:
        """The buffers in the arena."""
        return [buffer for buffer in self.buffers if buffer.memory == ARENA]


def place(lifetimes: Lifetimes, in_place: bool = True, use_arena: bool | None = None) -> Placement:
    """The better of an arena with the memory of results until they are made, and an arena alone. If `use_arena` is
    None, without one where that would take more than the program as it is, or much more than in place alone, which is
    never wider than it."""
    over = dict(_in_place(lifetimes)) if in_place else {}
    plain = _chained(lifetimes, over)
    _measure(plain)
    if use_arena is False:
        return plain
    best = min((_packed(lifetimes, over, rooms) for rooms in (True, False)), key=lambda placement: placement.peak)
    if use_arena or best.arena and best.peak <= min(lifetimes.peak(), SLACK * plain.peak):
        return best
    return plain


def placed_in_arena(lifetimes: Lifetimes, rooms: bool) -> Placement:
    """In place and in an arena, however small; with `rooms`, in the memory of results until they are made."""
    return _packed(lifetimes, dict(_in_place(lifetimes)), rooms, smallest=1)


def _in_place(lifetimes: Lifetimes) -> Iterator[tuple[fx.Node, fx.Node]]:
    """The calls whose result takes the place of an operand, with that operand."""
    for node in lifetimes.nodes:
        made = lifetimes.storages.get(node)
        if made is None or not made.owned or form_of(node).out is None and form_of(node).inplace is None:
            continue
        for operand in operands_written_over(node):
            if _dies(lifetimes, node, operand, made):
                yield node, operand
                break


def _dies(lifetimes: Lifetimes, node: fx.Node, operand: fx.Node, made: LiveStorage) -> bool:
    """Whether an operand is all that is in its memory, and nobody needs that after this call."""
    homes = lifetimes.homes[operand]
    if len(homes) != 1 or homes[0] not in lifetimes.storages:
        return False
    there = lifetimes.storages[homes[0]]
    if not there.owned or there.kind == RESULT or there.death != made.birth or there.nbytes != made.nbytes:
        return False
    if not isinstance(there.value, torch.Tensor) or not there.nbytes or not _is_whole(there, made):
        return False
    wanted = geometry(metadata(operand))
    sharing = [used for used in node.all_input_nodes if homes[0] in lifetimes.homes[used]]
    return all(lifetimes.homes[used] == homes and geometry(metadata(used)) == wanted for used in sharing)


def _is_whole(there: LiveStorage, made: LiveStorage) -> bool:
    return is_dense(there.value) and there.value.device == made.value.device


def _chained(lifetimes: Lifetimes, over: Mapping[fx.Node, fx.Node]) -> Placement:
    """Buffers without a place."""
    buffers: list[Buffer] = []
    of: dict[fx.Node, Buffer] = {}
    for node, storage in lifetimes.storages.items():
        if not storage.owned:
            continue
        if node in over:
            buffer = of[lifetimes.homes[over[node]][0]]
            buffer.storages.append(storage)
        else:
            buffer = Buffer([storage])
            buffers.append(buffer)
        of[node] = buffer
    return Placement(lifetimes, buffers, of, dict(over))


def _can_lie_anywhere(buffer: Buffer, smallest: int) -> bool:
    head = buffer.head
    form = form_of(head.node)
    return form.out is not None and head.nbytes >= smallest and all(storage.movable for storage in buffer.storages)


def _packed(
    lifetimes: Lifetimes, over: Mapping[fx.Node, fx.Node], rooms: bool, smallest: int | None = None
) -> Placement:
    placement = _chained(lifetimes, over)
    free = [buffer for buffer in placement.buffers if _can_lie_anywhere(buffer, smallest or SMALLEST)]
    device = _commonest_device(free)
    free = [buffer for buffer in free if buffer.head.value.device == device]
    inside = [buffer for buffer in free if not buffer.leaves]
    results = [buffer for buffer in free if buffer.leaves and is_static(buffer.head.value)] if rooms else []
    packing = pack([b.span for b in inside], [Room(b.birth, b.nbytes) for b in results])
    for buffer, (room, offset) in zip(inside, packing.places):
        buffer.memory = ARENA if room < 0 else results[room].head.node
        buffer.offset = offset
        if room >= 0:
            host = results[room]
            host.early = min(buffer.birth, host.birth if host.early is None else host.early)
    placement.arena = packing.nbytes
    _measure(placement)
    return placement


def _commonest_device(buffers: list[Buffer]) -> torch.device | None:
    nbytes: dict[torch.device, int] = {}
    for buffer in buffers:
        nbytes[buffer.head.value.device] = nbytes.get(buffer.head.value.device, 0) + buffer.nbytes
    return max(nbytes, key=lambda device: nbytes[device]) if nbytes else None


def _measure(placement: Placement) -> None:
    """Note what is held at each step: the arena from its first use to its last."""
    spans = [(b.birth if b.early is None else b.early, b.death, b.nbytes) for b in placement.buffers if not b.memory]
    inside = placement.in_arena()
    if inside:
        spans.append((min(b.birth for b in inside), max(b.death for b in inside), placement.arena))
    placement.profile = profile(iter(spans), placement.lifetimes)


def packing_bound(placement: Placement) -> int:
    """The most bytes, aligned, of the arena's buffers that are alive at one step."""
    return widest([buffer.span for buffer in placement.in_arena()])
