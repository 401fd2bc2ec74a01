"""Complex numbers at the boundary of a program that has none inside. A backend without complex dtypes gets real views
of complex inputs, parameters and buffers, and its real results are viewed as complex."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import fx

from decomp.ir.accounting import effects_in
from decomp.ir.call import call_if_bound, metadata
from decomp.ir.dtypes import is_complex
from decomp.runtime.tables import Backend
from decomp.type_conversion.pairs import MERGE_COMPLEX, SPLIT_COMPLEX


@dataclass(frozen=True)
class ComplexBoundary:
    """Conversions that PyTorch does for a backend, before its first call and after its last."""

    leaves: dict[fx.Node, fx.Node] = field(default_factory=dict)
    """Complex tensors that the program reads, of which the backend has real views, each with a call that views it."""
    apart: frozenset[fx.Node] = frozenset()
    """The calls that create these views."""
    together: frozenset[fx.Node] = frozenset()
    """The calls that create complex results."""

    @classmethod
    def of(cls, graph: fx.Graph, backend: Backend) -> ComplexBoundary:
        """The border of a graph: the conversions for which the backend has no functions."""
        written = {node for node, kind in effects_in(graph).items() if kind == "write-back"}
        outside = {*written, graph.output_node()}
        leaves: dict[fx.Node, fx.Node] = {}
        for node in graph.nodes:
            if node.op in ("placeholder", "get_attr") and is_complex(metadata(node)):
                views = [user for user in node.users if user.target is SPLIT_COMPLEX and _lacks(backend, user)]
                # One use as a complex tensor inside, and the backend would need it complex.
                if views and all(user in views or user in outside for user in node.users):
                    leaves[node] = views[0]
        apart = (user for node in leaves for user in node.users if user.target is SPLIT_COMPLEX)
        together = (
            node
            for node in graph.nodes
            if node.target is MERGE_COMPLEX and _lacks(backend, node) and all(user in outside for user in node.users)
        )
        return cls(leaves, frozenset(apart), frozenset(together))

    def __iter__(self) -> Iterator[fx.Node]:
        """The nodes that are complex in the graph, but real in the backend."""
        yield from self.leaves
        yield from self.together

    def __contains__(self, node: fx.Node) -> bool:
        return node in self.leaves or node in self.together


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """The real view of a complex tensor, which the backend gets."""
    return torch.view_as_real(tensor.resolve_conj())


def as_complex(tensor: torch.Tensor) -> torch.Tensor:
    """The complex tensor for a real result of the backend."""
    # Via a vector: dimensions of size 0 or 1 may have any strides in foreign memory, which `view_as_complex` rejects.
    pairs = tensor.reshape(-1).view(tensor.numel() // 2, 2)
    return torch.view_as_complex(pairs).view(tensor.shape[:-1])


def _lacks(backend: Backend, node: fx.Node) -> bool:
    call = call_if_bound(node)
    return call is not None and backend.implementation(call) is None
