"""Triangular systems, by substitution: one unknown row a step, subtracted from all the rows that are still to come.

The rows are divided by the diagonal before the first step, which puts no division in the loop. That is the usual
substitution with each row scaled, and as stable: every row is solved for a matrix that is off by 3 ULP in its entries.
"""

from __future__ import annotations

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.linalg.matrices import (
    adjoint,
    change_of,
    changed,
    column,
    columns,
    diagonal_of,
    identity,
    leading,
    lower,
    on_diagonal,
    row,
    rows,
    too_large,
    transposed,
    upper,
)
from decomp_rules.support.operands import cast, constant

RULES = Rules(level="exact")
register = RULES.register

LIMIT = 256
"""Largest side of a triangular system: about ten operations for each row."""


@register(aten.linalg_solve_triangular)
def linalg_solve_triangular(
    x: Tensor, B: Tensor, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    """A⁻¹ B or B A⁻¹ for triangular A, in the dtype of A; the other triangle is not looked at. The error is the
    kernel's."""
    reason = too_large(LIMIT, x.shape[-1])
    if reason:
        return decline(reason)
    return solved(x, cast(B, x.dtype), not upper, left, unitriangular)


@register(aten.triangular_solve)
def triangular_solve(
    x: Tensor, A: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Tensor, Tensor]:
    """A⁻¹ b or A⁻ᵀ b for triangular A, and a copy of A."""
    reason = too_large(LIMIT, A.shape[-1])
    if reason:
        return decline(reason)
    batch = torch.broadcast_shapes(x.shape[:-2], A.shape[:-2])
    matrix = transposed(A) if transpose else A
    solution = solved(matrix, x, upper == transpose, unit=unitriangular)
    return solution, A.expand(*batch, *A.shape[-2:]).clone()


@register(aten.cholesky_solve)
def cholesky_solve(x: Tensor, input2: Tensor, upper: bool = False) -> Tensor:
    """A⁻¹ b where A = L Lᴴ or Uᴴ U, by two substitutions."""
    reason = too_large(LIMIT, input2.shape[-1])
    if reason:
        return decline(reason)
    return from_cholesky(input2, x, upper)


@register(aten._cholesky_solve_helper)
def _cholesky_solve_helper(x: Tensor, A: Tensor, upper: bool) -> Tensor:
    """cholesky_solve without broadcasting."""
    return cholesky_solve(x, A, upper)


@register(aten.cholesky_inverse)
def cholesky_inverse(x: Tensor, upper: bool = False) -> Tensor:
    """A⁻¹ where A = L Lᴴ or Uᴴ U: the product of the inverse factor with its adjoint."""
    reason = too_large(LIMIT, x.shape[-1])
    if reason:
        return decline(reason)
    factor = adjoint(x) if upper else x
    half = inverse_of_lower(factor)
    inverse = torch.matmul(adjoint(half), half)
    return _with_unread_part(inverse, inverse, factor)


def inverse_of_lower(a: Tensor) -> Tensor:
    """a⁻¹ for lower triangular a; elements above the diagonal are never computed, so they are zero for any a."""
    size = a.shape[-1]
    if not size:
        return a.clone()
    down, across, zero = rows(a, size), columns(a, size), constant(a, 0)
    pivots = diagonal_of(a).unsqueeze(-1)
    parts = lower(a / pivots, -1)
    b = torch.where(on_diagonal(a, size, size), torch.reciprocal(pivots), zero)
    for j in range(size - 1):
        known = torch.lt(down, j + 1) | torch.lt(-across, -j)
        b = torch.where(known, b, b - column(parts, j) * row(b, j))
    return b


def from_cholesky(factor: Tensor, b: Tensor, is_upper: bool) -> Tensor:
    """The solution of a system whose Cholesky factor is known. The inverse is only used for the gradient."""
    factor = adjoint(factor) if is_upper else factor
    size, width = factor.shape[-1], b.shape[-1]
    batch = torch.broadcast_shapes(factor.shape[:-2], b.shape[:-2])
    unit = identity(factor, size).expand(*batch, size, size)
    both = torch.cat([b.expand(*batch, size, width), unit], -1)
    both = solved(adjoint(factor), solved(factor, both, True), False)
    solution, inverse = leading(both, n=width), aten.slice.Tensor(both, both.dim() - 1, width, width + size)
    return _with_unread_part(solution, inverse, factor)


def _with_unread_part(solution: Tensor, inverse: Tensor, factor: Tensor) -> Tensor:
    """The solution with what the entries of L above its diagonal change about it: nothing, for they are not looked at,
    but they have gradients in PyTorch. E being the change of L Lᴴ, A⁻¹b − A⁻¹E(A⁻¹b − A⁻¹E A⁻¹b): so second gradients
    are right."""
    above = upper(change_of(factor), 1)
    change = torch.matmul(above, adjoint(lower(factor)))
    change = change + adjoint(change) + torch.matmul(above, adjoint(above))
    once = changed(solution, -torch.matmul(inverse, torch.matmul(change, solution)))
    return changed(solution, -torch.matmul(inverse, torch.matmul(change, once)))


def solved(a: Tensor, b: Tensor, is_lower: bool, left: bool = True, unit: bool = False) -> Tensor:
    """a⁻¹ b or b a⁻¹, batches broadcast; of a, only the lower or the upper triangle is read."""
    if not left:
        return transposed(solved(transposed(a), transposed(b), not is_lower, True, unit))
    size = a.shape[-1]
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    b = b.expand(*batch, *b.shape[-2:])
    if not unit:
        pivots = diagonal_of(a).unsqueeze(-1)
        a, b = a / pivots, b / pivots
    elif size < 2:
        return b.clone()
    return substituted(lower(a, -1) if is_lower else upper(a, 1), b, is_lower)


def substituted(a: Tensor, b: Tensor, is_lower: bool) -> Tensor:
    """The solution for 1 + a, where a is strictly triangular. Rows already found are protected from overflow in
    others."""
    size = a.shape[-1]
    number = rows(a, size) if is_lower else -rows(a, size)
    for j in range(size - 1) if is_lower else range(size - 1, 0, -1):
        done = torch.lt(number, j + 1 if is_lower else 1 - j)
        b = torch.where(done, b, b - column(a, j) * row(b, j))
    return b
