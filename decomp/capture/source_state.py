"""Preservation of a capture's source. Capture runs a model's own Python on proxies or fake tensors; forwards that
count, cache or freeze leave changes in the modules, which are undone here whether capture succeeds or fails."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
from dataclasses import dataclass
import random
from typing import Any

import torch
from torch import nn

from decomp.torch_internals.fakes import unset_fake_temporarily
from decomp.torch_internals.transforms import is_wrapped


@contextlib.contextmanager
def source_unchanged(model: nn.Module, writes_parameters: bool = False) -> Iterator[SourceState]:
    """Inside this context the model may be run; afterwards its attributes, hooks, training flags, buffers,
    `requires_grad`, `grad`, and the states of the random generators are restored. Parameters are copied only with
    `writes_parameters`, as capturing a module never writes to them."""
    # Attributes are compared by identity, so that replacing an object by an equal one is undone too.
    modules = [(module, _attributes(module)) for module in model.modules()]
    # Each once: the second state of a tied weight would be the same.
    tensors = [_TensorState(tensor, writes_parameters) for tensor in {id(t): t for t in _tensors(model)}.values()]
    state = random.getstate()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        # With a list: `fork_rng` would take all devices, and warn where there are several.
        with torch.random.fork_rng(devices):
            yield SourceState(modules, tensors)
    finally:
        random.setstate(state)
        for module, attributes in modules:
            _restore(vars(module), attributes)
        for tensor in tensors:
            tensor.restore()


def _tensors(model: nn.Module) -> Iterator[torch.Tensor]:
    yield from model.parameters()
    yield from model.buffers()
    for module in model.modules():
        yield from (value for value in vars(module).values() if isinstance(value, torch.Tensor))


def _attributes(module: nn.Module) -> dict[str, tuple[Any, Any]]:
    """Attributes by name, each with a copy of its contents if it is a plain container."""
    return {name: (value, _contents(value)) for name, value in vars(module).items()}


def _contents(value: Any) -> Any:
    return value.copy() if isinstance(value, (list, dict, set)) else None


def _restore(found: dict[str, Any], before: dict[str, tuple[Any, Any]]) -> None:
    for name in found.keys() - before.keys():
        del found[name]
    for name, (value, contents) in before.items():
        if contents is not None and not _is_same(value, contents):
            _refill(value, contents)
        if name not in found or found[name] is not value:
            found[name] = value


def _is_same(value: Any, contents: Any) -> bool:
    """Whether a container holds exactly the objects that it held before."""
    if len(value) != len(contents):
        return False
    if isinstance(value, dict):
        return all(a is b and value[a] is contents[b] for a, b in zip(value, contents))
    return all(a is b for a, b in zip(value, contents)) if isinstance(value, list) else value == contents


def _refill(value: Any, contents: Any) -> None:
    value.clear()
    if isinstance(value, list):
        value.extend(contents)
    else:
        value.update(contents)


@dataclass(frozen=True)
class SourceState:
    """A model that may have been run, and its state before."""

    modules: list[tuple[nn.Module, dict[str, tuple[Any, Any]]]]
    tensors: list[_TensorState]

    def written(self) -> list[str]:
        """The names of tensors of the model that were written since, and of buffers that were replaced."""
        written = {id(state.tensor) for state in self.tensors if state.is_written()}
        paths = {id(module): path for path, module in self.modules[0][0].named_modules()}
        return [
            f"{paths[id(module)]}.{name}" if paths.get(id(module)) else name
            for module, attributes in self.modules
            for name, tensor in _named_tensors(attributes)
            if id(tensor) in written or module._buffers.get(name, tensor) is not tensor
        ]


def _named_tensors(attributes: dict[str, tuple[Any, Any]]) -> Iterator[tuple[str, Any]]:
    yield from attributes["_parameters"][1].items()
    yield from attributes["_buffers"][1].items()
    yield from ((name, value) for name, (value, _) in attributes.items() if isinstance(value, torch.Tensor))


class _TensorState:
    """The state of a module's tensor: flags, and data unless it is a parameter that will not be written."""

    def __init__(self, tensor: torch.Tensor, writes_parameters: bool) -> None:
        self.tensor = tensor
        is_leaf = _is_leaf(tensor)
        self.grad = tensor.grad if is_leaf else None
        self.requires_grad = tensor.requires_grad if is_leaf else None
        self.place = _place(tensor)
        # It keeps the storage alive that `set_` would release.
        self.memory = tensor.detach() if self.place is not None else None
        self.version = _version(tensor)
        self.data: torch.Tensor | None = None
        if (writes_parameters or not isinstance(tensor, nn.Parameter)) and _has_data(tensor):
            with torch.no_grad(), unset_fake_temporarily():
                self.data = tensor.detach().clone()

    def is_written(self) -> bool:
        """Whether its data changed, or was written to."""
        if self.version is not None and self.tensor._version != self.version:
            return True
        # A write through `.data` does not increment the version counter.
        return self.data is not None and not _is_equal(self.tensor, self.data)

    def restore(self) -> None:
        if self.requires_grad is not None:
            if self.tensor.requires_grad != self.requires_grad:
                self.tensor.requires_grad_(self.requires_grad)
            if self.tensor.grad is not self.grad:
                self.tensor.grad = self.grad
        if self.data is not None:
            with torch.no_grad(), unset_fake_temporarily():
                if self.memory is not None and _place(self.tensor) != self.place:
                    self.tensor.data = self.memory
                if not _is_equal(self.tensor, self.data):
                    _once(self.tensor).copy_(_once(self.data, self.tensor))


def _is_leaf(tensor: torch.Tensor) -> bool:
    try:
        return bool(tensor.is_leaf)
    except RuntimeError:  # one of several views whose base was modified: autograd refuses to read its history
        return False


def _place(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """The storage of a tensor, and its size, strides and offset there: `set_`, `t_` and similar change these. None for
    a tensor that has none."""
    if tensor.layout is not torch.strided or nn.parameter.is_lazy(tensor) or is_wrapped(tensor):
        return None
    return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.untyped_storage()._cdata


def _is_equal(tensor: torch.Tensor, data: torch.Tensor) -> bool:
    """Whether they are bitwise equal, NaNs included."""
    if tensor.shape != data.shape or tensor.dtype != data.dtype:
        return False
    return bool(torch.equal(_bytes(tensor), _bytes(data)))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if _version(plain) is None:  # such a tensor may have no views
        plain = plain.clone()
    # For a single element `contiguous` and `reshape` keep its stride, but `view` requires it to be 1.
    return plain.as_strided((plain.numel(),), (1,)).view(torch.uint8)


def _once(tensor: torch.Tensor, like: torch.Tensor | None = None) -> torch.Tensor:
    """The tensor without the repetitions of an expanded tensor (itself, or `like`), which cannot be written."""
    for dim, stride in enumerate((tensor if like is None else like).stride()):
        if not stride and tensor.shape[dim]:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _version(tensor: torch.Tensor) -> int | None:
    """How often a tensor was written; None if PyTorch does not count: it is lazy, or was made in inference mode, which
    `is_inference` no longer says once its data was replaced."""
    if nn.parameter.is_lazy(tensor):
        return None
    try:
        return int(tensor._version)
    except RuntimeError:
        return None


def _has_data(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds values that can be compared: not fake, lazy, sparse, meta, or wrapped by a transform."""
    is_plain = type(tensor) in (torch.Tensor, nn.Buffer, nn.Parameter) and tensor.layout is torch.strided
    return is_plain and not tensor.is_meta and not is_wrapped(tensor)
