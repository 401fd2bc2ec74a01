"""The dependence of a program on the memory layout of its inputs. A lowered graph has `view` where the strides of the
metadata allow it, and may read complex numbers as pairs of reals. On inputs with other strides, or with an unresolved
conjugate bit, PyTorch refuses these ops; as only values matter, running on a copy of the input is correct."""

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
"""Ops that only accept some strides."""
_BY_BITS = frozenset({"view_as_real", "view_as_complex"})
"""Ops that do not accept a tensor with a conjugate or negative bit set."""
_DENSE = frozenset({"mm", "bmm", "addmm", "baddbmm"})
"""Ops whose results have strides independent of those of their operands."""


@dataclass(frozen=True, slots=True)
class Reads:
    """The inputs, by name, of which a graph needs more than the values."""

    strides: frozenset[str]
    bits: frozenset[str]
    shared: frozenset[str]
    """Those that are written, or returned, directly or as a view: these cannot be replaced by a copy."""

    @classmethod
    def of(cls, graph: fx.Graph) -> Reads:
        """The reads of a lowered graph."""
        written = (target for node in graph.nodes for target in mutated_args(node))
        results = (leaf for leaf in tree_leaves(graph.output_node().args) if isinstance(leaf, fx.Node))
        shared = (base for node in (*written, *results) for base in view_chain(node))
        read = (base for node in filter(_needs_bits, graph.nodes) for base in view_chain(node))
        return cls(_inputs_before(filter(_needs_strides, graph.nodes)), _names(read), _names(shared))


def _needs_strides(node: fx.Node) -> bool:
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return True  # its bodies may
    return _short(node) in _BY_STRIDES and not _keeps_sizes(node)


def _keeps_sizes(node: fx.Node) -> bool:
    """Whether a view only inserts or removes dimensions of size 1."""
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
    """The inputs on whose layout the layout of an operand of these nodes may depend."""
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
    """The dimensions of a tensor in memory order, the outermost first; None if it has gaps or overlapping elements."""
    if value.layout is not torch.strided:
        return None
    sizes, strides = (list(_hints(each)) for each in (value.shape, value.stride()))
    if len(sizes) < value.dim() or len(strides) < value.dim():
        return None
    # Sort by stride, then verify that strides are products of inner sizes: otherwise there are gaps or overlaps.
    order = sorted(range(len(sizes)), key=lambda dim: (-strides[dim], dim))
    order = _place_size_one_dims(order, sizes)
    expected = 1
    for dim in reversed(order):
        if sizes[dim] != 1 and strides[dim] != expected:
            return None
        expected *= sizes[dim]
    return tuple(order)


def _place_size_one_dims(order: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """The stride of a dimension of size 1 is arbitrary: put it after the dimension before it, so that the contiguous
    order is recognised as such."""
    found = [dim for dim in order if sizes[dim] != 1]
    for dim in (dim for dim in range(len(sizes)) if sizes[dim] == 1):
        found.insert(found.index(dim - 1) + 1 if dim else 0, dim)
    return found


def _hints(sizes: Iterable[Any]) -> Iterator[int]:
    """The sizes, with the hint of the example inputs for symbolic ones; symbolic sizes without a hint are left out."""
    for size in sizes:
        hint = size.node.hint if isinstance(size, SYMBOLIC) else size
        if hint is not None:
            yield hint


def order_condition(order: tuple[int, ...], name: str) -> str:
    """Code that is true of a tensor whose dimensions are laid out in this order."""
    # The permutation costs more than the question.
    usual = order == tuple(range(len(order)))
    return f"{name}.is_contiguous()" if usual else f"{name}.permute({order}).is_contiguous()"


def lay_out_in_order(tensor: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """A tensor, copied unless its dimensions are laid out in this order."""
    back = sorted(range(len(order)), key=order.__getitem__)
    return tensor.permute(order).contiguous().permute(back)
