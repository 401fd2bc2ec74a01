"""A program without numbers: on the meta device it is lowered to the same ops, in the same number, as on the CPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

import decomp
from tests.fuzzing.prelude import Given
from tests.fuzzing.programs import SIZES


def fault_on_meta(loaded: Any, lowered: fx.GraphModule, lower: Callable[..., Any]) -> str:
    """How the ops of the program on the meta device differ from those of `lowered`; empty if they do not, or if PyTorch
    itself does not run it there. `lower`: of a module and inputs."""
    if "autocast(" in loaded.program.source:  # of one device
        return ""
    try:
        module, inputs = _made(loaded), _inputs(loaded)
        module(*inputs)
    except Exception:  # tensors on two devices, or a branch that elements decide
        return ""
    try:
        found = lower(_made(loaded), _inputs(loaded)).result
    except decomp.DecompError as error:
        text = str(error).splitlines()[0]
        return f"on the meta device it is refused: {type(error).__name__}: {text}" if _is_exported(loaded) else ""
    own, other = _ops(lowered), _ops(found)
    less, more = own - other, other - own
    return f"on the meta device it has {dict(more)} in the place of {dict(less)}" if less or more else ""


def _made(loaded: Any) -> torch.nn.Module:
    with torch.device("meta"):
        return loaded.new_module()


def _inputs(loaded: Any) -> tuple[torch.Tensor, ...]:
    return loaded.inputs_of(Given(0, loaded.tracked, device="meta"), SIZES[0])


def _is_exported(loaded: Any) -> bool:
    """Whether PyTorch itself captures the program on the meta device."""
    try:
        torch.export.export(_made(loaded), _inputs(loaded), strict=False, dynamic_shapes=loaded.dynamic_shapes())
    except Exception:  # whatever it says
        return False
    return True


def _ops(lowered: fx.GraphModule) -> Counter[str]:
    return Counter(str(node.target) for graph in _graphs(lowered) for node in graph.nodes if node.op == "call_function")


def _graphs(lowered: fx.GraphModule) -> list[fx.Graph]:
    return [part.graph for part in lowered.modules() if isinstance(part, fx.GraphModule)]
