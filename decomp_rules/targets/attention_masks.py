"""Attention under a mask, where converters differ from PyTorch: of a query that sees no key, PyTorch makes 0, OpenVINO
2026.4 and LiteRT 0.10 make NaN, as does what Core AI 0.4.3 writes, and PyTorch's ONNX exporter the mean of the values
under a mask of bools. What a mask holds is data, so a call is legal where the calls before it show that each query sees
a key. They are those that the rules of `kept_attention` emit, and these targets have: forms that lowering changes would
be illegal in its result."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from decomp import Target
from decomp.ops import aten

TARGETS = ("coreai", "litert", "openvino", "torch_onnx")
"""Those of the converters that differ."""
REASON = "each query sees a key: no mask, or one of finite numbers, or without rows of −∞"

_CHOICES = (aten.where.self, aten.where.ScalarOther)


def with_condition(target: Target) -> Target:
    """A target on which attention is legal where each query surely sees a key."""
    return target.legal_if("scaled_dot_product_attention", shows_keys, REASON)


def shows_keys(call: Any) -> bool:
    """Whether no row of the mask of a call hides all keys."""
    mask = call.argument("attn_mask")
    if mask is None:
        return True
    if mask.dtype is torch.bool or call.argument("is_causal") or call.node is None:
        return False
    chosen = call.arguments["attn_mask"]
    return isinstance(chosen, fx.Node) and chosen.target in _CHOICES and _is_open(*chosen.args)


def _is_open(seen: Any, x: Any, instead: Any) -> bool:
    """Whether `where(seen, x, instead)` is finite, or `where(any(x != −∞, -1, True), x, finite)`."""
    return _is_finite(instead) and (_is_finite(x) or _finds_finite(seen, x))


def _is_finite(value: Any) -> bool:
    number = value.args[1] if _is_call(value, aten.full.default) else value
    return isinstance(number, (bool, int, float)) and math.isfinite(number)


def _finds_finite(seen: Any, x: Any) -> bool:
    if not _is_call(seen, aten.any.dim) or seen.args[1:] != (-1, True):
        return False
    differs = seen.args[0]
    return _is_call(differs, aten.ne.Scalar) and differs.args == (x, -math.inf)


def _is_call(value: Any, overload: Any) -> bool:
    return isinstance(value, fx.Node) and value.target is overload
