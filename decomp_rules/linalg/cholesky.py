"""Cholesky factorization, one column and one rank-one update of the whole matrix a step.

The result follows from one triangle of the input; its gradient is spread over both, as PyTorch's. A matrix that is not
positive definite gives NaN from the first column on that cannot be, where the op raises; `info` has its number.
"""

from __future__ import annotations

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.linalg.matrices import (
    adjoint,
    change_of,
    column,
    conjugate,
    diagonal_of,
    first_place,
    hermitian,
    identity,
    real_part,
    row,
    rows,
    too_large,
    transposed,
)
from decomp_rules.linalg.triangular import solved
from decomp_rules.support.operands import constant

RULES = Rules(level="exact")
register = RULES.register

LIMIT = 256
"""Largest side that is unrolled: about ten operations for each column."""


@register(aten.linalg_cholesky_ex)
def linalg_cholesky_ex(x: Tensor, upper: bool = False, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    """L with A = L Lᴴ, or Lᴴ, and the first column that is not positive."""
    reason = too_large(LIMIT, x.shape[-1])
    if reason:
        return decline(reason)
    factor = factored(hermitian(x, upper))
    factor = factor + _unread_part(x, factor) if x.is_complex() else factor
    diagonal = real_part(diagonal_of(factor))
    return adjoint(factor) if upper else factor, first_place(torch.ne(diagonal, diagonal))


@register(aten.linalg_cholesky, aten.cholesky)
def linalg_cholesky(x: Tensor, upper: bool = False) -> Tensor:
    """linalg_cholesky_ex, ignoring its error info."""
    return torch.linalg.cholesky_ex(x, upper=upper)[0]


def _unread_part(x: Tensor, factor: Tensor) -> Tensor:
    """The change of L with the part of x that is not hermitian: zero, but with a gradient in PyTorch, which does not
    project: L diag(i Im Xⱼⱼ / 2) with X = L⁻¹ x L⁻ᴴ."""
    inverse = solved(factor, identity(factor, x.shape[-1]), True)
    change = torch.matmul(inverse, change_of((x - adjoint(x)) * 0.5))
    turn = torch.imag(torch.sum(change * conjugate(inverse), [-1]))
    return factor * (turn * 0.5j).unsqueeze(-2)


def factored(a: Tensor) -> Tensor:
    """L with a = L Lᴴ; only the lower triangle of a is read."""
    size = a.shape[-1]
    down, zero, found = rows(a, size), constant(a, 0), []
    for j in range(size):
        part = column(a, j)
        part = part * torch.rsqrt(real_part(row(part, j)))
        part = torch.where(torch.lt(down, j), zero, part) if j else part
        found.append(part)
        a = a - part * conjugate(transposed(part)) if j + 1 < size else a
    return torch.cat(found, -1) if found else a.clone()
