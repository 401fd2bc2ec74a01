"""How inputs lie in memory, as far as a program depends on it. A lowered graph has `view`s where the strides of its
metadata allow them, and reads of complex numbers as real ones. On inputs of other strides, or with a conjugate that is
not resolved, PyTorch refuses these; what they compute is a matter of values, so that a copy of the input will do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from decomp.ir.aliases import mutated_args, spelling_of, view_chain
from decomp.ir.call import metadata
from decomp.metadata.symbolic_sizes import SYMBOLIC, expression
from decomp.torch_internals.pytree import tree_leaves

_BY_STRIDES = frozenset({"view", "_unsafe_view", "_reshape_alias", "view_as_complex", "as_strided"})
"""Ops that take a tensor of some strides alone."""
_BY_BITS = frozenset({"view_as_real", "view_as_complex"})
"""Ops that take no tensor that is conjugated or negated when it is read."""
_DENSE = frozenset({"mm", "bmm", "addmm", "baddbmm"})
"""Ops whose results have the same strides whatever those of their operands are."""


@dataclass(frozen=True, slots=True)
class Reads:
    """Of which inputs a graph needs more than the values, by name."""

    strides: frozenset[str]
    bits: frozenset[str]
    shared: frozenset[str]
    """Those that are written, or returned, whole or as a view: of these no copy may take the place."""

    @classmethod
    def of(cls, graph: fx.Graph) -> Reads:
        """Those of a lowered graph."""
        written = (target for node in graph.nodes for target in mutated_args(node))
        results = (leaf for leaf in tree_leaves(graph.output_node().args) if isinstance(leaf, fx.Node))
        shared = (base for node in (*written, *results) for base in view_chain(node))
        read = (base for node in filter(_needs_bits, graph.nodes) for base in view_chain(node))
        return cls(_inputs_before(filter(_needs_strides, graph.nodes)), _names(read), _names(shared))


def _needs_strides(node: fx.Node) -> bool:
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return True  # of its bodies
    return _short(node) in _BY_STRIDES and not _keeps_sizes(node)


def _keeps_sizes(node: fx.Node) -> bool:
    """Whether a view adds dimensions of size 1, or leaves them out, and does no more."""
    given = [value for each in (*node.all_input_nodes[:1], node) if isinstance(value := metadata(each), torch.Tensor)]
    if len(given) < 2 or given[0].dtype != given[1].dtype:
        return False
    before, after = ([expression(size) for size in value.shape if expression(size) != 1] for value in given)
    return bool(before == after)


def _needs_bits(node: fx.Node) -> bool:
    short = _short(node)
    if short != "view" or len(node.args) < 2:
        return short in _BY_BITS
    return isinstance(node.args[1], torch.dtype)


def _short(node: fx.Node) -> str | None:
    return spelling_of(node).op.short if node.op in ("call_function", "call_method") else None


def _inputs_before(nodes: Iterable[fx.Node]) -> frozenset[str]:
    """The inputs whose layout that of an operand of these may depend on."""
    waiting = [given for node in nodes for given in node.all_input_nodes]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if not isinstance(metadata(node), (torch.Tensor, list, tuple)) or _is_dense(node):
            continue
        waiting += [given for given in node.all_input_nodes if given not in seen]
        seen.update(node.all_input_nodes)
    return _names(node for node in seen if isinstance(metadata(node), torch.Tensor))


def _is_dense(node: fx.Node) -> bool:
    short = _short(node)
    return short in _DENSE or short == "clone" and node.kwargs.get("memory_format") is torch.contiguous_format


def _names(nodes: Iterable[fx.Node]) -> frozenset[str]:
    return frozenset(str(node.target) for node in nodes if node.op == "placeholder")


def order_of(value: torch.Tensor) -> tuple[int, ...] | None:
    """The dimensions of a tensor in the order in which they lie in memory, the outermost first; None if it has gaps, or
    elements in one place."""
    if value.layout is not torch.strided:
        return None
    sizes, strides = (list(_hints(each)) for each in (value.shape, value.stride()))
    if len(sizes) < value.dim() or len(strides) < value.dim():
        return None
    order = sorted(range(len(sizes)), key=lambda dim: (-strides[dim], dim))
    order = _with_ones_in_place(order, sizes)
    expected = 1
    for dim in reversed(order):
        if sizes[dim] != 1 and strides[dim] != expected:
            return None
        expected *= sizes[dim]
    return tuple(order)


def _with_ones_in_place(order: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Dimensions of size 1 lie anywhere: behind the one before them, so that the usual order is found as such."""
    found = [dim for dim in order if sizes[dim] != 1]
    for dim in (dim for dim in range(len(sizes)) if sizes[dim] == 1):
        found.insert(found.index(dim - 1) + 1 if dim else 0, dim)
    return found


def _hints(sizes: Iterable[Any]) -> Iterator[int]:
    """Numbers, or what symbolic ones are in the example, where it has them."""
    for size in sizes:
        hint = size.node.hint if isinstance(size, SYMBOLIC) else size
        if hint is not None:
            yield hint


def is_in_order(order: tuple[int, ...], name: str) -> str:
    """Code that is true of a tensor that lies in this order."""
    usual = order == tuple(range(len(order)))
    return f"{name}.is_contiguous()" if usual else f"{name}.permute({order}).is_contiguous()"


def in_order(tensor: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """A tensor, copied unless it lies in this order."""
    back = sorted(range(len(order)), key=order.__getitem__)
    return tensor.permute(order).contiguous().permute(back)
