"""Ops with data-dependent shapes or Python values, which are declared as limitations; there are rules where a size is
given, or a mask chooses among a known number of values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.support.operands import cast, ramp, wrap

RULES = Rules(level="exact")
register = RULES.register
MASKS = (torch.bool, torch.uint8)

SHAPE = "the shape of the result depends on data"
RULES.limit(aten.nonzero, aten.bincount, reason=SHAPE)
# Packed sequences: torch 2.13 gives their data a wrong size where it runs on fake tensors: no rule can agree with it.
# https://github.com/pytorch/pytorch/pull/184961 is about such sizes.
RULES.limit(aten._pack_padded_sequence, aten._pad_packed_sequence, reason=SHAPE)
RULES.limit(
    aten.nonzero_numpy,
    aten.argwhere,
    aten.masked_select,
    aten.unique_consecutive,
    aten.unique_dim,
    aten.unique_dim_consecutive,
    aten._unique,
    aten._unique2,
    reason=SHAPE,
    needs=(aten.nonzero,),
)
RULES.limit(
    aten.equal,
    aten.allclose,
    aten.is_nonzero,
    aten.item,
    aten._local_scalar_dense,
    reason="the result is a Python value read from data",
)
RULES.limit(
    aten.to_sparse,
    aten._to_sparse,
    aten.to_sparse_csr,
    aten.to_sparse_csc,
    aten.to_sparse_bsr,
    aten.to_sparse_bsc,
    aten._to_sparse_csr,
    aten._to_sparse_csc,
    aten._to_sparse_bsr,
    aten._to_sparse_bsc,
    aten.sparse_coo_tensor,
    aten.sparse_compressed_tensor,
    aten.sparse_sampled_addmm,
    aten._sparse_mm,
    aten._sparse_mm_reduce_impl,
    aten._sparse_addmm,
    aten._sparse_sum,
    aten._sparse_softmax,
    aten._sparse_log_softmax,
    aten.sparse_mask,
    aten._sparse_sparse_matmul,
    aten.smm,
    aten.hspmm,
    aten.sspaddmm,
    aten._spdiags,
    aten._to_dense,
    aten.coalesce,
    aten._coalesce,
    aten.indices,
    aten._indices,
    aten.values,
    aten._values,
    torch.sparse.sampled_addmm,
    torch.sparse.mm,
    torch.sparse.softmax,
    reason="the tensors are sparse: how many elements they store is data",
)
RULES.limit(
    aten._nested_tensor_from_mask,
    aten._nested_from_padded,
    aten.nested_to_padded_tensor,
    aten._nested_tensor_from_tensor_list,
    aten._nested_view_from_buffer,
    reason="the tensors are nested: the lengths of their rows are data",
)
RULES.limit(aten.to_mkldnn, reason="the layout of the result is known to one library alone")


def _is_tensor(name: str) -> Any:
    """Whether the argument of that name is a tensor, of any call."""
    return lambda call: hasattr(call.arguments.get(name), "dtype") or hasattr(call.arguments.get(name), "meta")


def _masked(call: Any) -> bool:
    """Whether an index is a mask."""
    indices = call.argument("indices")
    return any(getattr(index, "dtype", None) in MASKS for index in indices)


RULES.limit(
    aten.tensor_split, reason="the shapes of the results depend on data", when=_is_tensor("tensor_indices_or_sections")
)
RULES.limit(
    aten.repeat_interleave,
    reason=SHAPE,
    when=lambda call: _is_tensor("repeats")(call) and call.arguments.get("output_size") is None,
)
RULES.limit(aten.index, reason=SHAPE, when=_masked, needs=(aten.nonzero,))
RULES.limit(aten._unsafe_index, reason=SHAPE, when=_masked)
RULES.limit(aten.one_hot, reason=SHAPE, when=lambda call: call.arguments.get("num_classes", -1) == -1)


@register(aten.repeat_interleave)
def repeat_interleave(repeats: Tensor, output_size: Any = None) -> Tensor:
    """Place i, repeatsᵢ times, for as many as are said to come out: how many runs have ended there. Exactly the op."""
    if output_size is None:
        return decline(SHAPE)
    ends = torch.cumsum(repeats.reshape(-1), 0)
    return cast(torch.searchsorted(ends, ramp(repeats, output_size, dtype=ends.dtype), right=True), repeats.dtype)


@register(aten.repeat_interleave)
def repeat_interleave_along(x: Tensor, repeats: Tensor, dim: int | None = None, output_size: Any = None) -> Tensor:
    """Element i of a dimension, repeatsᵢ times, for as many as are said to come out. Exactly the op."""
    if output_size is None or not hasattr(repeats, "dtype"):
        return decline(SHAPE)
    if dim is None:
        x, dim = x.reshape(-1), 0
    dim = wrap(dim, x.dim())
    repeats = repeats.reshape(-1).expand(x.shape[dim])
    return torch.index_select(x, dim, aten.repeat_interleave.Tensor(repeats, output_size=output_size))


@register(aten.narrow)
def narrow_from_data(x: Tensor, dim: int, start: Tensor, length: Any) -> Tensor:
    """Elements start + 0, 1, … along `dim`, the start being data. Exactly the op."""
    if not hasattr(start, "dtype"):
        return decline("the start is a number")
    dim = wrap(dim, x.dim())
    first = torch.where(torch.lt(start, 0), start + x.shape[dim], start)
    return torch.index_select(x, dim, ramp(x, length, dtype=start.dtype) + first.reshape(-1))


@register(aten.index_put, aten._unsafe_index_put)
def index_put_of_mask(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    """The values one after the other where one mask holds: the k-th true place takes value k. Exactly the op."""
    masks = [index for index in indices if index is not None]
    if len(masks) != 1 or masks[0].dtype not in MASKS:
        return decline("the index is not one mask")
    if indices[0] is None:
        return decline("the mask is not of the first dimensions")
    mask = cast(masks[0], torch.bool)
    rest = list(x.shape[mask.dim() :])
    number = torch.cumsum(mask.reshape(-1).to(torch.int64), 0)
    count = values.shape[0] if values.dim() > len(rest) else 1
    listed = cast(values, x.dtype).expand([count, *rest]).reshape([count, *rest])
    if 0 in [size for size in (count, *rest, *mask.shape) if isinstance(size, int)]:
        return x.clone()
    chosen = torch.index_select(listed, 0, torch.clamp(number - 1, min=0, max=count - 1)).reshape(x.shape)
    # In sizes of x: torch.export (2.13) does not tell that those of the mask are the same.
    holds = mask.reshape([*x.shape[: mask.dim()], *[1] * len(rest)])
    return torch.where(holds, x + chosen if accumulate else chosen, x)
