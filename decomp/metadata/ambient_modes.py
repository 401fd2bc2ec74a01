"""The modes that a caller may have active during a lowering: autocast, function and dispatch modes, inference mode,
deterministic algorithms. Recorded expansions must not depend on any of them."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib

import torch

from decomp.forks import undone_in_child
from decomp.torch_internals.modes import (
    DisableAutocast,
    disable_current_modes,
    has_dispatch_modes,
    has_function_modes,
    without_function_modes,
)


@contextlib.contextmanager
def without_ambient_modes() -> Iterator[None]:
    """Inside this context none of the caller's modes is active; the gradient mode does not change."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(DisableAutocast())
        if torch.is_inference_mode_enabled():
            # `inference_mode(False)` switches gradients on, even where they were off before inference mode began.
            gradients = torch.is_grad_enabled()
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.set_grad_enabled(gradients))
        # Some decompositions read the flag while they are traced: that of `max_pool2d_with_indices_backward` gives up
        # under it (torch 2.13).
        if torch.are_deterministic_algorithms_enabled():
            stack.enter_context(_not_deterministic())
        # A default device, for example, would move each tensor that a rule makes from numbers.
        if has_function_modes():
            stack.enter_context(without_function_modes())
        if has_dispatch_modes():
            stack.enter_context(disable_current_modes())
        yield


@contextlib.contextmanager
def _not_deterministic() -> Iterator[None]:
    warns_only = torch.is_deterministic_algorithms_warn_only_enabled()

    def undo() -> None:
        torch.use_deterministic_algorithms(True, warn_only=warns_only)

    # The flag is one for all threads, so a process that another thread forks meanwhile has it off.
    with undone_in_child(undo):
        try:
            torch.use_deterministic_algorithms(False)
            yield
        finally:
            undo()
