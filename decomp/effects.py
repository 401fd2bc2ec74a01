"""Effects: what a call does beyond computing its result, so that it may be neither dropped, doubled nor moved."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import fx

from decomp.ops import of_function, of_method

_REGIONS = ("_set_grad_enabled", "_enter_autocast", "_exit_autocast", "_enter_inference_mode", "_exit_inference_mode")
_COLLECTIVES = ("_c10d_functional", "c10d", "_c10d_functional_autograd")


def is_effect(node: fx.Node) -> bool:
    """Whether the call mutates, draws random numbers, asserts, communicates, or switches a mode."""
    if node.op == "call_function":
        return of_target(node.target)
    if node.op == "call_method":
        return of_method(str(node.target)).inplace or node.target in ("backward",)
    return node.op == "call_module"


@functools.lru_cache(maxsize=None)
def of_target(target: Any) -> bool:
    """Whether calls of this function have an effect, whatever their arguments."""
    if isinstance(target, torch._ops.OpOverload):
        return _of_overload(target)
    if getattr(target, "__name__", "") in _REGIONS or target in (torch._assert,):
        return True
    spelling = of_function(target)
    if spelling.inplace:
        return True
    packet = spelling.op.packet
    if packet is None:
        return False
    return any(torch.Tag.nondeterministic_seeded in getattr(packet, o).tags for o in packet.overloads())


def _of_overload(overload: torch._ops.OpOverload) -> bool:
    schema = overload._schema
    return (
        schema.is_mutable
        or torch.Tag.nondeterministic_seeded in overload.tags
        or not schema.returns
        or overload.namespace in _COLLECTIVES
    )


def is_random(node: fx.Node) -> bool:
    """Whether the call draws from the generator."""
    if node.op == "call_method":
        packet = of_method(str(node.target)).op.packet
    elif node.op == "call_function":
        packet = of_function(node.target).op.packet
    else:
        return False
    if packet is None:
        return False
    return any(torch.Tag.nondeterministic_seeded in getattr(packet, o).tags for o in packet.overloads())
