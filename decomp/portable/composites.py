"""What a composite call says of itself, as a program has it: a function of the program, with a name, a version and
attributes, whose body is one of the program's graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
import functools
from typing import Any

import torch
from torch import fx

from decomp.errors import NotPortable, describe
from decomp.ir.composites import CompositeCall, plain_attribute, read_attribute
from decomp.portable.arguments import literal, read_value

_PARTS: Mapping[str, type | tuple[type, ...]] = {
    "name": str,
    "version": int,
    "overload": (str, type(None)),
    "attributes": dict,
    "operands": dict,
    "results": list,
}


def written_composite(made: CompositeCall, node: fx.Node) -> dict[str, Any]:
    """What a composite call says, with its numbers and dtypes as the arguments of calls have them. Raises
    `NotPortable`."""
    write = functools.partial(_leaves, functools.partial(_written, node))
    return {**made.meta, "attributes": write(made.attributes), "operands": write(made.operands)}


def read_composite(found: Any) -> dict[str, Any]:
    """The metadata of a composite call that was written. Raises `ValueError`."""
    kinds = {name: type(value) for name, value in found.items()}
    if kinds.keys() != _PARTS.keys() or not all(issubclass(kinds[name], kind) for name, kind in _PARTS.items()):
        raise ValueError(f"the composite {found!r:.80}")
    read = functools.partial(_leaves, lambda value: plain_attribute(read_value(value, {})))
    return {**found, "attributes": read(found["attributes"]), "operands": read(found["operands"])}


def _leaves(change: Callable[[Any], Any], value: Any) -> Any:
    """A value with its numbers, texts and dtypes changed; operands are as they were."""
    if isinstance(value, list):
        return [_leaves(change, each) for each in value]
    if isinstance(value, Mapping) and value.keys() == {"operand"}:
        return dict(value)
    one = isinstance(value, Mapping) and value.keys() in ({"float"}, {"dtype"}, {"complex"})
    return change(value) if one or not isinstance(value, Mapping) else {k: _leaves(change, v) for k, v in value.items()}


def _written(node: fx.Node, value: Any) -> Any:
    found = read_attribute(value)
    try:
        return literal(found if isinstance(found, torch.dtype) else value)
    except TypeError:
        raise NotPortable(f"{describe(node)} has the attribute {value!r:.80}, a {type(value).__name__}") from None
