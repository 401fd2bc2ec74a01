"""Inputs whose layout differs from that of the example inputs. If a program writes to memory that its inputs share,
AOTAutograd passes the base of these views to the compiled graph, without guards on the base's layout (torch 2.13)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from decomp.capture.propagation import propagate_metadata
from decomp.graphs.rewrite import copy_graph
from decomp.ir.call import metadata
from decomp.metadata.strides import has_strides

Function = Callable[[list[Any]], Any]


def for_every_layout(
    made: Callable[[fx.GraphModule, Sequence[Any]], Function], module: fx.GraphModule, examples: Sequence[Any]
) -> Function:
    """The function that `made` returns for a graph with metadata and its example inputs. When it is called with inputs
    whose sizes or strides differ from the static ones in the metadata, `made` is called again for the layout of
    these."""
    # The graph of before: `made` may change the one that it is given.
    graph = copy_graph(module.graph).graph
    recorded = [_Recorded(metadata(node)) for node in graph.find_nodes(op="placeholder")]
    first, others = made(module, examples), dict[Any, Function]()

    def called(arguments: list[Any]) -> Any:
        if all(of_input.allows(value) for of_input, value in zip(recorded, arguments)):
            return first(arguments)
        # One program for each layout, as a guard would cause one recompilation each; for those guards see
        # https://github.com/pytorch/pytorch/pull/184481.
        key = tuple(map(_layout, arguments))
        if key not in others:
            again = propagate_metadata(graph, module, arguments, None)[0].graph
            others[key] = made(fx.GraphModule(module, again), list(map(metadata, again.find_nodes(op="placeholder"))))
        return others[key](arguments)

    from decomp.torch_internals.compiling import as_boxed

    return as_boxed(called)


class _Recorded:
    """The static sizes and strides of an input."""

    def __init__(self, value: Any) -> None:
        known = isinstance(value, torch.Tensor)
        self.sizes: Sequence[Any] = value.shape if known else ()
        self.strides: Sequence[Any] = value.stride() if known else ()

    def allows(self, value: Any) -> bool:
        if not self.strides:
            return True
        sizes, strides = _fixed(self.sizes, value.shape), _fixed(self.strides, value.stride())
        return tuple(value.shape) == sizes and has_strides(value, strides)


def _fixed(recorded: Sequence[Any], found: Sequence[int]) -> tuple[int, ...]:
    """The recorded numbers, with those found in the place of symbols."""
    return tuple(own if isinstance(own, int) else now for own, now in zip(recorded, found))


def _layout(value: Any) -> Any:
    return (value.shape, value.stride()) if isinstance(value, torch.Tensor) else value
