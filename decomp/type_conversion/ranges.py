"""Which values fit into a narrow dtype: of numbers, of tensors that are known, and of the inputs of each run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
import math
from typing import Any

import torch
from torch import fx, nn

from decomp.capture.lowered_module import add_input_check
from decomp.errors import OutOfRange
from decomp.ir.dtypes import name_of
from decomp.metadata.meta_values import convert_constant, known_value
from decomp.torch_internals.pytree import tree_leaves

Dtypes = Mapping[torch.dtype, torch.dtype]
"""Maps a wide dtype to the narrow one that replaces it."""


def fits_dtype(dtype: torch.dtype, number: Any) -> bool:
    """Whether a number is within the range of a dtype. True for infinities, NaN, and values that are not numbers."""
    if isinstance(number, bool) or not isinstance(number, (int, float, complex)):
        return True
    if dtype.is_floating_point or dtype.is_complex:
        parts = (number.real, number.imag)
        return all(not math.isfinite(part) or abs(part) <= torch.finfo(dtype).max for part in parts)
    info = torch.iinfo(dtype)
    return not isinstance(number, int) or info.min <= number <= info.max


def require_fits(name: str, tensor: torch.Tensor, dtypes: Dtypes) -> None:
    """Raise `OutOfRange` if a tensor has finite values out of the range of the narrow dtype."""
    narrow = dtypes.get(tensor.dtype)
    value = known_value(tensor) if narrow is not None else None
    if narrow is None or value is None or not value.numel():
        return
    # A complex number fits if its parts do; comparing needs an order.
    parts = torch.view_as_real(value.detach().resolve_conj()) if value.is_complex() else value.detach()
    # Infinities and NaN exist in narrow floats, too.
    parts = parts[parts.isfinite()] if parts.is_floating_point() else parts
    if not parts.numel():
        return
    low, high = (float(end) if parts.is_floating_point() else int(end) for end in parts.aminmax())
    # `finfo` of a complex dtype is that of its parts.
    info = torch.finfo(narrow) if narrow.is_floating_point or narrow.is_complex else torch.iinfo(narrow)
    wrong = next((end for end in (low, high) if not info.min <= end <= info.max), None)
    if wrong is not None:
        raise OutOfRange(f"{name} holds", wrong, name_of(narrow))


def narrow_tensor(name: str, tensor: torch.Tensor, dtypes: Dtypes) -> torch.Tensor:
    """Cast a tensor to its narrow dtype. Raises `OutOfRange` if values are out of range."""
    if tensor.dtype not in dtypes:
        return tensor
    require_fits(name, tensor, dtypes)
    return convert_constant(lambda value: value.to(dtypes[tensor.dtype]), tensor)


@dataclass(frozen=True)
class IntegerRangeCheck:
    """A hook that checks the integer inputs of a program in narrow dtypes. (Floats need no check: one that is too large
    becomes infinite, which is visible.)"""

    dtypes: Dtypes

    def added(self, module: fx.GraphModule) -> None:
        """Add the check to the module of a lowered program."""
        add_input_check(module, self)

    def __call__(self, module: nn.Module, given: Mapping[str, Any]) -> None:
        """Raises `OutOfRange` for an integer that does not fit."""
        require_integers_fit(given, self.dtypes)


def require_integers_fit(given: Mapping[str, Any], dtypes: Dtypes) -> None:
    """Raise `OutOfRange` if an input is, or contains, an integer out of the range of the narrow dtype."""
    narrow = dtypes.get(torch.int64)
    for name, value in given.items() if narrow is not None else ():
        for leaf in tree_leaves(value):
            # Not `bool`, which is an int to `isinstance`.
            if type(leaf) is int and not fits_dtype(narrow, leaf):
                raise OutOfRange(f"input {name!r} is", leaf, name_of(narrow))
            if isinstance(leaf, torch.Tensor) and leaf.dtype == torch.int64:
                require_fits(f"input {name!r}", leaf, dtypes)
