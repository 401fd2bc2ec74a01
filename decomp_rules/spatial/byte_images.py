"""Resampling of images of bytes in whole numbers, as PyTorch's CPU kernels have it, to the last bit: the columns
first, then the rows, with weights of as many binary places as 16 bits hold, and bytes, rounded and clamped, in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import math

import torch
from torch import Tensor

Shares = Sequence[tuple[int, Sequence[float]]]
"""For each output element: the first input element that contributes, and the weights of it and the following ones."""


def triangle(x: float) -> float:
    """1 − |x|, 0 beyond 1."""
    return max(1 - abs(x), 0.0)


def keys(x: float, a: float) -> float:
    """Cubic convolution (Keys, 1981), 0 beyond 2."""
    x = abs(x)
    if x < 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * a if x < 2 else 0.0


def lanczos(x: float) -> float:
    """sinc(x) sinc(x / 3), 0 beyond 3."""
    return _sinc(x) * _sinc(x / 3) if abs(x) < 3 else 0.0


def _sinc(x: float) -> float:
    return math.sin(math.pi * x) / (math.pi * x) if x else 1.0


def filtered(size: int, wanted: int, ratio: float, weight: Callable[[float], float], width: int) -> Shares:
    """All elements under a filter that is as wide as the scale; the weights sum to 1."""
    stretch = max(ratio, 1.0)
    support, found = width / 2 * stretch, []
    for i in range(wanted):
        centre = ratio * (i + 0.5)
        first, end = max(int(centre - support + 0.5), 0), min(int(centre + support + 0.5), size)
        weights = [weight((j - centre + 0.5) / stretch) for j in range(first, end)]
        total = sum(weights) or 1.0
        found.append((first, [w / total for w in weights]))
    return found


def interpolated(size: int, wanted: int, ratio: float, align_corners: bool, cubic: bool) -> Shares:
    """The two or four elements around the place of each; outside, the edge continues."""
    found = []
    for i in range(wanted):
        place = ratio * i if align_corners else ratio * (i + 0.5) - 0.5
        place = place if cubic else max(place, 0.0)
        low = math.floor(place)
        weights: dict[int, float] = {}
        for j in (low - 1, low, low + 1, low + 2) if cubic else (low, low + 1):
            kept = min(max(j, 0), size - 1)
            weights[kept] = weights.get(kept, 0.0) + (keys(place - j, -0.75) if cubic else triangle(place - j))
        found.append((min(weights), [weights[j] for j in sorted(weights)]))
    return found


def resampled(x: Tensor, shares: Sequence[Shares | None]) -> Tensor:
    """`x` resampled, as bytes (N, C, H, W), along the last dimension first; None leaves a dimension unchanged."""
    out = x.to(torch.int32)
    for dim in (3, 2):
        of_dim = shares[dim - 2]
        if of_dim is not None:
            out = _along(out, dim, of_dim)
    return out.to(torch.uint8)


def _along(x: Tensor, dim: int, shares: Shares) -> Tensor:
    """⌊Σ w x + ½⌋ with weights of `places` binary places."""
    places, size = _places(max(max(weights, default=0.0) for _, weights in shares)), x.shape[dim]
    count = max(len(weights) for _, weights in shares)
    index = [min(first + k, size - 1) for first, _ in shares for k in range(count)]
    whole = [[_whole(w, places) for w in weights] + [0] * (count - len(weights)) for _, weights in shares]
    lead, rest = list(x.shape[:dim]), list(x.shape[dim + 1 :])
    picked = x.index_select(dim, torch.tensor(index, device=x.device)).reshape([*lead, len(shares), count, *rest])
    weight = torch.tensor(whole, dtype=torch.int32, device=x.device).view([len(shares), count, *[1] * len(rest)])
    total = torch.sum(picked * weight, [dim + 1], dtype=torch.int32) + (1 << places >> 1)
    return torch.clamp(torch.bitwise_right_shift(total, places), 0, 255)


def _places(largest: float) -> int:
    """How many binary places leave the largest weight below 2¹⁵; at most 22."""
    return next((n for n in range(22) if int(0.5 + largest * (1 << (n + 1))) >= 1 << 15), 22)


def _whole(weight: float, places: int) -> int:
    return int(weight * (1 << places) + math.copysign(0.5, weight))
