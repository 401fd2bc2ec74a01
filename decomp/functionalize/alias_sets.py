"""Sets of nodes that may share memory, judged by ops alone, and which of these sets are written. Functionalization
follows the nodes of written sets; every other node is copied unchanged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

from decomp.graphs.disjoint_sets import DisjointSets
from decomp.ir.aliases import attribute, bodies, mutated_args, updates_statistics, view_bases
from decomp.ir.arguments import nodes_in
from decomp.ir.call import metadata
from decomp.ir.op_facts import runs_once
from decomp.torch_internals.fakes import FakeTensor


class AliasSets:
    """A partition of a graph's nodes: two nodes are in one set if they may share memory."""

    def __init__(self, graph: fx.Graph, root: nn.Module | None, state: Mapping[str, Any] | None = None) -> None:
        """`state`: parameters and buffers by the name of their placeholder, where the program lifts them to its inputs
        (`ExportedProgram`); None for the body of a higher-order op, whose inputs are operands."""
        self.root, self.state, self.is_body = root, state or {}, state is None
        self.graph = graph
        self._sets = DisjointSets[fx.Node]()
        self._first_by_key: dict[Any, fx.Node] = {}
        mutated: list[fx.Node] = []
        for node in graph.nodes:
            mutated += self._add(node)
        # Representatives are only final once all nodes have been joined.
        self._mutated = {self._sets.of(node) for node in mutated}

    def may_be_written(self, node: fx.Node) -> bool:
        """Whether the graph may write to the memory of `node`, through it or through another node."""
        return bool(self._mutated) and self._sets.of(node) in self._mutated

    def may_alias(self, one: fx.Node, two: fx.Node) -> bool:
        """Whether two nodes may share memory."""
        return self._sets.of(one) is self._sets.of(two)

    def attribute_key(self, node: fx.Node) -> Any:
        """A key that two nodes share if they read the same parameter or buffer."""
        if node.op != "get_attr" and node.name not in self.state:
            return None
        value = self._tensor(node)
        return id(value) if isinstance(value, torch.Tensor) else str(node.target)

    def storage_key(self, node: fx.Node) -> Any:
        """A key that two nodes share if their parameters or buffers are on one storage."""
        value = self._tensor(node)
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.numel() == 0:
            return None
        return id(value.untyped_storage())  # kept alive, and the same object, as long as the storage is

    def input_key(self, node: fx.Node) -> Any:
        """A key that two inputs share if their example values are on one storage."""
        # Inputs of a body are operands, whose memory the graph around it knows. An unused input is neither read nor
        # written.
        value = metadata(node) if node.op == "placeholder" and node.users and not self.is_body else None
        return ("input", storage_of(value)) if isinstance(value, FakeTensor) else None

    def _tensor(self, node: fx.Node) -> Any:
        """The parameter or buffer that a node reads, if any."""
        if node.op == "placeholder":
            return self.state.get(node.name)
        return attribute(self.root, str(node.target)) if self.root is not None and node.op == "get_attr" else None

    def _add(self, node: fx.Node) -> list[fx.Node]:
        """Join `node` with the nodes with which it may share memory. Returns the nodes to which it writes."""
        mutated = list(mutated_args(node, self.root))
        # What an in-place call returns is the tensor that it writes; a batch norm returns another one than its
        # statistics.
        related = [*view_bases(node, self.root), *(() if updates_statistics(node) else mutated)]
        for operands, body in regions(node, self.root):
            # An operand belongs to the call's set only if the body may return or write its memory; other operands stay
            # independent.
            inner, results = AliasSets(body.graph, body), _results(body.graph)
            for operand, source in zip(operands, body.graph.find_nodes(op="placeholder")):
                if not isinstance(operand, fx.Node):
                    continue
                if inner.may_be_written(source):
                    mutated.append(operand)
                if inner.may_be_written(source) or any(inner.may_alias(source, result) for result in results):
                    related.append(operand)
        for other in related:
            self._sets.join(node, other)
        for key in (self.attribute_key(node), self.storage_key(node), self.input_key(node)):
            if key is not None:
                self._sets.join(node, self._first_by_key.setdefault(key, node))
        return mutated


def writes_alias_other_values(graph: fx.Graph, root: nn.Module | None, inputs: Sequence[Any]) -> bool:
    """Whether an input to which the program writes shares memory with another input or with an output."""
    alias_sets = AliasSets(graph, root)
    placeholders = graph.find_nodes(op="placeholder")
    written_inputs = [node for node in placeholders if alias_sets.may_be_written(node)]
    results = _results(graph)
    if any(alias_sets.may_alias(node, result) for node in written_inputs for result in results):
        return True
    storages = {node: storage_of(value) for node, value in zip(placeholders, inputs)}
    all_storages = list(storages.values())
    # By storage, not by elements: where this is true AOTAutograd takes over, which is right in either case.
    return any(all_storages.count(storages[node]) > 1 for node in written_inputs if storages.get(node) is not None)


def storage_of(value: Any) -> int | None:
    """An identifier of a strided tensor's storage, for comparison."""
    strided = isinstance(value, torch.Tensor) and value.layout is torch.strided
    return value.untyped_storage()._cdata if strided else None


def touching_writes(graph: fx.Graph, root: nn.Module | None) -> Iterator[fx.Node]:
    """The nodes whose results or arguments may share memory with something to which the graph writes."""
    alias_sets = AliasSets(graph, root)
    return (node for node in graph.nodes if any(map(alias_sets.may_be_written, (node, *node.all_input_nodes))))


def regions(node: fx.Node, root: nn.Module | None) -> Iterator[tuple[list[Any], fx.GraphModule]]:
    """The body of a higher-order op that runs one body once (no_grad, autocast), with the operands for its inputs."""
    if runs_once(node.target):
        for name, body in bodies(node, root)[:1]:
            yield list(node.args[node.args.index(name) + 1 :]), body


def _results(graph: fx.Graph) -> list[fx.Node]:
    return list(nodes_in(graph.output_node().args))
