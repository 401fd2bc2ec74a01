"""A hash of elements: the exclusive or of their bits, once they are widened to 64. Targets that cannot reinterpret bits
put those of a float together from its sign, exponent and significand."""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.support.operands import cast, constant, wrap

RULES = Rules(level="exact")
register = RULES.register


@register(aten.hash_tensor)
def hash_by_bits(x: Tensor, dim: Sequence[int] = (), keepdim: bool = False, mode: int = 0) -> Tensor:
    """The exclusive or of the bits of float64 or int64, read as uint64. Exactly the op."""
    if x.is_complex():
        return decline("only real inputs")
    bits = cast(x.detach(), torch.float64).view(torch.int64) if x.is_floating_point() else cast(x, torch.int64)
    return _hashed(bits, dim, keepdim)


@register(aten.hash_tensor)
def hash_by_parts(x: Tensor, dim: Sequence[int] = (), keepdim: bool = False, mode: int = 0) -> Tensor:
    """The same with sign · 2⁶³ + (exponent + 1022) · 2⁵² + the fraction for the bits. Exactly the op, but that all NaN
    are one."""
    if not x.is_floating_point():
        return decline("only floats")
    value = cast(x.detach(), torch.float64)
    finite = torch.lt(torch.abs(value), math.inf) & torch.ne(value, 0)
    # An infinity or NaN has no integer that it could be cast to.
    significand, exponent = torch.frexp(torch.where(finite, value, constant(value, 0.0)))
    normal = torch.gt(exponent, -1022)
    fraction = cast(torch.abs(significand) * 2.0**53, torch.int64) - 2**52
    small = cast(torch.abs(torch.where(normal, constant(value, 0.0), value)) * 2.0**537 * 2.0**537, torch.int64)
    bits = torch.where(normal, (cast(exponent, torch.int64) + 1022) * 2**52 + fraction, small)
    bits = torch.where(finite, bits, constant(bits, 0))
    bits = torch.where(torch.eq(torch.abs(value), math.inf), constant(bits, 2047 * 2**52), bits)
    bits = torch.where(torch.ne(value, value), constant(bits, 4095 * 2**51), bits)
    return _hashed(bits + torch.where(torch.signbit(value), constant(bits, -(2**63)), 0), dim, keepdim)


def _hashed(bits: Tensor, dim: Sequence[int], keepdim: bool) -> Tensor:
    """The exclusive or over dimensions, over all if none is named: the first half with the second, log₂ n times."""
    rank = bits.dim()
    dims = sorted({wrap(d, rank) for d in dim}) if len(dim) and rank else list(range(rank))
    kept = [d for d in range(rank) if d not in dims]
    line = bits.permute([*kept, *dims]).reshape([*[bits.shape[d] for d in kept], -1])
    size: Any = line.shape[-1]
    if not isinstance(size, int) or size == 0:
        return decline("the number of elements is not known, or none")
    while size > 1:
        half = size // 2
        folded = line.narrow(-1, 0, half) ^ line.narrow(-1, half, half)
        line = torch.cat([folded, line.narrow(-1, 2 * half, 1)], -1) if size % 2 else folded
        size = half + size % 2
    shape = [1 if d in dims else n for d, n in enumerate(bits.shape) if keepdim or d not in dims]
    return line.reshape(shape).to(torch.uint64)
