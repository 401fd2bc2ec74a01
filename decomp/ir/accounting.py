"""Nodes of a program that are no ops a target must have: assertions, markers and regions, control flow, and the
write-backs of a module. They are effects and structure, executed by the host; a report counts them."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

import torch
from torch import fx

from decomp.ir.call import is_free, is_host, is_projection
from decomp.ir.composites import CompositeCall
from decomp.ir.effects import MARKS, Effect, of_callable
from decomp.ir.op_facts import CONTROL_FLOW, SWITCHED_REGIONS

WRITE_BACK, COMPOSITE = "write-back", "composite"


def is_structure(target: Any) -> bool:
    """Whether a higher-order op only controls when, and in which modes, its bodies run."""
    return isinstance(target, torch._ops.HigherOrderOperator) and target.__name__ in SWITCHED_REGIONS | CONTROL_FLOW


def effects_in(graph: fx.Graph) -> dict[fx.Node, str]:
    """The nodes of a graph that a target need not have, with the kind of each."""
    kinds: dict[Any, str | None] = {}
    found = dict.fromkeys(write_backs(graph), WRITE_BACK)
    for node in graph.nodes:
        if CompositeCall.of(node) is not None:
            found[node] = COMPOSITE
        elif node.op == "call_function":
            if node.target not in kinds:
                kinds[node.target] = _kind(node.target)
            kind = kinds[node.target]
            if kind is not None:
                found.setdefault(node, kind)
    return found


def calls_for_target(graph: fx.Graph, effects: Container[fx.Node] | None = None) -> list[fx.Node]:
    """The calls of a graph that the target must support: tensor ops, without effects and parts of results. `effects`:
    those of the graph, if they are known already."""
    effects = effects_in(graph) if effects is None else effects
    calls = (node for node in graph.nodes if node.op.startswith("call") and node not in effects)
    return [node for node in calls if not is_host(node) and not is_projection(node)]


def write_backs(graph: fx.Graph) -> Iterator[fx.Node]:
    """The calls at the end of a graph that write inputs and buffers back: `copy_` into one, or into its `detach`."""
    # Walk back from the output: the first call that is not a write-back ends them.
    found: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output":
            continue
        # A write that autograd must not see is a `copy_` into a `detach` of the input, which belongs to it
        # (`append_writes`).
        if not (_copies_to_input(node) or "detach" in _name(node) and node.users and found.issuperset(node.users)):
            return
        found.add(node)
        yield node


def _copies_to_input(node: fx.Node) -> bool:
    to = node.args[0] if node.args and _name(node).startswith(("copy_", "aten.copy_.")) else None
    if isinstance(to, fx.Node) and "detach" in _name(to) and to.args:
        to = to.args[0]
    return isinstance(to, fx.Node) and to.op in ("placeholder", "get_attr")


def _name(node: fx.Node) -> str:
    if not node.op.startswith("call"):
        return ""
    return str(
        node.target if isinstance(node.target, (str, torch._ops.OpOverload)) else getattr(node.target, "__name__", "")
    )


def _kind(target: Any) -> str | None:
    if isinstance(target, torch._ops.HigherOrderOperator):
        if target.__name__ in SWITCHED_REGIONS:
            return Effect.REGION.value
        return "control flow" if is_structure(target) else None
    if isinstance(target, torch._ops.OpOverload) and not is_free(target):
        return None
    kinds = of_callable(target).kinds & MARKS
    return next(iter(kinds)).value if kinds else None
