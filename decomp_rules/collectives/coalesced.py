"""Other forms of collectives: several at once, those with a gradient of their own, and that of DTensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from decomp import Rules
from decomp.ops import collectives, collectives_with_gradient, dtensor
from decomp.results import Declined
from decomp_rules.collectives.groups import exchange, place_in, wait

RULES = Rules(level="exact")
register = RULES.register


@register(collectives.all_reduce_coalesced)
def all_reduce_coalesced(inputs: Sequence[Tensor], reduce_op: str, group_name: Any) -> list[Tensor]:
    """One after another."""
    return [wait(collectives.all_reduce(x, reduce_op, group_name)) for x in inputs]


@register(collectives.all_gather_into_tensor_coalesced)
def all_gather_coalesced(inputs: Sequence[Tensor], group_size: int, group_name: Any) -> list[Tensor]:
    """One after another."""
    return [wait(collectives.all_gather_into_tensor(x, group_size, group_name)) for x in inputs]


@register(collectives.reduce_scatter_tensor_coalesced)
def reduce_scatter_coalesced(
    inputs: Sequence[Tensor], reduce_op: str, group_size: int, group_name: Any
) -> list[Tensor]:
    """One after another."""
    return [wait(collectives.reduce_scatter_tensor(x, reduce_op, group_size, group_name)) for x in inputs]


# Before torch 2.13 the ops without a gradient have none, so these rules are for programs that are not trained.


@register(collectives_with_gradient.all_gather_into_tensor, forward_only=True)
def all_gather(x: Tensor, group_size: int, group_name: Any) -> Tensor:
    """The op without the gradient."""
    found: Tensor = collectives.all_gather_into_tensor(x, group_size, group_name)
    return found


@register(collectives_with_gradient.reduce_scatter_tensor, forward_only=True)
def reduce_scatter(x: Tensor, reduce_op: str, group_size: int, group_name: Any) -> Tensor:
    """The op without the gradient."""
    found: Tensor = collectives.reduce_scatter_tensor(x, reduce_op, group_size, group_name)
    return found


@register(collectives_with_gradient.all_to_all_single, forward_only=True)
def all_to_all(
    x: Tensor, output_split_sizes: Sequence[Any], input_split_sizes: Sequence[Any], group_name: Any
) -> Tensor:
    """The op without the gradient."""
    found: Tensor = collectives.all_to_all_single(x, output_split_sizes, input_split_sizes, group_name)
    return found


@register(dtensor.shard_dim_alltoall)
def shard_dim_all_to_all(x: Tensor, gather_dim: int, shard_dim: int, group_name: Any) -> Tensor | Declined:
    """The parts of `shard_dim` are sent to the ranks, and those that come are joined along `gather_dim`."""
    if isinstance(place := place_in(group_name), Declined):
        return place
    rows = exchange(torch.stack(torch.chunk(x, place.size, shard_dim)), place.size, group_name)
    return torch.cat([rows[rank] for rank in range(place.size)], gather_dim)
