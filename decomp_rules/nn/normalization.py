"""Normalisations: layer, group, instance, batch and RMS norm. Each composite goes to its kernel and each kernel to
moments in two passes: the mean first, then the mean square of the deviations. Dtypes narrower than 32 bits are computed
in float32 and rounded once, as PyTorch's CPU kernels do. Errors are the largest seen on 500 rows of 768 normal numbers,
in float32."""

from collections.abc import Sequence
import math

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.reduce import norms
from decomp_rules.reduce.reduction import average_over, extent, known_empty, mean_times
from decomp_rules.support.operands import HALVES, cast, wide

RULES = Rules(norms.RULES, level="exact")
register = RULES.register

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


@register(aten.layer_norm)
def layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """(x − mean) / √(var + ε) · w + b over the last dimensions, by the kernel."""
    return torch.native_layer_norm(x, normalized_shape, weight, bias, eps)[0]


@register(aten.native_layer_norm)
def native_layer_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(x − mean) / √(var + ε) · w + b, the mean and 1 / √(var + ε). 2.8 ULP of the largest of a row, the kernel 2.9."""
    return _layer(*standardised(wide(x), trailing(x, normalized_shape), eps), x.dtype, weight, bias)


@register(aten.native_layer_norm, level="standard")
def native_layer_norm_of_two_sums(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(x − mean) / √(var + ε) · w + b, the mean and 1 / √(var + ε). 3 ULP of the largest of a row; twice the error of
    the kernel where the mean is large beside the deviations."""
    centred, mean, rstd = centred_by_sums(wide(x), trailing(x, normalized_shape), eps)
    return _layer(centred * rstd, mean, rstd, x.dtype, weight, bias)


def _layer(
    normal: Tensor, mean: Tensor, rstd: Tensor, dtype: torch.dtype, weight: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    saved = dtype if mean.device.type == "cpu" else mean.dtype  # CUDA saves the statistics that it used
    return cast(affine(normal, weight, bias), dtype), cast(mean.detach(), saved), cast(rstd.detach(), saved)


@register(aten.native_layer_norm_backward)
def native_layer_norm_backward(
    grad_out: Tensor,
    x: Tensor,
    normalized_shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: Sequence[bool],
) -> Gradients:
    """r (gw − mean gw − x̂ mean(gw x̂)), Σ g x̂ and Σ g, with x̂ the normalised input."""
    grad, normal = wide(grad_out), (wide(x) - wide(mean)) * wide(rstd)
    inner = trailing(x, normalized_shape)
    outer = tuple(range(inner[0]))
    grad_x = through_standardised(affine(grad, weight), normal, wide(rstd), inner)
    return (
        cast(grad_x, x.dtype) if output_mask[0] else None,
        cast(total(grad * normal, outer), parameter_dtype(weight, x)) if output_mask[1] else None,
        cast(total(grad, outer), parameter_dtype(bias, x)) if output_mask[2] else None,
    )


@register(aten.rms_norm)
def rms_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """x / √(mean x² + ε) · w over the last dimensions; ε defaults to that of the dtype used for computing."""
    if x.is_complex():
        return decline("only real inputs")
    return _fused_rms_norm(x, normalized_shape, weight, eps)[0]


@register(aten._fused_rms_norm)
def _fused_rms_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, eps: float | None
) -> tuple[Tensor, Tensor]:
    """x / √(mean x² + ε) · w and 1 / √(mean x² + ε). 2.9 ULP, as PyTorch."""
    if x.is_complex():
        return decline("only real inputs")
    x_wide = wide(x)
    eps = torch.finfo(x_wide.dtype).eps if eps is None else eps
    rstd = torch.rsqrt(torch.mean(x_wide * x_wide, trailing(x, normalized_shape), keepdim=True) + eps)
    return cast(affine(x_wide * rstd, weight), x.dtype), rstd


@register(aten._fused_rms_norm_backward)
def _fused_rms_norm_backward(
    grad_out: Tensor,
    x: Tensor,
    normalized_shape: Sequence[int],
    rstd: Tensor,
    weight: Tensor | None,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None]:
    """r (gw − x̂ mean(gw x̂)) and Σ g x̂, with x̂ = x r."""
    grad, normal = wide(grad_out), wide(x) * wide(rstd)
    inner = trailing(x, normalized_shape)
    weighted = affine(grad, weight)
    along = torch.mean(weighted * normal, inner, keepdim=True)
    return (
        cast((weighted - normal * along) * wide(rstd), x.dtype) if output_mask[0] else None,
        cast(total(grad * normal, tuple(range(inner[0]))), parameter_dtype(weight, x)) if output_mask[1] else None,
    )


@register(aten.group_norm)
def group_norm(
    x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """(x − mean) / √(var + ε) · w + b over groups of channels, by the kernel."""
    batch, channels = x.shape[:2]
    return torch.native_group_norm(dense(x), weight, bias, batch, channels, spatial_extent(x), num_groups, eps)[0]


@register(aten.native_group_norm)
def native_group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, N: int, C: int, HxW: int, group: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(x − mean) / √(var + ε) · w + b over groups of channels, the mean and 1 / √(var + ε)."""
    return _group(*standardised(_grouped(x, C, group), within_group(x), eps), x, weight, bias, N, group)


@register(aten.native_group_norm, level="standard")
def native_group_norm_of_two_sums(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, N: int, C: int, HxW: int, group: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(x − mean) / √(var + ε) · w + b over groups of channels, the mean and 1 / √(var + ε)."""
    centred, mean, rstd = centred_by_sums(_grouped(x, C, group), within_group(x), eps)
    scaled = centred * affine(rstd, None if weight is None else _grouped(per_channel(weight, x), C, group))
    return _group(scaled, mean, rstd, x, None, bias, N, group)


def _grouped(x: Tensor, channels: int, groups: int) -> Tensor:
    return wide(x).unflatten(1, (groups, channels // groups))


def _group(
    normal: Tensor,
    mean: Tensor,
    rstd: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    batch: int,
    groups: int,
) -> tuple[Tensor, Tensor, Tensor]:
    out = affine(normal.flatten(1, 2), per_channel(weight, x), per_channel(bias, x))
    return cast(out, x.dtype), cast(mean.view(batch, groups), x.dtype), cast(rstd.view(batch, groups), x.dtype)


@register(aten.native_group_norm_backward)
def native_group_norm_backward(
    grad_out: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: Sequence[bool],
) -> Gradients:
    """r (gw − mean gw − x̂ mean(gw x̂)), Σ g x̂ and Σ g, with x̂ the normalised input."""
    grouped, ones = (group, C // group), [1] * (x.dim() - 1)
    mean, rstd = wide(mean).view(N, group, *ones), wide(rstd).view(N, group, *ones)
    normal = (wide(x).unflatten(1, grouped) - mean) * rstd
    grad, dims = wide(grad_out), all_but_channel(x)
    weighted = affine(grad, per_channel(weight, x)).unflatten(1, grouped)
    grad_x = through_standardised(weighted, normal, rstd, within_group(x)).flatten(1, 2)
    dtype = parameter_dtype(weight, x)
    return (
        cast(grad_x, x.dtype) if output_mask[0] else None,
        cast(torch.sum(grad * normal.flatten(1, 2), dims), dtype) if output_mask[1] else None,
        cast(torch.sum(grad, dims), dtype) if output_mask[2] else None,
    )


@register(aten.instance_norm)
def instance_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
) -> Tensor:
    """Group norm with one channel a group; with given statistics, batch norm. By the kernels."""
    if not use_input_stats:
        taken = (x.dtype, torch.float32) if x.dtype in HALVES else (x.dtype,)
        mean, var = (s if s.dtype in taken else cast(s, x.dtype) for s in (running_mean, running_var))
        return torch._native_batch_norm_legit_no_training(x, weight, bias, mean, var, momentum, eps)[0]
    if running_mean is not None:
        return decline("running statistics are updated in place")
    batch, channels = x.shape[:2]
    rounded = x.dtype in HALVES and x.device.type not in ("cpu", "meta")
    if rounded or not isinstance(channels, int) or any(p is not None and p.dtype != x.dtype for p in (weight, bias)):
        # The number of groups is no symbol, the kernel takes no wider parameters, and CUDA's rounds the statistics to
        # the dtype of x, of which a mean far from 0 leaves few digits: affine apart.
        rows = wide(x).reshape(batch, channels, spatial_extent(x))
        normal = torch.native_layer_norm(rows, [rows.shape[2]], None, None, eps)[0].reshape(x.shape)
        return cast(affine(normal, per_channel(weight, x), per_channel(bias, x)), x.dtype)
    return torch.native_group_norm(dense(x), weight, bias, batch, channels, spatial_extent(x), channels, eps)[0]


@register(aten.batch_norm)
def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Tensor:
    """(x − mean) / √(var + ε) · w + b per channel, with the batch's statistics or given ones, by the kernel."""
    if known_empty(x):
        return cast(affine(x, *(None if p is None else torch.sum(p) for p in (weight, bias))).clone(), x.dtype)
    if training and running_mean is not None:
        return decline("running statistics are updated in place")
    return native_batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)[0]


@register(aten.native_batch_norm)
def native_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """(x − mean) / √(var + ε) · w + b per channel, and the batch's mean and 1 / √(var + ε), by the kernel."""
    if not training:
        return torch._native_batch_norm_legit_no_training(x, weight, bias, running_mean, running_var, momentum, eps)
    if running_mean is not None:
        return decline("running statistics are updated in place")
    return torch._native_batch_norm_legit(x, weight, bias, True, momentum, eps)


@register(aten._native_batch_norm_legit)
def _native_batch_norm_legit(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(x − mean) / √(var + ε) · w + b per channel, the mean and 1 / √(var + ε), without running statistics."""
    if not training:
        return decline("there are no statistics to evaluate with")
    return _batch(*standardised(wide(x), all_but_channel(x), eps, infinite_mean=True), x, weight, bias)


@register(aten._native_batch_norm_legit, level="standard")
def _native_batch_norm_legit_of_two_sums(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(x − mean) / √(var + ε) · w + b per channel, the mean and 1 / √(var + ε), without running statistics."""
    if not training:
        return decline("there are no statistics to evaluate with")
    centred, mean, rstd = centred_by_sums(wide(x), all_but_channel(x), eps, infinite_mean=True)
    return _batch(centred * affine(rstd, per_channel(weight, x)), mean, rstd, x, None, bias)


def _batch(
    normal: Tensor, mean: Tensor, rstd: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    out, channels = affine(normal, per_channel(weight, x), per_channel(bias, x)), x.shape[1]
    mean, rstd = mean.detach().reshape(channels), rstd.detach().reshape(channels)
    if x.device.type != "cpu":  # other devices save the statistics that they used
        return cast(out, x.dtype), mean, rstd
    return cast(out, x.dtype), cast(mean, x.dtype), cast(rstd, x.dtype)


@register(aten._native_batch_norm_legit)
def _native_batch_norm_legit_evaluated(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch norm with given statistics, by the kernel."""
    if training:
        return decline("running statistics are updated in place")
    return torch._native_batch_norm_legit_no_training(x, weight, bias, running_mean, running_var, momentum, eps)


@register(aten._native_batch_norm_legit_no_training)
def _native_batch_norm_legit_no_training(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """(x − mean) / √(var + ε) · w + b per channel with given statistics; the two saved ones are empty on a CPU."""
    rstd = torch.rsqrt(wide(running_var) + eps)
    scale = rstd if weight is None else rstd * wide(weight)
    centred = wide(x) - per_channel(running_mean, x)
    out = affine(centred, per_channel(scale, x), per_channel(bias, x))
    if x.device.type != "cpu":
        return cast(out, x.dtype), wide(running_mean).clone(), rstd
    saved = torch.full((0,), 0, dtype=x.dtype, device=x.device)
    return cast(out, x.dtype), saved, saved.clone()


@register(aten._native_batch_norm_legit_functional)
def _native_batch_norm_legit_functional(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Batch norm by the kernel, and the running statistics moved towards the batch's: (1 − m) old + m new."""
    if not training:
        out, mean, rstd = torch._native_batch_norm_legit_no_training(
            x, weight, bias, running_mean, running_var, momentum, eps
        )
        return out, mean, rstd, wide(running_mean).clone(), wide(running_var).clone()
    out, mean, rstd = torch._native_batch_norm_legit(x, weight, bias, True, momentum, eps)
    batch = wide(x).detach()
    average = mean.detach() if mean.dtype == batch.dtype else torch.mean(batch, all_but_channel(x))
    variance = torch.var(batch, all_but_channel(x), correction=1)
    return out, mean, rstd, moved(running_mean, average, momentum), moved(running_var, variance, momentum)


@register(aten.native_batch_norm_backward)
def native_batch_norm_backward(
    grad_out: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_invstd: Tensor | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> Gradients:
    """r (gw − mean gw − x̂ mean(gw x̂)), or r gw with given statistics, Σ g x̂ and Σ g, x̂ the normalised input."""
    rstd = wide(save_invstd) if train else torch.rsqrt(wide(running_var) + eps)
    rstd, mean = per_channel(rstd, x), per_channel(save_mean if train else running_mean, x)
    grad, normal, dims = wide(grad_out), (wide(x) - mean) * rstd, all_but_channel(x)
    weighted = affine(grad, per_channel(weight, x))
    grad_x = through_standardised(weighted, normal, rstd, dims) if train else weighted * rstd
    dtype = parameter_dtype(weight, x)
    return (
        cast(grad_x, x.dtype) if output_mask[0] else None,
        cast(torch.sum(grad * normal, dims), dtype) if output_mask[1] else None,
        cast(torch.sum(grad, dims), dtype) if output_mask[2] else None,
    )


def standardised(
    x: Tensor,
    dims: Sequence[int],
    eps: float,
    infinite_mean: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """(x − mean) / √(var + ε), the mean and 1 / √(var + ε), the latter two with `dims` at size 1. Because the mean is
    rounded, the deviations have a small mean of their own, which is subtracted too: otherwise a mean of 10⁵ costs a
    thousand ULP of the variance. It is computed in the same pass as the squares, whose mean is too large by its square.
    With a single infinity the mean is NaN, as in kernels with a running mean, or infinite."""
    count = extent(x, dims)
    mean = average_over(x, dims, count)
    centred = x - mean
    left = average_over(centred.detach(), dims, count)
    square = torch.mean(centred * centred, dims, keepdim=True)
    variance = torch.clamp(torch.where(square < math.inf, square - left * left, square), min=0)
    rstd = torch.rsqrt(variance + eps)
    return (centred - left) * rstd, mean + (torch.where(left == left, left, 0.0) if infinite_mean else left), rstd


def centred_by_sums(
    x: Tensor,
    dims: Sequence[int],
    eps: float,
    infinite_mean: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """x − mean, the mean and 1 / √(var + ε), the latter two with `dims` at size 1: from Σx / n and Σ(x − mean)² / n,
    with terms divided before the sum, which then does not overflow. With a single infinity the mean is NaN, or
    infinite."""
    shift = mean_times(x, dims, extent(x, dims), -1.0)
    centred = x + shift
    rstd = torch.rsqrt(mean_of_squares(centred, dims, extent(x, dims)) + eps)
    mean = shift * -1  # computed only if it is used
    return centred, mean if infinite_mean else mean + rstd * 0, rstd


def mean_of_squares(x: Tensor, dims: Sequence[int], count: int) -> Tensor:
    """Σ(x · x / n), with the dimensions kept; NaN of nothing."""
    if not isinstance(count, int):
        return torch.sum(x / count * x, dims, keepdim=True)
    return torch.sum(x * (1 / count) * x, dims, keepdim=True) if count else torch.mean(x, dims, keepdim=True)


def through_standardised(grad: Tensor, normal: Tensor, rstd: Tensor, dims: Sequence[int]) -> Tensor:
    """The gradient of x given that of its standardised form: r (g − mean g − x̂ mean(g x̂))."""
    common = torch.mean(grad, dims, keepdim=True)
    along = torch.mean(grad * normal, dims, keepdim=True)
    return (grad - common - normal * along) * rstd


def affine(x: Tensor, weight: Tensor | None, bias: Tensor | None = None) -> Tensor:
    """x · w + b in the dtype of x, either of them optional."""
    x = x if weight is None else x * wide(weight)
    return x if bias is None else x + wide(bias)


def moved(running: Tensor, batch: Tensor, momentum: float) -> Tensor:
    """(1 − m) running + m batch, in the dtype that PyTorch's metadata has, at least float32."""
    return wide(running) * (1 - momentum) + batch * momentum


def total(x: Tensor, dims: Sequence[int]) -> Tensor:
    """Σx over `dims`; x itself if `dims` is empty."""
    return torch.sum(x, dims) if dims else x


def trailing(x: Tensor, normalized_shape: Sequence[int]) -> tuple[int, ...]:
    """The dimensions of x that `normalized_shape` covers."""
    return tuple(range(x.dim() - len(normalized_shape), x.dim()))


def all_but_channel(x: Tensor) -> tuple[int, ...]:
    """Every dimension of x but the second."""
    return tuple(d for d in range(x.dim()) if d != 1)


def within_group(x: Tensor) -> tuple[int, ...]:
    """The dimensions of one group's channels and positions, in x whose channels are split into groups."""
    return tuple(range(2, x.dim() + 1))


def spatial_extent(x: Tensor) -> int:
    """The number of positions in each channel."""
    return extent(x, range(2, x.dim()))


def per_channel(parameter: Tensor | None, x: Tensor) -> Tensor | None:
    """A vector over channels laid along the second dimension of x, in the dtype used for computing."""
    return None if parameter is None else wide(parameter).view(1, -1, *[1] * (x.dim() - 2))


def parameter_dtype(parameter: Tensor | None, x: Tensor) -> torch.dtype:
    """The dtype of a gradient with respect to a parameter that may be absent."""
    return x.dtype if parameter is None else parameter.dtype


def dense(x: Tensor) -> Tensor:
    """x laid out as the group norm kernel demands it."""
    return x if x.is_contiguous() or x.is_contiguous(memory_format=torch.channels_last) else x.contiguous()
