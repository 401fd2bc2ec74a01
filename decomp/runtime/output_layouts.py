"""Restores the recorded layout of outputs. To replay an output that is a view of an input, AOTAutograd uses the sizes,
strides and offset of the tensor that the compiled graph returns; a lowered graph may return a copy with other
strides."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from decomp.functionalize.alias_sets import storage_of
from decomp.functionalize.overlap import memory_span, overlaps_itself
from decomp.ir.call import metadata
from decomp.metadata.symbolic_sizes import expression
from decomp.runtime.shared_outputs import outputs_of


@dataclass(frozen=True)
class _Layout:
    """Sizes, strides and offset, as numbers or symbolic expressions."""

    size: tuple[Any, ...]
    stride: tuple[Any, ...]
    offset: Any

    def at(self, sizes: Mapping[Any, int]) -> _Layout:
        """The layout with symbols replaced by numbers."""
        size, stride = (tuple(_number(part, sizes) for part in parts) for parts in (self.size, self.stride))
        return _Layout(size, stride, _number(self.offset, sizes))

    def is_of(self, tensor: torch.Tensor) -> bool:
        return (tensor.shape, tensor.stride(), tensor.storage_offset()) == (self.size, self.stride, self.offset)

    def put(self, tensor: torch.Tensor, with_values: bool) -> torch.Tensor:
        """A tensor of this layout, with the values of `tensor` if `with_values`."""
        span = memory_span(zip(self.size, self.stride))
        # The memory begins at 0, so that the offset is the recorded one as well.
        memory = tensor.new_empty(self.offset + span if tensor.numel() else self.offset)
        found = memory.as_strided(self.size, self.stride, self.offset)
        # An expanded output has no elements of its own to copy to.
        return found.copy_(tensor) if with_values and not overlaps_itself(found) else found

    def seen_in(self, base: torch.Tensor, dtype: torch.dtype, recorded: _Layout) -> torch.Tensor:
        """The tensor of this layout and dtype in the memory of `base`. Offsets are relative to the recorded layout of
        `base`, as an input may have another storage offset than when it was recorded."""
        # All of the storage, as a view may begin before its base does.
        every = base.untyped_storage().nbytes() // base.element_size()
        memory = base.as_strided((every,), (1,), 0)
        memory = memory if dtype == base.dtype else memory.view(dtype)
        # The offset of the input now, less that of the example, in elements of the view's dtype.
        later = (base.storage_offset() - recorded.offset) * base.element_size() // memory.element_size()
        return memory.as_strided(self.size, self.stride, self.offset + later)


def with_layouts(
    function: Any, graph: fx.Graph, views: Collection[int], whole: Collection[int], shown: Mapping[int, int], count: int
) -> Any:
    """Wraps `function`, a lowered `graph` that takes a list, so that outputs have their recorded layouts. Of outputs in
    `views` only the layout is read. `shown` maps outputs that are views to their bases: an output, also one after the
    `count` results that are returned, or an input, of which -1 is the first."""
    places = {*views, *whole, *shown, *shown.values()}
    layouts = {i: layout for i in places if (layout := _recorded_layout(graph, i)) is not None}
    if not layouts:
        return function
    symbols = _symbols(graph)
    copied = {*whole, *shown.values()}
    inputs = {i for i in shown.values() if i < 0}

    def called(arguments: list[Any]) -> Sequence[Any]:
        # With dynamic sizes AOTAutograd passes each symbol as an input of the graph.
        sizes = {symbol: int(arguments[place]) for symbol, place in symbols.items()}
        bases = {i: arguments[-1 - i] for i in inputs}
        results = list(function(arguments))
        found = {i: layout.at(sizes) for i, layout in layouts.items()}
        for i in found.keys() - shown.keys() - inputs:
            # AOTAutograd would take the `_base` of such a result for the base that was traced.
            if not found[i].is_of(results[i]) or i in views and results[i]._base is not None:
                results[i] = found[i].put(results[i], i in copied)
        for i, place in shown.items():
            base = bases[place] if place in bases else results[place]
            # A result that already is a view needs nothing; one that is the base itself is no view.
            shares = storage_of(results[i]) == storage_of(base) and results[i] is not base
            if i in found and place in found and not shares:
                results[i] = found[i].seen_in(base, results[i].dtype, found[place])
        return results[:count]

    from decomp.torch_internals.compiling import as_boxed

    return as_boxed(called)


def _symbols(graph: fx.Graph) -> dict[Any, int]:
    """The symbols of a graph's sizes, each with the index of the input that it is."""
    inputs = graph.find_nodes(op="placeholder")
    given = {expression(metadata(node)): i for i, node in enumerate(inputs) if isinstance(metadata(node), torch.SymInt)}
    return {symbol: i for symbol, i in given.items() if getattr(symbol, "is_symbol", False)}


def _recorded_layout(graph: fx.Graph, index: int) -> _Layout | None:
    """The layout of an output of the graph, or of an input (-1 is the first), if inputs determine its symbols."""
    result = outputs_of(graph)[index] if index >= 0 else graph.find_nodes(op="placeholder")[-1 - index]
    value = metadata(result) if isinstance(result, fx.Node) else None
    if not isinstance(value, torch.Tensor):
        return None
    size, stride = (tuple(map(expression, parts)) for parts in (value.shape, value.stride()))
    found = _Layout(size, stride, expression(value.storage_offset()))
    free = set().union(*(getattr(part, "free_symbols", ()) for part in (*size, *stride, found.offset)))
    # A symbol that no input gives has no number here, and the layout is left as it is.
    return found if free <= _symbols(graph).keys() else None


def _number(part: Any, sizes: Mapping[Any, int]) -> int:
    return part if isinstance(part, int) else int(part.xreplace(sizes))
