"""Collectives that reduce over the ranks of a group: all-reduce and reduce-scatter, by each other, or by sending all
operands and reducing them here."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import collectives
from decomp.results import Declined
from decomp_rules.collectives.groups import SUM, exchange, gather, place_in, wait

RULES = Rules(level="exact")
register = RULES.register

_BITWISE = {"band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor}


@register(collectives.all_reduce)
def all_reduce_by_scatter(x: Tensor, reduce_op: str, group_name: Any) -> Tensor | Declined:
    """Each rank reduces an equal part, and all gather the parts; zeros at the end, which are cut off, make the number
    of elements divisible. As many bytes are sent as by a ring all-reduce."""
    if isinstance(place := place_in(group_name), Declined):
        return place
    count = x.numel()
    if not isinstance(count, int):
        return decline("the number of elements is open, so it may not be divisible by the size of the group")
    padding = -count % place.size
    parts = torch.nn.functional.pad(x.reshape(-1), (0, padding)) if padding else x.reshape(-1)
    part = wait(collectives.reduce_scatter_tensor(parts, reduce_op, place.size, group_name))
    whole = wait(collectives.all_gather_into_tensor(part, place.size, group_name))
    return (whole[:count] if padding else whole).reshape(x.shape)


@register(collectives.all_reduce)
def all_reduce_by_gather(x: Tensor, reduce_op: str, group_name: Any) -> Tensor | Declined:
    """Each rank gathers the operands of all, and reduces them. Sends n times the bytes, in one step."""
    if isinstance(place := place_in(group_name), Declined):
        return place
    if (refused := _why_not_here(x, reduce_op)) is not None:
        return decline(refused)
    return _reduced(gather(x, place.size, group_name), reduce_op, place.size)


@register(collectives.all_reduce)
def average_by_sum(x: Tensor, reduce_op: str, group_name: Any) -> Tensor | Declined:
    """avg = sum / n, for backends that have no average (gloo)."""
    if isinstance(place := place_in(group_name), Declined):
        return place
    if reduce_op.lower() != "avg" or not x.dtype.is_floating_point:
        return decline("it is not an average of floating-point numbers")
    return wait(collectives.all_reduce(x, SUM, group_name)) / place.size


@register(collectives.reduce_scatter_tensor)
def scattered_average_by_sum(x: Tensor, reduce_op: str, group_size: int, group_name: Any) -> Tensor | Declined:
    """avg = sum / n, for backends that have no average (gloo)."""
    if reduce_op.lower() != "avg" or not x.dtype.is_floating_point:
        return decline("it is not an average of floating-point numbers")
    return wait(collectives.reduce_scatter_tensor(x, SUM, group_size, group_name)) / group_size


@register(collectives.reduce_scatter_tensor)
def reduce_scatter_by_exchange(x: Tensor, reduce_op: str, group_size: int, group_name: Any) -> Tensor | Declined:
    """Each rank sends each other rank its part, and reduces those that it gets. As many bytes are sent as by the op."""
    if (refused := _why_not_here(x, reduce_op)) is not None:
        return decline(refused)
    parts = x.reshape(group_size, x.shape[0] // group_size, *x.shape[1:])
    return _reduced(exchange(parts, group_size, group_name), reduce_op, group_size)


@register(collectives.reduce_scatter_tensor)
def reduce_scatter_by_all_reduce(x: Tensor, reduce_op: str, group_size: int, group_name: Any) -> Tensor | Declined:
    """The part of this rank of an all-reduce. Sends twice the bytes."""
    if isinstance(place := place_in(group_name), Declined):
        return place
    rows = x.shape[0] // group_size
    whole = wait(collectives.all_reduce(x, reduce_op, group_name))
    return whole[place.rank * rows : (place.rank + 1) * rows].contiguous()


def _why_not_here(x: Tensor, reduce_op: str) -> str | None:
    """Why operands cannot be reduced by the ops that a rank has for itself."""
    name = reduce_op.lower()
    if x.dtype.is_complex and name not in (SUM, "avg"):
        return "complex numbers have no order"
    if name == "avg" and not (x.dtype.is_floating_point or x.dtype.is_complex):
        return "the average of integers is rounded as the backend does"
    if x.dtype == torch.bool and name not in ("min", "max", *_BITWISE):
        return "sums and products of Booleans are as the backend defines them"
    return None if name in (SUM, "avg", "product", "min", "max", *_BITWISE) else f"{reduce_op!r} has no other form"


def _reduced(rows: Tensor, reduce_op: str, size: int) -> Tensor:
    """The reduction of `rows`, (n, ...), over the ranks, in their order: `(...)`."""
    name = reduce_op.lower()
    if name in _BITWISE:
        found = rows[0]
        for rank in range(1, size):
            found = _BITWISE[name](found, rows[rank])
        return found.clone() if size == 1 else found
    if name in (SUM, "avg"):
        total = rows.sum(dim=0, dtype=rows.dtype)
        return total if name == SUM else total / size
    if name == "product":
        return rows.prod(dim=0, dtype=rows.dtype)
    return rows.amin(dim=0) if name == "min" else rows.amax(dim=0)
