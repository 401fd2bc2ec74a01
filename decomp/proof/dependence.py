"""Dependence of results on inputs, for comparing two programs without a record. A new dependency is an error; a lost
one only if the source is sure to depend on the input."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx

from decomp.ir.op_facts import NEEDS_ALL_ELEMENTS, SHAPE_OF_THE_FIRST
from decomp.torch_internals import pytree


def inputs_of_results(graph: fx.Graph, *, sure: bool) -> list[frozenset[str]]:
    """For each tensor that the graph returns, in order, the names of the inputs and attributes on which it may depend
    or, with `sure`, is sure to depend."""
    names = {n: str(n.target) for n in graph.nodes if n.op in ("placeholder", "get_attr")}
    # Sets of inputs as bit masks: one integer operation per edge, for any number of inputs.
    bits = {name: 1 << i for i, name in enumerate(dict.fromkeys(names.values()))}
    # Two bounds: "may" for the lowered program and "must" for the source, so that neither an op with unknown semantics
    # nor a fold of constants is reported by mistake.
    passes: Callable[[fx.Node], bool] = _must_depend if sure else _may_depend
    masks: dict[fx.Node, int] = {}
    for node in graph.nodes:
        mask = bits[names[node]] if node in names else 0
        if node.op.startswith("call") and passes(node):
            for operand in node.all_input_nodes:
                mask |= masks[operand]
        masks[node] = mask
    returned = (leaf for leaf in pytree.tree_leaves(graph.output_node().args[0]) if isinstance(leaf, fx.Node))
    return [frozenset(name for name, bit in bits.items() if masks[leaf] & bit) for leaf in returned]


def _may_depend(node: fx.Node) -> bool:
    """Whether a result may depend on the values of operands, not only on their shapes."""
    return not str(getattr(node.target, "__name__", node.target)).startswith(("sym_size", "sym_stride", "sym_numel"))


def _must_depend(node: fx.Node) -> bool:
    overload = node.target
    # Of several results, which one depends on which operand is in no table.
    if not isinstance(overload, torch._ops.OpOverload) or len(overload._schema.returns) != 1:
        return False
    name = overload._overloadpacket.__name__
    # A product with 0, for instance, may be folded without its operand.
    if name in SHAPE_OF_THE_FIRST or 0 in _numbers(node.args):
        return False
    return name in NEEDS_ALL_ELEMENTS or torch.Tag.pointwise in overload.tags


def _numbers(args: Any) -> Iterator[float]:
    return (arg for arg in args if isinstance(arg, (int, float)))


def changed_dependency(source: fx.Graph, lowered: fx.Graph) -> tuple[int, str, frozenset[str]] | None:
    """The first result that depends on other inputs in `lowered`: its index, "invented" or "lost", and these inputs.
    Inputs that `source` lacks are ignored."""
    inputs = {str(n.target) for n in source.nodes if n.op in ("placeholder", "get_attr")}
    after = inputs_of_results(lowered, sure=False)
    may, must = inputs_of_results(source, sure=False), inputs_of_results(source, sure=True)
    # Values that an exported program writes back may come after those that both return.
    for i, found in enumerate(after[: len(may)]):
        invented = (found & inputs) - may[i]
        if invented:
            return i, "invented", invented
        if must[i] - found:
            return i, "lost", must[i] - found
    return None


def results_of_draws(graph: fx.Graph, is_random: Callable[[fx.Node], bool]) -> list[list[int]]:
    """For each random call, in order, the indices of the results that depend on it."""
    results = [leaf for leaf in pytree.tree_leaves(graph.output_node().args[0]) if isinstance(leaf, fx.Node)]
    masks: dict[fx.Node, int] = {}
    for i, leaf in enumerate(results):
        masks[leaf] = masks.get(leaf, 0) | 1 << i
    served = []
    # Backwards from the results: each node gathers the results that depend on it before its operands are visited.
    for node in reversed(graph.nodes):
        mask = masks.get(node, 0)
        for operand in node.all_input_nodes if mask and node.op != "output" else ():
            masks[operand] = masks.get(operand, 0) | mask
        if is_random(node):
            served.append([i for i in range(len(results)) if mask >> i & 1])
    return served[::-1]
