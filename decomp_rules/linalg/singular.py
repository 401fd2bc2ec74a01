"""Singular values and vectors, by Jacobi's method from one side: A V has orthogonal columns, whose lengths are the
singular values. U is the Q of those columns, which completes it where singular values are zero.

As with eigenvalues, the iteration runs on detached values and a change that is zero carries the gradients:
S' = diag(P), U' = U (F ∘ (P S + S Pᴴ)) + (1 − U Uᴴ) A' V S⁻¹ with P = Uᴴ A' V and Fᵢⱼ = 1 / (sⱼ² − sᵢ²), and V' alike.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.linalg import jacobi
from decomp_rules.linalg.eigen import eigenpairs, inverse_or_zero, whole
from decomp_rules.linalg.matrices import (
    adjoint,
    change_of,
    changed,
    diagonal_of,
    identity,
    leading,
    power_of_two_near,
    real_part,
    squared,
    too_large,
)
from decomp_rules.linalg.orthogonal import reflected, triangularised
from decomp_rules.support.floating import is_tensor
from decomp_rules.support.operands import cast, constant

RULES = Rules(level="exact")
register = RULES.register


@register(aten._linalg_svd)
def _linalg_svd(
    A: Tensor, full_matrices: bool = False, compute_uv: bool = True, driver: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """U, S in descending order and Vᴴ with A = U diag(S) Vᴴ."""
    m, n = A.shape[-2:]
    reason = too_large(128, m, n) or too_large(jacobi.LIMIT, min(m, n))
    if reason:
        return decline(reason)
    if m < n:
        v, values, u = decomposed(adjoint(A), full_matrices)
    else:
        u, values, v = decomposed(A, full_matrices)
    if not compute_uv:
        empty = torch.full((0,), 0, dtype=A.dtype, device=A.device)
        return empty, values, empty
    return u, values, adjoint(v)


@register(aten.linalg_svdvals)
def linalg_svdvals(A: Tensor, driver: str | None = None) -> Tensor:
    """S in descending order; NaN for a matrix that is not finite, which has no singular vectors."""
    if 0 in A.shape[-2:]:
        return aten._linalg_svd.default(A, False, True)[1]
    size = torch.abs(A.detach())
    finite = torch.where(torch.lt(size, math.inf), A, constant(A, 0))
    return aten._linalg_svd.default(finite, False, True)[1] + torch.sum(size * 0, [-2, -1]).unsqueeze(-1)


@register(aten.linalg_pinv)
def linalg_pinv_tolerance_tensors(
    x: Tensor, atol: Tensor | None = None, rtol: Tensor | None = None, hermitian: bool = False
) -> Tensor:
    """V S⁺ Uᴴ, where S⁺ inverts the singular values above max(atol, rtol · s₁); rtol is ε max(m, n) unless one of them
    is given. Gradient of G. H. Golub, V. Pereyra, SIAM J. Numer. Anal. 10 (1973), for matrices of one rank."""
    m, n = x.shape[-2:]
    if 0 in (m, n):
        return adjoint(x).clone()
    reason = too_large(jacobi.LIMIT, min(m, n)) or too_large(128, m, n)
    if reason:
        return decline(reason)
    a = x.detach()
    if hermitian:
        values, u = eigenpairs(whole(a, False))
        v, sizes = u, torch.abs(values)
        largest = torch.amax(sizes, [-1], True)
    else:
        u, values, vh = torch.linalg.svd(a, full_matrices=False)
        v, sizes, largest = adjoint(vh), values, aten.slice.Tensor(values, values.dim() - 1, 0, 1)
    cut = _cut(x, atol, rtol, largest)
    inverse = torch.where(torch.lt(cut, sizes), inverse_or_zero(values), constant(values, 0))
    value = torch.matmul(v * cast(inverse, v.dtype).unsqueeze(-2), adjoint(u))
    change = change_of(x)
    middle = changed(value, _change_of_inverse(value, a, change * 0.5))
    return changed(value, _change_of_inverse(middle, a + change * 0.5, change))


@register(aten.linalg_pinv)
def linalg_pinv(x: Tensor, rcond: Any, hermitian: bool = False) -> Tensor:
    """The same with no absolute tolerance."""
    return linalg_pinv_tolerance_tensors(x, 0.0, rcond, hermitian)


@register(aten.linalg_matrix_rank)
def linalg_matrix_rank(x: Tensor, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Tensor:
    """How many singular values exceed max(atol, rtol · s₁); int64."""
    if 0 in x.shape[-2:]:
        return torch.full(x.shape[:-2], 0, dtype=torch.int64, device=x.device)
    sizes = torch.abs(torch.linalg.eigvalsh(x)) if hermitian else torch.linalg.svdvals(x)
    cut = _cut(x, atol, rtol, torch.amax(sizes, [-1], True))
    return torch.sum(torch.lt(cut, sizes), [-1], dtype=torch.int64)


@register(aten.linalg_matrix_rank)
def linalg_matrix_rank_absolute(x: Tensor, tol: Any, hermitian: bool = False) -> Tensor:
    """How many singular values exceed `tol`."""
    return linalg_matrix_rank(x, tol, 0.0, hermitian)


def _cut(x: Tensor, atol: Any, rtol: Any, largest: Tensor) -> Tensor:
    """The threshold for singular values, (*, 1). Without a relative tolerance it is ε max(m, n), unless there is an
    absolute one above 0."""
    if rtol is None:
        rtol = torch.finfo(x.dtype).eps * max(x.shape[-2:])
        if is_tensor(atol):
            rtol = torch.where(torch.gt(atol, 0), 0.0, rtol)
        elif atol is not None and atol > 0:
            rtol = 0.0
    relative = (rtol.unsqueeze(-1) if is_tensor(rtol) else rtol) * largest
    if atol is None:
        return relative
    if is_tensor(atol):
        return torch.maximum(relative, cast(atol.unsqueeze(-1), relative.dtype))
    return torch.clamp(relative, min=atol)


def _change_of_inverse(p: Tensor, a: Tensor, change: Tensor) -> Tensor:
    """−P A' P + P Pᴴ A'ᴴ (1 − A P) + (1 − P A) A'ᴴ Pᴴ P."""
    back, ph = adjoint(change), adjoint(p)
    rows = torch.matmul(p, torch.matmul(ph, back))
    columns = torch.matmul(torch.matmul(back, ph), p)
    rows = rows - torch.matmul(torch.matmul(rows, a), p)
    columns = columns - torch.matmul(p, torch.matmul(a, columns))
    return rows + columns - torch.matmul(p, torch.matmul(change, p))


def decomposed(a: Tensor, full: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """U, S and V of a matrix with at least as many rows as columns; U is square if it is to be `full`."""
    m, n = a.shape[-2:]
    if n == 0:
        # Products with a matrix without columns, so that results without elements still depend on it.
        u = identity(a, m) + torch.matmul(a, adjoint(a)) if full else a.clone()
        return u, real_part(diagonal_of(a)).clone(), torch.matmul(adjoint(a), a)
    scale = power_of_two_near(a)
    a = a * cast(torch.reciprocal(scale), a.dtype)
    start = a.detach()
    v = _orthogonalising(start)
    image = torch.matmul(start, v)
    values = torch.sqrt(torch.sum(squared(image), [-2]))
    values, order = torch.sort(values, -1, True)
    places = order.unsqueeze(-2)
    v = torch.gather(v, -1, places.expand(v.shape))
    image = torch.gather(image, -1, places.expand(image.shape))
    u = _left(image, full)
    first, last = leading(u, n=n), u
    change = change_of(a)
    middle = _moved((first, values, v), _change(first, values, v, change * 0.5))
    u, values, v = _moved((first, values, v), _change(*middle, change))
    if full and m > n:
        u = torch.cat([u, aten.slice.Tensor(last, last.dim() - 1, n, m)], -1)
    return u, values * scale.squeeze(-1), v


def _orthogonalising(a: Tensor) -> Tensor:
    """The unitary V that makes the columns of a V orthogonal."""
    m, n = a.shape[-2:]
    both = torch.cat([a, identity(a, n).expand(*a.shape[:-2], n, n)], -2)
    games = jacobi.tournament(a, n)
    # One sweep more than for eigenvalues where many columns are graded: it is their products that are turned.
    for _ in range(jacobi.sweeps(n, a.dtype) + (n > 8)):
        for apart in games.apart:
            image = leading(both, m)
            both = torch.matmul(both, jacobi.rotation(torch.matmul(adjoint(image), image), apart, games))
    return jacobi.orthogonal(aten.slice.Tensor(both, both.dim() - 2, m, m + n))


def _left(image: Tensor, full: bool) -> Tensor:
    """The Q of orthogonal columns, with the phases that make the diagonal of R positive."""
    m, n = image.shape[-2:]
    reflections, right = triangularised(image)
    kept = m if full else n
    start = leading(identity(image, m), n=kept).expand(*image.shape[:-2], m, kept)
    q = reflected(start, reflections, False)
    # The diagonal of R is real: only the last of a square matrix is not reflected, and has the sign that it has.
    diagonal = diagonal_of(right)
    size = torch.abs(diagonal)
    is_zero = torch.eq(size, 0)
    phase = torch.where(is_zero, constant(image, 1), diagonal * cast(inverse_or_zero(size), image.dtype))
    if kept > n:
        rest = torch.full((*image.shape[:-2], kept - n), 1, dtype=image.dtype, device=image.device)
        phase = torch.cat([phase, rest], -1)
    return q * phase.unsqueeze(-2)


Factors = tuple[Tensor, Tensor, Tensor]


def _moved(factors: Factors, change: Factors) -> Factors:
    u, values, v = factors
    return u + change[0], values + change[1], v + change[2]


def _change(u: Tensor, s: Tensor, v: Tensor, change: Tensor) -> Factors:
    """U', S' and V' for a change of the matrix; u is (*, m, n), v square."""
    change_v = torch.matmul(change, v)
    products = torch.matmul(adjoint(u), change_v)
    across, down = cast(s, u.dtype).unsqueeze(-2), cast(s, u.dtype).unsqueeze(-1)
    gaps = cast(inverse_or_zero((s.unsqueeze(-2) - s.unsqueeze(-1)) * (s.unsqueeze(-2) + s.unsqueeze(-1))), u.dtype)
    back = adjoint(products)
    inverse = cast(inverse_or_zero(s), u.dtype).unsqueeze(-2)
    outside = (change_v - torch.matmul(u, products)) * inverse
    turn_u, turn_v = (products * across + down * back) * gaps, (down * products + back * across) * gaps
    if u.is_complex():
        diagonal = diagonal_of(products)
        turning = torch.diag_embed((diagonal - torch.conj_physical(diagonal)) * 0.25) * inverse
        turn_u, turn_v = turn_u + turning, turn_v - turning
    return torch.matmul(u, turn_u) + outside, real_part(diagonal_of(products)), torch.matmul(v, turn_v)
