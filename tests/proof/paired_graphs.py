"""A source graph and its lowering, written side by side by hand, for tests of verification."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

from decomp.proof.checks import check
from decomp.proof.correspondence import Correspondence, VerificationError

aten = torch.ops.aten


class Pair:
    """A source graph and its lowering, written side by side."""

    def __init__(self) -> None:
        self.source, self.lowered = fx.Graph(), fx.Graph()
        self.origin: dict[fx.Node, fx.Node] = {}
        self.values: dict[fx.Node, Any] = {}

    def both(self, op: str, target: Any, *args: Any, name: str | None = None) -> tuple[fx.Node, fx.Node]:
        """The same node in both graphs; `args` are nodes of the source."""
        before = self.source.create_node(op, target, args, name=name)
        after = self.lowered.node_copy(before, lambda node: self.values[node])
        self.origin[after], self.values[before] = before, after
        return before, after

    def call(self, target: Any, *args: Any, name: str) -> fx.Node:
        """A call of the source that is to be expanded."""
        return self.source.create_node("call_function", target, args, name=name)

    def expand(self, source: fx.Node, target: Any, *args: Any, name: str) -> fx.Node:
        """A lowered call that came from `source`, and replaces it unless another follows."""
        node = self.lowered.create_node("call_function", target, args, name=name)
        self.origin[node], self.values[source] = source, node
        return node

    def returning(self, *results: fx.Node) -> Correspondence:
        self.both("output", "output", results)
        return Correspondence(self.source, self.lowered, self.origin, self.values)


def lowering() -> Correspondence:
    """`add(gelu(x), y)`, with gelu expanded as `mul(mul(x, x), x)`."""
    pair = Pair()
    x, lx = pair.both("placeholder", "x")
    y, _ = pair.both("placeholder", "y")
    gelu = pair.call(aten.gelu.default, x, name="gelu")
    square = pair.expand(gelu, aten.mul.Tensor, lx, lx, name="gelu_square")
    pair.expand(gelu, aten.mul.Tensor, square, lx, name="gelu")
    add, _ = pair.both("call_function", aten.add.Tensor, gelu, y, name="add")
    return pair.returning(add)


def node_of(graph: fx.Graph, name: str) -> Any:
    return next(node for node in graph.nodes if node.name == name)


def broken(correspondence: Correspondence, kind: type[VerificationError], full: bool = False) -> str:
    """The text of the error that the proof ends with."""
    with pytest.raises(VerificationError) as caught:
        check(correspondence, full)
    assert type(caught.value) is kind
    text, _, remedy = str(caught.value).rpartition("\n  to do: ")
    assert remedy == kind.remedy
    return text


def with_metadata(correspondence: Correspondence, name: str, before: Any, after: Any) -> Correspondence:
    node_of(correspondence.source, name).meta["val"] = before
    correspondence.values[node_of(correspondence.source, name)].meta["val"] = after
    return correspondence


def fake(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")
