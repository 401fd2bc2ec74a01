"""Batch norm in the spellings of devices and of data parallel training. Each becomes a kernel that `normalization` has
rules for; the outputs that a device saves for its own backward are empty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten, changes
from decomp_rules.nn.normalization import Gradients, affine, all_but_channel, per_channel
from decomp_rules.reduce.reduction import moments
from decomp_rules.support.operands import cast, wide

RULES = Rules(level="exact")
register = RULES.register

Saved = tuple[Tensor, Tensor, Tensor, Tensor]
"""The output, the mean and 1 / √(var + ε) of the batch, and what is reserved for the backward op."""


@register(aten._batch_norm_with_update_functional)
def _batch_norm_with_update_functional(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Batch norm in training, nothing reserved, and the running statistics moved towards the batch's."""
    out, mean, rstd, new_mean, new_var = aten._native_batch_norm_legit_functional(
        x, weight, bias, running_mean, running_var, True, momentum, eps
    )
    return out, mean, rstd, empty_reserve(x), new_mean, new_var


@register(aten._batch_norm_no_update)
def _batch_norm_no_update(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
) -> Saved:
    """Batch norm with given statistics."""
    if running_mean is None or running_var is None:
        return decline("there are no statistics to evaluate with")
    out, mean, rstd = torch._native_batch_norm_legit_no_training(
        x, weight, bias, running_mean, running_var, momentum, eps
    )
    return out, mean, rstd, empty_reserve(x)


@register(aten.cudnn_batch_norm)
def cudnn_batch_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    exponential_average_factor: float,
    epsilon: float,
) -> Saved:
    """Batch norm; nothing is reserved."""
    factor = exponential_average_factor
    return *_of_vendor(x, weight, bias, running_mean, running_var, training, factor, epsilon), empty_reserve(x)


@register(aten.miopen_batch_norm)
def miopen_batch_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    exponential_average_factor: float,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch norm."""
    factor = exponential_average_factor
    out, mean, rstd = _of_vendor(x, weight, bias, running_mean, running_var, training, factor, epsilon)
    if changes.miopen_saves_in_dtype_of_weight:
        return out, mean, rstd
    return out, cast(mean, x.dtype), cast(rstd, x.dtype)


def _of_vendor(x: Tensor, weight: Tensor, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
    """`native_batch_norm`, which saves nothing but in training."""
    out, mean, rstd = torch.native_batch_norm(x, weight, *args)
    *_, training, _, _ = args
    if not training:
        mean, rstd = (torch.full((0,), 0, dtype=weight.dtype, device=x.device) for _ in range(2))
    return out, mean, rstd


@register(aten.batch_norm_backward)
def batch_norm_backward(
    grad_out: Tensor,
    x: Tensor,
    weight: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_var: Tensor | None,
    update: bool,
    eps: float,
    output_mask: Sequence[bool],
    reserve: Tensor,
) -> Gradients:
    """`native_batch_norm_backward`, in training where the statistics were updated."""
    return aten.native_batch_norm_backward(
        grad_out, x, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask
    )


@register(aten.cudnn_batch_norm_backward, aten.miopen_batch_norm_backward)
def batch_norm_backward_in_training(
    x: Tensor,
    grad_output: Tensor,
    weight: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_var: Tensor | None,
    epsilon: float,
    reserveSpace: Tensor | None = None,
) -> Gradients:
    """`native_batch_norm_backward` in training."""
    return aten.native_batch_norm_backward(
        grad_output, x, weight, running_mean, running_var, save_mean, save_var, True, epsilon, [True, True, True]
    )


@register(aten.batch_norm_stats)
def batch_norm_stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The mean of each channel and 1 / √(var + ε), at least in float32."""
    variance, mean = moments(x, all_but_channel(x), False, None, False)
    return mean, torch.rsqrt(variance + eps)


@register(aten.batch_norm_elemt)
def batch_norm_elemt(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, eps: float
) -> Tensor:
    """(x − mean) · rstd · w + b per channel."""
    scale = wide(invstd) if weight is None else wide(invstd) * wide(weight)
    return cast(affine(wide(x) - per_channel(mean, x), per_channel(scale, x), per_channel(bias, x)), x.dtype)


@register(aten.batch_norm_backward_reduce)
def batch_norm_backward_reduce(
    grad_out: Tensor,
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """Σ g, Σ g (x − mean), and the gradients of w, Σ g x̂, and of b, Σ g, over all but the channels."""
    grad, dims = wide(grad_out), all_but_channel(x)
    total = torch.sum(grad, dims)
    along = torch.sum(grad * (wide(x) - per_channel(mean, x)), dims)
    dtype = mean.dtype if weight is None else weight.dtype
    return (
        total if input_g else None,
        along if input_g else None,
        cast(along * wide(invstd), dtype) if weight_g else None,
        cast(total, dtype) if bias_g else None,
    )


@register(aten.batch_norm_backward_elemt)
def batch_norm_backward_elemt(
    grad_out: Tensor,
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
) -> Tensor:
    """r w (g − Σg / n − (x − mean) r² Σg(x − mean) / n), where n is the sum of the counts of all processes."""
    number, rstd = cast(torch.sum(count), torch.float32), wide(invstd)
    slope = per_channel(rstd * rstd * wide(sum_dy_xmu) / number, x)
    grad = wide(grad_out) - per_channel(wide(sum_dy) / number, x) - (wide(x) - per_channel(mean, x)) * slope
    return cast(affine(grad * per_channel(rstd, x), per_channel(weight, x)), x.dtype)


def empty_reserve(x: Tensor) -> Tensor:
    """The empty output that is reserved for a device's own backward kernel."""
    return torch.full((0,), 0, dtype=torch.uint8, device=x.device)
