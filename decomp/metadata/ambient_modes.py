"""The modes that a caller happens to have on while a program is lowered: autocast, function and dispatch modes,
inference mode, deterministic algorithms. What a rule records is to depend on none of them."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib

import torch
from torch.overrides import _len_torch_function_stack, _pop_mode, _push_mode
from torch.utils._python_dispatch import _disable_current_modes


@contextlib.contextmanager
def neutral() -> Iterator[None]:
    """Within, none of the caller's modes is on; whether gradients are does not change."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch._C._DisableAutocast())
        if torch.is_inference_mode_enabled():
            gradients = torch.is_grad_enabled()
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.set_grad_enabled(gradients))
        if torch.are_deterministic_algorithms_enabled():
            stack.enter_context(_not_deterministic())
        if _len_torch_function_stack():
            stack.enter_context(_without_function_modes())
        if torch._C._len_torch_dispatch_stack():
            stack.enter_context(_disable_current_modes())
        yield


@contextlib.contextmanager
def _not_deterministic() -> Iterator[None]:
    warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(True, warn_only=warns_only)


@contextlib.contextmanager
def _without_function_modes() -> Iterator[None]:
    """`torch.set_default_device` is one of them. (torch 2.13 has no public way to set the stack of modes aside.)"""
    modes = [_pop_mode() for _ in range(_len_torch_function_stack())]
    try:
        yield
    finally:
        for mode in reversed(modes):
            _push_mode(mode)
