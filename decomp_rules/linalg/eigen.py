"""Eigenvalues and eigenvectors of symmetric and hermitian matrices, by Jacobi's method.

The iteration runs on detached values. The dependence on the input is added afterwards, as a change that is zero:
λ' = diag(Vᴴ A' V) and V' = V (F ∘ Vᴴ A' V) with Fᵢⱼ = 1 / (λⱼ − λᵢ). These are taken where half of the change has been
made (the midpoint rule), so that second derivatives are right as well. Eigenvectors are unique up to a factor of
magnitude one, and so are these.
"""

from __future__ import annotations

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.linalg import jacobi
from decomp_rules.linalg.matrices import (
    adjoint,
    change_of,
    columns,
    diagonal_of,
    identity,
    power_of_two_near,
    real_part,
    rows,
    too_large,
)
from decomp_rules.support.operands import cast, constant

RULES = Rules(level="exact")
register = RULES.register

RULES.limit(
    aten.linalg_eig,
    aten.linalg_eigvals,
    aten._linalg_eigvals,
    reason="how long the iteration for a matrix that is not symmetric runs, and the order of its results, are data",
)


@register(aten._linalg_eigh)
def _linalg_eigh(A: Tensor, UPLO: str = "L", compute_v: bool = True) -> tuple[Tensor, Tensor]:
    """λ in ascending order and V with A V = V diag(λ), from the lower or the upper triangle of A."""
    reason = too_large(jacobi.LIMIT, A.shape[-1])
    if reason:
        return decline(reason)
    values, vectors = eigenpairs(whole(A, UPLO.upper() == "U"))
    return values, vectors if compute_v else torch.full((0,), 0, dtype=A.dtype, device=A.device)


@register(aten.linalg_eigvalsh)
def linalg_eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:
    """λ in ascending order."""
    return aten._linalg_eigh.default(A, UPLO, True)[0]


def whole(a: Tensor, from_upper: bool) -> Tensor:
    """The hermitian matrix of which a has one triangle; with the gradient of (a + aᴴ) / 2."""
    n = a.shape[-1]
    kept = a.detach()
    kept = adjoint(kept) if from_upper else kept
    value = torch.where(torch.lt(rows(a, n), columns(a, n)), adjoint(kept), kept)
    return value + change_of((a + adjoint(a)) * 0.5)


def eigenpairs(a: Tensor) -> tuple[Tensor, Tensor]:
    """λ, real and ascending, (*, n), and V, (*, n, n), of a hermitian matrix."""
    n = a.shape[-1]
    if n == 0:
        return real_part(diagonal_of(a)).clone(), a.clone()
    scale = power_of_two_near(a)
    a = a * cast(torch.reciprocal(scale), a.dtype)
    start = a.detach()
    v = diagonalising(start)
    values = real_part(diagonal_of(torch.matmul(adjoint(v), torch.matmul(start, v))))
    values, order = torch.sort(values, -1)
    v = torch.gather(v, -1, order.unsqueeze(-2).expand(v.shape))
    change = change_of(a)
    half_values, half_vectors = _change(values, v, change * 0.5)
    more_values, more_vectors = _change(values + half_values, v + half_vectors, change)
    return (values + more_values) * scale.squeeze(-1), v + more_vectors


def _change(values: Tensor, v: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
    """λ' and V' for a change of the matrix."""
    products = torch.matmul(adjoint(v), torch.matmul(change, v))
    gaps = values.unsqueeze(-2) - values.unsqueeze(-1)
    vectors = torch.matmul(v, products * cast(inverse_or_zero(gaps), v.dtype))
    return real_part(diagonal_of(products)), vectors


def diagonalising(a: Tensor) -> Tensor:
    """The unitary product of Jacobi's rotations, orthogonalised once more."""
    n = a.shape[-1]
    v = identity(a, n).expand(a.shape)
    games = jacobi.tournament(a, n)
    for _ in range(jacobi.sweeps(n, a.dtype)):
        for apart in games.apart:
            turn = jacobi.rotation(a, apart, games)
            a = torch.matmul(torch.matmul(adjoint(turn), a), turn)
            v = torch.matmul(v, turn)
    return jacobi.orthogonal(v)


def inverse_or_zero(x: Tensor) -> Tensor:
    """1 / x, and 0 where x is 0."""
    zero = torch.eq(x, 0)
    return torch.where(zero, constant(x, 0), torch.reciprocal(torch.where(zero, constant(x, 1), x)))
