"""Conditions of IREE's target that a file cannot state, as they are about one operand beside another. Each is a call
that IREE 3.13 refuses, or computes otherwise without a word, and that a rule writes in another form."""

from __future__ import annotations

from typing import Any

import torch

from decomp import Target


def _indexed_by_places(call: Any) -> bool:
    """Where a mask selects nothing, IREE writes elsewhere, and what torch-mlir made ends the process. Of what a mask of
    several dimensions selects, their passes give no answer; that of one they refuse."""
    given = [index for index in call.argument("indices") if index is not None]
    return all(index.dtype not in (torch.bool, torch.uint8) for index in given)


def _source_has_fixed_sizes(call: Any) -> bool:
    """The passes of torch-mlir translate no other."""
    return all(type(size) is int for size in call.argument("source").shape)


def _parts_have_fixed_sizes(call: Any) -> bool:
    """The passes of torch-mlir translate no other."""
    given = [call.arguments[name] for name in ("split_size", "split_sizes") if name in call.arguments]
    return all(type(size) is int for one in given for size in (one if isinstance(one, (list, tuple)) else [one]))


def _slopes_are_broadcast(call: Any) -> bool:
    """IREE broadcasts slopes along the last dimension, where they belong to the second."""
    x, weight = call.argument("self"), call.argument("weight")
    return bool(x.dim() == 2 or x.dim() > 0 and weight.numel() == 1)


def _windows_reach_the_end(call: Any) -> bool:
    """IREE expects an input of the size of the window where there is one window, and refuses what is left beside it."""
    x, kernel, padding = call.argument("input"), call.argument("weight").shape[2:], call.argument("padding")
    if call.arguments.get("transposed") or padding == "same":
        return True
    count = len(kernel)
    given = (call.argument("stride"), padding, call.argument("dilation"))
    along = zip(x.shape[-count:], kernel, *(_each(numbers, count) for numbers in given))
    # Sizes that are open are taken to have several windows; with a dilation IREE takes such an input.
    return not any(
        dilation == 1 and type(size) is int and 0 < size + 2 * pad - window < stride
        for size, window, stride, pad, dilation in along
    )


def _each(given: Any, count: int) -> list[int]:
    """A number for each dimension."""
    numbers = list(given) if isinstance(given, (list, tuple)) else [0 if given == "valid" else given]
    return (numbers * count)[:count]


CONVOLUTIONS = ("_convolution", "conv1d", "conv1d.padding", "conv2d", "conv2d.padding", "conv3d", "convolution")


def with_places(target: Target) -> Target:
    """The target of IREE or of torch-mlir, through which IREE reads programs, without masks for indices, and without
    parts and sources of sizes that are data or open."""
    for overload in ("index.Tensor", "index_put.default"):
        target = target.legal_if(overload, _indexed_by_places, "the indices are places, no masks")
    for overload in ("split.Tensor", "split_with_sizes.default"):
        target = target.legal_if(overload, _parts_have_fixed_sizes, "the parts have fixed sizes")
    return target.legal_if("masked_scatter.default", _source_has_fixed_sizes, "the source has fixed sizes")


def with_conditions(target: Target) -> Target:
    """A target that `decomp probe iree` made, with these conditions."""
    for name in CONVOLUTIONS:
        overload = name if "." in name else f"{name}.default"
        target = target.legal_if(overload, _windows_reach_the_end, "a single window covers the input")
    return target.legal_if("prelu.default", _slopes_are_broadcast, "one slope for all, or operands of two dimensions")
