"""Collectives that move tensors between the ranks of a group without computing: all-gather, broadcast and all-to-all,
by each other. No bit differs, but that an all-gather by a sum turns -0 to 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import collectives
from decomp.results import Declined
from decomp_rules.collectives.groups import SUM, exchange, gather, place_in, wait

RULES = Rules(level="exact")
register = RULES.register


@register(collectives.all_gather_into_tensor)
def all_gather_by_exchange(x: Tensor, group_size: int, group_name: Any) -> Tensor:
    """Each rank sends its tensor to each other rank. As many bytes are sent as by the op."""
    rows = x.reshape(1, *x.shape).expand(group_size, *x.shape).contiguous()
    return _joined(exchange(rows, group_size, group_name), x)


@register(collectives.all_gather_into_tensor)
def all_gather_by_all_reduce(x: Tensor, group_size: int, group_name: Any) -> Tensor | Declined:
    """The sum of tensors that are zero but for the rows of one rank each. Sends twice the bytes."""
    if isinstance(place := place_in(group_name), Declined):
        return place
    if x.dtype == torch.bool or x.dtype.is_complex:
        return decline("backends do not sum Booleans and complex numbers")
    zeros = torch.zeros_like(x)
    own = torch.stack([x if rank == place.rank else zeros for rank in range(group_size)])
    return _joined(wait(collectives.all_reduce(own, SUM, group_name)), x)


def _joined(rows: Tensor, x: Tensor) -> Tensor:
    """The tensors of all ranks, (n, *x.shape), joined along their first dimension."""
    return rows.reshape(-1, *x.shape[1:]) if x.dim() else rows


@register(collectives.broadcast)
def broadcast_by_gather(x: Tensor, src: int, group_name: Any) -> Tensor | Declined:
    """The tensor of rank `src` of the group, of those of all ranks. Sends n times the bytes."""
    if isinstance(place := place_in(group_name), Declined):
        return place
    return gather(x, place.size, group_name)[src].contiguous()


@register(collectives.all_to_all_single)
def exchange_by_gather(
    x: Tensor, output_split_sizes: Sequence[Any], input_split_sizes: Sequence[Any], group_name: Any
) -> Tensor | Declined:
    """The parts for this rank of the tensors of all ranks. Sends n times the bytes."""
    if isinstance(place := place_in(group_name), Declined):
        return place
    splits = {*output_split_sizes, *input_split_sizes}
    if not all(isinstance(size, int) for size in splits) or len(splits) != 1:
        return decline("the parts are not of one size, so other ranks may have tensors of other sizes")
    rows = gather(x.reshape(place.size, -1, *x.shape[1:]), place.size, group_name)
    return rows[:, place.rank].reshape(x.shape)
