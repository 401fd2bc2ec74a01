"""Modes, which intercept calls, and switches that change the behaviour of calls. There is no public way to suspend
modes entered by others, to see which are active, or to record calls above autograd."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import importlib
import sys
import threading
from typing import Any

import torch
from torch import _guards
from torch._C import _functorch
from torch._dispatch.python import enable_python_dispatcher as enable_python_dispatcher
from torch.autograd import forward_ad as _forward_ad
from torch.fx import _symbolic_trace, traceback as _traceback
from torch.fx.experimental import proxy_tensor as _proxy_tensor
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode as ProxyTorchDispatchMode
from torch.overrides import _len_torch_function_stack, _pop_mode, _push_mode
from torch.utils import _python_dispatch as dispatch
from torch.utils._python_dispatch import (
    TorchDispatchMode as TorchDispatchMode,
    _disable_current_modes,
    is_traceable_wrapper_subclass as is_traceable_wrapper_subclass,
)

from decomp import forks as _forks

disable_current_modes = _disable_current_modes

# The function itself, not the context manager around it: graphs of Dynamo and of `make_fx` call it.
set_grad_enabled = torch._C._set_grad_enabled

# `torch.is_autocast_enabled` queries one type of device.
is_any_autocast_enabled = torch._C._is_any_autocast_enabled

# Disables autocast for all types of devices at once.
DisableAutocast = torch._C._DisableAutocast

# Disables function modes and `__torch_function__`. The public `DisableTorchFunctionSubclass` leaves modes active.
DisableTorchFunction = torch._C.DisableTorchFunction

# Disables Python kernels, which precede those in C++ while calls above autograd are recorded.
DisablePythonDispatcher = torch._C._DisablePythonDispatcher

# Disables dispatch modes and `__torch_dispatch__`.
DisableTorchDispatch = torch._C._DisableTorchDispatch

# Leaves an autocast region that a graph entered by a call.
exit_autocast = torch.amp.autocast_mode._exit_autocast

# Modes above autograd only see calls while this is active. Each must be of one of a few classes
# (`torch._ops._set_mode_pre_dispatch`), of which `ProxyTorchDispatchMode` is the one that records:
# https://github.com/pytorch/pytorch/pull/113728.
EnablePreDispatch = torch._C._EnablePreDispatch
PRE_DISPATCH = torch._C.DispatchKey.PreDispatch

COMPOSITE_IMPLICIT = torch._C.DispatchKey.CompositeImplicitAutograd
"""The key of composite kernels, for `OpOverload.has_kernel_for_dispatch_key`."""


def has_dispatch_modes() -> bool:
    """Whether a dispatch mode is active."""
    return bool(torch._C._len_torch_dispatch_stack())


def has_function_modes() -> bool:
    """Whether a function mode is active; `torch.set_default_device` is one."""
    return bool(_len_torch_function_stack())


@contextlib.contextmanager
def without_function_modes() -> Iterator[None]:
    """Inside this context no function mode is active."""
    modes = [_pop_mode() for _ in range(_len_torch_function_stack())]
    try:
        yield
    finally:
        for mode in reversed(modes):
            _push_mode(mode)


class ProcessState:
    """A snapshot of the state that tracing changes in this process. It must be restored explicitly, as an interrupt may
    occur between the lines of a context manager of torch, and a failing trace of `torch.func` (torch 2.13, non-strict
    export) leaves its levels open. Inside an open level nothing works any more, not even `requires_grad_`."""

    def __init__(self) -> None:
        self._dispatch = dispatch._get_current_dispatch_mode_stack()
        self._function = _len_torch_function_stack()
        self._levels = _functorch.get_dynamic_layer_stack_depth()
        self._dual_level = _forward_ad._current_level
        self._switches = [read() for read, _ in _SWITCHES]
        self._autocast = _autocast_state()
        self._flags = [getattr(module, name) for module, name in _FLAGS]
        self._contexts = {name: getattr(_guards._TLS, name, None) for name in _CONTEXTS}
        self._shared = [(owner, name, getattr(owner, name)) for owner, name in _SHARED if hasattr(owner, name)]

    def restore(self) -> None:
        """Leave what was entered since, and enter again what was left."""
        # First, as a mode that is still on this stack would see the calls below.
        while _len_torch_function_stack() > self._function:
            _pop_mode()
        if dispatch._get_current_dispatch_mode_stack() != self._dispatch:
            while torch._C._len_torch_dispatch_stack():
                dispatch._pop_mode()
            for mode in self._dispatch:
                dispatch._push_mode(mode)
        self._restore_shared()
        self._leave_levels()
        for (read, write), value in zip(_SWITCHES, self._switches):
            if read() != value:
                write(value)
        _restore_autocast(self._autocast)
        for name, context in self._contexts.items():
            if getattr(_guards._TLS, name, None) is not context:
                setattr(_guards._TLS, name, context)

    def restore_in_child(self) -> None:
        """Restore the state shared by all threads, in a process forked by another thread."""
        self._restore_shared()
        for owner, name, value in self._shared:
            setattr(owner, name, value)

    def _restore_shared(self) -> None:
        # Modes above autograd have a stack of their own. If a dispatch mode was active on entry, modes there may be the
        # caller's.
        if not self._dispatch:
            while torch._ops._len_torch_dispatch_stack_pre_dispatch():
                torch._ops._pop_mode_from_pre_dispatch()
        for (module, name), value in zip(_FLAGS, self._flags):
            setattr(module, name, value)

    def _leave_levels(self) -> None:
        left = _functorch.get_dynamic_layer_stack_depth() > self._levels
        while _functorch.get_dynamic_layer_stack_depth() > self._levels:
            # Each kind of level has a counter of its own, which only its own function decreases.
            _LEAVE[_functorch.peek_interpreter_stack().key()]()
        if left and self._dual_level < 0:
            # Graphs enter the level of dual numbers without updating the Python module's counter.
            with contextlib.suppress(RuntimeError):
                torch._C._exit_dual_level(level=0)
        _forward_ad._current_level = self._dual_level


# `pop_dynamic_layer_stack_and_undo_to_depth` leaves two levels at a time in torch 2.11.
_LEAVE: dict[Any, Callable[[], int]] = {
    _functorch.TransformType.Vmap: _functorch._vmap_decrement_nesting,
    _functorch.TransformType.Grad: _functorch._grad_decrement_nesting,
    _functorch.TransformType.Jvp: _functorch._jvp_decrement_nesting,
    _functorch.TransformType.Functionalize: _functorch._func_decrement_nesting,
}


@contextlib.contextmanager
def process_state_kept() -> Iterator[None]:
    """On exit, restore the state of PyTorch on entry."""
    before = ProcessState()
    try:
        with _forks.undone_in_child(before.restore_in_child):
            yield
    finally:
        before.restore()


def _hooks_of_saved_tensors(enabled: bool) -> None:
    if enabled:
        torch._C._autograd._saved_tensors_hooks_enable()
    else:
        torch._C._autograd._saved_tensors_hooks_disable("they were disabled before")


_SWITCHES: tuple[tuple[Callable[[], bool], Callable[[bool], Any]], ...] = (
    (torch.is_grad_enabled, set_grad_enabled),
    (torch._C._is_fwd_grad_enabled, torch._C._set_fwd_grad_enabled),
    (_functorch.get_inplace_requires_grad_allowed, _functorch.set_inplace_requires_grad_allowed),
    (_functorch.get_single_level_autograd_function_allowed, _functorch.set_single_level_autograd_function_allowed),
    (torch._C._autograd._saved_tensors_hooks_is_enabled, _hooks_of_saved_tensors),
    (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
)
"""Getter and setter of each switch."""


def _known(*flags: tuple[Any, str]) -> tuple[tuple[Any, str], ...]:
    """Those flags that the installed PyTorch has."""
    return tuple((owner, name) for owner, name in flags if hasattr(owner, name))


_FLAGS = _known(
    # Globals that `TorchDispatchMode.__enter__` sets and `__exit__` restores.
    (dispatch, "_is_in_torch_dispatch_mode"),
    (dispatch, "_is_in_non_infra_torch_dispatch_mode"),
    (dispatch, "_is_in_any_mode_without_ignore_compile_internals"),
    # Flags that something is being traced.
    (torch.compiler, "_is_compiling_flag"),
    (torch.compiler, "_is_exporting_flag"),
    (_symbolic_trace, "_is_fx_tracing_flag"),  # from torch 2.14 on it is thread-local, and restored there
)
_SHARED = _known(
    (torch.compiler, "_is_non_strict_tracing_flag"),
    (_traceback, "current_meta"),
    (_traceback, "current_replay_node"),
    (_traceback, "should_preserve_node_meta"),
    (_traceback, "_should_preserve_node_meta"),
    (_proxy_tensor, "_CURRENT_MAKE_FX_TRACER"),
    # `fx.Tracer.trace` replaces these two on the class, for all threads, while it runs.
    (torch.nn.Module, "__call__"),
    (torch.nn.Module, "__getattr__"),
)
"""State that tracing itself restores in all cases but a fork (torch 2.13)."""
_CONTEXTS = ("tracing_context", "compile_context")
_AUTOCAST_DEVICES = ("cpu", "cuda")


def _autocast_state() -> list[tuple[str, bool, torch.dtype]]:
    return [(name, torch.is_autocast_enabled(name), torch.get_autocast_dtype(name)) for name in _AUTOCAST_DEVICES]


def _restore_autocast(state: list[tuple[str, bool, torch.dtype]]) -> None:
    if _autocast_state() != state:
        for name, enabled, dtype in state:
            torch.set_autocast_enabled(name, enabled)
            torch.set_autocast_dtype(name, dtype)


def compile_lock(imports: bool) -> contextlib.AbstractContextManager[Any]:
    """The lock that `torch.compile` holds while it calls a backend; none if Dynamo is not imported and not needed. That
    PyTorch compiles in one thread at a time is known: https://github.com/pytorch/pytorch/issues/105943."""
    if imports:
        importlib.import_module(_DYNAMO)
    return getattr(sys.modules.get(_DYNAMO), "compile_lock", contextlib.nullcontext())


_DYNAMO = "torch._dynamo.convert_frame"


@contextlib.contextmanager
def watch_applied_functions(applied: Callable[[type[torch.autograd.Function]], None]) -> Iterator[None]:
    """Inside this context `applied` is called with each custom function that this thread applies with gradients
    enabled, except those inside of higher-order ops and `torch.func`, which compute the gradients of these. (One that
    returns its operand calls nothing that a mode sees, and its `apply` may have been taken from it before; so its
    context, which PyTorch makes first, is watched.)"""
    contexts, thread = torch.autograd.function.BackwardCFunction, threading.get_ident()
    before = vars(contexts).get("__init__")

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        (before or super(contexts, type(self)).__init__)(self, *args, **kwargs)
        function = self._forward_cls
        # Higher-order ops have functions of PyTorch's own for their gradients, which a capture records.
        own = issubclass(function, torch.autograd.Function) and not function.__module__.startswith("torch._")
        trains = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        if own and trains and threading.get_ident() == thread:
            applied(function)

    # Not `Function.apply`, which is no Python from torch 2.14 on. All versions make the context before forward runs.
    contexts.__init__ = __init__
    try:
        yield
    finally:
        if before is None:
            del contexts.__init__
        else:
            contexts.__init__ = before
