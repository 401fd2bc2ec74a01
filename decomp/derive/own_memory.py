"""Results on memory of their own: a rule may give what it was given (a product along one element), where the op gives
new memory. Nobody sees that inside a program; whoever gets the result may write to it, and is not to write an input."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import fx

from decomp.derive.expansion import Expansion
from decomp.graphs.rewrite import Rewrite
from decomp.graphs.template import Stamp
from decomp.graphs.tracing import without_guards
from decomp.ir.aliases import is_view_on_meta, view_bases
from decomp.ir.call import metadata

if TYPE_CHECKING:
    from decomp.derive.decisions import Decision, Derived
    from decomp.derive.planner import Planner


def separate_results(graph: fx.Graph, decisions: dict[fx.Node, Decision], planner: Planner) -> None:
    """Let expansions copy what they give, where it leaves the program, they would give what they are given, and the op
    gives new memory. Where the target cannot copy, and in `decompose`, they stay as they are."""
    if planner.everywhere:
        return
    planner.kept_depth = 1  # the calls that copy
    for node, derived in list(_leaving(graph, decisions)):
        stamp = planner.reach(_copying(derived), planner.request(node), 0)
        if isinstance(stamp, Stamp):
            decisions[node] = replace(derived, stamp=stamp)


def _leaving(graph: fx.Graph, decisions: dict[fx.Node, Decision]) -> Iterator[tuple[fx.Node, Derived]]:
    """What reaches the output, also through views, of the calls whose expansions give an input although the op gives
    new memory."""
    seen = dict.fromkeys(next(iter(reversed(graph.nodes))).all_input_nodes)
    waiting = list(seen)
    for node in waiting:
        decision, related = decisions.get(node), view_bases(node)
        stamp = getattr(decision, "stamp", None)
        if stamp is not None and not related and _results_of_inputs(stamp.graph) and not _gives_argument(node):
            yield node, decision  # type: ignore[misc]
        for other in related:
            if other not in seen:
                seen[other] = None
                waiting.append(other)


def _gives_argument(node: fx.Node) -> bool:
    """Whether the op shares memory with an argument although its schema does not say so, as composite ones do."""
    tensors = (given for given in node.all_input_nodes if isinstance(metadata(given), torch.Tensor))
    return any(is_view_on_meta(node, given) for given in tensors)


def _results_of_inputs(graph: fx.Graph) -> list[fx.Node]:
    """The results of an expansion that share memory with an input."""
    results = next(iter(reversed(graph.nodes))).all_input_nodes
    return [node for node in results if _reaches_input(node)]


def _reaches_input(node: fx.Node) -> bool:
    """Whether a value is an input or a view of one; of calls that may copy instead, storages tell."""
    waiting = [node]
    for current in waiting:
        if current.op == "placeholder" and _may_share(node, current):
            return True
        waiting += view_bases(current)
    return False


def _may_share(one: fx.Node, two: fx.Node) -> bool:
    values = [metadata(one), metadata(two)]
    if not all(isinstance(value, torch.Tensor) and value.layout is torch.strided for value in values):
        return True
    one_storage, other = (value.untyped_storage()._cdata for value in values)
    return bool(one_storage == other)


def _copying(derived: Derived) -> Expansion:
    """The flat expansion, which copies what it gives of its inputs."""
    flat = derived.stamp.graph
    given, rewrite = _results_of_inputs(flat), Rewrite.of(flat)
    for node in flat.nodes:
        if node.op == "output":
            for result in given:
                rewrite.replace(result, _copy_of(rewrite, result))
        rewrite.copy(node)
    return Expansion(derived.rule, rewrite.graph, dict(derived.stamp.constants))


def _copy_of(rewrite: Rewrite, node: fx.Node) -> fx.Node:
    clone = torch.ops.aten.clone.default
    new = rewrite.add("call_function", clone, (rewrite.values[node],), {}, f"{node.name}_copy", at=node)
    value = metadata(node)
    if value is not None:
        with value.fake_mode, without_guards(value.fake_mode):
            new.meta["val"] = value.clone()
    return new
