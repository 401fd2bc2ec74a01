"""What a symbolic trace does not record: that a call is made with gradients off, in inference mode or under autocast.
The modes of each call are compared with those that the trace began in, whatever switched them."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import pathlib
import traceback
from typing import Any

import torch
from torch import fx

from decomp.errors import CaptureError
from decomp.rules.rule_lines import written
from decomp.torch_internals.modes import is_any_autocast_enabled

_SWITCHED = (
    ("inference mode {}", torch.is_inference_mode_enabled),
    ("gradients {} (in a region, or in a torch.autograd.Function)", torch.is_grad_enabled),
    ("autocast {}", is_any_autocast_enabled),
)
"""How messages name each mode, and whether it is on. Inference mode comes first: it switches gradients off, too."""
_HERE = str(pathlib.Path(__file__).parents[1])


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
    line = _line()
    return CaptureError(
        f"{type(model).__name__} makes a call with {switched}, which a symbolic trace does not record\n"
        + (f"  at {line}\n" if line else "")
        + "  to do: pass example inputs (args=...), so that torch.export captures it"
    )


def _line() -> str | None:
    """The innermost line that is neither PyTorch's nor ours."""
    for frame, number in traceback.walk_stack(None):
        name = frame.f_code.co_filename
        if "/torch/" not in name and not name.startswith(_HERE):
            return written(frame.f_code, number)
    return None
