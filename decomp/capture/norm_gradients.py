"""Backward ops of normalisations as differentiable formulas. Where a program takes gradients with `torch.func`, it
contains these ops, and autograd differentiates them again by the input, on which the saved mean and 1/σ depend. As
saved values they would be constants to a formula; here they are recomputed from the input."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from decomp.ops import aten


def _layer_norm(
    grad: Tensor, x: Tensor, shape: Sequence[int], mean: Tensor, rstd: Tensor, weight: Any, bias: Any, mask: Any
) -> tuple[Any, ...]:
    inner = tuple(range(x.dim() - len(shape), x.dim()))
    normal, scale = _standardised(x, rstd, inner)
    weighted = grad if weight is None else grad * weight
    outer = tuple(range(inner[0]))
    return _masked(
        mask,
        lambda: _by_input(weighted, normal, scale, inner),
        lambda: _total(grad * normal, outer),
        lambda: _total(grad, outer),
    )


def _group_norm(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Any, n: int, c: int, hxw: int, groups: int, mask: Any
) -> tuple[Any, ...]:
    rows = (n, groups, -1)
    normal, scale = _standardised(x.reshape(rows), rstd.reshape(n, groups, 1), (2,))
    weighted = grad if weight is None else grad * weight.reshape(1, c, *(1,) * (x.dim() - 2))
    outer = (0, *range(2, x.dim()))
    return _masked(
        mask,
        lambda: _by_input(weighted.reshape(rows), normal, scale, (2,)).reshape(x.shape),
        lambda: _total(grad * normal.reshape(x.shape), outer),
        lambda: _total(grad, outer),
    )


def _batch_norm(
    grad: Tensor,
    x: Tensor,
    weight: Any,
    running_mean: Any,
    running_var: Any,
    mean: Tensor,
    rstd: Tensor,
    train: bool,
    eps: float,
    mask: Any,
) -> tuple[Any, ...]:
    outer, along = (0, *range(2, x.dim())), (1, -1, *(1,) * (x.dim() - 2))
    if train:
        normal, scale = _standardised(x, rstd.reshape(along), outer)
    else:
        scale = torch.rsqrt(running_var + eps).reshape(along)
        normal = (x - running_mean.reshape(along)) * scale
    weighted = grad if weight is None else grad * weight.reshape(along)
    return _masked(
        mask,
        lambda: _by_input(weighted, normal, scale, outer) if train else weighted * scale,
        lambda: _total(grad * normal, outer),
        lambda: _total(grad, outer),
    )


def _standardised(x: Tensor, rstd: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """(x − mean) / √(var + ε) and the factor, with the ε for which `rstd` was computed."""
    centred = x - x.mean(dims, keepdim=True)
    variance = (centred * centred).mean(dims, keepdim=True)
    scale = torch.rsqrt(variance + (rstd.pow(-2) - variance).detach())
    return centred * scale, scale


def _by_input(grad: Tensor, normal: Tensor, scale: Tensor, dims: tuple[int, ...]) -> Tensor:
    """r (g − mean g − x̂ mean(g x̂))."""
    along = (grad * normal).mean(dims, keepdim=True)
    return (grad - grad.mean(dims, keepdim=True) - normal * along) * scale


def _total(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    return x.sum(dims) if dims else x


def _masked(mask: Sequence[bool], *results: Callable[[], Tensor]) -> tuple[Any, ...]:
    return tuple(result() if wanted else None for wanted, result in zip(mask, results))


FORMULAS: Mapping[Any, Callable[..., tuple[Any, ...]]] = {
    aten.native_layer_norm_backward.default: _layer_norm,
    aten.native_group_norm_backward.default: _group_norm,
    aten.native_batch_norm_backward.default: _batch_norm,
}
"""By overload, a function with the same results, and with the gradients that autograd has for the overload."""
