"""Order and running sums: ranks by comparison of all pairs, running sums by doubling.

An element's rank is how many come before it: those that are greater (or less), and the equal ones to its left, so that
every sort is stable. NaN is greater than everything, as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.index.indexing import Only, alone, where_chosen
from decomp_rules.support.operands import HALVES, cast, constant, ramp, wide, wrap

RULES = Rules(level="exact")
register = RULES.register


ALL_PAIRS = 1 << 20
"""Pairs beyond which elements are not compared each with each."""
TOO_MANY_PAIRS = f"there are more than {ALL_PAIRS:,} pairs to compare"


def _has_too_many_pairs(x: Tensor, dim: int) -> bool:
    return all(type(size) is int for size in x.shape) and x.numel() * x.shape[dim] > ALL_PAIRS


@register(aten.sort)
def sort_default(x: Tensor, dim: int = -1, descending: bool = False, stable: bool | None = False) -> Any:
    """The overload of Core ATen, which keeps equal elements in any order."""
    if stable:
        return decline("the sort is stable")
    values, indices = torch.sort(x, dim, descending)
    return values, indices


@register(aten.sort, needs=("scatter",))
def sort_scattered(
    x: Tensor, dim: int = -1, descending: bool = False, stable: bool | None = False
) -> tuple[Tensor, Tensor]:
    """Each element, and its place, written at its rank."""
    if x.dim() == 0:
        return x.clone(), constant(x, 0, torch.int64)
    dim = wrap(dim, x.dim())
    ranks, places = _ranks(x, dim, descending), ramp(x, x.shape[dim], dim, x.dim())
    zeros = torch.full(x.shape, 0, dtype=torch.int64, device=x.device)
    values = torch.scatter(torch.zeros_like(x), dim, ranks, x)
    return values, torch.scatter(zeros, dim, ranks, places.expand(x.shape))


@register(aten.topk, needs=("scatter",))
def topk_sorted(x: Tensor, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor]:
    """The first k of all in order."""
    values, indices = torch.sort(x, dim=dim, descending=largest, stable=True)
    return (values.narrow(dim, 0, k), indices.narrow(dim, 0, k)) if x.dim() else (values, indices)


@register(aten.sort)
def sort(x: Tensor, dim: int = -1, descending: bool = False, stable: bool | None = False) -> tuple[Tensor, Tensor]:
    """Each element at its rank."""
    return of_rank_below(None, x, dim, descending, alone)


@register(aten.topk)
def topk(x: Tensor, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor]:
    """The elements of rank below k."""
    return of_rank_below(k, x, dim, largest, alone)


def of_rank_below(k: Any, x: Tensor, dim: int, descending: bool, only: Only) -> tuple[Tensor, Tensor]:
    """The first k elements in order, or all of them, and where they were, with `only` to take the element of a rank."""
    if x.dim() == 0:
        return x.clone(), constant(x, 0, torch.int64)
    dim = wrap(dim, x.dim())
    if _has_too_many_pairs(x, dim):
        return decline(TOO_MANY_PAIRS)
    return _placed(x, dim, _ranks(x, dim, descending), x.shape[dim] if k is None else k, only)


@register(aten.argsort)
def argsort(x: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    """The indices of sort."""
    return torch.sort(x, stable=stable, dim=dim, descending=descending)[1]


@register(aten.msort)
def msort(x: Tensor) -> Tensor:
    """sort along the first dimension."""
    return torch.sort(x, dim=0)[0]


@register(aten.kthvalue)
def kthvalue(x: Tensor, k: Any, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The element of rank k − 1 in ascending order."""
    if x.dim() == 0:
        return x.clone(), constant(x, 0, torch.int64)
    dim = wrap(dim, x.dim())
    values, indices = torch.sort(x, dim=dim)
    found = values.narrow(dim, k - 1, 1), indices.narrow(dim, k - 1, 1)
    return found if keepdim else (found[0].squeeze(dim), found[1].squeeze(dim))


def _ranks(x: Tensor, dim: int, descending: bool) -> Tensor:
    """How many elements along `dim` come before each: of those to its left all that it does not come before."""
    first, second = x.unsqueeze(dim + 1), x.unsqueeze(dim)
    before = less(second, first) if descending else less(first, second)
    number = ramp(x, x.shape[dim], dim, x.dim() + 1)
    left = torch.lt(number.movedim(dim, dim + 1), number)
    leading = left & torch.logical_not(before)
    trailing = torch.logical_not(left) & before.transpose(dim, dim + 1)
    return torch.sum(leading | trailing, dim=[dim + 1], dtype=torch.int64)


def less(a: Tensor, b: Tensor) -> Tensor:
    """a < b, NaN being the greatest."""
    less = torch.lt(a, b)
    return less | torch.lt(torch.isnan(a), torch.isnan(b)) if a.is_floating_point() else less


def _placed(x: Tensor, dim: int, ranks: Tensor, count: Any, only: Only) -> tuple[Tensor, Tensor]:
    """The elements of rank 0 … count − 1 in order, and where they were."""
    here = torch.eq(ranks.unsqueeze(dim), ramp(x, count, dim, x.dim() + 1))
    number = ramp(x, x.shape[dim], dim + 1, x.dim() + 1)
    values = only(where_chosen(here), x.unsqueeze(dim), dim + 1)
    return values, torch.sum(torch.where(here, number, 0), dim=[dim + 1], dtype=torch.int64)


@register(aten.argmax)
def argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """n − max (n − i) over the places i of the maximum: the first of them, or of the NaN."""
    if dim is None:
        first = _first(x.reshape(-1), 0)
        return first.view([1] * x.dim()) if keepdim else first.view([])
    if x.dim() == 0:
        return constant(x, 0, torch.int64)
    dim = wrap(dim, x.dim())
    first = _first(x, dim)
    return first if keepdim else first.squeeze(dim)


@register(aten.argmin)
def argmin(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """argmax in reversed order."""
    return torch.argmax(_reversed(x), dim, keepdim)


def _first(x: Tensor, dim: int) -> Tensor:
    """Where the maximum along `dim` is for the first time, with the dimension kept."""
    if x.dtype == torch.bool:
        x = x.to(torch.int32)
    x = x.detach()
    best = torch.eq(x, torch.amax(x, [dim], keepdim=True))
    if x.is_floating_point():
        best = best | torch.isnan(x)
    length = x.shape[dim]
    left = length - ramp(x, length, dim, x.dim())
    return length - torch.amax(torch.where(best, left, 0), [dim], keepdim=True)


def _reversed(x: Tensor) -> Tensor:
    """x in reverse order: −x, or ¬x if it is not a float."""
    return torch.neg(x) if x.is_floating_point() else torch.bitwise_not(x)


@register(aten.max)
def max_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The first maximum along `dim`, which alone gets the gradient, and its index."""
    return _extreme(x, x, dim, keepdim)


@register(aten.min)
def min_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The first minimum along `dim`, which alone gets the gradient, and its index."""
    return _extreme(x, _reversed(x), dim, keepdim)


def _extreme(x: Tensor, key: Tensor, dim: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    if x.dim() == 0:
        return x.clone(), constant(x, 0, torch.int64)
    dim = wrap(dim, x.dim())
    index = _first(key, dim)
    value = torch.gather(x, dim, index)
    return (value, index) if keepdim else (value.squeeze(dim), index.squeeze(dim))


@register(aten.median)
def median_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The element of rank ⌊(n − 1) / 2⌋, or the first NaN if there is one."""
    if x.dim() == 0:
        return x.clone(), constant(x, 0, torch.int64)
    dim = wrap(dim, x.dim())
    if _has_too_many_pairs(x, dim):
        return decline(TOO_MANY_PAIRS)
    middle = ramp(x, 1, dim, x.dim()) + (x.shape[dim] - 1) // 2
    ranks = _ranks(x, dim, False)
    if x.is_floating_point():
        wrong = torch.isnan(x)
        count = torch.sum(wrong, dim=[dim], keepdim=True, dtype=torch.int64)
        middle = torch.where(torch.gt(count, 0), x.shape[dim] - count, middle)
    here = torch.eq(ranks, middle)
    number = ramp(x, x.shape[dim], dim, x.dim())
    index = torch.sum(torch.where(here, number, 0), dim=[dim], keepdim=True, dtype=torch.int64)
    value = torch.gather(x, dim, index)
    return (value, index) if keepdim else (value.squeeze(dim), index.squeeze(dim))


@register(aten.cumsum)
def cumsum(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Running sums by doubling: add the elements 1, 2, 4, … places before; then the rounding errors, summed likewise,
    so that as with the op's wider sums only one rounding remains. Half types in float32. ≤ 0.51 ULP."""
    x, result = _running_input(x, dtype)
    if not x.is_floating_point() or not x.dim() or type(x.shape[dim]) is not int or x.shape[dim] < 2:
        return cast(_running(x, dim, torch.add, 0), result)
    down, up = _headroom(x.detach(), dim)
    terms = x * down
    total = _running(terms, dim, torch.add, 0)
    if result not in HALVES:
        total = total + _running(_lost(terms.detach(), total.detach(), dim), dim, torch.add, 0)
    return cast(total * up, result)


def _headroom(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Powers of two to multiply by before and after sums along `dim`, so that no part of them overflows unless all of
    the sum does: 1 where nothing is so large."""
    bits = x.shape[dim].bit_length()
    large = torch.gt(torch.amax(torch.abs(x), [dim], keepdim=True), torch.finfo(x.dtype).max * 2.0**-bits)
    one = constant(x, 1.0)
    return torch.where(large, constant(x, 2.0**-bits), one), torch.where(large, constant(x, 2.0**bits), one)


def _lost(terms: Tensor, total: Tensor, dim: int) -> Tensor:
    """By how much more each term should have moved the running sum; 0 where that is no number. The step of the sum is
    taken with its rounding error (D. Knuth, TAOCP 2, 4.2.2)."""
    length = total.shape[dim]
    places = [0, 0] * (total.dim() - wrap(dim, total.dim()) - 1) + [1, 0]
    before = torch.constant_pad_nd(total.narrow(dim, 0, length - 1), places, 0)
    step = total - before
    back = step - total
    error = (total - (step - back)) - (before + back)
    lost = (terms - step) - error
    return torch.where(torch.lt(torch.abs(lost), float("inf")), lost, constant(lost, 0))


@register(aten.cumprod)
def cumprod_of_wider(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Running products by doubling, of float32 in float64: products of a part may overflow where those from the start
    do not. ≤ 0.51 ULP."""
    x, result = _running_input(x, dtype)
    if result != torch.float32:
        return decline("only float32")
    return cast(_running(cast(x, torch.float64), dim, torch.mul, 1), result)


@register(aten.cumprod)
def cumprod(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Running products by doubling."""
    x, result = _running_input(x, dtype)
    return cast(_running(wide(x), dim, torch.mul, 1), result)


@register(aten.logcumsumexp)
def logcumsumexp(x: Tensor, dim: int) -> Tensor:
    """Running log Σ exp by doubling."""
    return cast(_running(wide(x), dim, torch.logaddexp, float("-inf")), x.dtype)


def _running_input(x: Tensor, dtype: torch.dtype | None) -> tuple[Tensor, torch.dtype]:
    whole = not (x.is_floating_point() or x.is_complex())
    dtype = dtype or (torch.int64 if whole else x.dtype)
    return cast(x, torch.float32 if dtype in HALVES else dtype), dtype


def _running(x: Tensor, dim: int, combine: Callable[[Tensor, Tensor], Tensor], identity: Any) -> Tensor:
    """combine(x₀, …, xᵢ) at i, by doubling: combine each element with that `shift` places before, where it exists. Sums
    pad with zeros instead of copying; other padding would change gradients."""
    if x.dim() == 0:
        return x.clone()
    dim = wrap(dim, x.dim())
    length = x.shape[dim]
    if type(length) is not int:
        return _running_symbolic(x, dim, identity)
    shift = 1
    while shift < length:
        before = x.narrow(dim, 0, length - shift)
        if identity == 0:
            x = combine(x, torch.constant_pad_nd(before, [0, 0] * (x.dim() - dim - 1) + [shift, 0], 0))
        else:
            later = combine(x.narrow(dim, shift, length - shift), before)
            x = torch.cat([x.narrow(dim, 0, shift), later], dim)
        shift *= 2
    return x


def _running_symbolic(x: Tensor, dim: int, identity: Any) -> Tensor:
    """Reduced over the square of places at or before each, where the number of doublings is not known."""
    number = ramp(x, x.shape[dim], dim, x.dim() + 1)
    upto = torch.logical_not(torch.lt(number, number.movedim(dim, dim + 1)))
    square = torch.where(upto, x.unsqueeze(dim), identity)
    if identity == 0:
        return torch.sum(square, dim=[dim + 1], dtype=x.dtype)
    return torch.prod(square, dim + 1, dtype=x.dtype) if identity == 1 else torch.logsumexp(square, [dim + 1])


@register(aten.cummax)
def cummax(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """At each place the maximum so far, the latest of several, and its index."""
    return _running_extreme(x, x, dim)


@register(aten.cummin)
def cummin(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """At each place the minimum so far, the latest of several, and its index."""
    return _running_extreme(x, _reversed(x), dim)


def _running_extreme(x: Tensor, key: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The last place at or before each whose key no other there exceeds (NaN exceeding all), and the value there."""
    if x.dim() == 0:
        return x.clone(), constant(x, 0, torch.int64)
    dim = wrap(dim, x.dim())
    if type(x.shape[dim]) is int and x.shape[dim] == 0:
        return x.clone(), torch.full(x.shape, 0, dtype=torch.int64, device=x.device)
    number = ramp(x, x.shape[dim], dim + 1, x.dim() + 1)
    place = number.movedim(dim + 1, dim)
    key = key.to(torch.int32) if key.dtype == torch.bool else key.detach()
    earlier = torch.logical_not(torch.lt(place, number))
    # A place is a candidate if none before it is greater: then the last candidate so far is the maximum so far.
    beaten = torch.any(less(key.unsqueeze(dim + 1), key.unsqueeze(dim)) & earlier, dim + 1, keepdim=True)
    candidate = torch.logical_not(beaten).movedim(dim + 1, dim)
    latest = torch.amax(torch.where(candidate & earlier, number, 0), [dim + 1])
    return torch.gather(x, dim, latest), latest
