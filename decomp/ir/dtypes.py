"""Dtypes as named in files and targets: individually (float32), or by kind (float, complex, integer, bool)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
import functools
from typing import Any

import torch

from decomp.torch_internals.pytree import tensors_in

KINDS: dict[str, Callable[[torch.dtype], bool]] = {
    "float": lambda dtype: dtype.is_floating_point,
    "complex": lambda dtype: dtype.is_complex,
    "integer": lambda dtype: not dtype.is_floating_point and not dtype.is_complex and dtype != torch.bool,
    "bool": lambda dtype: dtype == torch.bool,
}
"""Predicates of dtypes by kind."""
BYTE_FLOATS = frozenset(
    dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and dtype.is_floating_point and dtype.itemsize == 1
)
"""The dtypes of float8, and of float4 in pairs."""


def dtype_named(name: Any) -> torch.dtype | None:
    """The dtype with this name, or None."""
    found = getattr(torch, name, None) if isinstance(name, str) else None
    return found if isinstance(found, torch.dtype) else None


def is_complex(value: Any) -> bool:
    """Whether a value is a complex tensor, or contains one."""
    return any(tensor.is_complex() for tensor in tensors_in(value))


def name_of(dtype: Any) -> str:
    """The name of a dtype: `float32`; names and kinds are returned unchanged."""
    return str(dtype).removeprefix("torch.")


def unknown_in(names: Iterable[Any]) -> str | None:
    """The first of `names` that is neither a kind nor the name of a dtype."""
    return next((str(name) for name in names if name not in KINDS and dtype_named(name) is None), None)


def is_integer(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds integers, excluding bool."""
    return KINDS["integer"](tensor.dtype)


def number_in(number: Any, dtype: torch.dtype) -> Any:
    """A number converted to a dtype; None if impossible."""
    try:
        return torch.full((), number, dtype=dtype).item()
    except (RuntimeError, OverflowError, TypeError, ValueError):
        return None


def is_of(dtype: torch.dtype, names: Iterable[str]) -> bool:
    """Whether a dtype is among `names`, individually or by kind."""
    return any(KINDS[name](dtype) if name in KINDS else dtype == dtype_named(name) for name in names)


@functools.cache
def named_by(names: tuple[str, ...]) -> frozenset[torch.dtype]:
    """The dtypes that `names` cover."""
    known = {each for each in vars(torch).values() if isinstance(each, torch.dtype)}
    return frozenset(dtype for dtype in known if is_of(dtype, names))


def common(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    """The names covered by both; for a kind and a dtype of that kind, the dtype."""
    own = [name for name in first if name in second or name not in KINDS and is_of(_known(name), second)]
    return tuple(dict.fromkeys([*own, *(name for name in second if name not in KINDS and is_of(_known(name), first))]))


def _known(name: str) -> torch.dtype:
    found = dtype_named(name)
    assert found is not None
    return found
