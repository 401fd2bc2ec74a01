"""Window functions for signals: constants, computed in double precision and rounded once.

A window of length n has its k-th value at k / (n − 1) of its way, or at k / n if it is periodic: then it is the
symmetric one of length n + 1 without its last value.
"""

from __future__ import annotations

from collections.abc import Callable
import math
from typing import Any

import torch

from decomp import Rules, decline
from decomp.ops import aten

RULES = Rules(level="exact")
register = RULES.register


def _window(
    length: Any, periodic: bool, dtype: torch.dtype | None, device: Any, value: Callable[[float], float]
) -> Any:
    """The values of a function on [0, 1] along a window; of a window of one value, 1."""
    if not isinstance(length, int):
        return decline("the length is not known")
    last = length if periodic else length - 1
    values = [1.0] if length == 1 else [value(k / last) for k in range(length)]
    return torch.tensor(values, dtype=dtype or torch.get_default_dtype(), device=device)


@register(aten.hann_window)
def hann_window(window_length: int, periodic: bool = True, dtype: torch.dtype | None = None, device: Any = None) -> Any:
    """sin² πt. ≤ 0.5 ULP."""
    return _window(window_length, periodic, dtype, device, lambda t: math.sin(math.pi * t) ** 2)


@register(aten.hamming_window)
def hamming_window(
    window_length: int,
    periodic: bool = True,
    alpha: float = 0.54,
    beta: float = 0.46,
    dtype: torch.dtype | None = None,
    device: Any = None,
) -> Any:
    """α − β·cos 2πt. ≤ 0.5 ULP."""
    return _window(window_length, periodic, dtype, device, lambda t: alpha - beta * math.cos(2 * math.pi * t))


@register(aten.blackman_window)
def blackman_window(
    window_length: int, periodic: bool = True, dtype: torch.dtype | None = None, device: Any = None
) -> Any:
    """0.42 − 0.5·cos 2πt + 0.08·cos 4πt = s²·(1 − 0.64·(1 − s²)) with s = sin πt. ≤ 0.5 ULP."""

    def value(t: float) -> float:
        square = math.sin(math.pi * t) ** 2
        return square * (0.36 + 0.64 * square)

    return _window(window_length, periodic, dtype, device, value)


@register(aten.bartlett_window)
def bartlett_window(
    window_length: int, periodic: bool = True, dtype: torch.dtype | None = None, device: Any = None
) -> Any:
    """1 − |2t − 1|. ≤ 0.5 ULP."""
    return _window(window_length, periodic, dtype, device, lambda t: 1 - abs(2 * t - 1))


@register(aten.kaiser_window)
def kaiser_window(
    window_length: int, periodic: bool = True, beta: float = 12.0, dtype: torch.dtype | None = None, device: Any = None
) -> Any:
    """I₀(β·√(1 − (2t − 1)²)) / I₀(β). ≤ 0.5 ULP."""
    whole = _bessel_i0(beta)
    return _window(
        window_length, periodic, dtype, device, lambda t: _bessel_i0(2 * beta * math.sqrt(t * (1 - t))) / whole
    )


def _bessel_i0(x: float) -> float:
    """Σ (x/2)²ᵏ / k!², all of whose terms are positive."""
    term, total, k = 1.0, 1.0, 0
    while term > total * 1e-17:
        k += 1
        term *= (x / 2 / k) ** 2
        total += term
    return total
