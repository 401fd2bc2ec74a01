"""Overlap of tensors in memory, element by element: views of one buffer may interleave without sharing an element."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
import functools
import math
from typing import Any, NamedTuple

import torch
from torch import nn

from decomp.metadata.ambient_modes import without_ambient_modes
from decomp.torch_internals.fakes import FakeTensor

# A byte for each unit: 128 MiB at most.
_LARGEST_SPAN = 2**27
"""Layouts that span more units than this are assumed to overlap."""

Steps = tuple[tuple[int, int], ...]
"""Sizes and strides in bytes, the largest stride first. The last one is a run of bytes, whose stride is 1."""


@dataclass(frozen=True, slots=True)
class MemoryRange:
    """The memory range and layout of a tensor."""

    memory: Any
    """The address space of `start` and `end`: a device, or the storage of a fake tensor."""
    start: int
    end: float
    steps: Steps | None
    """None for dynamic sizes."""


def memory_range_of(tensor: Any) -> MemoryRange | None:
    """The memory of a tensor; None if it has none that could be compared: non-strided or empty tensors, subclasses, and
    tensors of `torch.func` transforms."""
    kind = type(tensor)
    if kind is FakeTensor:
        return _place_of_fake(tensor)
    # A subclass may answer what it likes when its address or strides are asked.
    if kind is not torch.Tensor and kind is not nn.Parameter or tensor.layout is not torch.strided:
        return None
    try:
        start = tensor.data_ptr()
    except RuntimeError:
        return None
    if not start or not tensor.numel():
        return None
    if tensor.is_contiguous():
        return MemoryRange(tensor.device, start, start + tensor.nbytes, ((tensor.nbytes, 1),))
    steps = _steps(tensor)
    return MemoryRange(tensor.device, start, start + memory_span(steps), steps)


def overlap(one: MemoryRange | None, two: MemoryRange | None) -> bool:
    """Whether two tensors share an element; for dynamic sizes, whether they share a storage."""
    if one is None or two is None or one.memory != two.memory or one.end <= two.start or two.end <= one.start:
        return False
    if one.steps is None or two.steps is None:
        return True
    return _share_an_element(one.steps, two.steps, two.start - one.start)


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements of a tensor share memory; for dynamic sizes, whether it has a stride of 0."""
    steps = [(stride, size) for stride, size in zip(tensor.stride(), tensor.shape) if type(size) is not int or size > 1]
    if any(type(number) is not int for step in steps for number in step):
        return any(type(stride) is int and stride == 0 for stride, _ in steps)
    return bool(tensor.numel()) and _repeats(tuple(sorted(steps)))


@functools.lru_cache(maxsize=1024)
def _repeats(steps: tuple[tuple[int, int], ...]) -> bool:
    """Whether a layout of (stride, size) pairs, by ascending stride, addresses an element twice. If each stride exceeds
    the span of all smaller ones it cannot; otherwise the addresses are enumerated."""
    reached, nested = 1, True
    for stride, size in steps:
        nested = nested and stride >= reached
        reached += (size - 1) * stride
    if nested or reached > _LARGEST_SPAN:
        return not nested
    with without_ambient_modes():
        places = torch.zeros((), dtype=torch.int64, device="cpu")
        for stride, size in steps:
            places = places.unsqueeze(-1) + torch.arange(size, device="cpu") * stride
        return bool(len(places.unique()) < places.numel())


def _place_of_fake(tensor: torch.Tensor) -> MemoryRange | None:
    if tensor.layout is not torch.strided:
        return None
    storage = tensor.untyped_storage()._cdata
    if any(type(size) is not int for size in (*tensor.shape, *tensor.stride(), tensor.storage_offset())):
        return MemoryRange(storage, 0, math.inf, None)
    if not tensor.numel():
        return None
    start, steps = tensor.storage_offset() * tensor.itemsize, _steps(tensor)
    return MemoryRange(storage, start, start + memory_span(steps), steps)


def _steps(tensor: torch.Tensor) -> Steps:
    dims = ((n, stride * tensor.itemsize) for n, stride in zip(tensor.shape, tensor.stride()) if n > 1 and stride)
    outer: list[tuple[int, int]] = []
    run = tensor.itemsize
    for size, stride in sorted(dims, key=lambda dim: dim[1]):
        if stride == run and not outer:
            run *= size
        else:
            outer.append((size, stride))
    return (*reversed(outer), (run, 1))


def memory_span(steps: Iterable[tuple[int, int]]) -> int:
    """The number of elements from the first to the last that a layout of (size, stride) pairs addresses, if it
    addresses any."""
    return sum((size - 1) * stride for size, stride in steps) + 1


@functools.lru_cache(maxsize=1024)
def _share_an_element(one: Steps, two: Steps, apart: int) -> bool:
    """Whether two layouts, with first bytes `apart` from each other, share an element. Strided layouts can interleave,
    so comparing ranges is not enough: the elements of one are marked in a buffer and read through the other."""
    # Both are contiguous, and the caller has compared their ranges already.
    if len(one) == len(two) == 1:
        return True
    # Marking units of the common divisor instead of bytes keeps the buffer small.
    unit = math.gcd(apart, one[-1][0], two[-1][0], *(stride for _, stride in (*one[:-1], *two[:-1])))
    first, second = max(0, -apart) // unit, max(0, apart) // unit
    length = max(first + memory_span(one) // unit, second + memory_span(two) // unit) + 1
    if length > _LARGEST_SPAN:
        return True
    with without_ambient_modes():
        marked = torch.zeros(length, dtype=torch.bool, device="cpu")
        _through(marked, one, unit, first).fill_(True)
        return bool(_through(marked, two, unit, second).any())


class StridedRegion(NamedTuple):
    """Where the elements of a strided tensor are, counted in elements."""

    size: Sequence[int]
    stride: Sequence[int]
    offset: int


def is_within(one: StridedRegion, other: StridedRegion, is_dense: bool) -> bool:
    """Whether each element of `one` is an element of `other`; `is_dense`: whether the latter has no gaps."""
    if 0 in one.size:
        return True
    last, end = (sum((n - 1) * step for n, step in zip(each.size, each.stride)) + each.offset for each in (one, other))
    if other.offset < 0 or 0 in other.size or one.offset < other.offset or last > end:
        return False
    if is_dense:
        return True
    if end >= _LARGEST_SPAN:
        return False
    with without_ambient_modes():
        marked = torch.zeros(end + 1, dtype=torch.bool, device="cpu")
        marked.as_strided(*other).fill_(True)
        return bool(marked.as_strided(*one).all())


def _through(marked: torch.Tensor, steps: Steps, unit: int, start: int) -> torch.Tensor:
    sizes = [*(size for size, _ in steps[:-1]), steps[-1][0] // unit]
    strides = [*(stride // unit for _, stride in steps[:-1]), 1]
    return marked.as_strided(sizes, strides, start)
