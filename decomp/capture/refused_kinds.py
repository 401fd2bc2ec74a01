"""Modules and tensors that no capture can express as a graph of calls on strided tensors, refused by name: what
`torch.jit` compiled, what is distributed over processes, tensors that are nested, quantised, named or of bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from decomp.errors import CaptureError
from decomp.torch_internals.modes import DisableTorchFunction
from decomp.torch_internals.pytree import keystr, tree_flatten_with_path

_Kind = tuple[Callable[[torch.Tensor], bool], str]
"""Whether a tensor is of a kind, and what it is then, with what to do."""
_COMPILE = "use torch.compile with decomp.backend(to=...)"


def refuse_module(model: nn.Module) -> None:
    """Raise `CaptureError` if a module, one in it, or a parameter or buffer is of such a kind."""
    for path, module in model.named_modules():
        reason = _why_module(module)
        if reason is not None:
            where = f", its {path}," if path else ""
            raise CaptureError(f"{type(model).__name__}{where} {reason}")
    for kind, tensors in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
        for name, value in tensors:
            _refuse_tensor(f"the {kind} {name} of {type(model).__name__}", value, _TENSORS)


def refuse_distributed(model: nn.Module) -> None:
    """Raise `CaptureError` if a parameter or buffer is a DTensor, in a module that is captured without inputs."""
    for kind, tensors in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
        for name, value in tensors:
            _refuse_tensor(f"the {kind} {name} of {type(model).__name__}", value, (_DISTRIBUTED,))


def refuse_inputs(args: Any, kwargs: Any) -> None:
    """Raise `CaptureError` if an example input is of such a kind."""
    leaves = tree_flatten_with_path((tuple(args or ()), dict(kwargs or {})))[0]
    for path, value in leaves:
        _refuse_tensor(f"the example input {_called(path)}", value, (*_TENSORS, _DISTRIBUTED_INPUT))


def _called(path: tuple[Any, ...]) -> str:
    """`args[0]` or `kwargs['mask']`."""
    return f"{('args', 'kwargs')[path[0].idx]}{keystr(path[1:])}"


def _why_module(module: nn.Module) -> str | None:
    if isinstance(module, torch.jit.ScriptModule):
        return (
            "is a ScriptModule, which is a program of torch.jit and not of Python\n"
            "  to do: lower the module as it was before torch.jit.script or torch.jit.trace"
        )
    wrapper = next((cls.__name__ for cls in type(module).__mro__ if cls.__name__ in _WRAPPERS), None)
    if wrapper is None or not type(module).__module__.startswith("torch."):
        return None
    return f"is a {wrapper}, {_WRAPPERS[wrapper]}"


_WRAPPERS: Mapping[str, str] = {
    "DistributedDataParallel": "whose forward talks to other processes\n  to do: lower the module in it, model.module",
    "FullyShardedDataParallel": (
        "which holds a part of each parameter\n  to do: lower the module as it was before it was wrapped"
    ),
    "FSDPModule": (
        "which holds a part of each parameter, and gathers it by hooks that no graph records\n"
        f"  to do: {_COMPILE}, or lower the module as it was before fully_shard"
    ),
}
"""What distributes a module over processes, by the name of the class, as importing torch.distributed takes time."""


def _refuse_tensor(name: str, value: Any, kinds: Sequence[_Kind]) -> None:
    if not isinstance(value, torch.Tensor):
        return
    with DisableTorchFunction():  # a subclass may not say what kind it is
        reason = next((reason for is_one, reason in kinds if is_one(value)), None)
    if reason is not None:
        raise CaptureError(f"{name} is {reason}")


def _has_names(value: torch.Tensor) -> bool:
    # torch 2.13 has no named tensors any more.
    return bool(getattr(value, "has_names", lambda: False)())


def is_distributed(value: Any) -> bool:
    """Whether a value is a DTensor."""
    # By name, as importing torch.distributed.tensor takes half a second.
    return type(value).__name__ == "DTensor" and type(value).__module__.startswith("torch.distributed")


_SUB_BYTE = frozenset(getattr(torch, f"{sign}int{bits}") for sign in ("", "u") for bits in range(1, 8))
_TENSORS: tuple[_Kind, ...] = (
    (
        lambda value: value.is_nested,
        "a nested tensor, whose row sizes a graph cannot express\n"
        f"  to do: pass it padded, by torch.nested.to_padded_tensor, or {_COMPILE}",
    ),
    (
        lambda value: value.is_quantized,
        "a quantised tensor, whose scale is not a value of a graph\n"
        "  to do: use value.dequantize(), or keep int8 values and their scale as two tensors",
    ),
    (
        lambda value: value.dtype in _SUB_BYTE,
        "a tensor of integers of less than 8 bits, which PyTorch can neither copy nor compute with\n"
        "  to do: keep its bytes, value.view(torch.uint8), and take them apart in forward by & and >>",
    ),
    (_has_names, "a named tensor, and export drops names\n  to do: pass value.rename(None)"),
)
_PART = "a DTensor, which is one process's part of a tensor\n  to do: "
_DISTRIBUTED: _Kind = (
    is_distributed,
    f"{_PART}pass example inputs (args=) and training=False, or {_COMPILE}",
)
_DISTRIBUTED_INPUT: _Kind = (is_distributed, f"{_PART}pass its to_local(), or {_COMPILE}")
