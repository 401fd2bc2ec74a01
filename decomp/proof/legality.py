"""Why a node of a lowered graph is illegal on a target, decided from the node alone, without the plan."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import fx

from decomp.ir.accounting import is_structure
from decomp.ir.binding import BindingError
from decomp.ir.call import bound_call, is_free, is_host, is_projection, is_surely_legal
from decomp.ir.effects import MARKS, of_callable
from decomp.ir.ops import of_function, of_method
from decomp.rules.target import MatchAllTarget, Target


def why_illegal_in(target: Target, excepted: Collection[fx.Node]) -> Callable[[fx.Node], str | None]:
    """A function that returns why a lowered node is illegal on the target, decided from the node alone; None if it is
    legal or `excepted`."""
    # `decompose` has no target: a call that no rule matches is legal by definition.
    if isinstance(target, MatchAllTarget):
        return lambda node: None
    sure: dict[Any, bool | frozenset[torch.dtype]] = {}

    def illegal(node: fx.Node) -> str | None:
        if node.op not in ("call_function", "call_method"):
            return None
        # Most calls are decided by target alone; binding arguments for each node would dominate verification.
        known = sure.get(node.target)
        if known is None:
            known = sure[node.target] = _surely_legal(target, node)
        return None if is_surely_legal(node, known) or node in excepted else _why_illegal(target, node)

    return illegal


def _surely_legal(target: Target, node: fx.Node) -> bool | frozenset[torch.dtype]:
    """Whether every call of this target is legal, or the dtypes on which it is."""
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return is_structure(node.target)
    if not isinstance(node.target, torch._ops.OpOverload):
        if node.op == "call_function" and not of_callable(node.target).kinds.isdisjoint(MARKS):
            return True
        spelling = of_function(node.target) if node.op == "call_function" else of_method(str(node.target))
        return target.surely_legal(spelling.op, spelling.overload)
    spelling = of_function(node.target)
    return is_free(node.target) or target.sure(spelling.op, spelling.overload)


def _why_illegal(target: Target, node: fx.Node) -> str | None:
    if is_host(node) or is_projection(node):
        return None
    try:
        call = bound_call(node)
    except BindingError as error:
        return str(error)
    why = target.why_illegal(call) if call is not None else None
    return None if why is None else f"{call.op if call else node.target} is not legal" + (f": {why}" if why else "")
