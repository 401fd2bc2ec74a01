"""What a planned program calls while it runs: its arena, pieces of it, and the checks of its inputs. The arena is
allocated anew in each call, on the device of the inputs, and given back at its last use: nothing is kept between calls,
so that copies of a program, calls within calls, and threads have nothing in common."""

from __future__ import annotations

from collections.abc import Sequence
import itertools
from typing import Any

import torch
from torch import fx

from decomp.errors import DecompError, InputMismatch


class PlanMismatch(DecompError, RuntimeError):
    """A planned program is run in a way that its plan is not for."""


def planned_input(name: str, x: torch.Tensor, dtype: torch.dtype, shape: Sequence[int | None]) -> torch.Tensor:
    """The input, if it is what the program was planned for: `None` in a shape stands for any size. Raises
    `InputMismatch`, and `PlanMismatch` where it would need a gradient."""
    if x.dtype != dtype:
        raise InputMismatch(name, dtype, x.dtype, "dtype")
    if x.dim() != len(shape) or any(size not in (None, n) for size, n in zip(shape, x.shape)):
        raise InputMismatch(name, tuple("any" if n is None else n for n in shape), tuple(x.shape))
    if x.requires_grad and torch.is_grad_enabled():
        raise PlanMismatch(
            f"input {name} requires a gradient, and a planned program has none: it overwrites what backward needs\n"
            "  to do: call it under torch.no_grad(), or pass the input's detach(); train the program that was planned"
        )
    return x


def planned_state(name: str, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A parameter or buffer without its gradient, if it is of the dtype that was planned. Raises `PlanMismatch`."""
    if x.dtype != dtype:
        raise PlanMismatch(
            f"{name} is of {x.dtype}, and the program was planned for {dtype}\n"
            "  to do: convert the model first, and plan it then"
        )
    return x.detach()


def arena(nbytes: int, like: torch.Tensor | torch.device) -> torch.Tensor:
    """Fresh memory on the device of a tensor."""
    return torch.empty(nbytes, dtype=torch.uint8, device=_device(like))


def result_memory(
    like: torch.Tensor | torch.device, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int]
) -> torch.Tensor:
    """Fresh memory for a result, made before the result is, for others to use until then."""
    return torch.empty_strided(shape, strides, dtype=dtype, device=_device(like))


def _device(like: torch.Tensor | torch.device) -> torch.device:
    return like.device if isinstance(like, torch.Tensor) else like


def piece(
    memory: torch.Tensor, offset: int, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int]
) -> torch.Tensor:
    """A tensor that lies in the memory of another, `offset` bytes behind its beginning."""
    made = torch.empty(0, dtype=dtype, device=memory.device)
    start = (memory.storage_offset() * memory.element_size() + offset) // dtype.itemsize
    return made.set_(memory.untyped_storage(), start, shape, strides)  # type: ignore[call-overload]


def in_blocks(
    body: fx.GraphModule,
    sliced: Sequence[torch.Tensor],
    whole: Sequence[torch.Tensor],
    outs: Sequence[torch.Tensor],
    scratch: torch.Tensor | None,
    spec: tuple[Any, ...],
) -> Sequence[torch.Tensor]:
    """Run `body` on one block of rows after the other, and return `outs`, which it fills."""
    rows, block, masks, pieces = spec
    made = [piece(scratch, *each) for each in pieces if scratch is not None]
    run, last = body.forward, len(rows) - 1
    tensors = [*zip(sliced, masks), *((out, (True,) * len(rows)) for out in outs)]
    for place in itertools.product(*map(range, rows[:-1])):
        parts = [_blocks(x, mask, place, block[last], rows[last] // block[last]) for x, mask in tensors]
        for each in zip(*parts):
            run(*each[: len(sliced)], *whole, *each[len(sliced) :], *made)
    return outs


def _blocks(
    x: torch.Tensor, mask: Sequence[bool], place: Sequence[int], size: int, count: int
) -> Sequence[torch.Tensor]:
    """The blocks of a tensor at one place of all dimensions but the last that has rows."""
    for dim, index in enumerate(place):
        if mask[dim]:
            x = x.narrow(dim, index, 1)
    return x.split(size, len(place)) if mask[-1] else [x] * count
