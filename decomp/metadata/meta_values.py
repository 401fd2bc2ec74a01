"""Constants on the meta device, which has shapes and no numbers. A table that a rule makes there, or a constant that
was folded, is a tensor of that device like the others of its program, and its numbers, which are known, go with it:
they are needed where more is folded, where the program is measured and where it is loaded on a backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from decomp.metadata.ambient_modes import neutral
from decomp.torch_internals.fakes import FakeTensor
from decomp.torch_internals.pytree import tensors_in, tree_map_only

_VALUE = "_decomp_value"
"""The attribute of a meta tensor that has its numbers. Copies and pickles of a tensor keep its attributes."""
_META, _CPU = torch.device("meta"), torch.device("cpu")


def on_meta(value: torch.Tensor) -> torch.Tensor:
    """A tensor on the meta device whose numbers are those of `value`."""
    return with_value(torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=_META), value)


def with_value(tensor: torch.Tensor, value: torch.Tensor | None) -> torch.Tensor:
    """A tensor, of which is noted that it has these numbers if it is on the meta device."""
    if tensor.is_meta and value is not None:
        setattr(tensor, _VALUE, value)
    return tensor


def is_abstract(tensor: torch.Tensor) -> bool:
    """Whether a tensor is metadata alone: on the meta device, or fake."""
    return bool(tensor.is_meta) or isinstance(tensor, FakeTensor)


def known_value(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor with its numbers: itself, or, on the meta device, what `on_meta` was given. None where they are not
    known: of a fake tensor, and of a weight on the meta device."""
    if isinstance(tensor, FakeTensor):
        return None
    return getattr(tensor, _VALUE, None) if tensor.is_meta else tensor


def converted(function: Callable[[torch.Tensor], torch.Tensor], constant: torch.Tensor) -> torch.Tensor:
    """A function of a constant, with its numbers where they are known."""
    value = known_value(constant) if constant.is_meta else None
    return function(constant) if value is None else on_meta(function(value))


def is_on_meta(device: Any) -> bool:
    """Whether an argument names the meta device."""
    return isinstance(device, (str, torch.device)) and str(device).split(":")[0] == "meta"


def on_host(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call that is to compute numbers: on the host in the place of the meta device."""
    return [_host(given) for given in args], {key: _host(given) for key, given in kwargs.items()}


def _host(given: Any) -> Any:
    return _CPU if is_on_meta(given) else given


MADE_OF_NUMBERS = frozenset({torch.tensor, torch.as_tensor, torch.from_numpy, torch.asarray})
"""What makes a tensor of Python's numbers, or NumPy's."""


def made_on_meta(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """The result of a call that makes a tensor of numbers on the meta device, with these numbers; None for others."""
    if function not in MADE_OF_NUMBERS or not is_on_meta(kwargs.get("device")):
        return None
    if any(isinstance(given, torch.Tensor) for given in (*args, *kwargs.values())):
        return None
    given, named = on_host(args, kwargs)
    with neutral():
        return on_meta(function(*given, **named))


def computed_on_meta(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a call gives, with its numbers where those of its operands on the meta device are known."""
    operands = tensors_in((args, kwargs))
    if not any(map(is_abstract, operands)) or any(known_value(each) is None for each in operands):
        return function(*args, **kwargs)
    given, named = on_host(*tree_map_only(torch.Tensor, known_value, (list(args), dict(kwargs))))
    return tree_map_only(torch.Tensor, on_meta, function(*given, **named))
