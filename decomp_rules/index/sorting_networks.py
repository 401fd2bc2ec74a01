"""Order without comparing all pairs: a bitonic network (K. E. Batcher, *Sorting networks and their applications*, 1968)
of ½·k·(k + 1) steps for 2ᵏ elements, and the few largest one after the other.

An element and its place are compared as one, so that equal elements stay in order. Where both fit into 64 bits they
are one number: the bits of a float, read so that they count as it does, above the place. NaN is the greatest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import math
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.index.sorting import ALL_PAIRS, less
from decomp_rules.reduce.order_statistics import median_of_sorted
from decomp_rules.support.operands import constant, ramp, wrap

RULES = Rules(level="exact")
register = RULES.register

FEW = 32
"""So many of the largest are looked for one after the other."""
_LEAST = -(2**63)
Comes = Callable[[Sequence[Tensor], Sequence[Tensor]], Tensor]
"""Whether some elements come before others, each given as one tensor or several."""


@register(aten.sort, needs=("bitwise_xor",))
def sort_by_network_of_numbers(
    x: Tensor, dim: int = -1, descending: bool = False, stable: bool | None = False
) -> tuple[Tensor, Tensor]:
    """The network on one number an element, which takes the element with it. Exact."""
    line = _long_line(x, dim)
    if line is None or x.dtype.itemsize > 4:
        return decline("all pairs are few, or an element and its place are more than 64 bits")
    numbers, values = _sorted([_numbered(line, descending), line], [2**63 - 1, 0], _first_is_less)
    return _turned(values, x, dim), _turned(torch.bitwise_and(numbers, 2**32 - 1), x, dim)


@register(aten.sort)
def sort_by_network(
    x: Tensor, dim: int = -1, descending: bool = False, stable: bool | None = False
) -> tuple[Tensor, Tensor]:
    """The network on elements of 64 bits and their places. Exact."""
    line = _long_line(x, dim)
    if line is None or x.dtype.itemsize < 8:
        return decline("all pairs are few, or an element and its place are one number")

    def comes(one: Sequence[Tensor], two: Sequence[Tensor]) -> Tensor:
        a, b = (one[0].detach(), two[0].detach()) if not descending else (two[0].detach(), one[0].detach())
        return less(a, b) | torch.lt(less(b, a), torch.lt(one[1], two[1]))

    values, indices = _sorted(
        [line, ramp(line, line.shape[-1]).expand(line.shape)], [_last_of(x.dtype, descending), 2**63 - 1], comes
    )
    return _turned(values, x, dim), _turned(indices, x, dim)


def _last_of(dtype: torch.dtype, descending: bool) -> Any:
    """The value of a dtype that is sorted last."""
    if dtype.is_floating_point:
        return -math.inf if descending else math.nan
    return torch.iinfo(dtype).min if descending else torch.iinfo(dtype).max


@register(aten.topk)
def topk_of_sorted(
    x: Tensor, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    """The first k of all in order. Exact."""
    if _long_line(x, dim) is None:
        return decline("all pairs are few")
    values, indices = torch.sort(x, dim=dim, descending=largest, stable=True)
    return values.narrow(dim, 0, k), indices.narrow(dim, 0, k)


@register(aten.topk, level="standard", needs=("bitwise_xor",))
def topk_one_by_one(
    x: Tensor, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    """The largest number, and again once it is taken out; each has the place of its element in it. Exact."""
    if not x.dim() or x.dtype.itemsize > 4 or not all(type(n) is int for n in (*x.shape, k)) or not 0 < k <= FEW:
        return decline(f"not up to {FEW} of elements of up to 32 bits")
    line = _last(x, dim)
    numbers, found = torch.bitwise_xor(_numbered(line, largest), -1), []
    for _ in range(k):
        most = torch.amax(numbers, [line.dim() - 1], keepdim=True)
        numbers = torch.where(torch.ne(numbers, most), numbers, _LEAST)
        found.append(most)
    indices = torch.bitwise_and(torch.bitwise_xor(torch.cat(found, -1), -1), 2**32 - 1)
    return _turned(torch.gather(line, -1, indices), x, dim), _turned(indices, x, dim)


@register(aten.median)
def median_of_network(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The sorted element at ⌊(n − 1) / 2⌋, or the first NaN. Exactly the op, but for which of equal ones."""
    return median_of_sorted(x, dim, keepdim) if _long_line(x, dim) is not None else decline("all pairs are few")


def _last(x: Tensor, dim: int) -> Tensor:
    """x with the dimension put last."""
    return torch.movedim(x, dim, -1) if wrap(dim, x.dim()) != x.dim() - 1 else x


def _turned(line: Tensor, x: Tensor, dim: int) -> Tensor:
    """A line moved back from the last dimension to `dim`."""
    return torch.movedim(line, -1, dim) if wrap(dim, x.dim()) != x.dim() - 1 else line


def _long_line(x: Tensor, dim: int) -> Tensor | None:
    """x with the dimension put last, where it is so long that all its pairs are too many."""
    if not x.dim() or not all(type(size) is int for size in x.shape):
        return None
    line = _last(x, dim)
    return line if x.numel() * line.shape[-1] > ALL_PAIRS else None


def _numbered(x: Tensor, descending: bool) -> Tensor:
    """An int64 for each element that is less where the element comes earlier, its place in the lower half."""
    key = _counting(x.detach())
    key = torch.bitwise_not(key) if descending else key
    return key.to(torch.int64) * 2**32 + ramp(x, x.shape[-1])


def _counting(x: Tensor) -> Tensor:
    """Integers in the order of x, equal for equal elements: of floats the bits, all but the sign of which are flipped
    where that is set."""
    if not x.is_floating_point():
        return x.to(torch.int32)
    bits = (x.to(torch.float32) + 0.0).view(torch.int32)
    counting = torch.bitwise_xor(bits, torch.bitwise_and(torch.bitwise_right_shift(bits, 31), 2**31 - 1))
    return torch.where(torch.ne(x, x), constant(bits, 2**31 - 1), counting)


def _first_is_less(one: Sequence[Tensor], two: Sequence[Tensor]) -> Tensor:
    return torch.lt(one[0], two[0])


def _sorted(parts: Sequence[Tensor], fill: Sequence[Any], comes: Comes) -> list[Tensor]:
    """Lines in the order that `comes` tells, filled up to a power of two with what comes last. In each step two halves
    of a block are compared, the second one backwards where both are in order."""
    length, lead = parts[0].shape[-1], list(parts[0].shape[:-1])
    bits = (length - 1).bit_length()
    added = 2**bits - length
    lines = [torch.constant_pad_nd(x, [0, added], value) if added else x for x, value in zip(parts, fill)]
    for order in range(bits):
        for place in range(order, -1, -1):
            shape = [*lead, 2 ** (bits - place - 1), 2, 2**place]
            halves = [x.reshape(shape) for x in lines]
            first, second = ([x.narrow(-2, side, 1) for x in halves] for side in (0, 1))
            second = [x.flip(-1) for x in second] if place == order and place else second
            swap = comes(second, first)
            lines = [torch.stack([torch.where(swap, b, a), torch.where(swap, a, b)], -2) for a, b in zip(first, second)]
    return [x.reshape([*lead, 2**bits]).narrow(-1, 0, length) for x in lines]
