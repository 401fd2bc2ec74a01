"""Quantised values, `quantized_decomposed.quantize_*` and `dequantize_*`: q = clamp(round(x / s) + z), in an integer
dtype, represents (q − z) s, with one s and z for all, or one for each channel, token or group.

Each rule takes the steps of PyTorch's reference implementation in its order and its dtypes, so that no bit differs:
rounding is to nearest, ties to even, and casts of NaN or of values outside the dtype depend on the processor, as in the
reference. Checks of data, which raise an error in the reference, are not made.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
import torch.ao.quantization.fx._decomposed  # which registers the ops

from decomp import Rules, decline
from decomp.results import Declined
from decomp_rules.support.gradients import with_gradient_of
from decomp_rules.support.operands import HALVES, cast, is_scalar, wide

RULES = Rules(level="exact")
register = RULES.register

ops = torch.ops.quantized_decomposed

_INTEGERS = (torch.uint8, torch.int8, torch.uint16, torch.int16, torch.int32)
_FLOATS = (torch.float8_e5m2, torch.float8_e4m3fn)


@register(ops.quantize_per_tensor)
def quantize_per_tensor(
    x: Tensor, scale: Any, zero_point: Any, quant_min: Any, quant_max: Any, dtype: torch.dtype
) -> Tensor | Declined:
    """clamp(round(x · 1/s) + z) in float32, cast. 1/s is computed in float64 where s is a number or held so."""
    if x.dtype not in (torch.float32, *HALVES):
        return decline("only float32 and half types are quantised")
    if (refused := _outside(quant_min, quant_max, dtype)) is not None:
        return refused
    if not is_scalar(scale):
        scale, zero_point = scale.reshape(()), cast(zero_point.reshape(()), torch.float32)
        scale = scale if scale.dtype == torch.float64 else cast(scale, torch.float32)
        places = torch.round(wide(x) * cast(torch.reciprocal(scale), torch.float32)) + zero_point
    else:
        places = torch.round(wide(x) * (1.0 / scale)) + zero_point
    if not is_scalar(quant_min):
        quant_min, quant_max = (cast(end.reshape(()), torch.float32) for end in (quant_min, quant_max))
    return cast(torch.clamp(places, quant_min, quant_max), dtype)


@register(ops.dequantize_per_tensor)
def dequantize_per_tensor(
    x: Tensor,
    scale: Any,
    zero_point: Any,
    quant_min: Any,
    quant_max: Any,
    dtype: torch.dtype,
    out_dtype: torch.dtype | None = None,
) -> Tensor | Declined:
    """(q − z) s in float32 or `out_dtype`; for a half type each step is computed in float32 and rounded."""
    if (refused := _not_of(x, dtype)) is not None:
        return refused
    result = out_dtype or torch.float32
    computed = torch.float32 if result in HALVES else result
    if not is_scalar(scale):
        scale, zero_point = (cast(each.detach().reshape(()), computed) for each in (scale, zero_point))
    offset = cast(wide(cast(x, result)) - zero_point, result)
    return cast(wide(offset) * scale, result)


@register(ops.quantize_per_channel)
def quantize_per_channel(
    x: Tensor, scales: Tensor, zero_points: Tensor, axis: int, quant_min: int, quant_max: int, dtype: torch.dtype
) -> Tensor | Declined:
    """clamp(round(x · 1/s) + z), cast, with an s and a z for each index of `axis`; in float64 where s is held so."""
    if x.dtype not in (torch.float32, *HALVES):
        return decline("only float32 and half types are quantised")
    if (refused := _outside(quant_min, quant_max, dtype)) is not None:
        return refused
    places = torch.round(wide(x) * (1.0 / across(scales, x, axis))) + across(zero_points, x, axis)
    return cast(torch.clamp(places, quant_min, quant_max), dtype)


@register(ops.dequantize_per_channel)
def dequantize_per_channel(
    x: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    out_dtype: torch.dtype | None = None,
) -> Tensor | Declined:
    """(q − z) s, with an s and a z for each index of `axis`; q − z in the dtype that the two promote to."""
    if (refused := _not_of(x, dtype) or _outside(quant_min, quant_max, dtype)) is not None:
        return refused
    if dtype in _FLOATS:
        return decline("float8 is not promoted with the dtype of a scale")
    offset = x if zero_points is None else x - across(zero_points, x, axis)
    return cast(offset * across(scales, x, axis), out_dtype or torch.float32)


@register(ops.quantize_per_token)
def quantize_per_token(
    x: Tensor, scales: Tensor, zero_points: Tensor, quant_min: int, quant_max: int, dtype: torch.dtype
) -> Tensor | Declined:
    """clamp(round(x · 1/s + z)), cast, with an s and a z for each row along the last dimension."""
    if (refused := _outside(quant_min, quant_max, dtype)) is not None:
        return refused
    return cast(torch.clamp(torch.round(x * (1.0 / scales) + zero_points), quant_min, quant_max), dtype)


@register(ops.dequantize_per_token)
def dequantize_per_token(
    x: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    output_dtype: torch.dtype,
) -> Tensor:
    """(q − z) s, with an s and a z for each row along the last dimension."""
    return cast((x - zero_points) * scales, output_dtype)


@register(ops.quantize_per_channel_group)
def quantize_per_channel_group(
    x: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    group_size: int,
) -> Tensor | Declined:
    """clamp(round(x · 1/s + z)), cast, for a matrix with an s and a z for each `group_size` elements of a row."""
    groups = _in_groups(x, scales, group_size)
    if isinstance(groups, Declined):
        return groups
    places = torch.round(groups * (1.0 / scales.reshape(-1, 1)) + zero_points.reshape(-1, 1))
    return cast(torch.clamp(places, quant_min, quant_max), dtype).reshape(x.shape)


@register(ops.dequantize_per_channel_group)
def dequantize_per_channel_group(
    x: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    group_size: int,
    output_dtype: torch.dtype,
) -> Tensor | Declined:
    """(q − z) s, for a matrix with an s and a z for each `group_size` elements of a row."""
    groups = _in_groups(x, scales, group_size)
    if isinstance(groups, Declined):
        return groups
    offset = groups if zero_points is None else groups - zero_points.reshape(-1, 1)
    return cast((offset * scales.reshape(-1, 1)).reshape(x.shape), output_dtype)


@register(ops.fake_quant_per_channel)
def fake_quant_per_channel(
    x: Tensor, scales: Tensor, zero_points: Tensor, axis: int, quant_min: int, quant_max: int
) -> Tensor | Declined:
    """(clamp(round(x · 1/s) + z) − z) s in float32, with the gradient of x where nothing was cut off, else 0."""
    if x.dtype != torch.float32:
        return decline("only float32 is quantised")
    step = across(cast(scales, torch.float32).detach(), x, axis)
    zero = across(cast(zero_points, torch.int32), x, axis)
    place = torch.round(x.detach() * (1.0 / step)) + zero
    value = (torch.clamp(place, quant_min, quant_max) - zero) * step
    inside = (place >= quant_min) & (place <= quant_max)
    return with_gradient_of(value, torch.where(inside, x, torch.zeros_like(x)))


@register(ops.convert_element_type)
def convert_element_type(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in another dtype; the op is there to keep compilers from fusing the cast."""
    return cast(x, dtype)


def across(parameter: Tensor, x: Tensor, axis: int) -> Tensor:
    """A vector laid along `axis` of x."""
    return parameter.reshape([-1 if d == axis % x.dim() else 1 for d in range(x.dim())])


def _in_groups(x: Tensor, scales: Tensor, size: int) -> Tensor | Declined:
    """The elements of a matrix in rows of one group each. A last dimension shorter than a group is one group."""
    if x.dim() != 2 or size <= 1:
        return decline("only matrices are quantised in groups, and only in groups of two or more")
    size = x.shape[-1] if size > x.shape[-1] and scales.shape[-1] == 1 else size
    if x.shape[-1] % size:
        return decline("the rows are no whole number of groups")
    return x.reshape(-1, size)


def _outside(low: Any, high: Any, dtype: torch.dtype) -> Declined | None:
    """The reason not to quantise to `dtype`, if it does not have the range; bounds that depend on data are not
    checked."""
    if dtype not in _INTEGERS + _FLOATS:
        return decline(f"{dtype} holds no quantised values")
    info = torch.iinfo(dtype) if dtype in _INTEGERS else torch.finfo(dtype)
    if is_scalar(low) and (low < int(info.min) or high > int(info.max)):
        return decline(f"the range from {low} to {high} is beyond {dtype}")
    return None


def _not_of(x: Tensor, dtype: torch.dtype) -> Declined | None:
    """The reason not to dequantise, if the values are not of the dtype that the call says."""
    return decline(f"the values are {x.dtype}, and the call says {dtype}") if x.dtype != dtype else None
