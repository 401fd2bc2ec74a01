"""A condition of Core ML's target that its file cannot state, as it is about all calls: coremltools 9.0 refuses a
program with a tensor of more than five dimensions."""

from __future__ import annotations

from typing import Any

import torch

from decomp import Target

MOST = 5
REASON = f"tensors have at most {MOST} dimensions"


def has_few_dimensions(call: Any) -> bool:
    """Whether no operand and no result of a call has more dimensions."""
    results = call.meta if isinstance(call.meta, (list, tuple)) else [call.meta]
    tensors = (each for each in (*call.tensors, *results) if isinstance(each, torch.Tensor))
    return all(each.dim() <= MOST for each in tensors)


def with_ranks(target: Target) -> Target:
    """A target that `decomp probe coremltools` made, with this condition of each op."""
    for name in target:
        target = target.legal_if(name, has_few_dimensions, REASON)
    return target
