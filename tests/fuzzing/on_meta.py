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
    source = loaded.program.source
    if "autocast(" in source:  # of one device
        return ""
    if "BatchNorm" in source and ("bfloat16" in source or "float16" in source):  # whose mean has a dtype by device
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
    placed = _placed(found)  # what a program itself makes on the CPU is moved to the meta device, or made there again
    own, other = (Counter({op: count for op, count in ops.items() if op not in placed}) for ops in (own, other))
    less, more = own - other, other - own
    if not less and not more or not _is_exported(loaded) or _captured(loaded, "cpu") != _captured(loaded, "meta"):
        return ""
    return f"on the meta device it has {dict(more)} in the place of {dict(less)}"


def _placed(lowered: fx.GraphModule) -> set[str]:
    """The ops that say on which device their results are, if the program moves tensors, or has them on two devices."""
    nodes = [node for graph in _graphs(lowered) for node in graph.nodes if node.kwargs.get("device") is not None]
    ops = {str(node.target) for node in nodes}
    values = [node.meta.get("val") for graph in _graphs(lowered) for node in graph.nodes]
    devices = {value.device for value in values if isinstance(value, torch.Tensor)}
    return ops if "aten._to_copy.default" in ops or len(devices) > 1 else set()


def _made(loaded: Any, device: str = "meta") -> torch.nn.Module:
    with torch.device(device):
        return loaded.new_module()


def _inputs(loaded: Any, device: str = "meta") -> tuple[torch.Tensor, ...]:
    return loaded.inputs_of(Given(0, loaded.tracked, device=device), SIZES[0])


def _is_exported(loaded: Any) -> bool:
    """Whether PyTorch itself captures the program on the meta device."""
    try:
        _captured(loaded, "meta")
    except Exception:  # whatever it says
        return False
    return True


def _captured(loaded: Any, device: str) -> Counter[str]:
    """The ops of which PyTorch's own capture consists: a number that is assigned is a constant on the CPU, and a call
    of scalar_tensor on other devices."""
    source = _made(loaded, device), _inputs(loaded, device)
    return _ops(torch.export.export(*source, strict=False, dynamic_shapes=loaded.dynamic_shapes()).graph_module)


def _ops(lowered: fx.GraphModule) -> Counter[str]:
    return Counter(str(node.target) for graph in _graphs(lowered) for node in graph.nodes if node.op == "call_function")


def _graphs(lowered: fx.GraphModule) -> list[fx.Graph]:
    return [part.graph for part in lowered.modules() if isinstance(part, fx.GraphModule)]
