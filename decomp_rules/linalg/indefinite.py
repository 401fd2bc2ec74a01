"""L D Lᵀ of symmetric indefinite matrices, D with blocks of one or two on its diagonal, and solutions from it.

J. R. Bunch and L. Kaufman, Math. Comp. 31 (1977): which row is exchanged, and whether a block is of two, is decided
from the column, one row and two diagonal entries. Both kinds of step are taken on the whole matrix and the one that
applies is selected; the second column of a block of two is passed over. Pivots are LAPACK's: −p twice for such a block.
"""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.linalg.matrices import (
    column,
    columns,
    conjugate,
    diagonal_of,
    entry,
    first_place,
    on_diagonal,
    real_part,
    row,
    rows,
    too_large,
    transposed,
)
from decomp_rules.support.operands import constant

RULES = Rules(level="exact")
register = RULES.register

LIMIT = 64
"""Largest side that is unrolled: about a hundred operations for each column."""

ALPHA = (1 + math.sqrt(17)) / 8
"""How large a pivot must be beside the others: the growth of one block of two is then that of two blocks of one."""


@register(aten.linalg_ldl_factor_ex)
def linalg_ldl_factor_ex(
    x: Tensor, hermitian: bool = False, check_errors: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """D on and L below the diagonal, the pivots, and the first column that is zero or whose diagonal is NaN; from the
    lower triangle."""
    n = x.shape[-1]
    reason = too_large(LIMIT, n)
    if reason:
        return decline(reason)
    if not n or 0 in x.shape:
        return x.clone(), _int32(x, (*x.shape[:-1],)), _int32(x, x.shape[:-2])
    below = torch.lt(columns(x, n), rows(x, n))
    flipped = transposed(x)
    flipped = conjugate(flipped) if hermitian else flipped
    work = torch.where(below, x, flipped)
    if hermitian and x.is_complex():
        work = torch.where(on_diagonal(x, n, n), real_part(x).to(x.dtype), work)
    parts, pivots, singular = [], [], []
    state = _State(work, None, None, None)
    for k in range(n):
        state, part, pivot, zero = _step(state, k, n, hermitian)
        parts.append(part)
        pivots.append(pivot)
        singular.append(zero)
    places = torch.cat(pivots, -2).squeeze(-1).to(torch.int32)
    return torch.cat(parts, -1), places, first_place(torch.cat(singular, -2).squeeze(-1))


@register(aten.linalg_ldl_factor)
def linalg_ldl_factor(x: Tensor, hermitian: bool = False) -> tuple[Tensor, Tensor]:
    """linalg_ldl_factor_ex, ignoring its error info."""
    factors, pivots, _ = torch.linalg.ldl_factor_ex(x, hermitian=hermitian)
    return factors, pivots


@dataclass(frozen=True, slots=True)
class _State:
    """The state between two steps."""

    work: Tensor
    """The matrix that is still to be factored, both triangles."""
    second: Any
    """Whether the next column is the second of a block of two, (*, 1, 1); None before the first step."""
    part: Any
    """The next column of the result if it is."""
    pivot: Any
    """Its pivot if it is."""


def _step(state: _State, k: int, n: int, hermitian: bool) -> tuple[_State, Tensor, Tensor, Tensor]:
    """The state after column k, that column of the result, its pivot, and whether it is zero."""
    place, two, zero = _chosen(state, k, n)
    work, down = _exchanged(state.work, place, two, k), rows(state.work, n)
    if k == n - 1:
        part = torch.where(torch.lt(down, k), constant(work, 0), column(work, k))
        here = entry(_size(work), k, k)
        return state, *_merged(state, part, place + 1, _no_pivot(here, here))
    single, updated = _single(work, down, k, hermitian)
    if k == n - 2:  # a block of two leaves nothing to factor
        first, second, rest = _last_pair(work, down, k)
    else:
        first, second, rest = _pair(work, down, k, hermitian)
    part = torch.where(two, first, single)
    pivot = torch.where(two, -place - 1, place + 1)
    following = torch.where(two, rest, updated)
    if state.second is not None:
        following = torch.where(state.second, state.work, following)
    merged = _merged(state, part, pivot, zero)
    return _State(following, two, second, pivot), *merged


def _merged(state: _State, part: Tensor, pivot: Tensor, zero: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A step's results, or what the step before left for the second column of its block."""
    if state.second is None:
        return part, pivot, zero
    part = torch.where(state.second, state.part, part)
    return part, torch.where(state.second, state.pivot, pivot), zero & torch.logical_not(state.second)


def _size(x: Tensor) -> Tensor:
    """|x|, or |Re x| + |Im x|, which LAPACK compares."""
    return torch.abs(torch.real(x)) + torch.abs(torch.imag(x)) if x.is_complex() else torch.abs(x)


def _chosen(state: _State, k: int, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """The row to exchange, whether for a block of two, and whether there is nothing in the column; (*, 1, 1)."""
    size, down, across = _size(state.work), rows(state.work, n), columns(state.work, n)
    here = entry(size, k, k)
    stay = torch.full((*size.shape[:-2], 1, 1), k, dtype=torch.int64, device=size.device)
    if k == n - 1:
        return stay, torch.lt(stay, k), _no_pivot(here, here)
    zero = constant(size, 0)
    below = torch.where(torch.lt(down, k + 1), constant(size, -1), column(size, k))
    largest = torch.amax(below, [-2], True)
    far = torch.amin(torch.where(torch.lt(below, largest), constant(down, n), down), [-2], True)
    line = torch.sum(torch.where(torch.ne(down, far), zero, size), [-2], keepdim=True)
    beside = torch.eq(across, far)
    corner = torch.sum(torch.where(beside, line, zero), [-1], keepdim=True)
    widest = torch.amax(torch.where(beside | torch.lt(across, k), zero, line), [-1], True)
    kept = torch.ge(here, largest * ALPHA)
    ratio = largest / torch.where(torch.eq(widest, 0), constant(widest, 1), widest)
    kept = kept | torch.ge(here, ALPHA * largest * ratio)
    if state.second is not None:
        kept = kept | state.second
    moved = torch.ge(corner, widest * ALPHA)
    two = torch.logical_not(kept | moved)
    return torch.where(kept, stay, far), two, _no_pivot(here, torch.maximum(here, largest))


def _no_pivot(here: Tensor, largest: Tensor) -> Tensor:
    """Whether there is nothing in a column, or NaN on the diagonal."""
    return torch.eq(largest, 0) | torch.ne(here, here)


def _exchanged(work: Tensor, place: Tensor, two: Tensor, k: int) -> Tensor:
    """Row and column `place` exchanged with k, or with k + 1 for a block of two."""
    n = work.shape[-1]
    down, target = rows(work, n), k + two.to(torch.int64)
    order = torch.where(torch.eq(down, place), target, down)
    order = torch.where(torch.eq(down, target), place, order)
    work = torch.gather(work, -2, order.expand(work.shape))
    return torch.gather(work, -1, transposed(order).expand(work.shape))


def _single(work: Tensor, down: Tensor, k: int, hermitian: bool) -> tuple[Tensor, Tensor]:
    """The column of a block of one, and what is left to factor."""
    zero, pivot = constant(work, 0), entry(work, k, k)
    tail = torch.where(torch.lt(down, k + 1), zero, column(work, k))
    inverse = torch.reciprocal(torch.where(torch.eq(pivot, zero), constant(work, 1), pivot))
    part = tail * inverse
    back = transposed(conjugate(tail) if hermitian else tail)
    return part + torch.where(torch.eq(down, k), pivot, zero), work - part * back


def _pair(work: Tensor, down: Tensor, k: int, hermitian: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The two columns of a block of two, and what is left to factor. Divided by the entry between them, which is the
    largest, nothing overflows."""
    zero, one = constant(work, 0), constant(work, 1)
    between = entry(work, k + 1, k)
    between = torch.where(torch.eq(between, zero), one, between)
    over = torch.reciprocal(between)
    under = conjugate(over) if hermitian else over
    up, low = entry(work, k + 1, k + 1) * over, entry(work, k, k) * under
    first = torch.where(torch.lt(down, k + 2), zero, column(work, k))
    second = torch.where(torch.lt(down, k + 2), zero, column(work, k + 1))
    whole = up * low - 1
    scale = torch.reciprocal(torch.where(torch.eq(whole, zero), one, whole))
    left = (up * first - second) * (scale * under)
    right = (low * second - first) * (scale * over)
    back = [transposed(conjugate(part) if hermitian else part) for part in (first, second)]
    rest = work - left * back[0] - right * back[1]
    left_part, right_part, _ = _last_pair(work, down, k)
    inside = torch.lt(down, k + 2)  # where 0 times the (infinite) reciprocal of a subnormal number must be 0
    return torch.where(inside, left_part, left), torch.where(inside, right_part, right), rest


def _last_pair(work: Tensor, down: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The columns of a block of two without what is below it."""
    zero = constant(work, 0)
    inside = torch.lt(down, k + 2)
    first = torch.where(inside & torch.ge(down, k), column(work, k), zero)
    return first, torch.where(torch.eq(down, k + 1), column(work, k + 1), zero), work


@register(aten.linalg_ldl_solve)
def linalg_ldl_solve(LD: Tensor, pivots: Tensor, B: Tensor, hermitian: bool = False) -> Tensor:
    """A⁻¹ B from the factorization of A. Products with elements outside L are left out, so that a NaN does not
    spread."""
    n = LD.shape[-1]
    reason = too_large(LIMIT, n)
    if reason:
        return decline(reason)
    if not n:
        return B.clone()
    down, zero, blocks = rows(LD, n), constant(LD, 0), _blocks(pivots)
    kept = []
    for k, (place, two, _) in enumerate(blocks):
        B = _rows_exchanged(B, place, k + two, down)
        kept.append(torch.lt(down, k + 1 + two))
        B = B - torch.where(kept[k], zero, column(LD, k) * row(B, k))
    B = _over_blocks(LD, blocks, hermitian, B)
    for k in reversed(range(n)):
        place, two, _ = blocks[k]
        part = conjugate(column(LD, k)) if hermitian else column(LD, k)
        change = torch.sum(torch.where(kept[k], zero, part * B), [-2], keepdim=True)
        B = torch.where(torch.eq(down, k), B - change, B)
        B = _rows_exchanged(B, place, k + two, down)
    return B


def _blocks(pivots: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """For each column its row to exchange, 1 if a block of two begins there, and 1 if one ends there; (*, 1, 1)."""
    places = pivots.to(torch.int64).unsqueeze(-1)
    found, second = [], None
    for k in range(pivots.shape[-1]):
        pivot = row(places, k)
        negative = torch.lt(pivot, 0).to(torch.int64)
        ends = torch.zeros_like(negative) if second is None else second
        two = negative * (1 - ends)
        place = torch.where(torch.eq(ends, 0), torch.abs(pivot) - 1, k)
        found.append((place, two, ends))
        second = two
    return found


def _rows_exchanged(x: Tensor, place: Tensor, target: Tensor, down: Tensor) -> Tensor:
    """x with two rows exchanged."""
    order = torch.where(torch.eq(down, place), target, down)
    order = torch.where(torch.eq(down, target), place, order)
    batch = torch.broadcast_shapes(order.shape[:-2], x.shape[:-2])
    shape = (*batch, *x.shape[-2:])
    return torch.gather(x.expand(shape), -2, order.expand(shape))


def _over_blocks(factors: Tensor, blocks: list[tuple[Tensor, Tensor, Tensor]], hermitian: bool, b: Tensor) -> Tensor:
    """D⁻¹ b: each row depends on those of its block alone."""
    n = factors.shape[-1]
    zero, one = constant(factors, 0), constant(factors, 1)
    begins = torch.cat([two for _, two, _ in blocks], -2)
    diagonal = diagonal_of(factors).unsqueeze(-1)
    if n == 1:
        return b / diagonal
    under = torch.diagonal(factors, -1, -2, -1).unsqueeze(-1)
    inside = torch.ne(aten.slice.Tensor(begins, begins.dim() - 2, 0, n - 1), 0)
    between = torch.where(inside, under, one)
    over = conjugate(between) if hermitian else between
    upper, lower = aten.slice.Tensor(diagonal, -2, 0, n - 1), aten.slice.Tensor(diagonal, -2, 1, n)
    before, after = aten.slice.Tensor(b, b.dim() - 2, 0, n - 1), aten.slice.Tensor(b, b.dim() - 2, 1, n)
    # Divided by the entries beside the diagonal: d₁ d₂ − b² may overflow.
    upper, lower, before, after = upper / over, lower / between, before / over, after / between
    whole = torch.where(inside, upper * lower - 1, one)
    first = torch.where(inside, (lower * before - after) / whole, zero)
    second = torch.where(inside, (upper * after - before) / whole, zero)
    alone = torch.eq(begins + torch.cat([ends for _, _, ends in blocks], -2), 0)
    single = torch.where(alone, b / torch.where(alone, diagonal, one), zero)
    return single + torch.constant_pad_nd(first, [0, 0, 0, 1]) + torch.constant_pad_nd(second, [0, 0, 1, 0])


def _int32(x: Tensor, shape: Any) -> Tensor:
    return torch.full(tuple(shape), 0, dtype=torch.int32, device=x.device)
