"""ONNX as ONNX Runtime runs it best: the operators of the target `onnx`, and those functions and recurrent operators
that it has kernels of its own for, on the CPU. What these do not compute, as a dtype or a projection, is lowered to the
others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from decomp import Target

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
"""The dtypes of Gelu; the narrow ones are computed in float32."""


def _is_float(call: Any) -> bool:
    return all(tensor.dtype in (*FLOATS, torch.float64) for tensor in call.tensors)


def _is_at_most_32_bits_wide(call: Any) -> bool:
    return all(tensor.dtype in FLOATS for tensor in call.tensors)


def _is_float32(call: Any) -> bool:
    return all(tensor.dtype is torch.float32 for tensor in call.tensors)


def _has_dimensions(call: Any) -> bool:
    return bool(call.argument("self").dim() > 0)


def _has_matrix(call: Any) -> bool:
    return bool(call.argument("weight").dim() == 2 and call.argument("input").dim() > 0)


def _drops_nothing(call: Any) -> bool:
    return not (call.argument("train") and call.argument("dropout"))


def _projects_nothing(call: Any) -> bool:
    states = call.argument("hx")
    return bool(states[0].shape[-1] == states[1].shape[-1])


Conditions = dict[str, Callable[[Any], bool]]
"""Predicates of a call, each by its words."""
_RECURRENT: Conditions = {"dropout=0 or evaluation mode": _drops_nothing, "float32": _is_float32}
CONDITIONS: dict[str, Conditions] = {
    "relu": {"floating-point numbers": _is_float},
    "linear": {"floating-point numbers": _is_float, "a matrix of weights": _has_matrix},
    "hardswish": {"float32, float16 or bfloat16": _is_at_most_32_bits_wide},
    "hardsigmoid": {"float32, float16 or bfloat16": _is_at_most_32_bits_wide},
    "leaky_relu": {"float32, float16 or bfloat16": _is_at_most_32_bits_wide},
    "_prelu_kernel": {"float32, float16 or bfloat16": _is_at_most_32_bits_wide},
    "gelu": {"float32, float16 or bfloat16": _is_at_most_32_bits_wide},
    "softmax.int": {"a tensor with dimensions": _has_dimensions},
    "log_softmax.int": {"a tensor with dimensions": _has_dimensions},
    "layer_norm": {"floating-point numbers": _is_float},
    "lstm.input": {**_RECURRENT, "proj_size=0": _projects_nothing},
    "gru.input": _RECURRENT,
    "rnn_tanh.input": _RECURRENT,
    "rnn_relu.input": _RECURRENT,
}
"""When ONNX Runtime has a kernel for these, in words."""


def holds(op: str, call: Any) -> bool:
    """Whether ONNX Runtime has a kernel for a call of one of these."""
    return all(each(call) for each in CONDITIONS[op].values())


def with_functions(onnx: Target) -> Target:
    """The target `onnx` with these ops."""
    found = onnx | CONDITIONS
    for op, conditions in CONDITIONS.items():
        for reason, predicate in conditions.items():
            found = found.legal_if(op, predicate, reason)
    found.description = "onnx, and what ONNX Runtime has kernels for: Relu, Gelu, Softmax, LayerNormalization, LSTM …"
    return found.named("onnxruntime")
