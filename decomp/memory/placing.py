"""Places the results of a program in memory. A result may overwrite an operand that dies with the call; a chain of such
results is one buffer. Buffers are placed in the arena, each at an offset, except results that are returned, have sizes
that vary, or come from calls without an `out=` form: these get memory of their own, as without a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import fx

from decomp.ir.call import metadata
from decomp.memory.forms import find_form, is_dense, is_static, operands_written_over, storage_layout
from decomp.memory.lifetimes import RESULT, Lifetimes, LiveStorage, memory_profile
from decomp.memory.packing import ALIGNMENT, Room, Span, pack

ARENA = "arena"
MIN_ARENA_BYTES = ALIGNMENT
"""The minimum size in bytes of a result in the arena: alignment would make a smaller one larger than it is on its
own."""
# An arena saves calls of the allocator, and keeps memory in one piece; a tenth is what that may cost.
MAX_ARENA_FACTOR = 1.1
"""An arena, which is held from its first use to its last, is used if the peak grows by at most this factor over memory
that is freed result by result."""


@dataclass(slots=True)
class Buffer:
    """Memory that results use one after the other, each overwriting the one before it."""

    storages: list[LiveStorage]
    memory: fx.Node | str = ""
    """`ARENA`; or the node of a returned result, whose memory it uses until that is computed; or empty, for memory of
    its own."""
    offset: int = 0
    """Offset in that memory, in bytes."""
    early: int | None = None
    """The step at which its own memory is allocated, if other buffers use it before."""

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
        """Whether its last result is returned by the program."""
        return self.storages[-1].kind == RESULT

    @property
    def span(self) -> Span:
        return Span(self.birth, self.death, self.nbytes)


@dataclass(slots=True)
class Placement:
    """The places of all results."""

    lifetimes: Lifetimes
    buffers: list[Buffer]
    of: dict[fx.Node, Buffer]
    """By the node that allocates a storage."""
    over: dict[fx.Node, fx.Node]
    """By node: the operand that its result overwrites."""
    arena: int = 0
    """Size of the arena, in bytes."""
    profile: list[int] = field(default_factory=list)
    """Bytes held, by step."""

    @property
    def peak(self) -> int:
        """Bytes held at the widest step, without inputs and constants."""
        return max(self.profile, default=0)

    @property
    def lower_bound(self) -> int:
        """Bytes alive at the widest step: no packing of these buffers needs less."""
        return max(memory_profile(((b.birth, b.death, b.nbytes) for b in self.buffers), self.lifetimes), default=0)

    def in_arena(self) -> list[Buffer]:
        """The buffers in the arena."""
        return [buffer for buffer in self.buffers if buffer.memory == ARENA]


def place(lifetimes: Lifetimes, in_place: bool = True, use_arena: bool | None = None) -> Placement:
    """The better of two placements: one that also uses the memory of returned results until they are computed, and one
    that uses only the arena. If `use_arena` is None, the arena is dropped where it would take more memory than the
    program without a plan, or much more than overwriting operands alone, which never takes more than no plan."""
    over = dict(_in_place(lifetimes)) if in_place else {}
    plain = _chained(lifetimes, over)
    _measure(plain)
    if use_arena is False:
        return plain
    best = min((_packed(lifetimes, over, rooms) for rooms in (True, False)), key=lambda placement: placement.peak)
    if use_arena or best.arena and best.peak <= min(lifetimes.peak(), MAX_ARENA_FACTOR * plain.peak):
        return best
    return plain


def place_in_arena(lifetimes: Lifetimes, rooms: bool) -> Placement:
    """A placement that overwrites operands and uses an arena for results of any size; with `rooms`, also the memory of
    returned results until they are computed."""
    return _packed(lifetimes, dict(_in_place(lifetimes)), rooms, smallest=1)


def _in_place(lifetimes: Lifetimes) -> Iterator[tuple[fx.Node, fx.Node]]:
    """The calls whose result overwrites an operand, with that operand."""
    for node in lifetimes.nodes:
        made = lifetimes.storages.get(node)
        if made is None or not made.owned or find_form(node).out is None and find_form(node).inplace is None:
            continue
        # The first that dies: which one makes no difference to the peak, as only one memory is taken over.
        for operand in operands_written_over(node):
            if _dies(lifetimes, node, operand, made):
                yield node, operand
                break


def _dies(lifetimes: Lifetimes, node: fx.Node, operand: fx.Node, made: LiveStorage) -> bool:
    """Whether an operand fills its memory, and its memory is not used after this call."""
    homes = lifetimes.homes[operand]
    if len(homes) != 1 or homes[0] not in lifetimes.storages:
        return False
    there = lifetimes.storages[homes[0]]
    if not there.owned or there.kind == RESULT or there.death != made.birth or there.nbytes != made.nbytes:
        return False
    if not isinstance(there.value, torch.Tensor) or not there.nbytes or not _is_whole(there, made):
        return False
    wanted = storage_layout(metadata(operand))
    # The call may read the operand twice, through a view with other
    # strides: elements would be overwritten before they are read.
    sharing = [used for used in node.all_input_nodes if homes[0] in lifetimes.homes[used]]
    return all(lifetimes.homes[used] == homes and storage_layout(metadata(used)) == wanted for used in sharing)


def _is_whole(there: LiveStorage, made: LiveStorage) -> bool:
    return is_dense(there.value) and there.value.device == made.value.device


def _chained(lifetimes: Lifetimes, over: Mapping[fx.Node, fx.Node]) -> Placement:
    """Buffers that are not placed yet."""
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
    form = find_form(head.node)
    return form.out is not None and head.nbytes >= smallest and all(storage.movable for storage in buffer.storages)


def _packed(
    lifetimes: Lifetimes, over: Mapping[fx.Node, fx.Node], rooms: bool, smallest: int | None = None
) -> Placement:
    placement = _chained(lifetimes, over)
    free = [buffer for buffer in placement.buffers if _can_lie_anywhere(buffer, smallest or MIN_ARENA_BYTES)]
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
    """Compute the bytes held at each step; the arena is held from its first use to its last."""
    spans = [(b.birth if b.early is None else b.early, b.death, b.nbytes) for b in placement.buffers if not b.memory]
    inside = placement.in_arena()
    if inside:
        spans.append((min(b.birth for b in inside), max(b.death for b in inside), placement.arena))
    placement.profile = memory_profile(iter(spans), placement.lifetimes)
