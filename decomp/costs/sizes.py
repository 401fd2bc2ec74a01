"""The elements and bytes that calls read and write, from metadata. Symbolic sizes have their values in the example
inputs."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from decomp.errors import CostError
from decomp.ir.aliases import is_view, view_bases
from decomp.ir.call import Call, metadata
from decomp.metadata.symbolic_sizes import size_hint
from decomp.torch_internals.pytree import tensors_in

# Any number will do that is not so small that a rule for small sizes wins.
ASSUMED_DATA_SIZE = 64
"""The assumed value of a size that is known only at run time."""


def size(value: Any) -> int:
    """A size as a number."""
    return int(size_hint(value, ASSUMED_DATA_SIZE))


def numel(tensor: torch.Tensor) -> int:
    """How many elements a tensor has."""
    return math.prod(map(size, tensor.shape))


def nbytes(tensor: torch.Tensor) -> int:
    """The bytes of a tensor's elements, where an element that is repeated by a stride of 0 counts once."""
    if tensor.layout is not torch.strided:
        return numel(tensor) * int(tensor.element_size())
    apart = (
        # A dimension of size 0 has no element, also if expanded.
        size(n) if type(stride) is not int or stride != 0 else min(size(n), 1)
        for n, stride in zip(tensor.shape, tensor.stride())
    )
    return int(tensor.element_size()) * math.prod(apart)


def tensors_of(node: fx.Node, call: Call | None = None) -> list[torch.Tensor]:
    """The tensors of a node's value. Raises `CostError` if the program has no metadata for it."""
    found = metadata(node)
    if found is None:
        of = f"a call of {call.op}" if call is not None else f"{node.name}"
        raise CostError(
            f"the cost of {of} depends on shapes, and the program has no metadata for {node.name}\n  to do: pass args="
        )
    return tensors_in(found)


def operands(call: Call) -> list[torch.Tensor]:
    """The tensor arguments of a call, each once. Raises `CostError`."""
    return [tensor for node in dict.fromkeys(call.inputs) for tensor in tensors_of(node, call)]


def results(call: Call) -> list[torch.Tensor]:
    """The tensors that a call returns. Raises `CostError`."""
    return tensors_of(call.place, call) if call.place is not None else []


def sure_view_bases(node: fx.Node) -> list[fx.Node]:
    """The nodes whose memory the result of a node certainly shares."""
    return [base for base in view_bases(node) if is_view(node, base)]


def returns_view(call: Call) -> bool:
    """Whether a call computes nothing: its result is existing memory."""
    return call.place is not None and not call.inplace and bool(sure_view_bases(call.place))
