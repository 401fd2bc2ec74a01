"""Helpers shared by the families of linear algebra: numbered rows and columns, masks, parts of matrices, row exchanges.

Factorizations are straight-line programs, unrolled over the size of the matrix, which must be a plain number; the
leading dimensions are a batch and may be anything. Each step is a few operations on whole matrices of one shape, so
that each is lowered once.
"""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any

import torch
from torch import Tensor

from decomp.ops import aten
from decomp_rules.support.operands import constant

Refusal = str | None


def too_large(limit: int, *sizes: Any) -> Refusal:
    """Why a matrix with these sides is not unrolled, or None."""
    if not all(isinstance(size, int) for size in sizes):
        return "the size of the matrix is not a plain number"
    if max(sizes, default=0) > limit:
        return f"a straight-line program for a side of {max(sizes)} is too long; sides up to {limit} are unrolled"
    return None


def rows(x: Tensor, count: int) -> Tensor:
    """0, 1, …, count − 1 as a column, int64, on the device of x."""
    return torch.arange(count, dtype=torch.int64, device=x.device).view(count, 1)


def columns(x: Tensor, count: int) -> Tensor:
    """0, 1, …, count − 1 as a row, int64, on the device of x."""
    return torch.arange(count, dtype=torch.int64, device=x.device).view(1, count)


def row(x: Tensor, i: int) -> Tensor:
    """Row i as a matrix, (*, 1, n)."""
    return aten.slice.Tensor(x, x.dim() - 2, i, i + 1)


def column(x: Tensor, j: int) -> Tensor:
    """Column j as a matrix, (*, m, 1)."""
    return aten.slice.Tensor(x, x.dim() - 1, j, j + 1)


def entry(x: Tensor, i: int, j: int) -> Tensor:
    """One entry as a matrix, (*, 1, 1)."""
    return column(row(x, i), j)


def leading(x: Tensor, m: int | None = None, n: int | None = None) -> Tensor:
    """The first m rows and n columns."""
    if m is not None and m != x.shape[-2]:
        x = aten.slice.Tensor(x, x.dim() - 2, 0, m)
    return x if n is None or n == x.shape[-1] else aten.slice.Tensor(x, x.dim() - 1, 0, n)


def transposed(x: Tensor) -> Tensor:
    """xᵀ of each matrix."""
    return torch.transpose(x, -2, -1)


def adjoint(x: Tensor) -> Tensor:
    """xᴴ of each matrix."""
    return conjugate(transposed(x))


def conjugate(x: Tensor) -> Tensor:
    """The conjugate, x itself if it is real."""
    return torch.conj_physical(x) if x.is_complex() else x


def real_part(x: Tensor) -> Tensor:
    """The real part, x itself if it is real."""
    return torch.real(x) if x.is_complex() else x


def squared(x: Tensor) -> Tensor:
    """|x|², real."""
    if not x.is_complex():
        return x * x
    real, imag = torch.real(x), torch.imag(x)
    return real * real + imag * imag


def identity(x: Tensor, size: int) -> Tensor:
    """The unit matrix in the dtype of x."""
    return torch.eye(size, dtype=x.dtype, device=x.device)


def on_diagonal(x: Tensor, m: int, n: int) -> Tensor:
    """Where the diagonal of an m × n matrix is, bool."""
    return torch.eq(rows(x, m), columns(x, n))


def diagonal_of(x: Tensor) -> Tensor:
    """The diagonal of each matrix, (*, min(m, n))."""
    return torch.diagonal(x, 0, -2, -1)


def lower(x: Tensor, offset: int = 0) -> Tensor:
    """The elements on and below a diagonal; zero elsewhere, even if NaN is there."""
    m, n = x.shape[-2:]
    above = torch.lt(rows(x, m), columns(x, n) - offset)
    return torch.where(above, constant(x, 0), x)


def upper(x: Tensor, offset: int = 0) -> Tensor:
    """The elements on and above a diagonal; zero elsewhere, even if NaN is there."""
    m, n = x.shape[-2:]
    below = torch.lt(columns(x, n) - offset, rows(x, m))
    return torch.where(below, constant(x, 0), x)


def hermitian(x: Tensor, from_upper: bool) -> Tensor:
    """The matrix of which x has the lower or the upper triangle, for factorizations that read the lower one. Its value
    depends on that triangle alone; its gradient is that of (x + xᴴ) / 2, as PyTorch's factorizations have it."""
    return (adjoint(x) if from_upper else x).detach() + change_of((x + adjoint(x)) * 0.5)


def change_of(x: Tensor) -> Tensor:
    """Zero, with the gradient of x where x is finite: what makes a value that it is added to depend on x."""
    change, zero = x - x.detach(), constant(x, 0)
    return torch.where(torch.eq(change, zero), change, zero)  # NaN − NaN and ∞ − ∞ would be NaN


def changed(value: Tensor, change: Tensor) -> Tensor:
    """value + change, where the change is zero but for its gradient; the change is dropped where it is NaN, because a
    factor is not finite."""
    zero = constant(change, 0)
    return value + torch.where(torch.eq(change, zero), change, zero)


def unaffected_by(value: Tensor, x: Tensor) -> Tensor:
    """`value`, which has the shape of x, with a gradient of zero for x."""
    return torch.where(torch.full((), True, dtype=torch.bool, device=x.device), value, x)


def first_place(found: Tensor) -> Tensor:
    """The number along the last dimension of the first place where `found` holds, counted from one, or 0; int32."""
    count = found.shape[-1]
    if not count:
        return torch.full(found.shape[:-1], 0, dtype=torch.int32, device=found.device)
    number = torch.arange(count, 0, -1, dtype=torch.int64, device=found.device)
    left = torch.amax(torch.where(found, number, constant(number, 0)), [-1])
    return torch.where(torch.eq(left, 0), left, count + 1 - left).to(torch.int32)


def power_of_two_near(x: Tensor) -> Tensor:
    """A power of two near the largest magnitude in each matrix, real, (*, 1, 1), detached; 1 for a matrix of zeros.
    Divided by it, squares neither overflow nor vanish."""
    largest = torch.amax(torch.abs(x.detach()), [-2, -1], True)
    usable = torch.lt(constant(largest, 0), largest) & torch.lt(largest, constant(largest, float("inf")))
    exponent = torch.trunc(torch.log2(torch.where(usable, largest, constant(largest, 1))))
    bound = 0.98 * math.log2(torch.finfo(largest.dtype).max)
    return torch.exp2(torch.clamp(exponent, -int(bound), int(bound)))


def exchanged(x: Tensor, pivots: Tensor, inverse: bool = False) -> Tensor:
    """x after row j was exchanged with row pivots[j] − 1 for each j in turn, or from the last to the first."""
    number, zero = rows(x, x.shape[-2]), constant(x, 0)
    order: Sequence[int] = range(pivots.shape[-1])
    for j in reversed(order) if inverse else order:
        place = (aten.slice.Tensor(pivots, pivots.dim() - 1, j, j + 1) - 1).unsqueeze(-1)
        other = torch.ne(number, place)
        x = swapped(x, j, other, number, torch.sum(torch.where(other, zero, x), [-2], keepdim=True))
    return x


def swapped(x: Tensor, j: int, other: Tensor, number: Tensor, chosen: Tensor) -> Tensor:
    """x with its row j exchanged with `chosen`, the row where `other` does not hold."""
    return torch.where(torch.ne(number, j), torch.where(other, x, row(x, j)), chosen)
