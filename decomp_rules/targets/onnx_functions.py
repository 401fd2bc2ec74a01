"""ONNX as ONNX Runtime runs it best: the operators of the target `onnx`, and those functions and recurrent operators
that it has kernels of its own for, on the CPU. What these do not compute, as a dtype or a projection, is lowered to the
others."""

from __future__ import annotations

from collections.abc import Callable
import math
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


def _has_bounds(call: Any) -> bool:
    bounds = [call.argument(name) for name in ("min", "max")]
    return all(each is None or isinstance(each, (int, float)) and math.isfinite(each) for each in bounds)


def _is_batch_of_images(call: Any) -> bool:
    return bool(call.argument("self").dim() == 4)


def _is_enlarged(call: Any) -> bool:
    return _factors(call) is not None


def _is_enlarged_by_powers(call: Any) -> bool:
    """Whether the positions between which ONNX Runtime interpolates in float32 are exact."""
    factors = _factors(call)
    return factors is not None and not call.argument("align_corners") and all(not f & (f - 1) for f in factors)


def _factors(call: Any) -> list[int] | None:
    """The whole factors by which images grow, if they do."""
    old = call.tensors[0].shape[2:]
    new, given = call.argument("output_size"), _scales(call)
    if not all(type(each) is int and each > 0 for each in (*old, *(new or ()))):
        return None
    factors = [*given, *([each / size for each, size in zip(new, old)] if new else ())]
    return [int(each) for each in factors] if all(each >= 1 and each == int(each) for each in factors) else None


def _scales(call: Any) -> list[float]:
    if "scale_factors" in call.arguments:
        return list(call.argument("scale_factors") or ())
    return [scale for name in ("scales_h", "scales_w") if (scale := call.argument(name)) is not None]


def _has_channels(call: Any) -> bool:
    shape = call.argument("input").shape
    return type(shape[1]) is int and all(type(each) is not int or each > 0 for each in shape)


def _is_float_but_masks(call: Any) -> bool:
    mask = call.argument("attn_mask")
    kinds = (*FLOATS, torch.float64)
    return all(tensor.dtype in kinds or tensor is mask and tensor.dtype is torch.bool for tensor in call.tensors)


def _drops_no_scores(call: Any) -> bool:
    return not call.argument("dropout_p")


def _has_pairs(call: Any) -> bool:
    query, key, value = (call.argument(name).shape for name in ("query", "key", "value"))
    known = all(type(each) is not int or each > 0 for each in (*query, *key, *value))
    heads = not call.argument("enable_gqa") or all(type(each[-3]) is int for each in (query, key, value))
    return known and heads and type(query[-1]) is int and str(key[-2]) == str(value[-2])


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
    "clamp": {"floating-point numbers": _is_float, "finite bounds that are numbers": _has_bounds},
    "hardtanh": {"floating-point numbers": _is_float},
    "pixel_shuffle": {"floating-point numbers": _is_float, "a batch of images": _is_batch_of_images},
    "upsample_nearest2d.vec": {
        "float32, float16 or bfloat16": _is_at_most_32_bits_wide,
        "known sizes, enlarged by integers": _is_enlarged,
    },
    "upsample_nearest2d.default": {
        "float32, float16 or bfloat16": _is_at_most_32_bits_wide,
        "known sizes, enlarged by integers": _is_enlarged,
    },
    "upsample_bilinear2d.vec": {
        "float32, float16 or bfloat16": _is_at_most_32_bits_wide,
        "known sizes, enlarged by powers of 2, align_corners=False": _is_enlarged_by_powers,
    },
    "upsample_bilinear2d.default": {
        "float32, float16 or bfloat16": _is_at_most_32_bits_wide,
        "known sizes, enlarged by powers of 2, align_corners=False": _is_enlarged_by_powers,
    },
    "group_norm": {
        "float32, float16 or bfloat16": _is_at_most_32_bits_wide,
        "known channels, with elements": _has_channels,
    },
    "scaled_dot_product_attention": {
        "floating-point numbers, and a mask of them or of bools": _is_float_but_masks,
        "dropout=0": _drops_no_scores,
        "as many keys as values, of known width, one or more": _has_pairs,
    },
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
