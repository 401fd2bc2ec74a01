"""Signatures: everything that an expansion depends on. Calls with equal signatures are lowered by one run of a rule."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import fx

from decomp.ir.arguments import key, leaves
from decomp.ir.call import kind_of, metadata, read_results
from decomp.ir.collectives import group_of
from decomp.ir.op_facts import COLLECTIVES
from decomp.metadata.symbolic_sizes import SYMBOLIC, expression, is_open, strides_of
from decomp.torch_internals.process_groups import place_in_group

Key = tuple[Any, ...]


class Signature(NamedTuple):
    """The dependencies of a call's expansion."""

    key: Key
    tensor_args: list[fx.Node]
    """The distinct nodes among the arguments, in order."""
    symbolic: bool
    """Whether their metadata, or that of the result, contains symbolic sizes."""
    read: tuple[int, ...] | None
    """The indices of the results that are used; None if all may be."""


class Signatures:
    """Computes signatures of calls, visiting the metadata of each node once."""

    def __init__(self) -> None:
        self._interned: dict[Any, int] = {}
        self._of_node: dict[fx.Node, Any] = {}
        self.symbolic: set[int] = set()
        """Numbers of specs with symbolic sizes, which are only meaningful within one program."""
        self.written: set[fx.Node] = set()
        """Values that a program writes back at its end: they are used, although not by a node of its graph."""
        self.rewound = 0
        """How often specs were removed, after which their numbers are reused."""

    def mark(self) -> int:
        """The number of distinct specs so far."""
        return len(self._interned)

    def rewind(self, mark: int) -> None:
        """Remove the specs added since the mark."""
        self.forget_nodes()
        self.rewound += len(self._interned) > mark
        self.symbolic = {number for number in self.symbolic if number < mark}
        while len(self._interned) > mark:
            # The last item is the latest: dicts keep the order of insertion.
            self._interned.popitem()

    def forget_nodes(self) -> None:
        """Release the nodes of a finished program."""
        self._of_node, self.written = {}, set()

    def forget(self, node: fx.Node) -> None:
        """Drop a node whose metadata has changed."""
        self._of_node.pop(node, None)

    def of(self, node: fx.Node) -> Signature:
        """The signature of a call."""
        places: dict[fx.Node, int] = {}
        args = tuple([self._pattern(arg, places) for arg in node.args])
        kwargs = tuple([(k, self._pattern(v, places)) for k, v in node.kwargs.items()]) if node.kwargs else ()
        # The name of a group does not say which rank this process has in it, and expansions contain the rank.
        if getattr(node.target, "namespace", "") in COLLECTIVES:
            kwargs = (*kwargs, ("place in group", _place_in_group(node)))
        # The result is included: the strides of attention depend on which inputs require gradients, which is not part
        # of their specs.
        specs = tuple([self.spec(each) for each in (*places, node)])
        # Unused results are not computed, so calls that use others have expansions of their own.
        read = read_results(node, self.written)
        whole = (node.op, node.target, args, kwargs, specs, read)
        return Signature(whole, list(places), not self.symbolic.isdisjoint(specs), read)

    def spec(self, node: fx.Node) -> int:
        """A number for the metadata of `node`'s value, equal for equal metadata; without metadata, for its kind: `x *
        2` of a size is not the same call as of a tensor."""
        found = self._of_node.get(node)
        if found is None:
            value = metadata(node)
            spec = described(value) if value is not None else ("unknown", kind_of(node))
            found = self._interned.get(spec)
            if found is None:
                found = self._interned[spec] = len(self._interned)
                if is_symbolic(value):
                    self.symbolic.add(found)
            self._of_node[node] = found
        return int(found)

    def _pattern(self, value: Any, places: dict[fx.Node, int]) -> Any:
        """`value` in a hashable form in which 1, 1.0 and True differ and nodes are numbered."""
        kind = type(value)
        if kind is fx.Node:
            # The only bare integers in a signature: numbers come with their type.
            return places.setdefault(value, len(places))
        if kind is int or kind is bool or kind is str or value is None:
            return (kind, value)
        if kind is float or kind is complex:
            # As text, in which −0.0 and 0.0 differ, and NaN equals itself.
            return (kind, repr(value))
        return key(value, lambda item: self._pattern(item, places))


def _place_in_group(node: fx.Node) -> Key:
    """The rank and size of the group of a collective, on which its expansion depends, as text refers to it by name."""
    group = group_of(node)
    return tuple(place_in_group(group) or ()) if group is not None else ()


def described(value: Any) -> Any:
    """The metadata of a value in a hashable form: shape, stride, dtype, device of a tensor; the expression of a
    size."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            return (tuple(map(expression, value.shape)), None, value.dtype, value.device, value.layout)
        shape, stride = value.shape, value.stride()
        if type(shape) is torch.Size and all([type(s) is int for s in (*shape, *stride)]):
            return (tuple(shape), stride, value.dtype, value.device)
        return (tuple(map(expression, shape)), tuple(map(expression, stride)), value.dtype, value.device)
    if isinstance(value, SYMBOLIC):
        return ("size", expression(value))
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *map(described, value))
    if isinstance(value, (int, float, bool, complex)):
        return (type(value), repr(value))
    return ("other", type(value))


def is_symbolic(value: Any) -> bool:
    """Whether metadata contains a symbolic size. Sizes of tensors that PyTorch has fixed since they were made are
    numbers."""
    return any(map(_is_symbolic, leaves(value)))


def _is_symbolic(leaf: Any) -> bool:
    if isinstance(leaf, torch.Tensor):
        return any(is_open(size) for size in (*leaf.shape, *strides_of(leaf)))
    return isinstance(leaf, SYMBOLIC)
