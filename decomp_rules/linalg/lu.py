"""LU factorization with partial pivoting, and its uses: determinants, solutions, inverses.

Elimination is by columns, one rank-one update of the whole matrix a step. The pivot is the first entry of largest
magnitude, |Re| + |Im| if complex, as in LAPACK, so the pivots are its pivots. Where a pivot is zero nothing is divided;
for a singular matrix the result has the infinities and NaN of dividing by zero where the op raises, and `info` has the
number of the pivot.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.linalg.matrices import (
    adjoint,
    column,
    columns,
    diagonal_of,
    exchanged,
    first_place,
    identity,
    leading,
    lower,
    rows,
    swapped,
    too_large,
    transposed,
    upper,
)
from decomp_rules.linalg.triangular import solved
from decomp_rules.support.operands import cast, constant

RULES = Rules(level="exact")
register = RULES.register

LIMIT = 128
"""Largest side that is unrolled: about thirty operations for each column."""


@register(aten.linalg_lu_factor_ex)
def linalg_lu_factor_ex(A: Tensor, pivot: bool = True, check_errors: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """L below the diagonal and U on and above it, the pivots, and which pivot is zero."""
    reason = _refusal(A, pivot)
    if reason:
        return decline(reason)
    factors, pivots = factored(A)
    return factors, pivots, first_zero(factors)


@register(aten.linalg_lu_factor)
def linalg_lu_factor(A: Tensor, pivot: bool = True) -> tuple[Tensor, Tensor]:
    """linalg_lu_factor_ex, ignoring its error info."""
    factors, pivots, _ = torch.linalg.lu_factor_ex(A, pivot=pivot)
    return factors, pivots


@register(aten._lu_with_info)
def _lu_with_info(x: Tensor, pivot: bool = True, check_errors: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """The same; a zero pivot is no error here either."""
    return linalg_lu_factor_ex(x, pivot)


@register(aten.linalg_lu)
def linalg_lu(A: Tensor, pivot: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """P, L and U with A = P L U."""
    reason = _refusal(A, pivot)
    if reason:
        return decline(reason)
    factors, pivots = factored(A)
    return permutation(factors, pivots), *_triangles(factors)


@register(aten.lu_unpack)
def lu_unpack(
    LU_data: Tensor, LU_pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """P, L and U from a packed factorization; empty tensors for those that are not wanted."""
    reason = too_large(LIMIT, *LU_data.shape[-2:])
    if reason:
        return decline(reason)
    empty, dtype = torch.full((0,), 0, dtype=LU_data.dtype, device=LU_data.device), LU_data.dtype
    first, second = _triangles(LU_data) if unpack_data else (empty, empty)
    order = permutation(LU_data, LU_pivots) if unpack_pivots else empty
    return cast(order, dtype), cast(first, dtype), cast(second, dtype)


@register(aten._linalg_det)
def _linalg_det(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """± the product of the pivots. At a singular matrix the gradient is the adjugate, which it is of the exact
    determinant; the op's own is 0 there unless second derivatives are computed."""
    reason = _refusal(A)
    if reason:
        return decline(reason)
    factors, pivots = factored(_as_kernels_do(A))
    diagonal = diagonal_of(factors)
    sign = _parity(pivots).to(A.dtype)
    zero = torch.eq(diagonal, constant(diagonal, 0))
    tiny = torch.where(zero, constant(diagonal, torch.finfo(A.dtype).eps), constant(diagonal, 0))
    near = _product(diagonal + tiny)
    value = _product(diagonal)
    return (near + (value - near).detach()) * sign, factors.detach(), pivots


@register(aten._linalg_slogdet)
def _linalg_slogdet(A: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """± the product of the pivots' signs, and the sum of the logarithms of their magnitudes."""
    reason = _refusal(A)
    if reason:
        return decline(reason)
    factors, pivots = factored(_as_kernels_do(A))
    diagonal = diagonal_of(factors)
    sign = _product(torch.sgn(diagonal)) * _parity(pivots).to(A.dtype)
    return sign, torch.sum(torch.log(torch.abs(diagonal)), [-1]), factors.detach(), pivots


@register(aten._linalg_solve_ex)
def _linalg_solve_ex(
    A: Tensor, B: Tensor, left: bool = True, check_errors: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A⁻¹ B or B A⁻¹, B a matrix or a vector, with the factorization; which pivot is zero instead of an error."""
    reason = _refusal(A)
    if reason:
        return decline(reason)
    factors, pivots = factored(A)
    vector = is_vector(A, B)
    b = B.unsqueeze(-1) if vector else B
    x = from_lu(factors, pivots, b, left, False)
    return x.squeeze(-1) if vector else x, factors.detach(), pivots, first_zero(factors)


@register(aten.linalg_inv_ex)
def linalg_inv_ex(A: Tensor, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    """A⁻¹ as the solution for the unit matrix, and which pivot is zero."""
    reason = _refusal(A)
    if reason:
        return decline(reason)
    factors, pivots = factored(A)
    unit = identity(A, A.shape[-1])
    return from_lu(factors, pivots, unit, True, False), first_zero(factors)


@register(aten.linalg_inv, aten.inverse)
def linalg_inv(A: Tensor) -> Tensor:
    """A⁻¹; of a singular matrix, infinities or NaN."""
    return torch.linalg.inv_ex(A)[0]


@register(aten.linalg_solve)
def linalg_solve(A: Tensor, B: Tensor, left: bool = True) -> Tensor:
    """A⁻¹ B or B A⁻¹; for a singular matrix, infinities or NaN."""
    return torch.linalg.solve_ex(A, B, left=left)[0]


@register(aten.linalg_tensorinv)
def linalg_tensorinv(x: Tensor, ind: int = 2) -> Tensor:
    """The inverse of x as a map from its last dimensions to its first `ind`."""
    shape = [*x.shape[ind:], *x.shape[:ind]]
    return torch.linalg.inv_ex(x.reshape(math.prod(x.shape[:ind]), math.prod(x.shape[ind:])))[0].reshape(shape)


@register(aten.linalg_lu_solve)
def linalg_lu_solve(LU: Tensor, pivots: Tensor, B: Tensor, left: bool = True, adjoint: bool = False) -> Tensor:
    """A⁻¹ B, B A⁻¹, or the same of Aᴴ, from the factorization of A."""
    reason = too_large(LIMIT, LU.shape[-1])
    if reason:
        return decline(reason)
    return from_lu(LU, pivots, B, left, adjoint)


def _refusal(a: Tensor, pivot: bool = True) -> str | None:
    if not pivot:
        return "without pivoting there is no kernel on the CPU to agree with"
    return too_large(LIMIT, *a.shape[-2:])


def _as_kernels_do(a: Tensor) -> Tensor:
    """Aᵀ where the kernels of determinants factor that instead, to save a copy, which their outputs show."""
    return transposed(a) if a.is_contiguous() and not a.is_complex() else a


def is_vector(a: Tensor, b: Tensor) -> bool:
    """Whether `solve` takes b for a vector, or a batch of them."""
    return b.dim() == 1 or (b.dim() == a.dim() - 1 and tuple(b.shape) == tuple(a.shape[:-1]))


def factored(a: Tensor) -> tuple[Tensor, Tensor]:
    """L and U packed in one matrix, and the pivots, int32 and counted from one."""
    m, n = a.shape[-2:]
    batch, places = a.shape[:-2], []
    down, across = rows(a, m), columns(a, n)
    for j in range(min(m - 1, n)):
        a, place = _eliminated(a, j, down, across)
        places.append(place)
    if 0 < m <= n:
        places.append(torch.full((*batch, 1), m - 1, dtype=torch.int64, device=a.device))
    if not places:
        return a.clone(), torch.full((*batch, 0), 0, dtype=torch.int32, device=a.device)
    return a.clone() if m == 1 else a, (torch.cat(places, -1) + 1).to(torch.int32)


def _eliminated(a: Tensor, j: int, down: Tensor, across: Tensor) -> tuple[Tensor, Tensor]:
    """a with its pivot for column j in row j, that column cleared below it by adding multiples of row j to the others,
    and those multiples in its place; and the row where the pivot was, int64, (*, 1)."""
    zero = constant(a, 0)
    place = _largest(column(a, j), down, j)
    other = torch.ne(down, place)
    pivots = torch.sum(torch.where(other, zero, a), [-2], keepdim=True)
    a = swapped(a, j, other, down, pivots)
    pivot = column(pivots, j)
    tiny = constant(a, torch.finfo(a.dtype).eps)
    # A quotient: a product with the inverse is not 1 where a pivot is huge, and misses that a matrix is singular.
    factor = column(a, j) / (pivot + torch.where(torch.eq(pivot, zero), tiny, zero))
    changed = torch.where(torch.lt(across, j + 1), factor, a - factor * pivots)
    kept = torch.lt(down, j + 1) | torch.lt(across, j)
    return torch.where(kept, a, changed), place.squeeze(-1)


def _largest(x: Tensor, down: Tensor, j: int) -> Tensor:
    """The first row from j on where a column is largest; j if there is a NaN."""
    x = x.detach()
    size = torch.abs(torch.real(x)) + torch.abs(torch.imag(x)) if x.is_complex() else torch.abs(x)
    none = constant(down, down.shape[0])
    if j:
        placed = torch.lt(down, j)
        size, down = torch.where(placed, constant(size, -1), size), torch.where(placed, none, down)
    less = torch.lt(size, torch.amax(size, [-2], True))
    return torch.amin(torch.where(less, none, down), [-2], True)


def from_lu(factors: Tensor, pivots: Tensor, b: Tensor, left: bool, adjointed: bool) -> Tensor:
    """The solution of a system whose factorization is known: A = P L U, Aᴴ = Uᴴ Lᴴ Pᵀ."""
    if not left:
        return adjoint(from_lu(factors, pivots, adjoint(b), True, not adjointed))
    if not adjointed:
        return solved(factors, solved(factors, exchanged(b, pivots), True, unit=True), False)
    flipped = adjoint(factors)
    return exchanged(solved(flipped, solved(flipped, b, True), False, unit=True), pivots, inverse=True)


def first_zero(factors: Tensor) -> Tensor:
    """The number of the first pivot that is zero, counted from one, or 0; int32."""
    diagonal = diagonal_of(factors)
    return first_place(torch.eq(diagonal, constant(diagonal, 0)))


def permutation(factors: Tensor, pivots: Tensor) -> Tensor:
    """P, the unit matrix with its rows exchanged back."""
    rank = factors.dim() - 2
    unit = identity(factors, factors.shape[-2]).expand(*factors.shape[:rank], factors.shape[-2], factors.shape[-2])
    return exchanged(unit, pivots, inverse=True) if pivots.shape[-1] else unit.clone()


def _triangles(factors: Tensor) -> tuple[Tensor, Tensor]:
    """L with its unit diagonal, (*, m, k), and U, (*, k, n)."""
    m, n = factors.shape[-2:]
    side = min(m, n)
    first = lower(leading(factors, n=side), -1)
    diagonal = torch.eq(rows(factors, m), columns(factors, side))
    return torch.where(diagonal, constant(factors, 1), first), upper(leading(factors, m=side))


def _parity(pivots: Tensor) -> Tensor:
    """1 for an even number of exchanges of rows, −1 for an odd one; int64."""
    number = torch.arange(1, pivots.shape[-1] + 1, dtype=torch.int64, device=pivots.device)
    moved = torch.ne(pivots, number).to(torch.int64)
    return _product(1 - 2 * moved)


def _product(x: Tensor) -> Tensor:
    """The product over the last dimension, and 1 if that is empty, which not every target returns."""
    return torch.prod(x, -1) if x.shape[-1] else torch.sum(x, [-1]) + 1
