"""Calls as seen by a target with 32-bit integers. PyTorch's `argmax` returns, and `take` requires, 64-bit indices, so
such calls are wrapped in casts, and their legality is decided as if tensors were narrow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import fx

from decomp.ir.call import Call, metadata
from decomp.ops import aten
from decomp.torch_internals.pytree import tensors_in, tree_map

NARROWER = {torch.int64: torch.int32, torch.float64: torch.float32, torch.complex128: torch.complex64}
"""From a wide dtype to the one with half the bits."""
CAST = aten._to_copy.default
"""The cast between wide and narrow tensors."""


@dataclass
class NarrowCall(Call):
    """A call whose tensors appear to have narrow dtypes instead of wide ones."""

    narrower: Mapping[torch.dtype, torch.dtype] = field(default_factory=dict)
    """From a wide dtype to the narrow one."""

    @classmethod
    def of(cls, call: Call, narrower: Mapping[torch.dtype, torch.dtype]) -> NarrowCall:
        """The narrow view of a call."""
        own = {each.name: getattr(call, each.name) for each in fields(Call)}
        return cls(**own, narrower=narrower)

    def argument(self, name: str) -> Any:
        """As `Call.argument`, with narrow dtypes."""
        return tree_map(self._narrow, super().argument(name))

    @property
    def tensors(self) -> list[Any]:
        """Metadata of the tensor arguments, in order."""
        return [self._narrow(each) for each in super().tensors]

    @property
    def meta(self) -> Any:
        """Metadata of the result."""
        return tree_map(self._narrow, super().meta)

    def _narrow(self, value: Any) -> Any:
        dtype = value if isinstance(value, torch.dtype) else getattr(value, "dtype", None)
        if dtype not in self.narrower or not isinstance(value, (torch.dtype, torch.Tensor)):
            return value
        return self.narrower[dtype] if value is dtype else value.to(self.narrower[dtype])


def is_between(call: Call, narrower: Mapping[torch.dtype, torch.dtype]) -> bool:
    """Whether a call only casts from a wide dtype to the narrow one, or back."""
    given = call.arguments.get("self")
    if call.op.packet is not CAST.overloadpacket or not isinstance(given, fx.Node):
        return False
    found = [getattr(value, "dtype", None) for value in (metadata(given), call.meta)]
    return any(set(found) == {wide, narrow} for wide, narrow in narrower.items())


def has_wide(call: Call, narrower: Mapping[torch.dtype, torch.dtype]) -> bool:
    """Whether a call takes or returns a tensor of a wide dtype."""
    return any(each.dtype in narrower for each in (*call.tensors, *tensors_in(call.meta)))
