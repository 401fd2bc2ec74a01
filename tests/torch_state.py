"""PyTorch's state of the process and of the main thread, by name: what a test finds is what it leaves."""

import gc

import torch
from torch._C import _functorch
from torch.overrides import _len_torch_function_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

SUBNORMAL = torch.tensor(1e-40)

PARTS = {
    "levels of functorch": _functorch.get_dynamic_layer_stack_depth,
    "function modes": _len_torch_function_stack,
    "dispatch modes": lambda: list(map(id, _get_current_dispatch_mode_stack())),
    "modes above autograd": torch._ops._len_torch_dispatch_stack_pre_dispatch,
    "gradients": torch.is_grad_enabled,
    "forward-mode gradients": torch._C._is_fwd_grad_enabled,
    "level of dual numbers": lambda: torch.autograd.forward_ad._current_level,
    "hooks of saved tensors": torch._C._autograd._saved_tensors_hooks_is_enabled,
    "anomaly detection": torch.is_anomaly_enabled,
    "inference mode": torch.is_inference_mode_enabled,
    "default dtype": torch.get_default_dtype,
    "default device": torch.get_default_device,
    "deterministic algorithms": lambda: (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
    ),
    "autocast": lambda: (
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_cache_enabled(),
    ),
    "flushed subnormal numbers": lambda: not (SUBNORMAL * 1).item(),
    "precision of products": torch.get_float32_matmul_precision,
    "threads": torch.get_num_threads,
    "tracing": lambda: (
        torch.compiler.is_compiling(),
        torch.compiler.is_exporting(),
        torch.fx._symbolic_trace.is_fx_symbolic_tracing(),
    ),
    "calls of modules": lambda: (torch.nn.Module.__call__, torch.nn.Module.__getattr__),
    "garbage collection": gc.isenabled,
}


def state():
    """All of it."""
    return [read() for read in PARTS.values()]


def changed(before):
    """The names of what is not as it was, with both values."""
    found = zip(PARTS, before, state())
    return [f"{name}: {old} before, {new} now" for name, old, new in found if old != new]
