"""Reading and writing by strides. An index is computed as a position in memory; a tensor that fills its memory, in any
order of dimensions, is flattened to that memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.support.operands import cast, ramp

RULES = Rules(level="exact")
register = RULES.register

BEYOND = "it reaches memory that its input does not hold"


@register(aten.as_strided)
def as_strided(x: Tensor, size: Sequence[Any], stride: Sequence[Any], storage_offset: Any = None) -> Tensor:
    """The elements at offset + Σ iₖ · strideₖ of the input's memory. Exactly the op."""
    order, start = _order(x), _start(x, size, stride, storage_offset)
    if order is None or start is None:
        return decline(BEYOND)
    line = x.permute(order).reshape(-1)
    return torch.index_select(line, 0, _numbers(x, size, stride, start).reshape(-1)).view(list(size))


@register(aten.as_strided_scatter)
def as_strided_scatter(
    x: Tensor, src: Tensor, size: Sequence[Any], stride: Sequence[Any], storage_offset: Any = None
) -> Tensor:
    """src at the places that as_strided reads, x elsewhere. Exactly the op, but for the gradient of x: it flows to the
    elements that are kept, while in torch 2.13 it flows to those that are replaced."""
    order, start = _order(x), _start(x, size, stride, storage_offset)
    if order is None or start is None:
        return decline(BEYOND)
    rows = x.permute(order)
    numbers = _numbers(x, size, stride, start).reshape(-1)
    line = aten.index_put.default(rows.reshape(-1), [numbers], cast(src, x.dtype).reshape(-1))
    return line.view(rows.shape).permute([order.index(d) for d in range(x.dim())])


def _order(x: Tensor) -> list[int] | None:
    """The dimensions by decreasing stride, if they leave no gaps and do not overlap."""
    if x.is_contiguous():
        return list(range(x.dim()))
    if not all(type(length) is int for length in (*x.shape, *x.stride())):
        return None
    order = sorted(range(x.dim()), key=lambda d: (-x.stride(d), d))
    span = 1
    for d in reversed(order):
        if x.shape[d] != 1 and x.stride(d) != span:
            return None
        span *= x.shape[d]
    return order


def _start(x: Tensor, size: Sequence[Any], stride: Sequence[Any], offset: Any) -> Any:
    """The position of the first element that is read, relative to the input's first; None if some are outside the
    input."""
    own = x.storage_offset()
    offset = own if offset is None else offset
    reach = [own, offset, x.numel(), *size, *stride]
    if not all(type(length) is int for length in reach):
        # The range of a dynamic size is unknown; a tensor at the start of its memory usually is all of it.
        return offset if type(own) is int and own == 0 else None
    last = offset - own + sum((length - 1) * step for length, step in zip(size, stride))
    return offset - own if offset >= own and (last < x.numel() or 0 in size) else None


def _numbers(x: Tensor, size: Sequence[Any], stride: Sequence[Any], offset: Any) -> Tensor:
    number = torch.full([1] * len(size), offset, dtype=torch.int64, device=x.device)
    for dim, (length, step) in enumerate(zip(size, stride)):
        number = number + ramp(x, length, dim, len(size)) * step
    return number.expand(list(size))


def _beyond(call: Any) -> bool:
    """Whether the input is not all of its memory."""
    x = call.argument("self")
    return isinstance(x, Tensor) and (
        _order(x) is None or type(x.storage_offset()) is not int or x.storage_offset() > 0
    )


RULES.limit(aten.as_strided, aten.as_strided_copy, aten.as_strided_scatter, reason=BEYOND, when=_beyond)
