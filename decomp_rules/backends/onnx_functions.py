"""Ops that are functions in ONNX: by its specification they expand to the operators of the target `onnx`. ONNX Runtime
has kernels of their own for them, so that the target `onnxruntime` has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
import math
from typing import Any

import torch

from decomp_rules.backends.onnx_graph import (
    Table,
    Value,
    cast,
    compute,
    constant,
    entering,
    kernel_dtype,
    moved,
    node,
    result,
    rounded,
    tensor_proto,
)

OPS: Table = {}
emits = entering(OPS)


@emits("relu")
def relu(self: Value) -> Value:
    return compute("Relu", self, at=result().dtype)


@emits("linear")
def linear(input: Value, weight: Value, bias: Value | None = None) -> Value:
    """Gemm of a matrix; else MatMul by the transposed weight, which is stored so, and Add of the bias."""
    at = result().dtype
    if input.rank == 2:
        return compute("Gemm", input, weight, bias, at=at, transB=1)
    found = compute("MatMul", input, moved("Transpose", weight, perm=[1, 0]), at=at)
    return found if bias is None else compute("Add", found, bias, at=at)


@emits("hardswish")
def hardswish(self: Value) -> Value:
    return compute("HardSwish", self, at=self.dtype)


@emits("hardsigmoid")
def hardsigmoid(self: Value) -> Value:
    return compute("HardSigmoid", self, at=self.dtype, alpha=1 / 6, beta=0.5)


@emits("leaky_relu")
def leaky_relu(self: Value, negative_slope: float = 0.01) -> Value:
    return compute("LeakyRelu", self, at=self.dtype, alpha=float(negative_slope))


@emits("_prelu_kernel")
def prelu(self: Value, weight: Value) -> Value:
    return compute("PRelu", self, weight, at=self.dtype)


@emits("clamp")
def clamp(self: Value, min: Any = None, max: Any = None) -> Value:
    """An absent bound is infinite: to ONNX Runtime it is the largest number."""
    at = result().dtype
    low, high = (-math.inf if min is None else rounded(min, at)), (math.inf if max is None else rounded(max, at))
    return compute("Clip", self, low, high, at=at)


@emits("hardtanh")
def hardtanh(self: Value, min_val: float = -1.0, max_val: float = 1.0) -> Value:
    return clamp(self, min_val, max_val)


@emits("pixel_shuffle")
def pixel_shuffle(self: Value, upscale_factor: int) -> Value:
    return moved("DepthToSpace", self, blocksize=upscale_factor, mode="CRD")


@emits("upsample_nearest2d.default", "upsample_nearest2d.vec")
def upsample_nearest(x: Value, *sizes_and_factors: Any, **others: Any) -> Value:
    return _resized(x, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")


@emits("upsample_bilinear2d.default", "upsample_bilinear2d.vec")
def upsample_bilinear(x: Value, *sizes_and_factors: Any, **others: Any) -> Value:
    return _resized(x, mode="linear", coordinate_transformation_mode="pytorch_half_pixel")


def _resized(input: Value, **how: Any) -> Value:
    """Resize by whole factors."""
    factors = [1.0, 1.0, *(float(new // old) for new, old in zip(result().shape[2:], input.meta.shape[2:]))]
    return moved("Resize", input, None, constant(torch.tensor(factors)), **how)


@emits("group_norm")
def group_norm(
    input: Value,
    num_groups: int,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Value:
    """InstanceNormalization of the groups, in a Reshape each way, and Mul and Add of the weights."""
    at, scale = input.dtype, torch.ones(num_groups)
    wide = cast(input, kernel_dtype("InstanceNormalization", at))
    rows = node("Reshape", wide, [0, num_groups, -1], dtype=wide.dtype)
    ones, zeros = constant(scale), constant(torch.zeros_like(scale))
    found = node("InstanceNormalization", rows, ones, zeros, dtype=wide.dtype, epsilon=float(eps))
    found = node("Reshape", found, list(input.shape), dtype=wide.dtype)
    for op_type, each in (("Mul", weight), ("Add", bias)):
        if each is not None:
            found = node(op_type, found, cast(_per_channel(each, input.rank), wide.dtype), dtype=wide.dtype)
    return cast(found, at)


def _per_channel(weight: Value, rank: int) -> Value:
    """A weight for each channel, with a dimension for each that follows the channels."""
    if weight.data is not None:
        return constant(weight.data.detach().reshape(-1, *[1] * (rank - 2)))
    return moved("Unsqueeze", weight, list(range(1, rank - 1))) if rank > 2 else weight


@emits("scaled_dot_product_attention")
def attention(
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    """softmax(q kᵀ · scale + mask) v, and 0 in rows of which the mask hides everything."""
    at = kernel_dtype("MatMul", query.dtype)
    q, k, v = (replace(cast(each, at), meta=each.meta) for each in (query, key, value))
    if enable_gqa:
        k, v = (_repeated(each, q) for each in (k, v))
    factor = 1 / math.sqrt(query.meta.shape[-1]) if scale is None else float(scale)
    turned = node("Transpose", k, dtype=at, perm=[*range(k.rank - 2), k.rank - 1, k.rank - 2])
    scores = node("MatMul", node("Mul", q, cast(factor, at), dtype=at), turned, dtype=at)
    for bias in _biases(attn_mask, is_causal, query, key, at):
        scores = node("Add", scores, bias, dtype=at)
    found = node("MatMul", node("Softmax", scores, dtype=at, axis=-1), v, dtype=at)
    if attn_mask is not None and not _shows_something(attn_mask):
        found = node("Where", _rows_that_see(attn_mask), found, cast(0.0, at), dtype=at)
    return cast(found, query.dtype)


def _repeated(x: Value, like: Value) -> Value:
    """Keys or values of each group of queries, once for each query."""
    heads, times = x.shape[-3], like.meta.shape[-3] // x.meta.shape[-3]
    if times == 1:
        return x
    apart = node("Unsqueeze", x, [x.rank - 2], dtype=x.dtype)
    spread = node("Expand", apart, [1] * (x.rank - 2) + [times, 1, 1], dtype=x.dtype)
    found = node("Reshape", spread, [*x.shape[:-3], heads * times, *x.shape[-2:]], dtype=x.dtype)
    return replace(found, meta=torch.empty((*x.meta.shape[:-3], heads * times, *x.meta.shape[-2:]), device="meta"))


def _biases(mask: Value | None, is_causal: bool, query: Value, key: Value, at: torch.dtype) -> Iterator[Value]:
    """What is added to scores: −∞ where a query does not see a key."""
    hidden = float("-inf")
    if mask is not None:
        is_bool = mask.dtype == torch.bool
        yield node("Where", mask, cast(0.0, at), cast(hidden, at), dtype=at) if is_bool else cast(mask, at)
    if is_causal:
        sizes = [query.shape[-2], key.shape[-2]]
        full = node("ConstantOfShape", sizes, dtype=at, value=tensor_proto(torch.tensor([hidden], dtype=at), ""))
        yield node("Trilu", full, constant(torch.tensor(1)), dtype=at, upper=1)


def _shows_something(mask: Value) -> bool:
    """Whether it is known that a mask hides nothing of all that a row might see."""
    if mask.data is None:
        return False
    seen = mask.data if mask.dtype == torch.bool else mask.data != float("-inf")
    return bool(seen.any(-1).all())


def _rows_that_see(mask: Value) -> Value:
    """Whether each row sees something, (*, L, 1)."""
    found: Value
    if mask.dtype == torch.bool:
        found = node("ReduceMax", mask, [-1], dtype=torch.bool, keepdims=1)
        return found
    at = kernel_dtype("ReduceMax", mask.dtype)
    largest = node("ReduceMax", cast(mask, at), [-1], dtype=at, keepdims=1)
    found = node("Greater", largest, cast(float("-inf"), at), dtype=torch.bool)
    return found


@emits("gelu")
def gelu(self: Value, approximate: str = "none") -> Value:
    return compute("Gelu", self, at=self.dtype, approximate=approximate)


@emits("softmax.int")
def softmax(self: Value, dim: int, dtype: Any = None) -> Value:
    return compute("Softmax", self, at=result().dtype, axis=dim)


@emits("log_softmax.int")
def log_softmax(self: Value, dim: int, dtype: Any = None) -> Value:
    return compute("LogSoftmax", self, at=result().dtype, axis=dim)


@emits("layer_norm")
def layer_norm(
    input: Value,
    normalized_shape: Sequence[int],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
) -> Value:
    scale = weight if weight is not None else constant(torch.ones(list(normalized_shape), dtype=input.dtype))
    return compute(
        "LayerNormalization", input, scale, bias, at=input.dtype, axis=-len(normalized_shape), epsilon=float(eps)
    )
