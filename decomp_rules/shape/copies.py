"""Ops that are aliases of another op, or copy its result: copying forms of views, directional splits, block diagonals,
and `resize`."""

from __future__ import annotations

from collections.abc import Sequence
import itertools
import math
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.support.operands import cast, view_or_copy, wrap

RULES = Rules(level="exact")
register = RULES.register


@register(aten.detach_copy)
def detach_copy(x: Tensor) -> Tensor:
    """A copy without the gradient. Exactly the op."""
    return x.detach().clone()


@register(aten.unfold_copy)
def unfold_copy(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """unfold. Exactly the op."""
    return x.unfold(dimension, size, step)


@register(aten.as_strided_copy)
def as_strided_copy(x: Tensor, size: Sequence[Any], stride: Sequence[Any], storage_offset: Any = None) -> Tensor:
    """as_strided. Exactly the op."""
    return torch.as_strided(x, size, stride, storage_offset)


@register(aten.hsplit)
def hsplit(x: Tensor, indices: Any = None, sections: Any = None) -> tuple[Tensor, ...]:
    """Parts along the second dimension, along the only one of a line. Exactly the op."""
    return torch.tensor_split(x, sections if indices is None else indices, dim=0 if x.dim() == 1 else 1)


@register(aten.vsplit)
def vsplit(x: Tensor, indices: Any = None, sections: Any = None) -> tuple[Tensor, ...]:
    """Parts along the first dimension. Exactly the op."""
    return torch.tensor_split(x, sections if indices is None else indices, dim=0)


@register(aten.dsplit)
def dsplit(x: Tensor, indices: Any = None, sections: Any = None) -> tuple[Tensor, ...]:
    """Parts along the third dimension. Exactly the op."""
    return torch.tensor_split(x, sections if indices is None else indices, dim=2)


@register(aten.block_diag)
def block_diag(tensors: Sequence[Tensor]) -> Tensor:
    """Each matrix at the end of the last one's diagonal: rows padded to the whole width, one below the other."""
    dtype = tensors[0].dtype
    for x in tensors:
        dtype = torch.promote_types(dtype, x.dtype)
    blocks = [cast(torch.atleast_2d(x), dtype) for x in tensors]
    width, before, rows = sum(block.shape[1] for block in blocks), 0, []
    for block in blocks:
        rows.append(torch.constant_pad_nd(block, [before, width - before - block.shape[1]]))
        before = before + block.shape[1]
    return torch.cat(rows, 0)


@register(aten.cartesian_prod)
def cartesian_prod(tensors: Sequence[Tensor]) -> Tensor:
    """All tuples with one element of each line, the last one's changing fastest. Exactly the op."""
    if len(tensors) == 1:
        return tensors[0]
    return torch.stack([grid.reshape(-1) for grid in torch.meshgrid(*tensors, indexing="ij")], 1)


@register(aten.combinations)
def combinations(x: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All ways to choose r elements; the indices only depend on the number of elements. Exactly the op."""
    count = x.shape[0]
    if not isinstance(count, int):
        return decline("the number of elements is not known")
    if r == 0:
        return torch.full((0,), 0, dtype=x.dtype, device=x.device)
    ways = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = list(ways(range(count), r))
    numbers = torch.tensor([i for place in places for i in place], dtype=torch.int64, device=x.device)
    return torch.index_select(x, 0, numbers).view([len(places), r])


@register(aten._chunk_cat)
def chunk_cat(tensors: Sequence[Tensor], dim: int, num_chunks: int) -> Tensor:
    """Each tensor padded with zeros to whole chunks along `dim`, later dimensions flattened; the chunks are
    concatenated."""
    dim, parts = wrap(dim, tensors[0].dim()), []
    for x in tensors:
        size = x.shape[dim]
        missing = -size % num_chunks
        if not (isinstance(missing, int) and missing == 0):
            x = torch.constant_pad_nd(x, [0, 0] * (x.dim() - dim - 1) + [0, missing])
        lead = list(x.shape[:dim])
        rest = math.prod(x.shape[dim:])
        parts.append(view_or_copy(x, [*lead, num_chunks, rest // num_chunks]))
    return torch.cat(parts, dim + 1)


@register(aten.resize)
def resize(x: Tensor, size: Sequence[Any]) -> Tensor:
    """The elements in row-major order, cut to another size, or padded with zeros, where the op leaves memory
    uninitialised."""
    wanted, flat = math.prod(size), x.reshape(-1)
    missing = wanted - x.numel()
    if not isinstance(missing, int):
        return decline("whether it grows is not known")
    flat = torch.constant_pad_nd(flat, [0, missing]) if missing > 0 else flat.narrow(0, 0, wanted)
    return view_or_copy(flat, list(size)).clone()


@register(aten.resize_as)
def resize_as(x: Tensor, the_template: Tensor) -> Tensor:
    """resize to the shape of another tensor."""
    return resize(x, list(the_template.shape))


@register(aten.chalf)
def chalf(x: Tensor) -> Tensor:
    """x in halves of complex numbers. Exactly the op."""
    return cast(x, torch.complex32)
