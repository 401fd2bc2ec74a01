"""Embeddings in bags: the rows of a table, summed, averaged or maximised over runs of indices. Where a run begins is
data: a position's bag is the number of offsets up to it. Rows of the padding index belong to no bag."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.support.gradients import scaled_gradient
from decomp_rules.support.operands import cast, wide

RULES = Rules(level="exact")
register = RULES.register

SUM, MEAN, MAX = range(3)
"""ATen's codes for the reduction of a bag."""


@register(aten.embedding)
def embedding(
    weight: Tensor, indices: Tensor, padding_idx: Any = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Tensor:
    """Rows of the table, whose gradient is divided by how often the batch has their index. (Where the gradient is
    plain, the rule for that comes first.) A sparse gradient is a dense one here, with the same values."""
    rows = torch.embedding(weight, indices, padding_idx)
    return scaled_gradient(rows, shares(rows, indices).unsqueeze(-1)) if scale_grad_by_freq else rows


@register(aten.embedding_bag)
def embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The kernel; a padding index may count from the end."""
    if include_last_offset:
        return decline("which kernel it is, and how many sizes there are, depends on whether a gradient is wanted")
    padding = -1 if padding_idx is None else padding_idx % weight.shape[0]
    return aten._embedding_bag(
        weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset, padding
    )


@register(aten._embedding_bag_forward_only)
def _embedding_bag_forward_only(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`_embedding_bag`, with as many bag sizes as offsets."""
    out, bag, size, largest = _embedding_bag(
        weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset, padding_idx
    )
    spare = offsets.shape[0] - size.shape[0]
    return out, bag, torch.constant_pad_nd(size, [0, spare], 0) if spare else size, largest


@register(aten._embedding_bag)
def _embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Σ w row over each bag, the mean or the maximum of its rows, 0 where it is empty; then the inputs of the backward
    op: the bag of each index, the size of each bag, and which index each maximum came from."""
    starts = offsets[:-1] if include_last_offset else offsets
    bag = bag_of(indices, starts)
    counted = torch.full_like(indices, True, dtype=torch.bool) if padding_idx < 0 else indices != padding_idx
    member = (torch.arange(starts.shape[0], device=indices.device).unsqueeze(1) == bag) & counted
    size = torch.sum(cast(member, offsets.dtype), [1], dtype=offsets.dtype)
    rows = wide(torch.nn.functional.embedding(indices, weight, scale_grad_by_freq=scale_grad_by_freq))
    largest = None
    if mode == MAX:
        out, largest = largest_rows(rows, member, indices, size)
    else:
        rows = rows if per_sample_weights is None else rows * wide(per_sample_weights).unsqueeze(-1)
        rows = rows if padding_idx < 0 else torch.where(counted.unsqueeze(-1), rows, 0.0)
        empty = torch.zeros([starts.shape[0], rows.shape[1]], dtype=rows.dtype, device=rows.device)
        out = torch.index_add(empty, 0, bag, rows)
        if mode == MEAN:
            out = out / cast(torch.clamp(size, min=1), out.dtype).unsqueeze(-1)
    fast = mode == SUM and has_fast_kernel(weight, per_sample_weights, padding_idx)
    kept = torch.zeros_like(size) if mode == SUM else size
    return cast(out, weight.dtype), *saved(weight, bag[:0] if fast else bag, kept, largest, offsets)


@register(aten._embedding_bag_backward, aten._embedding_bag_dense_backward)
def _embedding_bag_backward(
    grad: Tensor,
    indices: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: Any,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Tensor | None,
    offsets: Tensor | None = None,
    sparse: bool = False,
    padding_idx: int = -1,
) -> Tensor:
    """Each row's share of its bag's gradient: all of it, over the size of the bag for a mean, and where the row was
    largest for a maximum."""
    if sparse:
        return decline("the gradient is sparse")
    out = torch.zeros([num_weights, grad.shape[1]], dtype=wide(grad).dtype, device=grad.device)
    if mode == MAX:
        filled = cast(bag_size > 0, torch.bool).unsqueeze(-1)
        return cast(
            out.scatter_add(0, cast(maximum_indices, torch.int64), torch.where(filled, wide(grad), 0.0)), grad.dtype
        )
    bag = bag_of(indices, offsets) if offsets is not None else offset2bag
    share = torch.index_select(wide(grad), 0, bag)
    if mode == MEAN:
        count = torch.index_select(torch.clamp(bag_size, min=1), 0, bag)
        share = share / cast(count, share.dtype).unsqueeze(-1)
    share = share if per_sample_weights is None else share * wide(per_sample_weights).unsqueeze(-1)
    share = share * shares(share, indices).unsqueeze(-1) if scale_grad_by_freq else share
    share = share if padding_idx < 0 else torch.where((indices != padding_idx).unsqueeze(-1), share, 0.0)
    return cast(torch.index_add(out, 0, indices, share), grad.dtype)


@register(aten._embedding_bag_per_sample_weights_backward)
def _embedding_bag_per_sample_weights_backward(
    grad: Tensor,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    mode: int,
    padding_idx: int = -1,
) -> Tensor:
    """Σ over the features of row · gradient of its bag."""
    rows = wide(torch.index_select(weight, 0, indices))
    along = torch.sum(rows * torch.index_select(wide(grad), 0, bag_of(indices, offsets)), [1])
    return cast(along if padding_idx < 0 else torch.where(indices != padding_idx, along, 0.0), grad.dtype)


@register(aten.embedding_renorm)
def embedding_renorm(x: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> Tensor:
    """The table with each row that is named, and longer than m, scaled to the length m ‖x‖ / (‖x‖ + 10⁻⁷)."""
    size = torch.linalg.vector_norm(x, norm_type, [1], keepdim=True)
    named = torch.any(torch.arange(x.shape[0], device=x.device).unsqueeze(1) == indices.reshape(1, -1), 1, keepdim=True)
    return torch.where(named & (size > max_norm), x * (max_norm / (size + 1e-7)), x)


def bag_of(indices: Tensor, starts: Tensor) -> Tensor:
    """The bag of each position: the last that starts at it or before. (positions,), in the dtype of the offsets."""
    place = torch.arange(indices.shape[0], dtype=starts.dtype, device=indices.device).unsqueeze(1)
    return torch.sum(cast(starts <= place, starts.dtype), [1], dtype=starts.dtype) - 1


def largest_rows(rows: Tensor, member: Tensor, indices: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of each bag by feature, and the index of its row; 0 if the bag is empty. As in the kernel, which
    compares each number with the best before it, a NaN counts only if it is the first."""
    first = torch.cumsum(cast(member, torch.int64), 1) == 1
    eligible = (member & first).unsqueeze(-1) | (member.unsqueeze(-1) & (rows == rows))
    found = torch.max(torch.where(eligible, rows, float("-inf")), 1)
    filled = (size > 0).unsqueeze(-1)
    which = torch.index_select(indices, 0, found[1].reshape(-1)).view(found[1].shape)
    return torch.where(filled, found[0], 0.0), torch.where(filled, which, 0)


def shares(like: Tensor, indices: Tensor) -> Tensor:
    """1 over how often each index occurs, in the shape of the indices."""
    flat = indices.reshape(-1, 1)
    count = torch.sum(cast(flat == flat.transpose(0, 1), like.dtype), [1])
    return torch.reciprocal(count).view(indices.shape)


def has_fast_kernel(weight: Tensor, per_sample_weights: Tensor | None, padding_idx: int) -> bool:
    """Whether the CPU kernel sums without recording the bag of each index."""
    dense = per_sample_weights is None or per_sample_weights.stride(0) == 1
    return (
        weight.device.type == "cpu"
        and weight.dtype in (torch.float32, torch.float16)
        and weight.stride(1) == 1
        and padding_idx < 0
        and dense
    )


def saved(weight: Tensor, bag: Tensor, size: Tensor, largest: Tensor | None, offsets: Tensor) -> list[Tensor]:
    """Bags, sizes and maxima in the shapes that the device's kernel returns."""
    if weight.device.type == "cpu":
        return [bag, size, size.clone() if largest is None else cast(largest, offsets.dtype)]
    spare = offsets.shape[0] - size.shape[0]
    return [bag, torch.constant_pad_nd(size, [0, spare], 0), bag[:0] if largest is None else largest]
