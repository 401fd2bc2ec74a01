"""Hurwitz' zeta function and the polygamma functions, which are its values at whole orders.

The first terms of Σ (q + k)^−s, then Euler and Maclaurin's formula for the others (DLMF 25.11 and 5.15); for negative q
the sum over all whole numbers less that over those on the other side. Errors are in ULP against float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
import functools
import math
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.support.floating import float_math, is_tensor, polynomial
from decomp_rules.support.operands import along, constant, ramp

RULES = Rules(level="exact")
register = RULES.register


# B₂ⱼ / (2j)!, the coefficients of Euler and Maclaurin's formula.
_EULER_MACLAURIN = tuple(
    float(Fraction(text))
    for text in (
        "1/12",
        "-1/720",
        "1/30240",
        "-1/1209600",
        "1/47900160",
        "-691/1307674368000",
        "1/74724249600",
        "-3617/10670622842880000",
        "43867/5109094217170944000",
        "-174611/802857662698291200000",
        "77683/14101100039391805440000",
        "-236364091/1693824136731743669452800000",
    )
)
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
    # 0 at the poles, where the value and its slopes are infinite by themselves, and at −∞, which counts as one.
    r = torch.where(left, torch.where(x > -math.inf, x - torch.round(x.detach()), 0.0), 0.5)
    if s == 2:
        pole = r == 0
        r = torch.where(pole, 0.5, r)
    mirrored = _over_all(r, s) * float(math.factorial(n)) - (-1) ** s * value
    if s == 2:
        mirrored = torch.where(pole, _at_poles(x), mirrored)
    else:
        mirrored = torch.where(x > -math.inf, mirrored, x * -torch.finfo(x.dtype).max * 4.0)  # of infinite slope
        value = torch.where(x < math.inf, value, math.nan)  # as PyTorch's kernel has it
    return (-1) ** s * torch.where(left, mirrored, value)


def _at_poles(x: Tensor) -> Tensor:
    """The kernel's value of the first derivative there, (π / sin πx)² with the rounding of πx; its derivative is −∞."""
    slope = math.pi * torch.reciprocal(torch.sin(x.detach() * math.pi))
    return slope * slope + (x.detach() - x) * torch.finfo(x.dtype).max * 4.0


def _factorial_zeta(x: Tensor, s: int) -> Tensor:
    """(s − 1)!·Σ (x + k)^−s over k ≥ 0, for x > 0."""
    count, coefficients = _tail(s, x.dtype)
    far = x >= count
    near = torch.where(far, 1.0, x)
    z = torch.where(far, x, near + count)
    u = torch.reciprocal(z)
    rest = _any_inverse_power(z, s - 1) * (
        coefficients[0] + u * (coefficients[1] + u * polynomial(u * u, coefficients[2:]))
    )
    # The smallest come first, so that the sum is rounded as one number.
    others = (_inverse_power(near + k, s) for k in reversed(range(1, count)))
    terms = functools.reduce(torch.add, others, rest) + _any_inverse_power(near, s)
    return torch.where(far, rest, terms) * float(math.factorial(s - 1))


@functools.cache
def _tail(s: int, dtype: torch.dtype) -> tuple[int, tuple[float, ...]]:
    """How many terms to sum explicitly, and the factors of u^(s−1) for the remaining ones: 1/(s − 1), 1/2·u, and the
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
    return _any_inverse_power(r, s) + (beside + (rest * r if s % 2 else rest))


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
    """x to a negative whole power, 1 / xⁿ, for x neither large nor small."""
    return torch.reciprocal(_power(x, exponent))


def _any_inverse_power(x: Tensor, exponent: int) -> Tensor:
    """The same for every x: (1/x)ⁿ, whose derivatives are right at any magnitude, and which is as accurate as 1 / xⁿ
    where xⁿ does not under- or overflow."""
    smooth = _power(torch.reciprocal(x), exponent)
    value = smooth.detach()
    gap = _inverse_power(x.detach(), exponent) - value
    return smooth + torch.where(torch.abs(gap) < torch.abs(value) * 2.0**-10, gap, 0.0)


@register(aten.special_zeta)
@float_math
def zeta(x: Any, other: Any) -> Tensor:
    """ζ(s, q) = Σ (q + k)^−s over k ≥ 0, ∞ at its poles s = 1 and q = 0, −1, …; for other q < 0 only at whole s. Next
    to zeros, all at q < 0, the error is absolute; subnormal values have an error of a few of the smallest float."""
    x, other = (value if is_tensor(value) else constant(near, value) for value, near in ((x, other), (other, x)))
    s, point = torch.broadcast_tensors(x, other)
    largest = torch.finfo(point.dtype).max
    last = point == -math.inf
    q = torch.where(last, -largest, point)  # −∞ is a pole too
    left = q <= 0
    order = torch.where(s <= 1, 2.0, s)
    r = torch.where(left, q - torch.round(q.detach()), 0.5)
    # One evaluation serves q itself and both sides of a pole.
    one = torch.ones_like(q)
    starts = torch.stack([torch.where(left, -q, q), r, -r], -1)
    first, rest = _zeta(torch.unsqueeze(order, -1), starts, torch.stack([torch.where(left, one, 0.0), one, one], -1))
    value = torch.unbind(first + rest, -1)[0]
    whole = torch.floor(s.detach()) == s
    mirrored = _left(order, r, torch.unbind(first, -1), torch.unbind(rest, -1))
    pole = r == 0
    mirrored = torch.where(torch.logical_or(whole, pole), mirrored, math.nan)
    value = torch.where(last, point * -largest * 4.0, torch.where(left, mirrored, value))
    # Where the powers of an order overflow while those of q are 0, PyTorch's kernel returns NaN.
    number = torch.logical_and(1 <= s, torch.logical_or(s < 25256835601046.0, value != 0))
    infinite = torch.logical_or(s == 1, torch.logical_and(pole, s != s))
    return torch.where(infinite, math.inf, torch.where(number, value, math.nan))


def _left(s: Tensor, r: Tensor, first: Sequence[Tensor], rest: Sequence[Tensor]) -> Tensor:
    """Σ (r + j)^−s over all whole j > −m for whole s, for |r| ≤ 1/2: r^−s, those above it, and those below less
    those from −m on. Of these, and of 1 + r and 1 − r, come the first terms and the rests of their sums: the largest
    two are added first, for they may cancel."""
    half = s.detach() * 0.5
    sign = torch.where(half == torch.floor(half), 1.0, -1.0).to(r.dtype)
    nearest, size = torch.pow(r, -s), torch.abs(r)
    below, above = sign * (first[2] - first[0]), first[1]
    # PyTorch's kernel computes in float64, where the term next to an infinite one, (1 − |r|)^−s, may be finite.
    alone = torch.logical_and(torch.abs(nearest) == math.inf, s * (size + size * size * 0.5) < 709.0)
    near = torch.where(alone, 0.0, torch.where(r < 0, above, below))
    total = (nearest + near) + torch.where(r < 0, below, above) + (rest[1] + sign * (rest[2] - rest[0]))
    # Halfway between two poles odd powers cancel exactly, so that only rounding errors would remain.
    halfway = torch.logical_and(torch.logical_and(sign < 0, size == 0.5), total == total)
    exact = (first[0] + rest[0]).detach() + (total - total.detach())
    return torch.where(halfway, exact, total)


def _zeta(s: Tensor, start: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
    """Σ (q + k)^−s for s > 1 and q = start + step > 0: the first term, and all others."""
    q = start + step
    unseen = start - (q - step)
    count, length = _TERMS[q.dtype]
    first = torch.unsqueeze(q, -1)
    ramp_ = along(ramp(q, count, dtype=q.dtype), q.dim(), q.dim() + 1)
    shifted = first + ramp_
    order = torch.unsqueeze(s, -1)
    terms = torch.pow(shifted, -order)
    bounded = torch.clamp(s, max=1e9)
    lost = first - (shifted - ramp_) + torch.unsqueeze(unseen, -1)
    terms = terms * _restored(torch.unsqueeze(bounded, -1), shifted, lost)
    z = q + count
    u = torch.reciprocal(z)
    scale = torch.pow(z, 1 - s) * _restored(bounded, z, q - (z - count) + unseen)
    rest = scale / (s - 1)
    scale = scale * u
    rest = rest + 0.5 * scale
    for j, coefficient in enumerate(_EULER_MACLAURIN[:length]):
        if j:
            scale = scale * ((bounded + (2 * j - 1)) * u)
        scale = scale * ((bounded + 2 * j) * u)
        rest = rest + coefficient * scale
    return terms[..., 0], torch.sum(terms[..., 1:], [-1]) + rest


def _restored(s: Tensor, z: Tensor, lost: Tensor) -> Tensor:
    """(z + lost)^−s / z^−s, the correction for the rounding error of z, which is amplified s times. Where z < 1/2 there
    is none."""
    change = s * (lost.detach() * torch.reciprocal(torch.clamp(z.detach(), min=0.5)))
    return 1 - torch.clamp(change, -0.5, 0.5)  # of huge orders all that matters is the sign
