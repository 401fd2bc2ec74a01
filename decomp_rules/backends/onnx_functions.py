"""Ops that are functions in ONNX: by its specification they expand to the operators of the target `onnx`. ONNX Runtime
has kernels of their own for them, so that the target `onnxruntime` has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from decomp_rules.backends.onnx_graph import Table, Value, compute, constant, entering, result

OPS: Table = {}
emits = entering(OPS)


@emits("relu")
def relu(self: Value) -> Value:
    return compute("Relu", self, at=result().dtype)


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
