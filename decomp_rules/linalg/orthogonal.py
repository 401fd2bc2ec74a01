"""QR factorization by Householder reflections, and products of reflections.

Reflection j is 1 − τ v vᴴ with vⱼ = 1, chosen as LAPACK chooses it (H² = 1 but for complex numbers, the diagonal of R
real, of the sign opposite to the original entry), so that Q, R, v and τ are LAPACK's. One step is a few operations on
the whole matrix. A column that is zero below the diagonal is left alone; with no other column is Q differentiable
there, and the gradient is that of leaving it alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.linalg.matrices import (
    adjoint,
    column,
    columns,
    conjugate,
    identity,
    leading,
    lower,
    on_diagonal,
    power_of_two_near,
    real_part,
    row,
    rows,
    squared,
    too_large,
    unaffected_by,
    upper,
)
from decomp_rules.support.operands import constant

RULES = Rules(level="exact")
register = RULES.register

LIMIT = 128
"""Largest side that is unrolled: about forty operations for each column."""

RULES.limit(aten.linalg_lstsq, reason="the shape of the residuals depends on the rank, which is data")

Reflection = tuple[Tensor, Tensor]
"""v, (*, m, 1), and τ, (*, 1, 1)."""


@register(aten.linalg_qr)
def linalg_qr(A: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    """Q and R with A = Q R; of `mode` "r", no Q."""
    m, n = A.shape[-2:]
    reason = too_large(LIMIT, m, n)
    if reason:
        return decline(reason)
    reflections, right = triangularised(A)
    kept = m if mode == "complete" else min(m, n)
    if mode == "r":
        return torch.full((0,), 0, dtype=A.dtype, device=A.device), leading(right, kept)
    start = leading(identity(A, m), n=kept).expand(*A.shape[:-2], m, kept)
    return reflected(start, reflections, False, True), leading(right, kept)


@register(aten.qr)
def qr(x: Tensor, some: bool = True) -> tuple[Tensor, Tensor]:
    """linalg_qr, reduced or complete."""
    q, r = torch.linalg.qr(x, "reduced" if some else "complete")
    return q, r


@register(aten.geqrf)
def geqrf(x: Tensor) -> tuple[Tensor, Tensor]:
    """R on and above the diagonal, the vectors of the reflections below it, and their factors τ."""
    m, n = x.shape[-2:]
    reason = too_large(LIMIT, m, n)
    if reason:
        return decline(reason)
    reflections, right = triangularised(x)
    if not reflections:
        return x.clone(), torch.full((*x.shape[:-2], 0), 0, dtype=x.dtype, device=x.device)
    vectors = lower(torch.cat([v for v, _ in reflections], -1), -1)
    if n > m:
        vectors = torch.constant_pad_nd(vectors, [0, n - m])
    return right + vectors, torch.cat([tau for _, tau in reflections], -1).squeeze(-2)


@register(aten.linalg_householder_product, aten.orgqr)
def linalg_householder_product(x: Tensor, tau: Tensor) -> Tensor:
    """The first columns of the product of the reflections whose vectors are the columns of x below its diagonal."""
    m, n = x.shape[-2:]
    reason = too_large(LIMIT, m, n)
    if reason:
        return decline(reason)
    start = leading(identity(x, m), n=n).expand(x.shape)
    return reflected(start, unpacked(x, tau), False, True) if tau.shape[-1] else unaffected_by(start, x)


@register(aten.ormqr)
def ormqr(x: Tensor, input2: Tensor, input3: Tensor, left: bool = True, transpose: bool = False) -> Tensor:
    """Q C, Qᴴ C, C Q or C Qᴴ, Q being the product of all the reflections, square."""
    reason = too_large(LIMIT, *x.shape[-2:])
    if reason:
        return decline(reason)
    reflections = unpacked(x, input2)
    if not reflections:
        return input3.clone()
    if left:
        return reflected(input3, reflections, transpose)
    return adjoint(reflected(adjoint(input3), reflections, not transpose))


def triangularised(a: Tensor) -> tuple[list[Reflection], Tensor]:
    """The reflections that bring a to upper triangular form, and that form, (*, m, n)."""
    m, n = a.shape[-2:]
    if not m or not n:
        return [], a.clone()
    scale = power_of_two_near(a)
    a = a * torch.reciprocal(scale)
    down, reflections, heads = rows(a, m), [], []
    for j in range(min(m, n)):
        reflection, head = _reflection(column(a, j), down, j)
        a = _applied(a, reflection, True, torch.lt(down, j) if j else None)
        reflections.append(reflection)
        heads.append(head)
    heads_row = torch.cat(heads, -1)
    heads_row = heads_row if n <= m else torch.constant_pad_nd(heads_row, [0, n - m])
    return reflections, torch.where(on_diagonal(a, m, n), heads_row, upper(a)) * scale


def _reflection(x: Tensor, down: Tensor, j: int) -> tuple[Reflection, Tensor]:
    """The reflection that clears a column below row j, and the new entry in that row: β = ∓‖x‖,
    τ = (β − α) / β, v = x / (α − β)."""
    one, zero = constant(x, 1), constant(x, 0)
    below = torch.lt(-down, -j)
    tail, alpha = torch.where(below, x, zero), row(x, j)
    head = real_part(alpha)
    rest = torch.sum(squared(tail), [-2], keepdim=True)
    if x.is_complex():
        rest = rest + torch.imag(alpha) * torch.imag(alpha)
    is_zero = torch.eq(rest, 0)
    size = torch.sqrt(torch.where(is_zero, constant(rest, 1), head * head + rest))
    beta = torch.where(torch.lt(head, 0), size, -size)
    tau = torch.where(is_zero, zero, (beta - alpha) * torch.reciprocal(beta))
    vector = tail * torch.reciprocal(torch.where(is_zero, one, alpha - beta))
    return (torch.where(torch.eq(down, j), one, vector), tau), torch.where(is_zero, alpha, beta.to(x.dtype))


def _applied(x: Tensor, reflection: Reflection, backward: bool, kept: Tensor | None) -> Tensor:
    """(1 − τ v vᴴ) x, or its adjoint applied to x, except that x is kept where v is zero, even if it is not finite."""
    v, tau = reflection
    tau = conjugate(tau) if backward else tau
    applied = x - (v * tau) * torch.sum(conjugate(v) * x, [-2], keepdim=True)
    return applied if kept is None else torch.where(kept, x, applied)


def reflected(x: Tensor, reflections: list[Reflection], backward: bool, unit: bool = False) -> Tensor:
    """Q x with Q the product of the reflections, the first leftmost; or Qᴴ x. Of a `unit` matrix, or its first columns,
    the columns are kept that are still those of it."""
    down, across = rows(x, x.shape[-2]), columns(x, x.shape[-1])
    for j, reflection in list(enumerate(reflections))[:: 1 if backward else -1]:
        kept = torch.lt(torch.minimum(down, across) if unit else down, j) if j else None
        x = _applied(x, reflection, backward, kept)
    return x if reflections else x.clone()


def unpacked(packed: Tensor, taus: Tensor) -> list[Reflection]:
    """The reflections whose vectors stand below the diagonal of a matrix."""
    count = taus.shape[-1]
    if not count:
        return []
    vectors = leading(packed, n=count)
    ones = on_diagonal(vectors, *vectors.shape[-2:])
    vectors = torch.where(ones, constant(vectors, 1), lower(vectors, -1))
    factors = taus.unsqueeze(-2)
    return [(column(vectors, j), column(factors, j)) for j in range(count)]
