"""The arguments of calls by name, and their values as JSON. Placement and layout are not written: every value says its
strides, and a runtime knows its devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
import functools
import inspect
import math
from typing import Any

import torch
from torch import fx

from decomp.errors import NotPortable, describe, spell_target
from decomp.ir.dtypes import dtype_named, name_of
from decomp.ir.schema import MISSING, Parameter, parameters
from decomp.metadata.symbolic_sizes import SYMBOLIC
from decomp.runtime.arguments import OF_MEMORY

_PLACEMENT = frozenset({"Device", "Layout", "MemoryFormat", "Generator", "Stream", "Storage"})
"""Types of the arguments that say where a tensor is, and how it is laid out."""


@functools.cache
def written_parameters(overload: torch._ops.OpOverload) -> tuple[Parameter, ...]:
    """The parameters of an overload that are written: those that affect values."""
    found = parameters(overload)
    return tuple(each for each in found if each.name not in OF_MEMORY and each.type not in _PLACEMENT)


def arguments_of_overload(overload: torch._ops.OpOverload, given: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments of a call by the schema's names, in its order, with defaults."""
    found = ((each, given.get(each.name, each.default)) for each in written_parameters(overload))
    return {each.name: value for each, value in found if value is not MISSING}


@functools.cache
def parameters_of_function(function: Any) -> tuple[inspect.Parameter, ...]:
    """The parameters of a higher-order op or a Python function; empty if it does not say them."""
    called = type(function).__call__ if isinstance(function, torch._ops.HigherOrderOperator) else function
    try:
        found = tuple(inspect.signature(called).parameters.values())
    except ValueError:  # int, max
        return ()
    return found[1:] if called is not function else found


def arguments_of_function(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by the names of the function's parameters; the rest, and those of a function that does
    not say them, as `arg0`, `arg1`."""
    names = [each.name for each in parameters_of_function(function) if each.kind is not each.VAR_POSITIONAL]
    names += [f"arg{i}" for i in range(len(names), len(args))]
    return {**dict(zip(names, args)), **kwargs}


def literal(value: Any) -> Any:
    """A number, text, dtype or None as JSON; a number with a fraction or an exponent is a float. Raises `TypeError` for
    another value."""
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": str(float(value))}
    if isinstance(value, complex):
        return {"complex": [literal(value.real), literal(value.imag)]}
    if isinstance(value, torch.dtype):
        return {"dtype": name_of(value)}
    raise TypeError(type(value))


def written_value(value: Any, node: fx.Node, of_node: Callable[[fx.Node], Any], of_size: Callable[[Any], Any]) -> Any:
    """An argument of the call `node` as JSON. Raises `NotPortable` for a Python object."""
    if isinstance(value, fx.Node):
        return of_node(value)
    if isinstance(value, (list, tuple)):
        return [written_value(each, node, of_node, of_size) for each in value]
    if isinstance(value, SYMBOLIC):
        return {"size": of_size(value)}
    try:
        return literal(value)
    except TypeError:
        raise NotPortable(
            f"{describe(node)} takes a {type(value).__name__}, a Python object that cannot be written: {value!r:.80}\n"
            f"  to do: pass its numbers or tensors as arguments of {spell_target(node.target)}"
        ) from None


def read_value(value: Any, references: Mapping[str, Callable[[Any], Any]]) -> Any:
    """The argument that was written; `references` reads values, graphs and sizes. Raises `ValueError` or `LookupError`
    for malformed data."""
    if isinstance(value, list):
        return [read_value(each, references) for each in value]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "float":
        return float(inner)
    if kind == "complex":
        return complex(*(read_value(each, references) for each in inner))
    if kind == "dtype":
        return known_dtype(inner)
    return references[kind](inner)


def known_dtype(name: Any) -> torch.dtype:
    """The dtype of this name. Raises `ValueError`."""
    found = dtype_named(name)
    if found is None:
        raise ValueError(f"{name!r} is not a dtype of this PyTorch")
    return found
