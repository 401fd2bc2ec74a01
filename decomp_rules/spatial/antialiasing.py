"""Resampling with antialiasing: along each dimension, the last first, an output element is the weighted mean of all
elements under a filter that is as wide as the scale.

The filter's position and weights follow `compute_indices_weights_aa` of ATen, in the precision of PyTorch's kernels.
Elements outside the filter are not read, so that an infinity there has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
import math
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.spatial import byte_images
from decomp_rules.spatial.windows import ntuple, opmath
from decomp_rules.support.operands import cast, wide

RULES = Rules(level="exact")
register = RULES.register


@dataclass(frozen=True, slots=True)
class Filter:
    """A kernel of unit scale: its weight at a distance, and how many elements it covers."""

    weight: Callable[[Tensor], Tensor]
    width: int
    of_number: Callable[[float], float]
    """The weight at one distance, for images of bytes."""


def _triangle(x: Tensor) -> Tensor:
    """1 − |x|, 0 beyond 1."""
    return torch.clamp(1 - torch.abs(x), min=0)


def _keys(x: Tensor) -> Tensor:
    """Cubic convolution with a = −½ (Keys, 1981), 0 beyond 2."""
    x = torch.abs(x)
    near, far = (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


def _lanczos(x: Tensor) -> Tensor:
    """sinc(x) sinc(x / 3), 0 beyond 3."""
    inside = torch.abs(x) < 3
    return torch.where(inside, torch.sinc(x) * torch.sinc(x / 3), torch.zeros_like(x))


FILTERS = {
    "bilinear": Filter(_triangle, 2, byte_images.triangle),
    "bicubic": Filter(_keys, 4, lambda x: byte_images.keys(x, -0.5)),
    "lanczos": Filter(_lanczos, 6, byte_images.lanczos),
}


def taps(
    like: Tensor, size: int, wanted: int, align_corners: bool, scale: float | None, kernel: Filter
) -> tuple[Tensor, Tensor, Tensor]:
    """For each output element the input elements under the filter, whether they are there, and their weights, which sum
    to 1: int64, bool and float, (wanted, elements)."""
    ratio = _ratio(size, wanted, align_corners, scale)
    support = kernel.width / 2 * max(ratio, 1.0)
    dtype, device = opmath(like.dtype), like.device
    centre = (torch.arange(wanted, dtype=dtype, device=device) + 0.5) * ratio
    first = torch.clamp(cast(centre - support + 0.5, torch.int64), min=0)
    end = torch.clamp(cast(centre + support + 0.5, torch.int64), max=size)
    index = first.unsqueeze(1) + torch.arange(2 * math.ceil(support) + 1, device=device)
    there = index < end.unsqueeze(1)
    weight = kernel.weight((cast(index, dtype) - centre.unsqueeze(1) + 0.5) * min(1 / ratio if ratio else 1.0, 1.0))
    weight = torch.where(there, weight, torch.zeros_like(weight))
    total = torch.sum(weight, [1], keepdim=True)
    weight = weight / torch.where(total == 0, 1.0, total)
    return torch.clamp(index, max=size - 1), there, weight


def _ratio(size: int, wanted: int, align_corners: bool, scale: float | None) -> float:
    """Elements of the input for each of the output."""
    if align_corners:
        return (size - 1) / (wanted - 1) if wanted > 1 else 0.0
    return size / wanted if scale is None or scale <= 0 else 1 / scale


def _filtered(x: Tensor, dim: int, index: Tensor, there: Tensor, weight: Tensor) -> Tensor:
    """Σ weight · x[index] along `dim`."""
    lead, rest = list(x.shape[:dim]), list(x.shape[dim + 1 :])
    picked = x.index_select(dim, index.flatten()).reshape([*lead, *index.shape, *rest])
    across = [*weight.shape, *[1] * len(rest)]
    terms = torch.where(there.view(across), picked * weight.view(across), torch.zeros_like(picked))
    return torch.sum(terms, [dim + 1])


def _spread(grad: Tensor, dim: int, size: Any, index: Tensor, there: Tensor, weight: Tensor) -> Tensor:
    """The adjoint of `_filtered`."""
    lead, rest = list(grad.shape[:dim]), list(grad.shape[dim + 1 :])
    across = [*weight.shape, *[1] * len(rest)]
    shares = grad.unsqueeze(dim + 1) * weight.view(across)
    shares = torch.where(there.view(across), shares, torch.zeros_like(shares))
    zeros = torch.zeros([*lead, size, *rest], dtype=grad.dtype, device=grad.device)
    return zeros.index_add(dim, index.flatten(), shares.flatten(dim, dim + 1))


def _resampled(
    x: Tensor, sizes: Sequence[Any], align_corners: bool, scales: Sequence[float | None], kernel: Filter
) -> Tensor:
    """Σ along each dimension; the kernels skip a dimension that keeps its size, even if its scale is not 1."""
    if not _known([*sizes, *x.shape[2:]]):
        return decline("how far the filter reaches depends on sizes that are not known")
    if x.dtype == torch.uint8:
        shares = [
            None
            if size == wanted
            else byte_images.filtered(
                size, wanted, _ratio(size, wanted, align_corners, scale), kernel.of_number, kernel.width
            )
            for size, wanted, scale in zip(x.shape[2:], sizes, scales)
        ]
        return byte_images.resampled(x, shares)
    out = wide(x)
    for i in (1, 0):
        if x.shape[2 + i] == sizes[i]:
            continue
        out = _filtered(out, 2 + i, *taps(x, x.shape[2 + i], sizes[i], align_corners, scales[i], kernel))
    return x.clone() if out is x else cast(out, x.dtype)


def _known(sizes: Sequence[Any]) -> bool:
    return all(isinstance(size, int) for size in sizes)


def _register(op: Any, kernel: Filter) -> None:
    """The rules of an op: with one scale for each dimension, and with a list of them (`vec`)."""

    def sized(
        x: Tensor, output_size: Any, align_corners: bool, scales_h: float | None = None, scales_w: float | None = None
    ) -> Tensor:
        return _resampled(x, ntuple(output_size, 2), align_corners, (scales_h, scales_w), kernel)

    def listed(x: Tensor, output_size: Any, align_corners: bool, scale_factors: Any) -> Tensor:
        factors = (None, None) if scale_factors is None else scale_factors
        sizes = output_size or [math.floor(n * f) for n, f in zip(x.shape[2:], factors)]
        return _resampled(x, sizes, align_corners, factors, kernel)

    for rule in (listed, sized):
        rule.__name__ = op.__name__
        rule.__doc__ = f"Σ of the elements under the filter, weighted by {kernel.weight.__doc__}"
        register(op)(rule)


def _register_backward(op: Any, kernel: Filter) -> None:
    """The rule of an op's gradient."""

    def rule(
        grad_output: Tensor,
        output_size: Any,
        input_size: Any,
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        """Each output's gradient goes to the elements that it was made of, by their weights."""
        if not _known([*input_size, *grad_output.shape[2:]]):
            return decline("how far the filter reaches depends on sizes that are not known")
        grad = wide(grad_output)
        for i, scale in ((0, scales_h), (1, scales_w)):
            size = input_size[2 + i]
            found = taps(grad_output, size, grad_output.shape[2 + i], align_corners, scale, kernel)
            grad = _spread(grad, 2 + i, size, *found)
        return cast(grad, grad_output.dtype)

    rule.__name__ = op.__name__
    register(op)(rule)


for _name, _filter in FILTERS.items():
    if hasattr(aten, f"_upsample_{_name}2d_aa"):  # lanczos came with torch 2.13
        _register(getattr(aten, f"_upsample_{_name}2d_aa"), _filter)
        _register_backward(getattr(aten, f"_upsample_{_name}2d_aa_backward"), _filter)
