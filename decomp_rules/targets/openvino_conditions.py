"""Conditions of OpenVINO's target that a file cannot state: they are about sizes, or about one operand beside another.
Each is a call that OpenVINO 2026.4 refuses or computes otherwise, and that a rule writes in another form. Beside these
there are calls that it refuses in a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from decomp import Target


def _index_covers(call: Any) -> bool:
    """Sizes that are open are taken to be the same."""
    x, index = call.argument("self"), call.argument("index")
    along = call.argument("dim") % max(x.dim(), 1)
    sizes = [pair for d, pair in enumerate(zip(x.shape, index.shape)) if d != along]
    return x.dim() == index.dim() and all(one == other for one, other in sizes if type(one) is type(other) is int)


def _indices_are_first(call: Any) -> bool:
    return all(index is not None for index in call.argument("indices"))


def _mask_is_usable(call: Any) -> bool:
    """A mask over all dimensions, or a mask with a row of values for each place."""
    x, first, values = call.argument("self"), call.argument("indices")[0], call.argument("values")
    is_mask = first is not None and first.dtype in (torch.bool, torch.uint8)
    return not is_mask or first.dim() == x.dim() or values.dim() > x.dim() - first.dim()


def _kernel_fits(call: Any) -> bool:
    x, kernel, padding = (call.argument(name) for name in ("self", "kernel_size", "padding"))
    sizes, count = x.shape[-len(kernel) :], len(kernel)
    around = (list(padding or [0]) * count)[:count]
    return all(type(size) is not int or size + 2 * pad >= k for size, k, pad in zip(sizes, kernel, around))


CONDITIONS: Mapping[str, Mapping[str, Callable[[Any], bool]]] = {
    "gather.default": {"index has the sizes of self, but for dim": _index_covers},
    "index_put.default": {
        "the first dimensions are indexed": _indices_are_first,
        "a mask covers self, or has rows of values": _mask_is_usable,
    },
    "avg_pool2d.default": {"the kernel is no larger than the input": _kernel_fits},
}
"""By overload, each predicate of a call by its words."""


LEFT_OUT = ("logaddexp.default", "select_scatter.default", "slice_scatter.default")
"""Overloads that it converts for one call, and not for others: `logaddexp` is NaN of −∞ twice, and it refuses what
writes into the result of another such call, as loops do."""


def with_conditions(target: Target) -> Target:
    """A target that `decomp probe openvino` made, with these conditions."""
    target = target - LEFT_OUT
    for name, conditions in CONDITIONS.items():
        for reason, predicate in conditions.items():
            target = target.legal_if(name, predicate, reason)
    return target
