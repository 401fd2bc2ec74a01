"""Calls with symbolic sizes at the sizes of their example. A rule takes several times as long to record under symbolic
sizes as under fixed ones, and fixed ones are memoised for every program and on disk. So the planner first plans a call
at the sizes of the example, and then records under symbolic sizes only the rule that was chosen there."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from decomp.derive.other_sizes import at_sizes
from decomp.ir.call import metadata
from decomp.ir.signature import Signature
from decomp.metadata.fakes import Fakes
from decomp.metadata.symbolic_sizes import SYMBOLIC, symbols_in
from decomp.torch_internals.pytree import tensors_in


class ExampleSizes:
    """The sizes of a program's example."""

    def __init__(self, env: Any, fakes: Fakes) -> None:
        """`env`: the shape environment of the program; `fakes`: creates those of fixed sizes."""
        self._hints, self._fakes = env.backed_var_to_val, fakes

    def call(self, node: fx.Node, signature: Signature) -> fx.Node | None:
        """The same call at these sizes, in a graph of its own; None if a size is data-dependent, and so has no example,
        or a tensor has no strides."""
        given = signature.tensor_args
        values = [metadata(each) for each in (*given, node)]
        if not self._hints.keys() >= set(symbols_in(values)) or not _are_strided(values):
            return None
        # In the mode of fixed sizes, whose recipes and expansions all programs share.
        *inputs, result = (at_sizes(value, self._hints, self._fakes) for value in values)
        graph = fx.Graph()
        twins: dict[fx.Node, Any] = {}
        for each, symbolic, fixed in zip(given, values, inputs):
            # A size becomes the number that it is in the example.
            twins[each] = fixed if isinstance(symbolic, SYMBOLIC) else _with_value(graph.placeholder(each.name), fixed)
        args, kwargs = fx.map_arg((node.args, node.kwargs), twins.__getitem__)
        # With the result's metadata, as that is part of a signature.
        twin = _with_value(graph.create_node(node.op, node.target, args, kwargs), result)
        if signature.read is not None:  # the results that are used are part of a signature
            graph.output([graph.call_function(operator.getitem, (twin, place)) for place in signature.read])
        return twin


def _are_strided(values: Any) -> bool:
    return all(tensor.layout is torch.strided for tensor in tensors_in(values))


def _with_value(node: fx.Node, value: Any) -> fx.Node:
    node.meta["val"] = value
    return node
