"""Which inputs each result of a program depends on: what two programs must agree in though no provenance relates their
nodes. A dependency that is new is wrong; one that is lost is wrong where it is sure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx

from decomp.ir.op_facts import NEEDS_ALL_ELEMENTS, SHAPE_OF_THE_FIRST
from decomp.torch_internals import pytree


def inputs_of_results(graph: fx.Graph, *, sure: bool) -> list[frozenset[str]]:
    """For each tensor that the graph returns, in order, the inputs and attributes that it depends on, by name: all that
    it could depend on or, with `sure`, only those that it must."""
    names = {n: str(n.target) for n in graph.nodes if n.op in ("placeholder", "get_attr")}
    bits = {name: 1 << i for i, name in enumerate(dict.fromkeys(names.values()))}
    passes: Callable[[fx.Node], bool] = _must_depend if sure else _may_depend
    masks: dict[fx.Node, int] = {}
    for node in graph.nodes:
        mask = bits[names[node]] if node in names else 0
        if node.op.startswith("call") and passes(node):
            for given in node.all_input_nodes:
                mask |= masks[given]
        masks[node] = mask
    returned = (leaf for leaf in pytree.tree_leaves(graph.output_node().args[0]) if isinstance(leaf, fx.Node))
    return [frozenset(name for name, bit in bits.items() if masks[leaf] & bit) for leaf in returned]


def _may_depend(node: fx.Node) -> bool:
    """Whether a result may depend on the values of the operands, and not on their shapes alone."""
    return not str(getattr(node.target, "__name__", node.target)).startswith(("sym_size", "sym_stride", "sym_numel"))


def _must_depend(node: fx.Node) -> bool:
    overload = node.target
    if not isinstance(overload, torch._ops.OpOverload) or len(overload._schema.returns) != 1:
        return False
    name = overload._overloadpacket.__name__
    if name in SHAPE_OF_THE_FIRST or 0 in _numbers(node.args):
        return False
    return name in NEEDS_ALL_ELEMENTS or torch.Tag.pointwise in overload.tags


def _numbers(args: Any) -> Iterator[float]:
    return (arg for arg in args if isinstance(arg, (int, float)))


def differing(source: fx.Graph, lowered: fx.Graph) -> tuple[int, str, frozenset[str]] | None:
    """The first result that depends on other inputs in `lowered`: its place, "invented" or "lost", and the inputs. Of
    what `source` does not have nothing is asked."""
    known = {str(n.target) for n in source.nodes if n.op in ("placeholder", "get_attr")}
    after = inputs_of_results(lowered, sure=False)
    may, must = inputs_of_results(source, sure=False), inputs_of_results(source, sure=True)
    for i, found in enumerate(after[: len(may)]):
        invented = (found & known) - may[i]
        if invented:
            return i, "invented", invented
        if must[i] - found:
            return i, "lost", must[i] - found
    return None


def draws(graph: fx.Graph, is_random: Callable[[fx.Node], bool]) -> list[list[int]]:
    """For each random call, in order, the places of the results that it serves."""
    results = [leaf for leaf in pytree.tree_leaves(graph.output_node().args[0]) if isinstance(leaf, fx.Node)]
    masks: dict[fx.Node, int] = {}
    for i, leaf in enumerate(results):
        masks[leaf] = masks.get(leaf, 0) | 1 << i
    served = []
    for node in reversed(graph.nodes):
        mask = masks.get(node, 0)
        for given in node.all_input_nodes if mask and node.op != "output" else ():
            masks[given] = masks.get(given, 0) | mask
        if is_random(node):
            served.append([i for i in range(len(results)) if mask >> i & 1])
    return served[::-1]
