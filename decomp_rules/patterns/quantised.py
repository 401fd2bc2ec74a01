"""Linear layers and convolutions on quantised values as `convert_pt2e` spells them out, and rules that make such linear
layers products of integers, for targets that have them (Jacob et al., Quantization and Training of Neural Networks,
2018, section 2.2): Σ s (q − z) s′ p = s s′ (Σ q p − z Σ p), where the sums are exact.

These products are more accurate than the calls they replace, but not bit-identical: in float32 each dequantised value
is rounded, and so is each partial sum, in the kernel's order. So the rules have the level "standard". If their results
are quantised again, values near a tie may round to the neighbouring integer.
"""

from typing import Any

import torch
from torch import Tensor
import torch.ao.quantization.fx._decomposed  # which registers the ops
from torch.nn import functional as F

import decomp
from decomp.results import Declined

ops = torch.ops.quantized_decomposed


def _linear(q, s, z, low, high, kind, p, scales, zeros, least, most, of, bias=None):
    x = ops.dequantize_per_tensor.default(q, s, z, low, high, kind)
    return F.linear(x, ops.dequantize_per_channel.default(p, scales, zeros, 0, least, most, of), bias)


def _conv(q, s, z, low, high, kind, p, scales, zeros, least, most, of, by, pad, d, g, bias=None):
    x = ops.dequantize_per_tensor.default(q, s, z, low, high, kind)
    weight = ops.dequantize_per_channel.default(p, scales, zeros, 0, least, most, of)
    return F.conv2d(x, weight, bias, by, pad, d, g)


qlinear = decomp.Pattern.of(_linear, "qlinear")
"""A linear layer on values and weights that are dequantised, with a scale for each row of the weight, of the dtype
`of`."""
qlinear_quantised = decomp.Pattern.of(
    lambda q, s, z, low, high, kind, p, scales, zeros, least, most, of, t, u, end, top, to, bias=None: (
        ops.quantize_per_tensor.default(
            _linear(q, s, z, low, high, kind, p, scales, zeros, least, most, of, bias), t, u, end, top, to
        )
    ),
    "qlinear_quantised",
)
"""The same, quantised again, by the scale t and the zero point u."""
qconv = decomp.Pattern.of(_conv, "qconv")
"""A convolution of images that are dequantised, with a scale for each output channel. Its stride, padding, dilation and
groups are `by`, `pad`, `d` and `g`."""
qconv_quantised = decomp.Pattern.of(
    lambda q, s, z, low, high, kind, p, scales, zeros, least, most, of, by, pad, d, g, t, u, end, top, to, bias=None: (
        ops.quantize_per_tensor.default(
            _conv(q, s, z, low, high, kind, p, scales, zeros, least, most, of, by, pad, d, g, bias), t, u, end, top, to
        )
    ),
    "qconv_quantised",
)
"""The same, quantised again, by the scale t and the zero point u."""

INTEGER_PRODUCTS = decomp.Rules(level="standard")
"""Rules that make linear layers on quantised values products of int8. They are for `decomp.decompose`, or for a cost
that weighs products, such as `decomp.costs.flops`: by number of calls, they cost more than the float product."""


@INTEGER_PRODUCTS.pattern(
    lambda q, s, z, low, high, kind, p, scales, least, most, weight_kind, zeros=None, bias=None: F.linear(
        ops.dequantize_per_tensor.default(q, s, z, low, high, kind),
        ops.dequantize_per_channel.default(p, scales, zeros, 0, least, most, weight_kind),
        bias,
    )
)
def integer_linear(
    q: Tensor,
    s: Any,
    z: Any,
    low: int,
    high: int,
    kind: Any,
    p: Tensor,
    scales: Tensor,
    least: int,
    most: int,
    weight_kind: Any,
    zeros: Any = None,
    bias: Any = None,
) -> Tensor | Declined:
    """s s′ (q pᵀ − z Σ p − z′ Σ (q − z)) + b; q: int8 or uint8, (*, K); p: int8, (N, K); s′, z′: (N,). The integers are
    exact; they are rounded to float32, the scales are multiplied, the two are, and b is added. Of z′ the part that fits
    int8 is subtracted exactly, and the rest, usually 0, in float32: so no sum leaves int32, whatever z′ is."""
    if q.dtype not in (torch.int8, torch.uint8) or p.dtype != torch.int8:
        return decomp.decline("the values are not of 8 bits, those of the weight signed")
    if scales.dtype != torch.float32:
        return decomp.decline(f"the scales of the weight are {scales.dtype}, in which the kernel rounds the weight")
    if not isinstance(z, int):
        return decomp.decline("the zero point is known at run time only, and may not fit 8 bits")
    if p.shape[1] > 2**14 or not -128 <= z <= 255:
        return decomp.decline("sums of more than 16,384 products, or of a zero point beyond 8 bits, may leave int32")
    # The kernel subtracts zero points of fewer bits in their own dtype, where the difference may wrap.
    if zeros is not None and zeros.dtype not in (torch.int32, torch.int64):
        return decomp.decline(f"the zero points of the weight are {zeros.dtype}, not int32 or int64")
    if q.dtype == torch.uint8:
        q, z = (q.to(torch.int16) - 128).to(torch.int8), z - 128
    rows = q.reshape(-1, q.shape[-1])
    total = torch._int_mm(rows, p.t()) - z * p.sum(1, dtype=torch.int32)
    if zeros is None:
        out = total.to(torch.float32)
    else:
        steps = rows.sum(1, keepdim=True, dtype=torch.int32) - z * q.shape[-1]
        near = zeros.clamp(-128, 127)
        total = total - steps * near.to(torch.int32)
        out = total.to(torch.float32) - steps.to(torch.float32) * (zeros - near).to(torch.float32)
    out = out * (scales * s)
    out = out if bias is None else out + bias
    return out.reshape([*q.shape[:-1], p.shape[0]])
