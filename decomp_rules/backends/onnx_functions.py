"""Ops that are functions in ONNX: by its specification they expand to the operators of the target `onnx`. ONNX Runtime
has kernels of their own for them, so that the target `onnxruntime` has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from decomp_rules.backends.onnx_graph import Table, Value, compute, constant, entering, moved, result

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
