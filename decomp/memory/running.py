"""The functions that a planned program calls: to allocate its arena, to take pieces of it, and to check its inputs. The
arena is allocated in each run, on the device of the inputs, and freed at its last use. Nothing is kept between runs, so
that copies of a program, nested calls and threads share no memory."""

from __future__ import annotations

from collections.abc import Sequence
import itertools
from typing import Any

import torch
from torch import fx

from decomp.errors import DecompError, InputMismatch


class PlanMismatch(DecompError, RuntimeError):
    """A planned program is run under conditions that its plan does not cover."""


def check_input(name: str, x: torch.Tensor, dtype: torch.dtype, shape: Sequence[int | None]) -> torch.Tensor:
    """Return the input if it has the planned dtype and shape; `None` in a shape means any size. Raises `InputMismatch`,
    and `PlanMismatch` if the input would need a gradient."""
    if x.dtype != dtype:
        raise InputMismatch(name, dtype, x.dtype, "dtype")
    if x.dim() != len(shape) or any(size not in (None, n) for size, n in zip(shape, x.shape)):
        raise InputMismatch(name, tuple("any" if n is None else n for n in shape), tuple(x.shape))
    # Without it autograd records nothing, and overwriting is safe.
    if x.requires_grad and torch.is_grad_enabled():
        raise PlanMismatch(
            f"input {name} requires a gradient, but a planned program overwrites what backward needs\n"
            "  to do: call it under torch.no_grad(), or pass the input's detach(); to train, use the unplanned program"
        )
    return x


def check_state(name: str, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a detached parameter or buffer if it has the planned dtype. Raises `PlanMismatch` otherwise."""
    if x.dtype != dtype:
        raise PlanMismatch(
            f"{name} has dtype {x.dtype}, but the program was planned for {dtype}\n"
            "  to do: convert the model before planning it"
        )
    # A parameter requires a gradient, and `out=` refuses operands that do.
    return x.detach()


def arena(nbytes: int, like: torch.Tensor | torch.device) -> torch.Tensor:
    """Allocate the arena, on the device of a tensor."""
    return torch.empty(nbytes, dtype=torch.uint8, device=_device(like))


def result_memory(
    like: torch.Tensor | torch.device, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int]
) -> torch.Tensor:
    """Allocate the memory of a result before it is computed, so that other results can use it until then."""
    return torch.empty_strided(shape, strides, dtype=dtype, device=_device(like))


def _device(like: torch.Tensor | torch.device) -> torch.device:
    return like.device if isinstance(like, torch.Tensor) else like


def piece(
    memory: torch.Tensor, offset: int, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int]
) -> torch.Tensor:
    """A tensor in the memory of another, `offset` bytes after its start."""
    # `set_` gives dtype, offset and strides in one call; `view(dtype)` needs sizes that divide.
    made = torch.empty(0, dtype=dtype, device=memory.device)
    start = (memory.storage_offset() * memory.element_size() + offset) // dtype.itemsize
    return made.set_(memory.untyped_storage(), start, shape, strides)


def in_blocks(
    body: fx.GraphModule,
    sliced: Sequence[torch.Tensor],
    whole: Sequence[torch.Tensor],
    outs: Sequence[torch.Tensor],
    scratch: torch.Tensor | None,
    spec: tuple[Any, ...],
) -> Sequence[torch.Tensor]:
    """Run `body` on one block of rows after the other; fills and returns `outs`."""
    rows, block, masks, pieces = spec
    made = [piece(scratch, *each) for each in pieces if scratch is not None]
    # Not `body(...)`: hooks of nn.Module cost as much as a small block.
    run, last = body.forward, len(rows) - 1
    tensors = [*zip(sliced, masks), *((out, (True,) * len(rows)) for out in outs)]
    # One index at a time in all dimensions but the last, which is split.
    for place in itertools.product(*map(range, rows[:-1])):
        parts = [_blocks(x, mask, place, block[last], rows[last] // block[last]) for x, mask in tensors]
        for each in zip(*parts):
            run(*each[: len(sliced)], *whole, *each[len(sliced) :], *made)
    return outs


def _blocks(
    x: torch.Tensor, mask: Sequence[bool], place: Sequence[int], size: int, count: int
) -> Sequence[torch.Tensor]:
    """The blocks of a tensor along the last dimension of the rows, at one index of the dimensions before it."""
    for dim, index in enumerate(place):
        if mask[dim]:
            x = x.narrow(dim, index, 1)
    # One call for all blocks of a row, in place of a slice for each.
    return x.split(size, len(place)) if mask[-1] else [x] * count
