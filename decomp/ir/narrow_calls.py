"""Calls as a target has them whose integers have 32 bits: PyTorch gives `argmax` and takes the index of `take` in 64
whatever is asked, so that such calls stand between casts, and are judged as if these were not there."""

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
"""By a wide dtype, the one with half the bits."""
CAST = aten._to_copy.default
"""The call that stands between a wide tensor and a narrow one."""


@dataclass
class NarrowCall(Call):
    """A call whose tensors have narrow dtypes in the place of wide ones."""

    narrower: Mapping[torch.dtype, torch.dtype] = field(default_factory=dict)
    """By a wide dtype, the narrow one."""

    @classmethod
    def of(cls, call: Call, narrower: Mapping[torch.dtype, torch.dtype]) -> NarrowCall:
        """A call seen so."""
        own = {each.name: getattr(call, each.name) for each in fields(Call)}
        return cls(**own, narrower=narrower)

    def argument(self, name: str) -> Any:
        """As of a call, with narrow dtypes."""
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
    """Whether a call does nothing but cast from a wide dtype to the narrow one, or back."""
    given = call.arguments.get("self")
    if call.op.packet is not CAST.overloadpacket or not isinstance(given, fx.Node):
        return False
    found = [getattr(value, "dtype", None) for value in (metadata(given), call.meta)]
    return any(set(found) == {wide, narrow} for wide, narrow in narrower.items())


def has_wide(call: Call, narrower: Mapping[torch.dtype, torch.dtype]) -> bool:
    """Whether a call takes or gives a tensor of a wide dtype."""
    return any(each.dtype in narrower for each in (*call.tensors, *tensors_in(call.meta)))
