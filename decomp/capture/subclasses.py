"""Tensor subclasses that wrap plain tensors, such as quantised weights: int8 values and scales in one parameter. For
capture a copy of the module is made that holds the plain tensors as buffers and builds the subclass from them wherever
the parameter is read; the operations of the subclass are then recorded as calls on plain tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from decomp.errors import CaptureError, first_line
from decomp.torch_internals.modes import is_traceable_wrapper_subclass


def wrapped_weights(model: nn.Module) -> list[str]:
    """The paths of a module's parameters and buffers that are subclasses around plain tensors."""
    return [path for module, path in _modules(model) for path in _wrapped(module, path)]


def unwrap_subclasses(model: nn.Module) -> nn.Module:
    """The model itself if it only has plain tensors. Otherwise a copy of its modules that shares all plain tensors: the
    parts of a parameter `weight` become buffers `weight_qdata`, `weight_scale`, by the names that the subclass uses.
    They require no gradient: quantised weights do not train in a captured program. Raises `CaptureError`."""
    if not wrapped_weights(model):
        return model
    copies: dict[int, nn.Module] = {}
    whole = _copied(model, copies)
    for module in copies.values():
        _rebind(module, copies)
        _unwrap(module)
    return whole


def refuse_wrapped(model: nn.Module, what: str) -> None:
    """Raise `CaptureError` if a program that is not captured by export has weights of such subclasses."""
    found = wrapped_weights(model)
    if found:
        raise _refused(what, found, "pass example inputs (args=), so that torch.export captures what they compute")


def unwrap_program(program: ExportedProgram) -> ExportedProgram:
    """An exported program with the plain tensors of such weights as its state, by `run_decompositions({})`; itself
    where it has none. Raises `CaptureError` where PyTorch cannot make it."""
    found = _wrapped_state(program)
    if not found:
        return program
    try:
        plain = program.run_decompositions({})
    except Exception as error:  # whatever a subclass's own code raises
        remedy = f"pass the module that was exported, with args=; run_decompositions({{}}) fails: {first_line(error)}"
        raise _refused("the exported program", found, remedy) from error
    if left := _wrapped_state(plain):
        raise _refused("the exported program", left, "pass the module that was exported, with args=")
    return plain


def _wrapped_state(program: ExportedProgram) -> list[str]:
    return [name for name, value in {**program.state_dict, **program.constants}.items() if _is_wrapped(value)]


def refused_model(model: nn.Module, with_parts: str, below: str) -> CaptureError:
    """The error for a module with such weights that PyTorch captures neither as any module nor below autograd, with the
    reasons."""
    kinds = {type(value).__name__: None for value in model.state_dict().values() if _is_wrapped(value)}
    return CaptureError(
        f"{type(model).__name__} has weights of the class {', '.join(kinds)}, and PyTorch does not capture what they "
        f"compute\n  with their tensors as its weights: {with_parts}\n  below autograd: {below}\n"
        "  to do: pass inputs on which the model runs, call torch.compile(model, backend=decomp.backend(to=...)), "
        "where Dynamo takes such weights apart, or quantise the model in another format"
    )


def _refused(what: str, found: list[str], remedy: str) -> CaptureError:
    names = ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
    return CaptureError(f"{what} has weights that are tensor subclasses: {names}\n  to do: {remedy}")


def _modules(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    return ((module, f"{path}." if path else "") for path, module in model.named_modules())


def _wrapped(module: nn.Module, prefix: str = "") -> list[str]:
    tensors = {**module._parameters, **module._buffers}
    return [prefix + name for name, value in tensors.items() if _is_wrapped(value)]


def _is_wrapped(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and is_traceable_wrapper_subclass(value)


def _copied(module: nn.Module, copies: dict[int, nn.Module]) -> nn.Module:
    """A copy of a module and its submodules, each once. Only their tables are copied, no tensor."""
    if id(module) in copies:
        return copies[id(module)]
    # Not by `copy.copy`, which a class may define otherwise.
    copy: nn.Module = object.__new__(type(module))
    copies[id(module)] = copy
    attributes = vars(module)
    vars(copy).update(attributes)
    for table in ("_parameters", "_buffers", "_non_persistent_buffers_set"):
        vars(copy)[table] = attributes[table].copy()
    below = {name: child and _copied(child, copies) for name, child in module._modules.items()}
    vars(copy)["_modules"] = below
    return copy


def _rebind(module: nn.Module, copies: dict[int, nn.Module]) -> None:
    """Rebind methods that were assigned on a module, and modules that it holds outside of its children, to the
    copies."""
    for name, value in vars(module).items():
        if isinstance(value, MethodType) and id(value.__self__) in copies:
            vars(module)[name] = MethodType(value.__func__, copies[id(value.__self__)])
        elif isinstance(value, nn.Module):
            vars(module)[name] = copies.get(id(value), value)


def _unwrap(module: nn.Module) -> None:
    """Replace the subclasses that a module holds by plain tensors, and by properties that rebuild the subclasses."""
    names = _wrapped(module)
    if not names:
        return
    cls = type(module)
    properties: dict[str, Any] = {}
    for name in names:
        tensor = module._parameters.pop(name, None)
        tensor = module._buffers.pop(name) if tensor is None else tensor
        properties[name] = property(_register_parts(module, name, tensor).built)
    kept = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    # A property works on a class alone, so each module gets one of its own.
    module.__class__ = type(cls.__name__, (cls,), {**properties, **kept})


@dataclass(frozen=True)
class _Parts:
    """How to rebuild a subclass from buffers of the module that holds it."""

    kind: Any
    parts: dict[str, str | _Parts]
    """By the subclass's name of a part: the name of its buffer, or the parts of a nested subclass."""
    context: Any
    shape: torch.Size
    stride: tuple[int, ...]

    def built(self, module: nn.Module) -> torch.Tensor:
        """The subclass, built from the current buffers."""
        inner = {
            name: part.built(module) if isinstance(part, _Parts) else getattr(module, part)
            for name, part in self.parts.items()
        }
        made: torch.Tensor = self.kind.__tensor_unflatten__(inner, self.context, self.shape, self.stride)
        return made


def _register_parts(module: nn.Module, name: str, tensor: Any) -> _Parts:
    """Register the plain tensors inside a subclass as buffers."""
    names, context = tensor.__tensor_flatten__()
    parts: dict[str, str | _Parts] = {}
    for each in names:
        inner, own = getattr(tensor, each), f"{name}_{each}"
        if hasattr(module, own):
            raise CaptureError(
                f"{type(module).__name__} already has an attribute {own}, the name that a part of its {name} would "
                f"get\n  to do: rename the attribute"
            )
        if not isinstance(inner, torch.Tensor):
            raise CaptureError(
                f"{type(module).__name__} has a {type(tensor).__name__}, {name}, which holds a {type(inner).__name__} "
                "besides its tensors\n  to do: lower the module as it was before it was distributed"
            )
        if _is_wrapped(inner):
            parts[each] = _register_parts(module, own, inner)
        else:
            # Not as a parameter, as the parts do not train.
            module.register_buffer(own, inner)
            parts[each] = own
    return _Parts(type(tensor), parts, context, tensor.size(), tensor.stride())
