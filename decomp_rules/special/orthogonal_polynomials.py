"""Chebyshev, Hermite, Laguerre and Legendre polynomials.

Low degrees come from the recurrence in the degree (DLMF 18.9), as in PyTorch's kernels. A degree that depends on data
is chosen among them; above these, Chebyshev's four kinds are quotients of circular functions between −1 and 1 and of
hyperbolic ones outside (DLMF 18.5), for any degree. A degree is cut to a whole number, and a negative one gives 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import itertools
import math
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.support.floating import corrected, float_math, is_tensor, square_error
from decomp_rules.support.operands import constant

RULES = Rules(level="exact")
register = RULES.register

# The last degree for which PyTorch gives Hermite's polynomials.
_HERMITE = {torch.float32: 128, torch.float64: 512}
# The largest degree that a tensor of small integers can hold.
_LARGEST = {torch.bool: 1, torch.int8: 127, torch.uint8: 255}


# Chebyshev's four kinds


@register(aten.special_chebyshev_polynomial_t)
def chebyshev_t(x: Any, n: Any) -> Tensor:
    """Tₙ(cos θ) = cos nθ."""
    return _chebyshev(x, n, lambda x: x, *_FIRST_KIND, low=6)


@register(aten.special_chebyshev_polynomial_u)
def chebyshev_u(x: Any, n: Any) -> Tensor:
    """Uₙ(cos θ) = sin (n + 1)θ / sin θ."""
    return _chebyshev(x, n, lambda x: x + x, *_SECOND_KIND)


@register(aten.special_chebyshev_polynomial_v)
def chebyshev_v(x: Any, n: Any) -> Tensor:
    """Vₙ(cos θ) = cos (n + ½)θ / cos ½θ."""
    return _chebyshev(x, n, lambda x: x + x - 1, *_THIRD_KIND)


@register(aten.special_chebyshev_polynomial_w)
def chebyshev_w(x: Any, n: Any) -> Tensor:
    """Wₙ(cos θ) = sin (n + ½)θ / sin ½θ = (−1)ⁿ·Vₙ(−cos θ)."""
    return _chebyshev(x, n, lambda x: x + x + 1, *_FOURTH_KIND)


@register(aten.special_shifted_chebyshev_polynomial_t)
def shifted_chebyshev_t(x: Any, n: Any) -> Tensor:
    """Tₙ(2x − 1)."""
    return _chebyshev(x, n, lambda x: x, *_FIRST_KIND, shifted=True, low=6)


@register(aten.special_shifted_chebyshev_polynomial_u)
def shifted_chebyshev_u(x: Any, n: Any) -> Tensor:
    """Uₙ(2x − 1)."""
    return _chebyshev(x, n, lambda x: x + x, *_SECOND_KIND, shifted=True)


@register(aten.special_shifted_chebyshev_polynomial_v)
def shifted_chebyshev_v(x: Any, n: Any) -> Tensor:
    """Vₙ(2x − 1)."""
    return _chebyshev(x, n, lambda x: x + x - 1, *_THIRD_KIND, shifted=True)


@register(aten.special_shifted_chebyshev_polynomial_w)
def shifted_chebyshev_w(x: Any, n: Any) -> Tensor:
    """Wₙ(2x − 1)."""
    return _chebyshev(x, n, lambda x: x + x + 1, *_FOURTH_KIND, shifted=True)


Function = Callable[[Tensor], Tensor]
Inside = Callable[[Tensor, Any], Tensor]
Outside = Callable[[Tensor, Tensor, Any], Tensor]


def _chebyshev(
    x: Any, n: Any, linear: Function, inside: Inside, outside: Outside, shifted: bool = False, low: int = 8
) -> Tensor:
    # Up to the degree `low` the recurrence is as exact as PyTorch's kernel, and short.
    def steps(x: Tensor) -> Iterator[Tensor]:
        previous, value = torch.ones_like(x), linear(x)
        while True:
            yield previous
            previous, value = value, (x + x) * value - previous

    def high(x: Tensor, n: Any) -> Tensor:
        whole = torch.trunc(n) if is_tensor(n) else n
        half = whole * 0.5
        odd = torch.floor(half) != half if is_tensor(n) else bool(n % 2)
        size = torch.abs(x)
        between = size < 1
        angle, argument = torch.acos(torch.where(between, x, 0.0)), torch.acosh(torch.where(between, 1.0, size))
        value = outside(x, argument, whole)
        value = torch.where(_flipped(x < 0, odd), -value, value)
        # PyTorch continues past overflow, where infinities are subtracted.
        lost = outside(x, argument, whole - 2) == math.inf
        return torch.where(between, inside(angle, whole), torch.where(lost, math.nan, value))

    return _of_degree(x, n, steps, high, low, shifted)


def _flipped(negative: Tensor, odd: Any) -> Tensor:
    if is_tensor(odd):
        return torch.logical_and(negative, odd)
    return negative if odd else torch.zeros_like(negative)


def _even_quotient(x: Tensor, n: Any) -> Tensor:
    """cosh (n + 1/2)x / cosh x/2."""
    return _grown(x, n, (1 + torch.exp(x * (-2 * n - 1))) / (1 + torch.exp(-x)))


def _odd_quotient(x: Tensor, n: Any, half: float) -> Tensor:
    """sinh (n + h)x / sinh hx, which is n / h + 1 at 0."""
    regular = torch.where(x == 0, 1.0, x)
    quotient = torch.expm1(regular * (-2 * (n + half))) / torch.expm1(regular * (-2 * half))
    return torch.where(x == 0, n / half + 1, _grown(regular, n, quotient))


def _grown(x: Tensor, n: Any, factor: Tensor) -> Tensor:
    """e^nx times a factor, which may be finite where e^nx is not."""
    half = torch.exp(x * (n * 0.5))
    return (half * factor) * half


# Of arccos x between −1 and 1 and the degree, and of |x| > 1, arcosh |x| and the degree: there but for the sign.
_FIRST_KIND: tuple[Inside, Outside] = (
    lambda angle, n: torch.cos(angle * n),
    lambda x, a, n: _grown(a, n, 0.5 + 0.5 * torch.exp(a * (-2 * n))),
)
_SECOND_KIND: tuple[Inside, Outside] = (
    lambda angle, n: torch.sin(angle * (n + 1)) / torch.sin(angle),
    lambda x, a, n: _odd_quotient(a, n, 1.0),
)
_THIRD_KIND: tuple[Inside, Outside] = (
    lambda angle, n: torch.cos(angle * (n + 0.5)) / torch.cos(angle * 0.5),
    lambda x, a, n: torch.where(x < 0, _odd_quotient(a, n, 0.5), _even_quotient(a, n)),
)
_FOURTH_KIND: tuple[Inside, Outside] = (
    lambda angle, n: torch.sin(angle * (n + 0.5)) / torch.sin(angle * 0.5),
    lambda x, a, n: torch.where(x > 0, _odd_quotient(a, n, 0.5), _even_quotient(a, n)),
)


# The others


@register(aten.special_hermite_polynomial_h)
def hermite_h(x: Any, n: Any) -> Tensor:
    """H₀ = 1, H₁ = 2x, Hₖ₊₁ = 2x·Hₖ − 2k·Hₖ₋₁."""

    def steps(x: Tensor) -> Iterator[Tensor]:
        first = torch.ones_like(x)
        yield first
        previous, value = x + x, _doubled_square_less_one(x)
        for k in itertools.count(2):
            yield previous
            half = x * value - previous * float(k)
            previous, value = value, half + half

    return _of_degree(x, n, steps, _no_number, None)


def _doubled_square_less_one(x: Tensor) -> Tensor:
    """4x² − 2, with all digits also next to its zeros."""
    twice = x + x
    square, point = twice * twice, twice.detach()
    return corrected(square - 2, square_error(point, square.detach()), point)


@register(aten.special_hermite_polynomial_he)
def hermite_he(x: Any, n: Any) -> Tensor:
    """He₀ = 1, He₁ = x, Heₖ₊₁ = x·Heₖ − k·Heₖ₋₁."""

    def steps(x: Tensor) -> Iterator[Tensor]:
        previous, value = torch.ones_like(x), x
        for k in itertools.count(1):
            yield previous
            previous, value = value, x * value - previous * float(k)

    return _of_degree(x, n, steps, _no_number, None)


@register(aten.special_laguerre_polynomial_l)
def laguerre(x: Any, n: Any) -> Tensor:
    """L₀ = 1, L₁ = 1 − x, L₂ = ((3 − x)·L₁ − 1) / 2, Lₖ₊₁ = Lₖ + (k·(Lₖ − Lₖ₋₁) − x·Lₖ) / (k + 1)."""

    def steps(x: Tensor) -> Iterator[Tensor]:
        previous, value = torch.ones_like(x), 1 - x
        yield previous
        previous, value, part = value, ((3 - x) * value - 1) * 0.5, x * (1 / 256)
        for k in itertools.count(2):
            yield previous
            # In parts of 256, which do not overflow where the step is a number.
            step = (value - previous) * (k / 256) - part * value
            previous, value = value, value + step * (256 / (k + 1))

    return _of_degree(x, n, steps, None, None)


@register(aten.special_legendre_polynomial_p)
def legendre(x: Any, n: Any) -> Tensor:
    """P₀ = 1, P₁ = x, Pₖ₊₁ = ((2k + 1)·x·Pₖ − k·Pₖ₋₁) / (k + 1)."""

    def steps(x: Tensor) -> Iterator[Tensor]:
        previous, value = torch.ones_like(x), x
        for k in itertools.count(1):
            yield previous
            step = x * (2.0 * k + 1) * value - previous * float(k)
            previous, value = value, step * (1 / (k + 1))

    return _of_degree(x, n, steps, None, None)


def _degree_in_data(call: Any) -> bool:
    n = call.argument("n")
    return getattr(n, "dtype", torch.bool) not in _LARGEST


RULES.limit(
    aten.special_laguerre_polynomial_l,
    aten.special_legendre_polynomial_p,
    reason="the degree, and so the number of steps, depends on data",
    when=_degree_in_data,
)


def _no_number(x: Tensor, n: Any) -> Tensor:
    return torch.full_like(x, math.nan)


def _of_degree(
    x: Any,
    n: Any,
    steps: Callable[[Tensor], Iterator[Tensor]],
    high: Callable[[Tensor, Any], Tensor] | None,
    low: int | None,
    shifted: bool = False,
) -> Tensor:
    """The polynomial of degree n: one of those in `steps`, up to `low` (Hermite's bound where that is not given), and
    beyond them `high`; without that, all there may be."""
    largest = _LARGEST.get(n.dtype, math.inf) if is_tensor(n) else 0
    if high is None and largest == math.inf:
        return decline("the degree depends on data")

    @float_math
    def value(x: Any, n: Any) -> Tensor:
        x = x if is_tensor(x) else constant(n, x)
        x = x + x - 1 if shifted else x
        bound = math.inf if high is None else low or _HERMITE[x.dtype]
        if not is_tensor(n):
            return _of_known_degree(x, n, steps, high, bound)
        x, n = torch.broadcast_tensors(x, n)
        chosen = list(itertools.islice(steps(x), int(min(bound, largest)) + 1))
        result = chosen[-1] if high is None or largest <= bound else high(x, n)
        for k, step in reversed(list(enumerate(chosen))):
            result = torch.where(n < k + 1, step, result)
        # Numbers that no int64 holds count as negative.
        return torch.where(torch.logical_and(-1 < n, n < 2.0**63), result, 0.0)

    result: Tensor = value(x, n)
    return result


def _of_known_degree(x: Tensor, n: Any, steps: Any, high: Any, bound: float) -> Tensor:
    if not -1 < n < 2.0**63:
        return torch.zeros_like(x)
    degree = int(n)
    if high is not None and degree > bound:
        result: Tensor = high(x, degree)
        return result
    return next(itertools.islice(steps(x), degree, None))
