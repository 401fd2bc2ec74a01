"""Products of values that are quantised while the program runs with 4-bit weights, `_dyn_quant_matmul_4bit`, whose
weights `_dyn_quant_pack_4bit_weight` packed where PyTorch has no KleidiAI: bytes, scales and a bias, all as float32.
The steps are those of PyTorch's reference kernel, in its dtypes (`ATen/native/cpu/int4mm_kernel.cpp`); the order of its
last products and sums is the compiler's."""

from __future__ import annotations

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp.results import Declined
from decomp_rules.support.operands import cast

RULES = Rules(level="exact")
register = RULES.register

_LOWEST, _HIGHEST = -128.0, 127.0


@register(aten._dyn_quant_matmul_4bit)
def _dyn_quant_matmul_4bit(
    inp: Tensor, packed_weights: Tensor, block_size: int, in_features: int, out_features: int
) -> Tensor | Declined:
    """(M, K) float32 → (M, N): for each row x = (q − z) s with q in int8; s Σ s′ Σ (q − z) (p − 8) + b, the inner sum
    over the numbers of a block, in int32. A byte has two numbers p of a row, the first in the low bits."""
    if packed_weights.dtype != torch.float32:
        return decline("weights that KleidiAI packed are laid out for the processor that packed them")
    if inp.dtype != torch.float32 or in_features % 2:
        return decline("the reference kernel takes float32 and an even number of features")
    count, blocks = out_features * in_features // 2, in_features // block_size
    byte = cast(packed_weights[:count], torch.int32)
    weight = torch.stack((byte & 15, byte >> 4), -1).reshape(out_features, blocks, block_size) - 8
    scales = packed_weights[count : count + out_features * blocks].reshape(out_features, blocks)
    places, step = _quantised(inp)
    sums = torch.matmul(places.unflatten(1, (blocks, block_size)).transpose(0, 1), weight.permute(1, 2, 0))
    out = torch.sum(cast(sums, torch.float32) * scales.t().unsqueeze(1), 0) * step
    has_bias = packed_weights.shape[0] > count + out_features * blocks
    return out + packed_weights[count + out_features * blocks :] if has_bias else out


def _quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    """q − z in int32, (M, K), and s, (M, 1). Ties are rounded away from 0, those of z to even."""
    low = torch.clamp(torch.amin(x, 1, keepdim=True), max=0)
    high = torch.clamp(torch.amax(x, 1, keepdim=True), min=0)
    inverse = torch.where(low == high, 1, (_HIGHEST - _LOWEST) / (high - low))
    below, above = low * inverse, high * inverse
    zero = torch.where((_LOWEST + below) + (_HIGHEST + above) > 0, _LOWEST - below, _HIGHEST - above)
    zero = torch.round(torch.clamp(zero, _LOWEST, _HIGHEST))
    scaled = x * inverse
    whole = torch.trunc(scaled)
    nearest = whole + torch.where(torch.abs(scaled - whole) >= 0.5, torch.sign(scaled), 0)
    place = torch.clamp(nearest + zero, _LOWEST, _HIGHEST)
    return cast(place - zero, torch.int32), torch.reciprocal(inverse)
