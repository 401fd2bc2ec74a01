"""Diagonals, by movement alone: in rows of k, the diagonal of a (k, k) matrix is the first column of rows of k + 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from decomp import Rules
from decomp.ops import aten
from decomp_rules.support.operands import cast, view_or_copy, wrap

RULES = Rules(level="exact")
register = RULES.register


@register(aten.diagonal, aten.diagonal_copy)
def diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """xᵢ,ᵢ₊ₒ in a last dimension: the square it crosses, its rows made one longer, their first column."""
    dim1, dim2 = wrap(dim1, x.dim()), wrap(dim2, x.dim())
    row, column, size = _square(x.shape[dim1], x.shape[dim2], offset)
    square = torch.movedim(x.narrow(dim1, row, size).narrow(dim2, column, size), (dim1, dim2), (-2, -1))
    batch = list(square.shape[:-2])
    line = torch.constant_pad_nd(view_or_copy(square, [*batch, size * size]), [0, size])
    return view_or_copy(line, [*batch, size, size + 1]).narrow(-1, 0, 1).squeeze(-1)


def _square(rows: Any, columns: Any, offset: int) -> tuple[Any, Any, Any]:
    """First row, first column and size of the square that the diagonal crosses."""
    row, column = max(-offset, 0), max(offset, 0)
    size = torch.sym_max(torch.sym_min(rows - row, columns - column), 0)
    return (0, 0, 0) if type(size) is int and size == 0 else (row, column, size)


@register(aten.diag_embed)
def diag_embed(x: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """The last dimension on a diagonal of zeros: rows of k + 1 with one element each, read in rows of k."""
    size = x.shape[-1] + abs(offset)
    return _embedded(x, (size, size), offset, wrap(dim1, x.dim() + 1), wrap(dim2, x.dim() + 1))


@register(aten.diagonal_backward)
def diagonal_backward(grad_output: Tensor, input_sizes: Sequence[Any], offset: int, dim1: int, dim2: int) -> Tensor:
    """The gradient on the diagonal, zero elsewhere."""
    dim1, dim2 = wrap(dim1, len(input_sizes)), wrap(dim2, len(input_sizes))
    return _embedded(grad_output, (input_sizes[dim1], input_sizes[dim2]), offset, dim1, dim2)


@register(aten.diagonal_scatter)
def diagonal_scatter(x: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """src on the diagonal, x elsewhere."""
    dim1, dim2 = wrap(dim1, x.dim()), wrap(dim2, x.dim())
    sides = (x.shape[dim1], x.shape[dim2])
    true = torch.full(src.shape, True, dtype=torch.bool, device=x.device)
    on = _embedded(true, sides, offset, dim1, dim2)
    return torch.where(on, _embedded(cast(src, x.dtype), sides, offset, dim1, dim2), x)


def _embedded(line: Tensor, sides: tuple[Any, Any], offset: int, dim1: int, dim2: int) -> Tensor:
    row, column, size = max(-offset, 0), max(offset, 0), line.shape[-1]
    row, column = (0, 0) if type(size) is int and size == 0 else (row, column)
    batch = list(line.shape[:-1])
    rows = torch.constant_pad_nd(line.unsqueeze(-1), [0, size])
    square = view_or_copy(
        view_or_copy(rows, [*batch, size * (size + 1)]).narrow(-1, 0, size * size), [*batch, size, size]
    )
    around = [column, sides[1] - column - size, row, sides[0] - row - size]
    return torch.movedim(torch.constant_pad_nd(square, around), (-2, -1), (dim1, dim2))


@register(aten.diag)
def diag(x: Tensor, diagonal: int = 0) -> Tensor:
    """A line on the diagonal of a matrix, or the diagonal of a matrix."""
    if x.dim() == 1:
        return torch.diag_embed(x, diagonal)
    return torch.diagonal(x, diagonal).clone()


@register(aten.diagflat)
def diagflat(x: Tensor, offset: int = 0) -> Tensor:
    """All elements on the diagonal of a matrix."""
    return torch.diag_embed(x.reshape(-1), offset)
