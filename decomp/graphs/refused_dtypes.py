"""Calls that PyTorch's fake tensors accept but its kernels refuse, such as products of float16 and float32 (torch
2.13). Under autocast they are cast, which a symbolic trace does not record."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from decomp.errors import first_line
from decomp.ir.call import metadata
from decomp.metadata.symbolic_sizes import size_hint
from decomp.torch_internals import pytree

# Zeros of this many elements take some ten megabytes and milliseconds.
_LARGEST = 1 << 22


def refused_dtypes(node: fx.Node) -> str | None:
    """Why the kernel of a call does not accept operands of these dtypes, in PyTorch's words, found by running it on
    zeros. None if it accepts them, or if not tried, as for operands of more than four million elements."""
    tensors = pytree.tensors_in([metadata(given) for given in node.all_input_nodes])
    # Only mixed dtypes are accepted by fake tensors and refused by kernels:
    # https://github.com/pytorch/pytorch/issues/177630.
    if len({tensor.dtype for tensor in tensors}) < 2 or any(_numel(tensor) > _LARGEST for tensor in tensors):
        return None
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda given: pytree.tree_map(_zeros, metadata(given)))
    function = getattr(torch.Tensor, node.target) if isinstance(node.target, str) else node.target
    try:
        with torch.no_grad():
            function(*args, **kwargs)
    except RuntimeError as error:
        reason = first_line(error)
        # Other errors come from zeros as values, or from sizes that are stand-ins ("expected m1 and m2 to have the same
        # dtype", "expected scalar type Half but found Float" are about dtypes).
        return reason if "dtype" in reason or "type" in reason.split() else None
    return None


def _numel(tensor: torch.Tensor) -> Any:
    sizes = [size_hint(size, 1) for size in tensor.shape]
    return torch.Size(sizes).numel()


def _zeros(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return size_hint(value, 1)
    return torch.zeros([size_hint(size, 1) for size in value.shape], dtype=value.dtype)
