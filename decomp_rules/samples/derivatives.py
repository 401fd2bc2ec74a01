"""Ops whose own gradient is not the derivative of what they compute, and functions that have it. Seen in torch 2.13."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def _ldexp(x: Tensor, other: Tensor) -> Tensor:
    # The op's gradient takes 2 to a negative integer as an integer, which is 0.
    return x * torch.pow(2.0, other)


def _embedding_dense_backward(grad: Tensor, indices: Tensor, rows: int, padding: int, scaled: bool) -> Tensor:
    # The op's gradient forgets the scale.
    count = torch.bincount(indices.reshape(-1), minlength=rows)[indices] if scaled else torch.ones_like(indices)
    share = torch.where(indices != padding, 1, 0) / count
    return grad.new_zeros(rows, grad.shape[-1]).index_put((indices,), grad * share.to(grad.dtype).unsqueeze(-1), True)


def _as_strided_scatter(
    x: Tensor, src: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int = 0
) -> Tensor:
    # The op gives x the gradient of what is replaced.
    places = torch.arange(x.numel()).as_strided(size, stride, storage_offset)
    return x.reshape(-1).index_put((places.reshape(-1),), src.reshape(-1)).view(x.shape)


def _segment_reduce(data: Tensor, reduce: str, *, lengths: Tensor) -> Tensor:
    # The op divides a gradient among equal elements only if it is positive.
    reductions = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin, "prod": torch.prod}
    return torch.stack([reductions[reduce](part, 0) for part in data.split(lengths.tolist())])


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    # The second gradient of the op takes the norm for a constant.
    return v * (g / aten.norm_except_dim(v, 2, dim))


def _weight_norm_interface(v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    size = aten.norm_except_dim(v, 2, dim)
    return v * (g / size), size


DIFFERENTIABLE: Mapping[str, Callable[..., Any]] = {
    "ldexp": _ldexp,
    "embedding_dense_backward": _embedding_dense_backward,
    "as_strided_scatter": _as_strided_scatter,
    "segment_reduce": _segment_reduce,
    "_weight_norm": _weight_norm,
    "_weight_norm_interface": _weight_norm_interface,
}
"""Functions of the arguments of an op with the gradients that it should have."""
