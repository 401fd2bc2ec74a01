"""Quantisation as arithmetic on floats: what quantisation-aware training emits (`fake_quantize_*`), and products with
8-bit weights.

A value becomes clamp(round(x / s) + z, lowest, highest), rounded to even, with NaN the lowest; the quantised q
represents (q − z) s. (The per-channel kernels overflow beyond 2⁶³ s, where these rules clamp.) The gradient passes
where nothing was clamped. Tensors of a quantised dtype are not supported: no plain op reads them.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from decomp import Rules
from decomp.ops import aten
from decomp_rules.support.gradients import with_gradient_of
from decomp_rules.support.operands import cast, is_scalar, wide

RULES = Rules(level="exact")
register = RULES.register

Gradients = tuple[Tensor, Tensor, Tensor]


def _ops(names: str) -> list[Any]:
    return [getattr(aten, name) for name in names.split()]


RULES.limit(
    *_ops(
        "quantize_per_tensor quantize_per_channel quantize_per_tensor_dynamic "
        "_make_per_tensor_quantized_tensor _make_per_channel_quantized_tensor "
        "dequantize int_repr quantized_lstm_cell quantized_gru_cell "
        "quantized_batch_norm quantized_max_pool2d"
    ),
    reason="a tensor of a quantised dtype carries its scale with it, which no plain op reads",
)
RULES.limit(
    *_ops(
        "_weight_int4pack_mm _weight_int4pack_mm_for_cpu _weight_int4pack_mm_with_scales_and_zeros "
        "_convert_weight_to_int4pack _convert_weight_to_int4pack_for_cpu "
        "_dyn_quant_matmul_4bit _dyn_quant_pack_4bit_weight"
    ),
    reason="how 4-bit weights are packed depends on the processor that packed them, which a program does not say: name "
    "it, rules=decomp_rules.quantized.packing.rules(LAYOUT) | decomp_rules.RULES",
)
RULES.limit(aten.choose_qparams_optimized, reason="how long the search for the range runs is data")
RULES.limit(
    aten.fused_moving_avg_obs_fake_quant,
    aten._fused_moving_avg_obs_fq_helper,
    reason="it writes what it has observed to its arguments, and whether it does is data",
)


@register(aten.fake_quantize_per_tensor_affine_cachemask)
def fake_quantize_per_tensor_affine_cachemask(
    x: Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    """(clamp(round(x / s) + z) − z) s, and where it was not clamped. Exactly the kernel."""
    step = _single(scale)
    places, inside = quantised(x, _single(1 / step), zero_point, quant_min, quant_max)
    return passed(x, cast((places - zero_point) * step, torch.float32), inside), inside


def _single(number: float) -> float:
    """A tensor of one element in the kernels' dtype, which is float32 even for float64; a Python number is
    unchanged."""
    return ctypes.c_float(number).value if type(number) is float else number


@register(aten.fake_quantize_per_tensor_affine)
def fake_quantize_per_tensor_affine(x: Tensor, scale: Any, zero_point: Any, quant_min: int, quant_max: int) -> Tensor:
    """(clamp(round(x / s) + z) − z) s."""
    if is_scalar(scale):
        return fake_quantize_per_tensor_affine_cachemask(x, scale, zero_point, quant_min, quant_max)[0]
    enabled = torch.full((1,), 1, dtype=torch.int64, device=x.device)
    return _fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
        x, scale, zero_point, enabled, quant_min, quant_max
    )[0]


@register(aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams)
def _fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    fake_quant_enabled: Tensor,
    quant_min: int,
    quant_max: int,
) -> tuple[Tensor, Tensor]:
    """The same with tensors of one element for s and z; x itself where it is not enabled."""
    step, zero = (cast(p, torch.float32).detach().reshape(()) for p in (scale, zero_point))
    places, inside = quantised(x, torch.reciprocal(step), zero, quant_min, quant_max)
    enabled = fake_quant_enabled.reshape(()) != 0
    inside = inside | ~enabled
    value = cast((places - zero) * step, torch.float32)
    return passed(x, torch.where(enabled, cast(value, wide(x).dtype), wide(x).detach()), inside), inside


@register(aten.fake_quantize_per_channel_affine_cachemask)
def fake_quantize_per_channel_affine_cachemask(
    x: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    """The same with an s and a z for each index of `axis`; a z that is a float is added before rounding."""
    step, zero = (across(p, x, axis) for p in (wide(scale).detach(), cast(zero_point, torch.float32).detach()))
    whole = not zero_point.is_floating_point()
    places, inside = quantised(x, torch.reciprocal(step), zero, quant_min, quant_max, whole)
    return passed(x, (places - zero) * step, inside), inside


@register(aten.fake_quantize_per_channel_affine)
def fake_quantize_per_channel_affine(
    x: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
) -> Tensor:
    """(clamp(round(x / s) + z) − z) s, with an s and a z for each index of `axis`."""
    return fake_quantize_per_channel_affine_cachemask(x, scale, zero_point, axis, quant_min, quant_max)[0]


@register(
    aten.fake_quantize_per_tensor_affine_cachemask_backward, aten.fake_quantize_per_channel_affine_cachemask_backward
)
def fake_quantize_backward(grad: Tensor, mask: Tensor) -> Tensor:
    """g where nothing was cut off, else 0."""
    return grad * cast(mask, grad.dtype)


@register(aten._fake_quantize_learnable_per_tensor_affine)
def _fake_quantize_learnable_per_tensor_affine(
    x: Tensor, scale: Tensor, zero_point: Tensor, quant_min: int, quant_max: int, grad_factor: float = 1.0
) -> Tensor:
    """Fake quantisation whose s and z are trained, z being rounded into the range."""
    return learnt(x, scale, zero_point, (), quant_min, quant_max, grad_factor)


@register(aten._fake_quantize_learnable_per_channel_affine)
def _fake_quantize_learnable_per_channel_affine(
    x: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int, grad_factor: float = 1.0
) -> Tensor:
    """The same with an s and a z for each index of `axis`."""
    return learnt(x, scale, zero_point, (axis,), quant_min, quant_max, grad_factor)


@register(aten._fake_quantize_learnable_per_tensor_affine_backward)
def _fake_quantize_learnable_per_tensor_affine_backward(
    grad: Tensor,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> Gradients:
    """g where nothing was clamped, and the gradients of s and z."""
    return learnt_backward(grad, x, scale, zero_point, (), quant_min, quant_max, grad_factor)


@register(aten._fake_quantize_learnable_per_channel_affine_backward)
def _fake_quantize_learnable_per_channel_affine_backward(
    grad: Tensor,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> Gradients:
    """g where nothing was clamped, and the gradients of each s and z."""
    return learnt_backward(grad, x, scale, zero_point, (axis,), quant_min, quant_max, grad_factor)


@register(aten._int_mm)
def _int_mm(x: Tensor, mat2: Tensor) -> Tensor:
    """The product of matrices of int8, in int32. Exact."""
    return torch.matmul(cast(x, torch.int32), cast(mat2, torch.int32))


@register(aten._weight_int8pack_mm)
def _weight_int8pack_mm(x: Tensor, mat2: Tensor, scales: Tensor) -> Tensor:
    """x wᵀ · s for int8 weights (N, K) with a scale for each row."""
    product = torch.matmul(wide(x), cast(mat2, wide(x).dtype).transpose(0, 1))
    return cast(product * wide(scales), x.dtype)


def quantised(x: Tensor, inverse: Any, zero: Any, low: int, high: int, whole: bool = True) -> tuple[Tensor, Tensor]:
    """clamp(round(x / s) + z) as a float, and where it was not clamped; no gradient. `whole`: z is added after
    rounding."""
    scaled = wide(x).detach() * inverse
    place = torch.round(scaled) + zero if whole else torch.round(scaled + zero)
    inside = (place >= low) & (place <= high)
    return torch.where(place == place, torch.clamp(place, low, high), low), inside


def passed(x: Tensor, value: Tensor, inside: Tensor) -> Tensor:
    """The value, with the gradient of x where it is inside."""
    return with_gradient_of(cast(value, x.dtype), torch.where(inside, x, torch.zeros_like(x)))


def learnt(
    x: Tensor, scale: Tensor, zero_point: Tensor, axes: tuple[int, ...], low: int, high: int, factor: float
) -> Tensor:
    """Fake quantisation, with the slopes of x, s and z."""
    step, zero = parameters(x, scale, zero_point, axes)
    value, inside, by_step, by_zero = slopes(x, step.detach(), zero.detach(), low, high)
    source = torch.where(inside, x, torch.zeros_like(x)) + (step * by_step + zero * by_zero) * factor
    value = value if axes else cast(value, torch.float32)  # as the kernel has it, even for float64
    return with_gradient_of(cast(value, x.dtype), cast(source, x.dtype))


def learnt_backward(
    grad: Tensor,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    axes: tuple[int, ...],
    low: int,
    high: int,
    factor: float,
) -> Gradients:
    """The gradients of x, s and z."""
    _, inside, by_step, by_zero = slopes(x, *parameters(x, scale, zero_point, axes), low, high)
    others = [d for d in range(x.dim()) if d not in [axis % x.dim() for axis in axes]]
    grad = wide(grad)
    sums = (torch.sum(grad * slope, others) * factor for slope in (by_step, by_zero))
    grad_step, grad_zero = (total.reshape(scale.shape) for total in sums)
    return grad * cast(inside, grad.dtype), grad_step, grad_zero


def parameters(x: Tensor, scale: Tensor, zero_point: Tensor, axes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """s and z laid along the axis, or as numbers."""
    if axes:
        return across(scale, x, axes[0]), across(zero_point, x, axes[0])
    return scale.reshape(()), zero_point.reshape(())


def slopes(x: Tensor, step: Tensor, zero: Tensor, low: int, high: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The value, where it was not cut off, and its derivatives: by s (value − x) / s, or the end of the range where it
    was clamped; by z 0, or −s where it was clamped."""
    zero = torch.clamp(torch.round(zero), low, high)
    inverse = torch.reciprocal(step)
    place, inside = quantised(x, inverse, zero, low, high)
    value = (place - zero) * step
    by_step = torch.where(inside, (value - x.detach()) * inverse, place - zero)
    return value, inside, by_step, torch.where(inside, torch.zeros_like(value), -step)


def across(parameter: Tensor, x: Tensor, axis: int) -> Tensor:
    """A vector laid along `axis` of x."""
    return parameter.view([-1 if d == axis % x.dim() else 1 for d in range(x.dim())])
