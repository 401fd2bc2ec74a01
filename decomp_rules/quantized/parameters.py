"""Scales and zero points chosen from the values while a program runs, as dynamic quantisation does:
`quantized_decomposed.choose_qparams*`. Each rule takes the steps of PyTorch's reference implementation in its order and
its dtypes, so that no bit differs where the target divides as PyTorch does, or by rules of the level "exact".
"""

from __future__ import annotations

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.results import Declined
from decomp_rules.quantized.values import ops
from decomp_rules.support.operands import HALVES, cast

RULES = Rules(level="exact")
register = RULES.register

Parameters = tuple[Tensor, Tensor]

RULES.limit(
    ops.choose_qparams_per_token,
    reason="its results are float32 or bfloat16 when it runs, and float64 and int64 to programs (torch 2.13)",
)


@register(ops.choose_qparams)
def choose_qparams(x: Tensor, quant_min: int, quant_max: int, eps: float, dtype: torch.dtype) -> Parameters | Declined:
    """s = max((max x⁺ − min x⁻) / (highest − lowest), ε) and z = lowest − round(min x⁻ / s) in the range, as float64
    and int64 of one element."""
    if x.dtype not in (torch.float32, *HALVES):
        return decline("only float32 and half types are quantised")
    low, high = _ends(x, torch.amin(x), torch.amax(x))
    scale = _at_least((high - low) / float(quant_max - quant_min), eps)
    zero = quant_min - cast(torch.round(low / scale), torch.int32)
    return cast(scale, torch.float64), cast(torch.clamp(zero, quant_min, quant_max), torch.int64)


@register(ops.choose_qparams_symmetric)
def choose_qparams_symmetric(
    x: Tensor, quant_min: int, quant_max: int, eps: float, dtype: torch.dtype
) -> Parameters | Declined:
    """s = max(2 max |x| / (highest − lowest), ε), and z = 0, or 128 for uint8."""
    if x.dtype not in (torch.float32, *HALVES):
        return decline("only float32 and half types are quantised")
    low, high = _ends(x, torch.amin(x), torch.amax(x))
    scale = _at_least(torch.maximum(-low, high) / (float(quant_max - quant_min) / 2), eps)
    zero = torch.full((1,), 128 if dtype == torch.uint8 else 0, dtype=torch.int64, device=x.device)
    return cast(scale, torch.float64), zero


@register(ops.choose_qparams_per_token_asymmetric, ops._choose_qparams_per_token_asymmetric_impl)
def choose_qparams_per_token_asymmetric(x: Tensor, dtype: torch.dtype) -> Parameters:
    """For each row along the last dimension, for int8: s = max((max x⁺ − min x⁻) / 255, ε), and the z that loses less
    at the end of the range that is farther off, as XNNPACK has it."""
    lowest, highest = -128, 127
    low, high = _ends(x, torch.amin(x, -1, keepdim=True), torch.amax(x, -1, keepdim=True))
    scale = torch.clamp((high - low) / float(highest - lowest), min=torch.finfo(torch.float32).eps)
    below, above = low / scale, high / scale
    zero = torch.where((lowest + below) + (highest + above) > 0, lowest - below, highest - above)
    zero = torch.round(torch.clamp(zero, lowest, highest))
    return cast(scale, torch.float64), cast(zero, torch.int64)


def _ends(x: Tensor, least: Tensor, greatest: Tensor) -> Parameters:
    """The range of the values with 0 in it."""
    return torch.minimum(least, torch.zeros_like(least)), torch.maximum(greatest, torch.zeros_like(greatest))


def _at_least(scale: Tensor, eps: float) -> Tensor:
    """The scale, or ε in float32, as one element."""
    return torch.maximum(scale, torch.full((1,), eps, dtype=torch.float32, device=scale.device))
