"""Ops whose own gradient is not the derivative of what they compute, and functions that have it. Seen in torch 2.13."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import math
from typing import Any

import torch
from torch import Tensor

from decomp.ops import aten


def _ldexp(x: Tensor, other: Tensor) -> Tensor:
    # The op's gradient takes 2 to a negative integer as an integer, which is 0:
    # https://github.com/pytorch/pytorch/issues/187460.
    return x * torch.pow(2.0, other)


def _embedding_dense_backward(grad: Tensor, indices: Tensor, rows: int, padding: int, scaled: bool) -> Tensor:
    # The op's gradient forgets the scale.
    count = torch.bincount(indices.reshape(-1), minlength=rows)[indices] if scaled else torch.ones_like(indices)
    share = torch.where(indices != padding, 1, 0) / count
    return grad.new_zeros(rows, grad.shape[-1]).index_put((indices,), grad * share.to(grad.dtype).unsqueeze(-1), True)


def _as_strided_scatter(
    x: Tensor, src: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int = 0
) -> Tensor:
    # The op passes x the gradient of the replaced elements. Its formula was called wrong when it was written:
    # https://github.com/pytorch/pytorch/pull/77128.
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
    return v * (g / size), size.detach()


def _prelu(x: Tensor, weight: Tensor) -> Tensor:
    # The second gradient of the op takes 0 for positive, the first for negative.
    shape = [-1 if dim == 1 else 1 for dim in range(x.dim())]
    weight = weight.view(shape) if weight.dim() == 1 and x.dim() > 1 else weight
    return torch.where(x > 0, x, torch.where(x > 0, 0.0, x) * weight)


def _prelu_backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    slope, below = torch.where(x > 0, 1.0, weight), torch.where(x > 0, 0.0, x)
    return grad * slope, torch.where(x > 0, 0.0, below * grad)


_LEAST = torch.tensor(1e-12).item()


def _binary_cross_entropy(x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1) -> Tensor:
    # The op's own is linear in x next to 0 and 1, as documented; that of the target is infinite there, though it is
    # documented that logarithms end at −100, and second gradients are those of a quotient with another bound.
    edge = x * (1 - x) < _LEAST
    inside = torch.where(edge, 0.5, x)
    at_edge = torch.where(edge, x, 0.5).detach()
    ends = (-torch.clamp(torch.log(at_edge), min=-100), -torch.clamp(torch.log1p(-at_edge), min=-100))
    line = target * ends[0] + (1 - target) * ends[1] + ((x - target) / _LEAST).detach() * (x - x.detach())
    loss = torch.where(edge, line, -target * torch.log(inside) - (1 - target) * torch.log1p(-inside))
    loss = loss if weight is None else loss * weight
    return loss if reduction == 0 else loss.mean() if reduction == 1 else loss.sum()


def _binary_cross_entropy_backward(
    grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    # The op's second gradient bounds x (1 − x) in another way than its first.
    slope = grad * (x - target) / torch.clamp_min(x * (1 - x), _LEAST) * (1 if weight is None else weight)
    return slope / x.numel() if reduction == 1 else slope


def _xlogy(x: Tensor, other: Tensor) -> Tensor:
    # The op's second gradients by x and y, which should be one number, are two where x is 0 and the logarithm none.
    return x * torch.where((x == 0) & (other <= 0), 0.0, torch.log(other))


def _xlog1py(x: Tensor, other: Tensor) -> Tensor:
    return x * torch.where((x == 0) & (other <= -1), 0.0, torch.log1p(other))


def _gelu_backward(grad: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    # The op's second gradient is NaN where a hyperbolic cosine overflows.
    if approximate == "none":
        density = torch.exp(x * x * -0.5) / math.sqrt(2 * math.pi)
        return grad * (0.5 * (1 + torch.erf(x * math.sqrt(0.5))) + x * density)
    near = torch.clamp(x, -32.0, 32.0)
    slope = math.sqrt(8 / math.pi)
    u, steepness = near * slope * (1 + 0.044715 * near * near), slope * (1 + 3 * 0.044715 * near * near)
    e = torch.exp(torch.where(u < 0, u, -u))
    s = torch.where(u < 0, e, 1.0) / (1 + e)
    return grad * (s + near * steepness * (e / (1 + e) / (1 + e)) + x * 0.0)


def _log_ndtr(x: Tensor) -> Tensor:
    # Far down the op's gradient is a quotient of numbers that have become 0, or of one that has not.
    left = x < -1
    y = torch.where(left, x, -1.0) * -math.sqrt(0.5)
    above = torch.log1p(-0.5 * torch.erfc(torch.where(left, -1.0, x) * math.sqrt(0.5)))
    return torch.where(left, torch.log(0.5 * torch.special.erfcx(y)) - y * y, above)


def _sinc(x: Tensor) -> Tensor:
    # The op has no second gradient at 0: https://github.com/pytorch/pytorch/issues/89459.
    near = x.abs() <= 0.25
    y = math.pi * torch.where(near, x, 0.0)
    series = sum((-1) ** k / math.factorial(2 * k + 1) * y ** (2 * k) for k in range(1, 10)) + 1
    return torch.where(near, series, torch.sinc(torch.where(near, 1.0, x)))


DIFFERENTIABLE: Mapping[str, Callable[..., Any]] = {
    "ldexp": _ldexp,
    "embedding_dense_backward": _embedding_dense_backward,
    "as_strided_scatter": _as_strided_scatter,
    "binary_cross_entropy": _binary_cross_entropy,
    "binary_cross_entropy_backward": _binary_cross_entropy_backward,
    "gelu_backward": _gelu_backward,
    "prelu": _prelu,
    "_prelu_kernel": _prelu,
    "_prelu_kernel_backward": _prelu_backward,
    "segment_reduce": _segment_reduce,
    "sinc": _sinc,
    "special_sinc": _sinc,
    "special_log_ndtr": _log_ndtr,
    "xlogy": _xlogy,
    "special_xlogy": _xlogy,
    "special_xlog1py": _xlog1py,
    "_weight_norm": _weight_norm,
    "_weight_norm_interface": _weight_norm_interface,
}
"""Functions of the arguments of an op with the gradients that it should have."""
