"""What is known of a collective from its call: its group, and whether its result must be waited for. The schemas of all
of them have the group as an argument, by one name."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from decomp.ir.op_facts import COLLECTIVES

_GROUP = "group_name"
_WAITS = frozenset({"wait_tensor", "_wrap_tensor_autograd"})


def is_collective(node: fx.Node) -> bool:
    """Whether a call communicates with other processes, or waits for one that does."""
    return node.op == "call_function" and getattr(node.target, "namespace", "") in COLLECTIVES


def is_wait(node: fx.Node) -> bool:
    """Whether a call waits for a collective and returns its result."""
    return is_collective(node) and isinstance(node.target, torch._ops.OpOverload) and node.target._opname in _WAITS


def group_of(node: fx.Node) -> Any:
    """The group of a collective, as its call refers to it: by name, or the group itself; None if it has none."""
    if _GROUP in node.kwargs:
        return node.kwargs[_GROUP]
    schema = getattr(node.target, "_schema", None)
    names = [argument.name for argument in schema.arguments] if schema is not None else []
    place = names.index(_GROUP) if _GROUP in names else len(node.args)
    return node.args[place] if place < len(node.args) else None
