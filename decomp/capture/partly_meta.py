"""Modules of which a part is on the meta device: weights that are loaded later (`accelerate.init_empty_weights`),
beside buffers or inputs that are real. PyTorch runs no call on both. The program is to be where the real ones are, so
that while it is captured fake tensors of that device are in the place of those on the meta device."""

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
    """The one device of a module's tensors and inputs that are not on the meta device, where others are; None where
    none or all are, or where they are on several."""
    tensors = [*model.parameters(), *model.buffers(), *tensors_in((tuple(args), dict(kwargs or {})))]
    devices = {tensor.device for tensor in tensors}
    others = {device for device in devices if device.type != "meta"}
    return others.pop() if len(others) == 1 and len(devices) > 1 else None


class OnOneDevice:
    """A module whose tensors on the meta device are fake ones of another device while it is captured."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.model, self.device = model, device
        self._own = {name: tensor for name, tensor in _state(model) if tensor.is_meta}
        """What is on the meta device, by name."""
        self._mode: FakeTensorMode = new_mode()
        self._fakes: dict[int, torch.Tensor] = {}

    def inputs(self, inputs: Any) -> Any:
        """Example inputs, those of the meta device as fake ones."""
        return tree_map_only(torch.Tensor, lambda tensor: self._fake(tensor) if tensor.is_meta else tensor, inputs)

    @contextlib.contextmanager
    def placed(self) -> Iterator[None]:
        """While it lasts, the module has the fake tensors."""
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
        """The program with the tensors of the module in the place of the fake ones."""
        for table in (program.state_dict, program.constants):
            table.update({name: tensor for name, tensor in self._own.items() if name in table})
        return program

    def _fake(self, tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in self._fakes:
            with self._mode:
                made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=self.device)
            kept = nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made
            self._fakes[id(tensor)] = kept
        return self._fakes[id(tensor)]


def _state(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)
