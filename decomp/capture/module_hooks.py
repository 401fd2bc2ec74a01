"""The parts of a module's call beyond the forward of its class: hooks, and a forward assigned on the instance. A graph
that replaces the call must keep their effect, so inlining and capture consult this module first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import fx, nn
from torch.nn.modules import module as torch_module

from decomp.capture.inputs.checks import InputCheck
from decomp.capture.lowered_module import check_of, install_input_check
from decomp.errors import CaptureError, locate_function

FORWARD = {"forward pre-hook": "forward_pre_hooks", "forward hook": "forward_hooks"}
BACKWARD = {"backward pre-hook": "backward_pre_hooks", "backward hook": "backward_hooks"}

_REGISTRIES = (
    "_forward_pre_hooks _forward_pre_hooks_with_kwargs _forward_hooks _forward_hooks_with_kwargs "
    "_forward_hooks_always_called _backward_pre_hooks _backward_hooks"
).split()


def has_own_forward(module: nn.Module) -> bool:
    """Whether `forward` was assigned on the instance."""
    return "forward" in vars(module)


def is_customised(module: nn.Module) -> bool:
    """Whether a call of the module does more than, or something other than, the forward of its class."""
    return has_own_forward(module) or bool(hooks_of(module))


def is_guards(module: nn.Module) -> bool:
    """Whether this is the module with which torch.export checks the inputs of a program."""
    # By name, as the class is private.
    return type(module).__name__.startswith("GuardsFn")


def hooks_of(module: nn.Module, kinds: Iterable[dict[str, str]] = (FORWARD, BACKWARD)) -> list[str]:
    """Descriptions of the hooks that run when the module is called, including global ones."""
    return [*_describe_hooks(module, "_", kinds), *global_hooks(kinds)]


def describe_kept_leaf(module: nn.Module, refused: str | None) -> str:
    """Why a leaf module was not replaced by a graph, and what to do; `refused`: the error of torch.export for it."""
    found = hooks_of(module)
    if found and not refused:
        return (
            f"it has {', '.join(found)}, which a graph of its forward would lose; remove the hooks, or pass args=, so "
            "that torch.export captures what forward hooks do"
        )
    remedy = refused or "pass args=, so that torch.export captures the model"
    return f"its forward cannot be traced symbolically; {remedy}"


def global_hooks(kinds: Iterable[dict[str, str]] = (FORWARD, BACKWARD)) -> list[str]:
    """Descriptions of the hooks registered for all modules (`register_module_forward_hook` and similar)."""
    return [f"{hook}, registered for all modules" for hook in _describe_hooks(torch_module, "_global_", kinds)]


def _describe_hooks(owner: Any, prefix: str, kinds: Iterable[dict[str, str]]) -> list[str]:
    return [
        f"a {kind} {_name(hook)}"
        for registries in kinds
        for kind, registry in registries.items()
        for hook in getattr(owner, prefix + registry).values()
    ]


def _name(hook: Any) -> str:
    return f"{getattr(hook, '__name__', type(hook).__name__)} ({locate_function(hook)})"


def refuse_what_export_loses(model: nn.Module) -> None:
    """Raise `CaptureError` for hooks that torch.export does not capture (seen on torch 2.13): it records the effect of
    forward hooks, silently drops backward hooks, and fails on global hooks."""
    found = [*_describe_hooks_of(model.named_modules(), (BACKWARD,)), *global_hooks()]
    if found:
        raise CaptureError(_lost("torch.export", found))


def refuse_what_tracing_loses(model: nn.Module, tracer: fx.Tracer) -> None:
    """Raise `CaptureError` for what symbolic tracing does not capture: a forward assigned on the root, and backward
    hooks of modules that are traced into, which torch 2.13 drops, or which make it loop forever."""
    if has_own_forward(model):
        raise CaptureError(
            f"{type(model).__name__} has a forward of its own ({locate_function(model.forward)}), which symbolic "
            "tracing does not see\n  to do: pass example inputs (args=...), so that torch.export captures it"
        )
    leaves = {name for name, module in model.named_modules() if name and tracer.is_leaf_module(module, name)}
    inside = [(name, module) for name, module in model.named_modules() if name and not _is_within(name, leaves)]
    found = [*_describe_hooks_of(inside, (BACKWARD,)), *(global_hooks((BACKWARD,)) if inside else ())]
    if found:
        raise CaptureError(_lost("symbolic tracing", found))


def _is_within(name: str, leaves: set[str]) -> bool:
    parts = name.split(".")
    return any(".".join(parts[:count]) in leaves for count in range(1, len(parts) + 1))


def _describe_hooks_of(modules: Iterable[tuple[str, nn.Module]], kinds: Iterable[dict[str, str]]) -> Iterator[str]:
    for name, module in modules:
        for hook in _describe_hooks(module, "_", kinds):
            yield f"{hook} on {repr(name) if name else 'the module itself'} ({type(module).__name__})"


def _lost(by: str, found: list[str]) -> str:
    return (
        f"{by} would lose {'; '.join(found)}\n"
        "  to do: remove the hooks (handle.remove()) while you lower, or write what they do into the model, backward "
        "hooks as a torch.autograd.Function"
    )


def refuse_changed_graph_module(model: fx.GraphModule, *, by_example: bool) -> None:
    """Raise `CaptureError` where a GraphModule computes something other than its graph: by a forward assigned on it,
    or, if its metadata is to come from example inputs, by hooks that may change these before the graph sees them."""
    if has_own_forward(model):
        raise CaptureError(
            f"the GraphModule has a forward of its own ({locate_function(model.forward)}), which its graph does not "
            "show\n"
            "  to do: del module.forward, or pass the module that it was traced from"
        )
    hooks = [hook for hook in model._forward_pre_hooks.values() if not _only_checks(hook)]
    if by_example and hooks:
        raise CaptureError(
            f"the GraphModule has a forward pre-hook {_name(hooks[0])}, which may change the inputs before the graph "
            "sees them\n  to do: remove it and lower with the inputs that it returns, then register it on the result"
        )


def _only_checks(hook: Any) -> bool:
    """Whether a hook only checks inputs."""
    return isinstance(hook, InputCheck) or getattr(hook, "__module__", "").startswith("torch.export")


def added_hooks(module: nn.Module, known: Iterable[Any]) -> list[str]:
    """Descriptions of the hooks of a module other than `known` ones and those that only check inputs."""
    expected = list(known)
    return [
        f"a {kind} {_name(hook)}"
        for registries in (FORWARD, BACKWARD)
        for kind, registry in registries.items()
        for hook in getattr(module, f"_{registry}", {}).values()
        if not _only_checks(hook) and not any(hook is one for one in expected)
    ]


def carry_hooks(source: nn.Module, result: fx.GraphModule) -> None:
    """Give `result`, which replaces `source`, the hooks of `source` itself, and its input check."""
    for name in _REGISTRIES:
        getattr(result, name).update(getattr(source, name))
    # Else PyTorch takes the backward hooks for those of the older kind.
    result._is_full_backward_hook = source._is_full_backward_hook
    if (check := check_of(source)) is not None:
        install_input_check(result, check)
