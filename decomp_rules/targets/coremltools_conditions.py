"""Conditions of Core ML's target that its file cannot state, seen on coremltools 9.0: it refuses a program with a
tensor of more than five dimensions, and makes floats of integers that are clamped on one side."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from decomp import Target
from decomp.ops import aten

MOST = 5
REASON = f"tensors have at most {MOST} dimensions, except between two reshapes around permutations"
_RESHAPES = frozenset({aten.view, aten.reshape, aten._unsafe_view, aten.unflatten, aten.flatten})
_PERMUTATIONS = frozenset({aten.permute, aten.transpose, aten.contiguous, aten.clone})


def has_few_dimensions(call: Any) -> bool:
    """Whether no operand and no result of a call has more dimensions, or the call belongs to a rearrangement, which
    coremltools splits into transpositions of four dimensions (its pass `expand_high_rank_reshape_and_transpose`)."""
    results = call.meta if isinstance(call.meta, (list, tuple)) else [call.meta]
    tensors = [each for each in (*call.tensors, *results) if isinstance(each, torch.Tensor)]
    if all(each.dim() <= MOST for each in tensors):
        return True
    # Asked only now: what a call's surroundings decide is decided for each call separately.
    return all(type(size) is int for each in tensors for size in each.shape) and _is_in_rearrangement(call.node)


def _is_in_rearrangement(node: fx.Node | None) -> bool:
    """Whether a call is one of a chain: a reshape to many dimensions, permutations of these, a reshape to few."""
    if node is None:
        return False
    chain = [node]
    while many := [each for each in chain[0].all_input_nodes if _has_many(each)]:
        chain.insert(0, many[0])
    while _has_many(chain[-1]):
        if len(chain[-1].users) != 1:
            return False
        chain.append(next(iter(chain[-1].users)))
    inside = {getattr(each.target, "overloadpacket", None) for each in chain[1:-1]}
    ends = {getattr(each.target, "overloadpacket", None) for each in (chain[0], chain[-1])}
    return len(chain) > 1 and inside <= _PERMUTATIONS and ends <= _RESHAPES


def _has_many(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dim() > MOST


def is_clamped_on_both_sides(call: Any) -> bool:
    """Whether a call clamps floats, or integers by two bounds."""
    given = call.argument("self")
    bounds = [call.argument(name) for name in ("min", "max")]
    return not isinstance(given, torch.Tensor) or given.is_floating_point() or None not in bounds


def with_conditions(target: Target) -> Target:
    """A target that `decomp probe coremltools` made, with these conditions."""
    for name in target:
        target = target.legal_if(name, has_few_dimensions, REASON)
    return target.legal_if("clamp.default", is_clamped_on_both_sides, "integers are clamped by two bounds")
