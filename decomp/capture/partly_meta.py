"""Modules partly on the meta device: weights to be loaded later (`accelerate.init_empty_weights`), next to real buffers
or inputs. PyTorch runs no op on both. The program should be on the device of the real tensors, so during capture the
meta tensors are replaced by fake tensors of that device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import contextlib
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from decomp.metadata.fakes import new_mode
from decomp.torch_internals.fakes import FakeTensorMode
from decomp.torch_internals.pytree import tensors_in, tree_map_only


def device_of_the_rest(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> torch.device | None:
    """The device of the non-meta tensors among a module's tensors and inputs, if some but not all are on the meta
    device; None otherwise, or if they are on several devices."""
    tensors = [*model.parameters(), *model.buffers(), *tensors_in((tuple(args), dict(kwargs or {})))]
    devices = {tensor.device for tensor in tensors}
    others = {device for device in devices if device.type != "meta"}
    return others.pop() if len(others) == 1 and len(devices) > 1 else None


class OnOneDevice:
    """A module whose meta tensors are replaced by fake tensors of another device during capture."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.model, self.device = model, device
        self._own = {name: tensor for name, tensor in _state(model) if tensor.is_meta}
        """The meta tensors, by name."""
        self._mode: FakeTensorMode = new_mode()
        self._fakes: dict[int, torch.Tensor] = {}

    def inputs(self, inputs: Any) -> Any:
        """Example inputs, with fake tensors instead of meta tensors."""
        return tree_map_only(torch.Tensor, lambda tensor: self._fake(tensor) if tensor.is_meta else tensor, inputs)

    @contextlib.contextmanager
    def placed(self) -> Iterator[None]:
        """Inside this context the module has the fake tensors."""
        changed = []
        for module in self.model.modules():
            for table in (module._parameters, module._buffers):
                for name, tensor in table.items():
                    if tensor is not None and tensor.is_meta:
                        changed.append((table, name, tensor))
        for table, name, tensor in changed:
            table[name] = self._fake(tensor)
        try:
            yield
        finally:
            for table, name, tensor in changed:
                table[name] = tensor

    def with_own_state(self, program: ExportedProgram) -> ExportedProgram:
        """The program with the module's own tensors instead of the fake ones."""
        for table in (program.state_dict, program.constants):
            table.update({name: tensor for name, tensor in self._own.items() if name in table})
        return program

    def _fake(self, tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in self._fakes:
            with self._mode:
                made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=self.device)
            # So that the program has it as a parameter, with its `requires_grad`.
            kept = nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made
            self._fakes[id(tensor)] = kept
        return self._fakes[id(tensor)]


def _state(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    # Tied weights have several names, of which the program may use any.
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)
