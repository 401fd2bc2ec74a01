"""Powers of two that bring numbers to where their squares neither overflow nor vanish. Multiplying by them is exact."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from decomp_rules.support.operands import constant

# What the largest number may be without a scale, and the power that brings smaller and larger ones there. Then squares
# of eight million numbers, and of what differs in its last bit, are normal numbers; and the power over such a
# difference, which is met in a gradient, does not overflow. Those of float16 are so in float32, without a scale.
_SINGLE = 2.0**-40, 2.0**52, 2.0**76
_WITHIN = {torch.float32: _SINGLE, torch.bfloat16: _SINGLE, torch.float64: (2.0**-400, 2.0**450, 2.0**600)}


def scaled_for_squares(x: Tensor, dims: Sequence[int]) -> tuple[Tensor, Tensor | None]:
    """x times a power of two that is 1 unless the largest along the dimensions is huge or tiny; and what that must be
    multiplied by to be x, with the dimensions kept, or None where it is x in any case."""
    if x.dtype not in _WITHIN or 0 in [size for size in x.shape if isinstance(size, int)]:
        return x, None
    low, high, factor = _WITHIN[x.dtype]
    largest = torch.amax(torch.abs(x.detach()), dims, keepdim=True)
    lift = torch.where(largest < low, constant(x, factor), 1.0)
    scale = torch.where(largest > high, 1 / factor, lift)
    return x * scale, torch.reciprocal(scale)
