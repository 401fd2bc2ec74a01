"""The arguments of a backend's function for a call: bound by the schema, without defaults."""

from __future__ import annotations

from collections.abc import Mapping
import functools
import inspect
from typing import Any

import torch
from torch import fx

from decomp.ir.arguments import substituted
from decomp.ir.call import Call
from decomp.ir.schema import MISSING, Parameter, parameters
from decomp.ir.spellings import IGNORED

OF_MEMORY = frozenset({"device", "layout", "memory_format", "implicit"}) | IGNORED
"""Arguments for the placement and layout of a tensor, which do not affect its values."""

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class UnknownDtype(Exception):
    """A dtype that the backend does not have."""


def arguments_of(call: Call, dtypes: Mapping[torch.dtype, Any] | None) -> Arguments:
    """Positional and keyword arguments of a call, with nodes in place of arrays. Raises `UnknownDtype`."""
    packet, node = call.op.packet, call.place
    if packet is None:
        assert node is not None
        return _mapped(node.args, dtypes), {key: _mapped(value, dtypes) for key, value in node.kwargs.items()}
    args, kwargs = [], {}
    for parameter in parameters(getattr(packet, call.overload or "default")):
        if parameter.name in OF_MEMORY:
            continue
        # By schema and not as written, so that all spellings of a call reach the function alike.
        value = call.arguments.get(parameter.name, parameter.default)
        if parameter.default is MISSING:
            args.append(_mapped(value, dtypes))
        elif not _is_default(parameter, value):
            kwargs[parameter.name] = _mapped(value, dtypes)
    return tuple(args), kwargs


def _is_default(parameter: Parameter, value: Any) -> bool:
    default = parameter.default
    if isinstance(value, (list, tuple)) and isinstance(default, (list, tuple)):
        return list(value) == list(default)
    if isinstance(value, fx.Node):
        return False
    # `True == 1`, and a function may treat them differently.
    return value is default or type(value) is type(default) and bool(value == default)


def _mapped(value: Any, dtypes: Mapping[torch.dtype, Any] | None) -> Any:
    """Plain containers, with the backend's dtypes."""
    return substituted(value, functools.partial(_dtype, dtypes=dtypes), torch.dtype)


def _dtype(dtype: torch.dtype, dtypes: Mapping[torch.dtype, Any] | None) -> Any:
    if dtypes is None:
        return dtype
    if dtype not in dtypes:
        raise UnknownDtype(dtype)
    return dtypes[dtype]


def why_not_callable(function: Any, arguments: Arguments) -> str | None:
    """Why a Python function cannot take these arguments; None if it can, or has no signature."""
    try:
        signature = inspect.signature(function)
    # Functions in C have no signature: such a call is tried.
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(*arguments[0], **arguments[1])
    except TypeError as error:
        return str(error)
    return None
