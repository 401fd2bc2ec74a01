"""The file of weights: the bytes of parameters, buffers and constants as they are in memory, each storage once. It is
written from that memory, a piece at a time, and read by mapping it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import ctypes
from dataclasses import dataclass
import os
from pathlib import Path
import sys
from typing import IO, Any

import torch

from decomp.errors import ArgumentError, NotPortable
from decomp.ir.dtypes import name_of
from decomp.metadata.meta_values import is_abstract, known_value
from decomp.metadata.strides import contiguous_strides

ALIGNMENT = 64
"""Where each piece of memory begins. A tensor that is a part of another one begins where it does there."""
WIDEST = 16
"""Bytes of the widest number: offsets keep their remainder by it."""
PIECE = 1 << 24
"""Bytes that are copied at once from a device."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Where the memory of tensors goes."""

    offsets: tuple[int | None, ...]
    """The byte of the file at which each tensor begins; None for one without values."""
    pieces: tuple[tuple[int, torch.Tensor], ...]
    """The memory itself: its place in the file, and its bytes as a tensor."""

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return max((start + memory.numel() for start, memory in self.pieces), default=0)


def values_of(tensor: torch.Tensor, name: str) -> torch.Tensor | None:
    """A plain tensor with the values of a weight; None if it has none. Raises `NotPortable` for a weight that is no
    array in memory."""
    if not is_abstract(tensor) and type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        raise NotPortable(
            f"{name} is a {type(tensor).__name__}, a subclass of Tensor, whose memory only its own code can read\n"
            "  to do: replace it by a plain tensor before the model is lowered"
        )
    if tensor.layout is not torch.strided or tensor.is_quantized:
        kind = "quantised" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.sparse_") + " sparse"
        raise NotPortable(
            f"{name} is a {kind} tensor, which is not one array\n"
            "  to do: replace it by a dense tensor before the model is lowered"
        )
    value = known_value(tensor)
    return None if value is None else value.detach().resolve_conj().resolve_neg()


def place(tensors: Sequence[torch.Tensor | None]) -> Placed:
    """Where each tensor goes, in order; those that overlap in memory share their bytes."""
    spans = [None if each is None or not each.numel() else _span(each) for each in tensors]
    known = sorted((span, i) for i, span in enumerate(spans) if span is not None)
    offsets: list[int | None] = [None if each is None else 0 for each in tensors]
    pieces: list[tuple[int, torch.Tensor]] = []
    at = end = 0
    for group in sorted(_overlapping(known), key=lambda group: min(i for _, i in group)):
        (*_, first, _), i = group[0]
        first -= first % WIDEST
        last = max(span[-1] for span, _ in group)
        at = -(-end // ALIGNMENT) * ALIGNMENT
        end = at + last - first
        pieces.append((at, _memory(tensors[i], first, last)))
        for (*_, start, _), j in group:
            offsets[j] = at + start - first
    return Placed(tuple(offsets), tuple(pieces))


_Span = tuple[str, int, int, int]
"""The device and the address of a storage, and the bytes of it that a tensor covers, to the one after the last."""


def _span(tensor: torch.Tensor) -> _Span:
    size = tensor.element_size()
    start = tensor.storage_offset() * size
    reach = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride()))
    return str(tensor.device), tensor.untyped_storage().data_ptr(), start, start + (reach + 1) * size


def _overlapping(spans: Sequence[tuple[_Span, int]]) -> Iterator[list[tuple[_Span, int]]]:
    """Sorted spans in groups that share bytes."""
    group: list[tuple[_Span, int]] = []
    end = 0
    for span, i in spans:
        if group and (span[:2] != group[0][0][:2] or span[2] >= end):
            yield group
            group, end = [], 0
        end = max(end, span[3])
        group.append((span, i))
    if group:
        yield group


def _memory(tensor: Any, first: int, last: int) -> torch.Tensor:
    """The bytes of a tensor's storage from the first to before the last."""
    found = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return found.set_(tensor.untyped_storage(), first, (last - first,), (1,))


def write(placed: Placed, path: Path) -> None:
    """Write the file. Raises `OSError`, and `NotPortable` on a machine whose numbers begin with the highest byte."""
    if sys.byteorder != "little":
        raise NotPortable(
            "the file of weights has the lowest byte of a number first, and this machine the highest\n"
            "  to do: save the program on another machine"
        )
    with path.open("wb") as file:
        for start, memory in placed.pieces:
            file.seek(start)
            for piece in memory.split(PIECE):
                _append(piece.cpu(), file)


def _append(piece: torch.Tensor, file: IO[bytes]) -> None:
    """Write bytes from where they are: without NumPy, PyTorch gives its memory by address alone."""
    file.write((ctypes.c_char * piece.numel()).from_address(piece.data_ptr()))


class WeightsFile:
    """A file of weights, mapped: tensors share its memory, and writing to them does not change the file."""

    def __init__(self, path: Path, size: int) -> None:
        """Raises `ArgumentError` if the file is not there, or is shorter than `size` bytes."""
        if not path.is_file() or os.path.getsize(path) < size:
            found = "is not there" if not path.is_file() else f"has {os.path.getsize(path)} bytes, not {size}"
            raise ArgumentError(
                f"the weights of the program, {path}, {found}\n  to do: keep both files of a program together"
            )
        shared = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8) if size else None
        self.memory = torch.empty(0, dtype=torch.uint8) if shared is None else shared

    def tensor(self, described: Mapping[str, Any], dtype: torch.dtype) -> torch.Tensor:
        """A tensor of the file, without copying it. Raises `ValueError` if it is not within the file, or not on a
        multiple of its item."""
        shape, offset = described["shape"], described["offset"]
        strides = strides_of(shape, described.get("strides"))
        numbers = [offset, *shape, *strides]
        if not all(type(each) is int and each >= 0 for each in numbers) or offset % dtype.itemsize:
            raise ValueError(f"the tensor {described['name']} has offset {offset} and shape {shape}")
        if 0 in shape:
            return torch.empty_strided(shape, strides, dtype=dtype)
        reach = sum((length - 1) * stride for length, stride in zip(shape, strides))
        if offset + (reach + 1) * dtype.itemsize > self.memory.numel():
            raise ValueError(f"the tensor {described['name']}, {name_of(dtype)} {shape}, is not within the weights")
        found = torch.empty(0, dtype=dtype)
        return found.set_(self.memory.untyped_storage(), offset // dtype.itemsize, tuple(shape), tuple(strides))


def strides_of(shape: Sequence[Any], written: Sequence[Any] | None) -> tuple[Any, ...]:
    """The strides of a tensor: those that are written, or else those of a contiguous one."""
    return contiguous_strides(shape) if written is None else tuple(written)
