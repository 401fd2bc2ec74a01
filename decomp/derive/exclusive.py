"""One lowering at a time, and nothing left of one that fails. PyTorch's tracing is not safe in threads: its stack of
modes above autograd is one for the process, a fake mode remembers where it was entered, and a `ShapeEnv` belongs to a
program that several threads may lower. So there is one lock; it is reentrant, because a lowering may run inside a
backend of `torch.compile` that a lowering called."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import gc
import importlib
import sys
import threading
from typing import Any

import torch
from torch.utils import _python_dispatch as dispatch

from decomp.metadata.shape_env import Snapshot, shape_env_of
from decomp.rules.rules import Rules

_LOCK = threading.RLock()
_DYNAMO = "torch._dynamo.convert_frame"


@contextlib.contextmanager
def exclusively(rules: Rules, model: Any, captures: bool) -> Iterator[Snapshot]:
    """Within, no other thread lowers. If it is left by an exception of any kind, what planning remembers in `rules` and
    PyTorch's modes are as they were; the shape environment of `model` is as it was in any case. `captures`: whether the
    model may be captured by `torch.export`."""
    with _no_compilation(captures), _LOCK:
        before, sizes = _State(rules), Snapshot(shape_env_of(model))
        try:
            yield sizes
        except BaseException:
            before.restore()
            raise
        finally:
            sizes.restore()


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Half the cost of building 10⁵ nodes is the collector walking what was just built."""
    enabled = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if enabled:
            gc.enable()


def _no_compilation(captures: bool) -> contextlib.AbstractContextManager[Any]:
    """The lock that `torch.compile` holds while it calls a backend (torch 2.13). It is taken first here too: a thread
    that lowers and needs Dynamo would else wait for one that compiles and waits for it."""
    if captures:
        importlib.import_module(_DYNAMO)
    module = sys.modules.get(_DYNAMO)
    return getattr(module, "compile_lock", contextlib.nullcontext())


class _State:
    """What a lowering may leave behind, as it is now."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.remembered = {key: (memory, memory.mark()) for key, memory in rules.memory.items()}
        self.dispatch_modes = dispatch._get_current_dispatch_mode_stack()
        self.function_modes = torch._C._len_torch_function_stack()
        self.flags = tuple(getattr(dispatch, name) for name in _FLAGS)
        self.gradients = torch.is_grad_enabled()

    def restore(self) -> None:
        """Put back what differs."""
        for key in [key for key in self.rules.memory if key not in self.remembered]:
            self.rules.memory.pop(key, None)
        for memory, mark in self.remembered.values():
            memory.rewind(mark)
        self._restore_modes()
        torch._C._set_grad_enabled(self.gradients)

    def _restore_modes(self) -> None:
        """An interrupt may come between the lines of a context manager of torch."""
        while torch._C._len_torch_function_stack() > self.function_modes:
            torch._C._pop_torch_function_stack()
        if dispatch._get_current_dispatch_mode_stack() != self.dispatch_modes:
            while torch._C._len_torch_dispatch_stack():
                dispatch._pop_mode()
            for mode in self.dispatch_modes:
                dispatch._push_mode(mode)
        for name, value in zip(_FLAGS, self.flags):
            setattr(dispatch, name, value)
        if not self.dispatch_modes:
            while torch._ops._len_torch_dispatch_stack_pre_dispatch():
                torch._ops._pop_mode_from_pre_dispatch()


# The flags are globals that `TorchDispatchMode.__enter__` sets and `__exit__` puts back (torch 2.13).
_FLAGS = (
    "_is_in_torch_dispatch_mode",
    "_is_in_non_infra_torch_dispatch_mode",
    "_is_in_any_mode_without_ignore_compile_internals",
)
