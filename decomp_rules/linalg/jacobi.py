"""Jacobi's method, in parallel: n columns meet in pairs as in a tournament, everyone once in n − 1 or n rounds, and
each round is one rotation matrix. Nothing in it depends on data but the angles, so a fixed number of sweeps is a
straight-line program. Convergence is quadratic where eigenvalues are distinct, slower where many are equal.
"""

from __future__ import annotations

from dataclasses import dataclass
import math

import torch
from torch import Tensor

from decomp_rules.linalg.matrices import adjoint, columns, on_diagonal, real_part, rows, squared, transposed
from decomp_rules.support.operands import constant


@dataclass(frozen=True, slots=True)
class Tournament:
    """The pairing of n columns in each round."""

    apart: list[Tensor]
    """For each round, False where row and column meet, (n, n)."""
    off: Tensor
    """False on the diagonal, (n, n)."""
    order: Tensor
    """1 above the diagonal, −1 below, real, (n, n)."""


LIMIT = 32
"""Largest number of columns that is unrolled: about forty operations a round, and a dozen sweeps."""


def sweeps(n: int, dtype: torch.dtype) -> int:
    """How many sweeps leave nothing off the diagonal but rounding, for random matrices, graded ones, clusters and
    eigenvalues that are all ±1 (found by trial up to n = 48; for random matrices two thirds are enough). Eigenvalues
    and singular values of random and graded float32 matrices are then off by 0.4 to 0.8 times what LAPACK's are."""
    if n < 3:
        return n - 1
    return 1 + math.ceil((1.85 if dtype in (torch.float32, torch.complex64) else 3.2) * math.log2(n))


def tournament(x: Tensor, n: int) -> Tournament:
    """Columns i and j meet in round i + j modulo n if n is odd; the last of an even number meets whoever is left."""
    i, j = rows(x, n), columns(x, n)
    off = torch.ne(i, j)
    odd = n - 1 + n % 2
    total = i + j
    if n % 2 == 0:
        total = torch.where(torch.lt(torch.maximum(i, j), n - 1), total, 2 * torch.minimum(i, j))
    turn = torch.where(off, torch.remainder(total, odd), constant(i, -1))
    real = x.dtype.to_real() if x.dtype.is_complex else x.dtype
    order = torch.where(torch.lt(i, j), constant(x, 1, real), constant(x, -1, real))
    return Tournament([torch.ne(turn, r) for r in range(odd)], off, order)


def rotation(products: Tensor, apart: Tensor, games: Tournament) -> Tensor:
    """The unitary matrix that makes zero of the entries of a hermitian one where rows and columns meet.

    With d the difference of two diagonal entries, b the entry between them and h = √(d² + 4|b|²): cos 2θ = |d| / h and
    sin 2θ = 2|b| / h, of which the cosine c is at least √½ and the sine is b / (h c).
    """
    # Twice the hermitian part: were both sides of a pair turned by angles of their own, the turn would not be unitary.
    products, zero = products + adjoint(products), constant(products, 0)
    real_zero = constant(games.order, 0)
    diagonal = torch.sum(torch.where(games.off, real_zero, real_part(products)), [-1], keepdim=True)
    differences = (transposed(diagonal) - diagonal) * games.order
    difference = torch.sum(torch.where(apart, real_zero, differences), [-1], keepdim=True)
    between = torch.sum(torch.where(apart, zero, products), [-1], keepdim=True)
    square = difference * difference + squared(between) * 4
    # Where both are so small that their squares lose digits, nothing is turned.
    negligible = torch.lt(square, 2.0**20 * torch.finfo(square.dtype).tiny)
    one = constant(square, 1)
    inverse = torch.rsqrt(torch.where(negligible, one, square))
    cosine = torch.sqrt(torch.where(negligible, one, torch.abs(difference) * inverse) * 0.5 + 0.5)
    signed = torch.where(torch.lt(difference, 0), -inverse, inverse)
    sine = torch.where(negligible, zero, between) * (signed * torch.reciprocal(cosine))
    turned = torch.where(apart, zero, sine * games.order)
    return torch.where(games.off, turned, cosine.to(products.dtype))


def orthogonal(v: Tensor) -> Tensor:
    """v (3 − vᴴ v) / 2: nearer to unitary by the square of how far v is."""
    n = v.shape[-1]
    off = torch.matmul(adjoint(v), v)
    off = torch.where(on_diagonal(v, n, n), off - 1, off)
    return v - torch.matmul(v, off) * 0.5
