"""What a trace does not record of the modes that a call is made in: gradients off, inference mode, autocast. A symbolic
trace is refused where the modes of a call are not those that it began in, whatever switched them; torch.export (2.13),
which records switches of the gradient mode alone, is helped by a mode that is on while the model runs."""

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

from decomp.errors import CaptureError, MutationError
from decomp.rules.rule_lines import written
from decomp.torch_internals.modes import is_any_autocast_enabled, set_grad_enabled

_SWITCHED = (
    ("inference mode {}", torch.is_inference_mode_enabled),
    ("gradients {} (in a region, or in a torch.autograd.Function)", torch.is_grad_enabled),
    ("autocast {}", is_any_autocast_enabled),
)
"""How messages name each mode, and whether it is on. Inference mode comes first: it switches gradients off, too."""
_HERE = str(pathlib.Path(__file__).parents[1])
_DATA: Any = torch.Tensor.data


@contextlib.contextmanager
def no_regions(tracer: fx.Tracer) -> Iterator[None]:
    """While it lasts, `tracer` raises `CaptureError` at a call that is made in other modes than it began in."""
    began = [is_on() for _, is_on in _SWITCHED]
    create: Any = tracer.create_node

    def create_node(kind: str, *args: Any, **kwargs: Any) -> fx.Node:
        if kind.startswith("call"):
            for (mode, is_on), before in zip(_SWITCHED, began):
                if is_on() is not before:
                    raise _region(tracer.root, mode.format("off" if before else "on"))
        node: fx.Node = create(kind, *args, **kwargs)
        return node

    tracer.create_node = create_node  # type: ignore[method-assign]
    try:
        yield
    finally:
        del tracer.create_node


def _region(model: Any, switched: str) -> CaptureError:
    line = user_line()
    return CaptureError(
        f"{type(model).__name__} makes a call with {switched}, which a symbolic trace does not record\n"
        + (f"  at {line}\n" if line else "")
        + "  to do: pass example inputs (args=...), so that torch.export captures it"
    )


def user_line() -> str | None:
    """The innermost line that is neither PyTorch's nor ours."""
    for frame, number in traceback.walk_stack(sys._getframe()):
        name = frame.f_code.co_filename
        if "/torch/" not in name and not name.startswith(_HERE):
            return written(frame.f_code, number)
    return None


# torch.export.

@contextlib.contextmanager
def recorded_modes(model: nn.Module) -> Iterator[None]:
    """While it lasts, calls of `model` are traced with `x.data` as `x.detach()`, and with gradients switched off where
    inference mode is on."""
    mode = _AutogradCalls()
    hooks = [
        model.register_forward_pre_hook(mode.begin, prepend=True),
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

    def __init__(self) -> None:
        super().__init__()
        self.entered = contextlib.ExitStack()
        self.recording = True
        """Whether gradients are on as far as the trace knows."""

    def begin(self, module: nn.Module, args: Any) -> None:
        self.recording = torch.is_grad_enabled()
        self.entered.enter_context(self)

    def end(self, module: nn.Module, args: Any, result: Any) -> None:
        self.close()

    def close(self) -> None:
        self.entered.close()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is set_grad_enabled:
            self.recording = bool(args[0])
        elif torch.is_inference_mode_enabled():
            self._record(False)
        elif torch.is_grad_enabled():
            self._record(True)
        if func == _DATA.__get__:
            return args[0].detach()
        if func == _DATA.__set__:
            raise MutationError(
                "cannot make the program functional: it gives a tensor other memory, by x.data = y\n"
                f"  at {user_line()}\n  to do: write x.data.copy_(y)"
            )
        return func(*args, **(kwargs or {}))

    def _record(self, gradients: bool) -> None:
        if self.recording is not gradients:
            self.recording = gradients
            set_grad_enabled(gradients)
