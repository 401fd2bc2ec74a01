"""Modes that a trace does not record: disabled gradients, inference mode, autocast. A symbolic trace is refused if a
call runs in other modes than the trace began in, however they were switched; torch.export (2.13), which only records
switches of the gradient mode, is supplemented by a mode that is active while the model runs."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import pathlib
import sys
import traceback
from typing import Any

import torch
from torch import fx, nn
from torch.overrides import TorchFunctionMode

from decomp.errors import CaptureError, MutationError, locate_function
from decomp.ir.call import graphs_of
from decomp.rules.rule_lines import format_line
from decomp.torch_internals.modes import is_any_autocast_enabled, set_grad_enabled, watch_applied_functions

_SWITCHED = (
    ("inference mode {}", torch.is_inference_mode_enabled),
    ("gradients {} (in a region, or in a torch.autograd.Function)", torch.is_grad_enabled),
    ("autocast {}", is_any_autocast_enabled),
)
"""The name of each mode in messages, and its query. Inference mode comes first, as it also disables gradients."""
_HERE = str(pathlib.Path(__file__).parents[1])
_DATA: Any = torch.Tensor.data
_ON_TENSORS = (torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook, torch.Tensor.requires_grad_)
"""Methods that change the backward pass."""


@contextlib.contextmanager
def refuse_regions(tracer: fx.Tracer) -> Iterator[None]:
    """Inside this context `tracer` raises `CaptureError` at a call made in other modes than it began in."""
    began = [is_on() for _, is_on in _SWITCHED]
    create: Any = tracer.create_node

    def create_node(kind: str, *args: Any, **kwargs: Any) -> fx.Node:
        if kind.startswith("call"):
            for (mode, is_on), before in zip(_SWITCHED, began):
                if is_on() is not before:
                    raise _region(tracer.root, mode.format("off" if before else "on"))
        node: fx.Node = create(kind, *args, **kwargs)
        return node

    tracer.create_node = create_node
    functions: list[Any] = []
    try:
        with watch_applied_functions(functions.append):
            yield
    finally:
        del tracer.create_node
    if functions:
        raise CaptureError(
            f"{type(tracer.root).__name__} calls {describe_function(functions[0])}, whose backward a symbolic trace "
            "does not record\n  to do: pass example inputs (args=...), with which it is captured"
        )


def _region(model: Any, switched: str) -> CaptureError:
    line = user_line()
    return CaptureError(
        f"{type(model).__name__} makes a call with {switched}, which a symbolic trace does not record\n"
        + (f"  at {line}\n" if line else "")
        + "  to do: pass example inputs (args=...), so that torch.export captures it"
    )


def user_line() -> str | None:
    """The innermost line of the stack that is neither in PyTorch nor in this package."""
    for frame, number in traceback.walk_stack(sys._getframe()):
        name = frame.f_code.co_filename
        if "/torch/" not in name and not name.startswith(_HERE):
            return format_line(frame.f_code, number)
    return None


# torch.export.


@contextlib.contextmanager
def record_modes(model: nn.Module, lost: dict[str, bool], below_autograd: bool = False) -> Iterator[None]:
    """Inside this context calls of `model` are traced with `x.data` as `x.detach()`, and with gradients disabled under
    inference mode. What affects gradients and is not recorded is added to `lost`: a description, and whether Dynamo
    records it. `below_autograd`: whether the trace is made there, where no gradient mode is recorded."""
    mode = _AutogradCalls(lost, below_autograd)
    hooks = [
        # Before the user's own hooks, whose calls count.
        model.register_forward_pre_hook(mode.begin, prepend=True),
        # Also if forward raises, or the mode would stay on.
        model.register_forward_hook(mode.end, always_call=True),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        mode.close()


class _AutogradCalls(TorchFunctionMode):
    """Sees each call of a forward before the modes of torch.export do."""

    def __init__(self, lost: dict[str, bool], below_autograd: bool) -> None:
        super().__init__()
        self.lost, self.below_autograd = lost, below_autograd
        self.entered = contextlib.ExitStack()
        self.recording = True
        """The gradient mode that the trace has recorded."""

    def begin(self, module: nn.Module, args: Any) -> None:
        self.recording = torch.is_grad_enabled()
        self.entered.enter_context(self)
        self.entered.enter_context(watch_applied_functions(self.applied))

    def end(self, module: nn.Module, args: Any, result: Any) -> None:
        self.close()

    def applied(self, function: Any) -> None:
        self.lost[f"the backward of {describe_function(function)}"] = True

    def close(self) -> None:
        self.entered.close()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.compiler.is_dynamo_compiling():  # `flex_attention` compiles itself with this mode active
            return func(*args, **(kwargs or {}))
        inference, gradients = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
        if self.below_autograd and (inference or func is set_grad_enabled and not args[0]):
            self.lost[f"that gradients are off at {user_line()}"] = False
        elif func is set_grad_enabled:
            self.recording = bool(args[0])
        elif inference or gradients:
            self._record(gradients and not inference)
        if func in _ON_TENSORS:
            self.lost[f"{func.__name__}() at {user_line()}"] = False
        # Not by identity: Python makes a new wrapper at each access.
        if func == _DATA.__get__:
            return args[0].detach()
        if func == _DATA.__set__:
            raise MutationError(
                "cannot make the program functional: it replaces a tensor's memory, by x.data = y\n"
                f"  at {user_line()}\n  to do: write x.data.copy_(y)"
            )
        return func(*args, **(kwargs or {}))

    def _record(self, gradients: bool) -> None:
        if self.recording is not gradients:
            self.recording = gradients
            set_grad_enabled(gradients)


# Custom functions.


def describe_function(function: Any) -> str:
    """A custom function, as named in messages."""
    return f"{function.__name__} ({locate_function(function.forward)}), a torch.autograd.Function"


def has_custom_functions() -> bool:
    """Whether a `torch.autograd.Function` is defined outside of PyTorch."""
    # The list grows while it is iterated, so that subclasses of subclasses are visited.
    found = list(torch.autograd.Function.__subclasses__())
    for function in found:
        found += function.__subclasses__()
    return any(not str(function.__module__).startswith("torch.") for function in found)


def holds_custom_functions(module: fx.GraphModule) -> bool:
    """Whether a Dynamo graph contains the forward and backward of a custom function."""
    nodes = (node for _, graph in graphs_of(module) for node in graph.nodes)
    return any(getattr(node.target, "__name__", "") == "autograd_function_apply" for node in nodes)
