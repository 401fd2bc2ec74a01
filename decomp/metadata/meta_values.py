"""Constants on the meta device, which has shapes but no values. A table that a rule creates there, or a folded
constant, is a meta tensor like the others of its program; its known values are stored with it, for further folding,
measuring and loading on a backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from decomp.metadata.ambient_modes import without_ambient_modes
from decomp.torch_internals.fakes import FakeTensor
from decomp.torch_internals.pytree import tensors_in, tree_map_only

_VALUE = "_decomp_value"
"""The attribute of a meta tensor with its values. Copies and pickles of a tensor keep attributes."""
_META, _CPU = torch.device("meta"), torch.device("cpu")


def on_meta(value: torch.Tensor) -> torch.Tensor:
    """A meta tensor with the values of `value`."""
    return with_value(torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=_META), value)


def with_value(tensor: torch.Tensor, value: torch.Tensor | None) -> torch.Tensor:
    """The tensor, with these values attached if it is on the meta device."""
    if tensor.is_meta and value is not None:
        setattr(tensor, _VALUE, value)
    return tensor


def is_abstract(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no data: a meta or fake tensor."""
    return bool(tensor.is_meta) or isinstance(tensor, FakeTensor)


def known_value(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor with its values: itself, or, for a meta tensor, those attached by `on_meta`. None if unknown, as for
    fake tensors and meta weights."""
    if isinstance(tensor, FakeTensor):
        return None
    return getattr(tensor, _VALUE, None) if tensor.is_meta else tensor


def convert_constant(function: Callable[[torch.Tensor], torch.Tensor], constant: torch.Tensor) -> torch.Tensor:
    """The result of a function of a constant, with its values if they are known."""
    value = known_value(constant) if constant.is_meta else None
    return function(constant) if value is None else on_meta(function(value))


def is_on_meta(device: Any) -> bool:
    """Whether an argument specifies the meta device."""
    return isinstance(device, (str, torch.device)) and str(device).split(":")[0] == "meta"


def on_host(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call that is to compute values: with the host instead of the meta device."""
    return [_host(given) for given in args], {key: _host(given) for key, given in kwargs.items()}


def _host(given: Any) -> Any:
    return _CPU if is_on_meta(given) else given


MADE_OF_NUMBERS = frozenset({torch.tensor, torch.as_tensor, torch.from_numpy, torch.asarray})
"""Functions that create a tensor from Python or NumPy numbers."""


def made_on_meta(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """The result of a call that creates a meta tensor from numbers, with these values attached; None for other
    calls."""
    if function not in MADE_OF_NUMBERS or not is_on_meta(kwargs.get("device")):
        return None
    if any(isinstance(given, torch.Tensor) for given in (*args, *kwargs.values())):
        return None
    given, named = on_host(args, kwargs)
    # Capture traces under modes that would record this call, and a default device of meta would make a meta tensor
    # again.
    with without_ambient_modes():
        return on_meta(function(*given, **named))


def computed_on_meta(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of a call, with its values if those of its meta operands are known."""
    operands = tensors_in((args, kwargs))
    if not any(map(is_abstract, operands)) or any(known_value(each) is None for each in operands):
        return function(*args, **kwargs)
    given, named = on_host(*tree_map_only(torch.Tensor, known_value, (list(args), dict(kwargs))))
    return tree_map_only(torch.Tensor, on_meta, function(*given, **named))
