"""Hash consing of calls: equal calls get the same number, so that parts of graphs are compared as tuples of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from decomp.ir.call import metadata
from decomp.metadata.symbolic_sizes import SYMBOLIC


class StructureNumbers:
    """The numbers of calls, shared between several graphs."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._calls: dict[fx.Node, tuple[int, list[fx.Node]]] = {}
        self._constants: dict[fx.Node, int] = {}
        self._kinds: dict[fx.Node, int] = {}
        self._targets: dict[int, Any] = {}
        """Targets are compared by id, because hashing an overload is slow; this keeps them alive."""

    def of(self, inputs: Sequence[fx.Node], nodes: Sequence[fx.Node]) -> tuple[int, ...]:
        """A key for the computation of nodes from inputs: equal for the same calls, wiring, shapes and dtypes."""
        places = {node: i for i, node in enumerate(inputs)}
        # Numbers alone could be split between inputs and nodes in two ways.
        found = [len(inputs), *map(self._kind, inputs)]
        for node in nodes:
            called, operands = self._call(node)
            found.append(called)
            for operand in operands:
                place = places.get(operand)
                # Negative, as places are not.
                found.append(place if place is not None else -1 - self._constant(operand))
            places[node] = len(places)
        return tuple(found)

    def _call(self, node: fx.Node) -> tuple[int, list[fx.Node]]:
        """The number of a call regardless of its operands, and the operands."""
        found = self._calls.get(node)
        if found is None:
            operands: list[fx.Node] = []
            plain = fx.node.map_aggregate((node.args, node.kwargs), lambda leaf: _noted(leaf, operands))
            target: Any = node.target
            if not isinstance(target, str):
                self._targets[id(target)] = target
                target = id(target)
            key = (target, repr(plain), len(operands), self._kind(node))
            found = self._calls[node] = self._number(key), operands
        return found

    def _constant(self, node: fx.Node) -> int:
        """The number of a constant value."""
        found = self._constants.get(node)
        if found is None:
            value = metadata(node)
            # A size that both read is one constant, however it was computed.
            if isinstance(value, SYMBOLIC):
                key: Any = str(value)
            else:
                called, operands = self._call(node)
                key = (called, *map(self._constant, operands))
            found = self._constants[node] = self._number(key)
        return found

    def _kind(self, node: fx.Node) -> int:
        found = self._kinds.get(node)
        if found is None:
            value = metadata(node)
            tensor = isinstance(value, torch.Tensor)
            shape = value.shape if tensor else ()
            # The usual case without text, which takes most of the time of a search.
            if tensor and all([type(size) is int for size in shape]):
                key: Any = (shape, value.dtype)
            else:
                key = (str(shape), value.dtype) if tensor else str(type(value))
            found = self._kinds[node] = self._number(("kind", key))
        return found

    def _number(self, key: Any) -> int:
        return self._numbers.setdefault(key, len(self._numbers))


def _noted(leaf: Any, operands: list[fx.Node]) -> Any:
    """An argument with each node replaced by an ellipsis and appended to `operands`."""
    if isinstance(leaf, fx.Node):
        operands.append(leaf)
        return ...
    return leaf
