"""Concatenation on converters that refuse parts of several ranks: `torch.cat` skips one-dimensional operands without
elements, as an empty cache is, and a rule leaves them out."""

from __future__ import annotations

from typing import Any

from decomp import Target

TARGETS = ("openvino", "tvm")
"""Those of the converters that refuse them: OpenVINO 2026.4 and TVM 0.27."""


def with_condition(target: Target) -> Target:
    """A target on which parts of one rank are concatenated."""
    return target.legal_if("cat.default", _parts_have_one_rank, "all parts have the same rank")


def _parts_have_one_rank(call: Any) -> bool:
    return len({part.dim() for part in call.argument("tensors")}) == 1
