"""Hurwitz' zeta function and the polygamma functions, which are its values at whole orders.

The first terms of Σ (q + k)^−s, then Euler and Maclaurin's formula for the others (DLMF 25.11 and 5.15); for negative q
the sum over all whole numbers less that over those on the other side. Errors are in ULP against float64.
"""

from __future__ import annotations

from fractions import Fraction
import functools
import math
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp_rules.floating import float_math, is_tensor, polynomial
from decomp_rules.operands import along, constant, ramp

RULES = Rules()
register = RULES.register
aten = torch.ops.aten


# B₂ⱼ / (2j)!, the coefficients of Euler and Maclaurin's formula.
_EULER_MACLAURIN = tuple(
    float(Fraction(text)) for text in (
        "1/12", "-1/720", "1/30240", "-1/1209600", "1/47900160", "-691/1307674368000", "1/74724249600",
        "-3617/10670622842880000", "43867/5109094217170944000", "-174611/802857662698291200000",
        "77683/14101100039391805440000", "-236364091/1693824136731743669452800000",
    )
)  # fmt: skip
# How many terms are taken one by one, and how many of Euler and Maclaurin's, for every order.
_TERMS = {torch.float32: (10, 6), torch.float64: (14, 12)}


@register(aten.polygamma)
def polygamma(n: int, x: Tensor) -> Tensor:
    """ψ⁽ⁿ⁾(x) = (−1)ⁿ⁺¹·n!·ζ(n + 1, x), and ψ(x) for n = 0."""
    if n < 0:
        return decline("a negative order")
    return torch.digamma(x) if n == 0 else _polygamma(x, n)


@float_math
def _polygamma(x: Tensor, n: int) -> Tensor:
    s = n + 1
    left = x <= 0
    value = _factorial_zeta(torch.where(left, 1 - x, x), s)
    r = torch.where(left, x - torch.round(x.detach()), 0.5)
    mirrored = _over_all(r, s) * float(math.factorial(n)) - (-1) ** s * value
    mirrored = torch.where(r == 0, _at_poles(x, s), mirrored)
    return (-1) ** s * torch.where(left, mirrored, value)


def _at_poles(x: Tensor, s: int) -> Tensor | float:
    """∞, and for the first derivative what PyTorch's kernel has, (π / sin πx)² with the rounding of πx."""
    if s > 2:
        return math.inf
    slope = math.pi * torch.reciprocal(torch.sin(x.detach() * math.pi))
    return slope * slope


def _factorial_zeta(x: Tensor, s: int) -> Tensor:
    """(s − 1)!·Σ (x + k)^−s over k ≥ 0, for x > 0."""
    count, coefficients = _tail(s, x.dtype)
    far = x >= count
    near = torch.where(far, 1.0, x)
    z = torch.where(far, x, near + count)
    u = torch.reciprocal(z)
    rest = _inverse_power(z, s - 1) * (
        coefficients[0] + u * (coefficients[1] + u * polynomial(u * u, coefficients[2:]))
    )
    # The smallest come first, so that the sum is rounded as one number.
    terms = (_inverse_power(near + k, s) for k in reversed(range(count)))
    return torch.where(far, rest, functools.reduce(torch.add, terms, rest)) * float(math.factorial(s - 1))


@functools.cache
def _tail(s: int, dtype: torch.dtype) -> tuple[int, tuple[float, ...]]:
    """How many terms to take one by one, and what u^(s−1) is multiplied with for all others: 1/(s − 1), 1/2·u, and the
    coefficients of u², u⁴, …."""
    length = _TERMS[dtype][1]
    rising = [math.prod(range(s, s + 2 * j + 1)) for j in range(length)]
    # The last term, over the first, for a sum that begins there.
    last = abs(_EULER_MACLAURIN[length - 1]) * rising[-1] * (s - 1)
    count = math.ceil((last / (torch.finfo(dtype).eps / 32)) ** (1 / (2 * length)))
    return count, (1 / (s - 1), 0.5, *(float(Fraction(c) * rise) for c, rise in zip(_EULER_MACLAURIN, rising)))


def _over_all(r: Tensor, s: int) -> Tensor:
    """Σ (r + j)^−s over all whole j, for |r| ≤ 1/2: those next to 0 one by one, the others in powers of r, where
    ζ(s + m) − 1 comes with each."""
    sign = (-1) ** s
    length = 10 if r.dtype == torch.float32 else 20
    powers = range(s % 2, 2 * length, 2)
    coefficients = [2 * sign * math.comb(s + m - 1, m) * _zeta_less_one(s + m) for m in powers]
    rest = polynomial(r * r, coefficients)
    beside = _inverse_power(1 + r, s) + sign * _inverse_power(1 - r, s)
    return _inverse_power(r, s) + (beside + (rest * r if s % 2 else rest))


@functools.cache
def _zeta_less_one(s: int) -> float:
    """ζ(s) − 1 for whole s > 1, by the first terms and Euler and Maclaurin's formula."""
    count, (first, half, *others) = _tail(s, torch.float64)
    u = 1 / count
    rest = first + u * (half + u * sum(value * u ** (2 * j) for j, value in enumerate(others)))
    return math.fsum([k**-s for k in range(2, count)] + [u ** (s - 1) * rest])


def _power(x: Tensor, exponent: int) -> Tensor:
    """x to a small whole power by squaring, which needs no target to know powers."""
    result = None
    while exponent:
        if exponent & 1:
            result = x if result is None else result * x
        exponent >>= 1
        x = x * x if exponent else x
    assert result is not None
    return result


def _inverse_power(x: Tensor, exponent: int) -> Tensor:
    return torch.reciprocal(_power(x, exponent))


@register(aten.special_zeta)
@float_math
def zeta(x: Any, other: Any) -> Tensor:
    """ζ(s, q) = Σ (q + k)^−s over k ≥ 0, ∞ at its poles s = 1 and q = 0, −1, …; for other q < 0 only at whole s."""
    x, other = (value if is_tensor(value) else constant(near, value) for value, near in ((x, other), (other, x)))
    s, q = torch.broadcast_tensors(x, other)
    left = q <= 0
    order = torch.where(s <= 1, 2.0, s)
    r = torch.where(left, q - torch.round(q.detach()), 0.5)
    # One evaluation serves q itself and both sides of a pole.
    starts = torch.stack([torch.where(left, 1 - q, q), 1 + r, 1 - r], -1)
    value, above, below = torch.unbind(_zeta(torch.unsqueeze(order, -1), starts), -1)
    half = order.detach() * 0.5
    sign = torch.where(half == torch.floor(half), 1.0, -1.0).to(q.dtype)
    nearest = torch.pow(torch.abs(r), -order)
    over_all = torch.where(r < 0, sign * nearest, nearest) + (above + sign * below)
    # Halfway between two poles the sum of odd powers is zero, and what is left of rounding would be all.
    halfway = torch.logical_and(sign < 0, torch.abs(r) == 0.5)
    over_all = torch.where(torch.logical_and(halfway, over_all == over_all), 0.0, over_all)
    fractional = torch.floor(s.detach()) != s
    mirrored = torch.where(fractional, math.nan, over_all - sign * value)
    value = torch.where(left, torch.where(torch.floor(q.detach()) == q, math.inf, mirrored), value)
    # Of an order whose powers overflow PyTorch's kernel has no number, where the first term is 0.
    number = torch.logical_and(1 <= s, torch.logical_or(s < 1e13, q <= 1))
    return torch.where(s == 1, math.inf, torch.where(torch.logical_or(number, s != s), value, math.nan))


def _zeta(s: Tensor, q: Tensor) -> Tensor:
    """Σ (q + k)^−s for s > 1 and q > 0."""
    count, length = _TERMS[q.dtype]
    first = torch.unsqueeze(q, -1)
    ramp_ = along(ramp(q, count, dtype=q.dtype), q.dim(), q.dim() + 1)
    shifted = first + ramp_
    order = torch.unsqueeze(s, -1)
    terms = torch.pow(shifted, -order)
    bounded = torch.clamp(s, max=1e9)
    terms = terms * _restored(torch.unsqueeze(bounded, -1), shifted, first - (shifted - ramp_))
    z = q + count
    u = torch.reciprocal(z)
    scale = torch.pow(z, 1 - s) * _restored(bounded, z, q - (z - count))
    rest = scale / (s - 1)
    scale = scale * u
    rest = rest + 0.5 * scale
    for j, coefficient in enumerate(_EULER_MACLAURIN[:length]):
        if j:
            scale = scale * ((bounded + (2 * j - 1)) * u)
        scale = scale * ((bounded + 2 * j) * u)
        rest = rest + coefficient * scale
    return torch.sum(terms, [-1]) + rest


def _restored(s: Tensor, z: Tensor, lost: Tensor) -> Tensor:
    """(z + lost)^−s / z^−s, for what the rounding of z has lost: it counts s times. Where z < 1 that is nothing."""
    return 1 - s * (lost.detach() * torch.reciprocal(torch.clamp(z.detach(), min=1.0)))
