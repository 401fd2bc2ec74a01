"""The schemas of PyTorch's operators: overloads of an op, their parameters, and whether values fit these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
import functools
from typing import Any

import torch
from torch import fx

from decomp.errors import BindingError as BindingError
from decomp.ir import spellings
from decomp.ir.ops import Op, once_known
from decomp.metadata.symbolic_sizes import SYMBOLIC
from decomp.torch_internals.schemas import Argument, FunctionSchema

Kind = str
"""The known kind of a value: "tensor", "host" (a size or number, known at run time) or "unknown"."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of a schema."""

    name: str
    type: str
    """The type in the schema, without Optional: `Tensor`, `int[]`, `number`."""
    optional: bool
    default: Any
    keyword_only: bool
    length: int | None = None
    """The length of the list to which a single number expands: 2 for `int[2]`."""

    @property
    def required(self) -> bool:
        """Whether a call must pass this argument."""
        return self.default is MISSING and self.name not in spellings.IGNORED


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING = _Missing()


@dataclass(frozen=True, slots=True)
class Bound:
    """Arguments of one call by the schema's names, with defaults filled in."""

    op: Op
    overload: str | None
    arguments: dict[str, Any]
    inplace: bool = False
    given: frozenset[str] = frozenset()
    """The names of the arguments that the call passes; the others are defaults."""


@once_known
def overloads(op: Op) -> tuple[tuple[str, tuple[Parameter, ...]], ...]:
    """Name and parameters of each functional overload of `op`; the in-place ones if there are no others."""
    packet = op.packet
    if packet is None:
        return ()
    found = [(name, getattr(packet, name)) for name in packet.overloads()]
    usable = [(name, parameters(overload)) for name, overload in found if not _unusable(overload)]
    # An op that has none (`aten.promote_types`) keeps what it has.
    tensors = [item for item in usable if _of_tensors(getattr(packet, item[0])._schema)]
    return tuple(tensors or usable)


def _of_tensors(schema: FunctionSchema) -> bool:
    """Whether it takes or returns a tensor: TorchScript has overloads of `add` for lists and strings."""
    types = [a.real_type for a in schema.arguments] + [r.type for r in schema.returns]
    return any("Tensor" in str(type_) for type_ in types)


@functools.cache
def parameters(overload: torch._ops.OpOverload) -> tuple[Parameter, ...]:
    """The parameters of an overload, without those that are written (`out=`)."""
    return tuple(_parameter(a) for a in overload._schema.arguments if not a.is_out)


@once_known
def names(op: Op) -> tuple[str, ...]:
    """Names of the arguments of all overloads, in order of first appearance."""
    ordered: dict[str, None] = {}
    for _, params in overloads(op):
        ordered.update(dict.fromkeys(p.name for p in params))
    return tuple(ordered)


def _parameter(argument: Argument) -> Parameter:
    text = str(argument.real_type)
    optional = text.startswith("Optional[")
    default = argument.default_value if argument.has_default_value() else MISSING
    type_ = _element(text)
    if type_ in _NUMBERED and type(default) is int:
        default = _NUMBERED[type_].get(default, default)
    return Parameter(argument.name, type_, optional, default, argument.kwarg_only, argument.N)


# PyTorch cannot renumber these: files of TorchScript contain them.
_NUMBERED: dict[str, dict[int, Any]] = {
    "ScalarType": {4: torch.int64, 6: torch.float32, 7: torch.float64, 11: torch.bool},
    "MemoryFormat": {0: torch.contiguous_format, 1: torch.preserve_format},
    "Layout": {0: torch.strided},
}
"""Defaults for which a schema has the number of a C++ enum."""


def _element(text: str) -> str:
    """`Optional[List[int]]` as `int[]`."""
    while text.startswith("Optional["):
        text = text[len("Optional[") : -1]
    if text.startswith("List["):
        return _element(text[len("List[") : -1]) + "[]"
    return text


def _unusable(overload: torch._ops.OpOverload) -> bool:
    schema = overload._schema
    # Named dimensions are gone from torch 2.13 on; `add.str` and its like are TorchScript's.
    return any(a.is_out or "Dimname" in str(a.real_type) for a in schema.arguments) or "str" == overload._overloadname


def fill(
    params: Sequence[Parameter], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], frozenset[str]]:
    positional = [p for p in params if not p.keyword_only]
    if len(args) > len(positional):
        raise BindingError("too many positional arguments")
    given = {p.name: value for p, value in zip(positional, args)}
    for name, value in kwargs.items():
        if name in given:
            raise BindingError(f"{name} is given twice")
        given[name] = value
    known = {p.name for p in params}
    unknown = given.keys() - known - spellings.IGNORED
    if unknown:
        raise BindingError(f"unexpected argument {sorted(unknown)[0]}")
    missing = [p.name for p in params if p.required and p.name not in given]
    if missing:
        raise BindingError(f"missing argument {missing[0]}")
    arguments = {
        p.name: given.get(p.name, p.default)
        for p in params
        if p.name in given or p.default is not MISSING and p.name not in spellings.IGNORED
    }
    return arguments, frozenset(given.keys() & known)


_SCALARS: dict[str, tuple[type, ...]] = {
    "number": (int, float, complex, bool),
    "float": (int, float),
    "int": (int,),
    "SymInt": (int,),
    "bool": (bool,),
    "str": (str,),
    "ScalarType": (torch.dtype,),
    "Layout": (torch.layout,),
    "MemoryFormat": (torch.memory_format,),
    "Device": (torch.device, str),
}


def fits(parameter: Parameter, value: Any, kind: Callable[[Any], Kind]) -> bool:
    if value is None:
        return parameter.optional or parameter.default is None
    if parameter.type.endswith("[]"):
        return _fits_list(parameter, value, kind)
    return _fits_one(parameter.type, value, kind)


def _fits_list(parameter: Parameter, value: Any, kind: Callable[[Any], Kind]) -> bool:
    element = parameter.type[:-2]
    if isinstance(value, (list, tuple)):
        return all(v is None or _fits_one(element, v, kind) for v in value)
    if isinstance(value, torch.Tensor) or isinstance(value, (fx.Node, fx.Proxy)) and kind(value) == "many":
        return element == "Tensor" and not isinstance(value, torch.Tensor)
    if is_shape(value):
        return element in ("int", "SymInt")
    # A single number expands to a list if the schema gives its length: `int[2]`.
    return parameter.length is not None and _fits_one(element, value, kind)


def is_shape(value: Any) -> bool:
    """Whether a value of the graph is a whole tuple of sizes, such as `x.shape`."""
    node = getattr(value, "node", value) if isinstance(value, fx.Proxy) else value
    if not isinstance(node, fx.Node):
        return False
    found = node.meta.get("val", node.meta.get("example_value"))
    if found is not None:
        return isinstance(found, (tuple, list)) and not any(isinstance(item, torch.Tensor) for item in found)
    if node.target is getattr:
        return bool(node.args[1] == "shape")
    return node.op == "call_method" and node.target == "size" and len(node.args) + len(node.kwargs) == 1


def _fits_one(type_: str, value: Any, kind: Callable[[Any], Kind]) -> bool:
    if isinstance(value, (fx.Node, fx.Proxy)):
        return _may_be(type_, kind(value))
    if isinstance(value, torch.Tensor):
        return type_ == "Tensor"
    if isinstance(value, SYMBOLIC):
        return type_ in ("int", "SymInt", "number", "float")
    if type_ == "Generator":
        return isinstance(value, torch.Generator)
    if type_ == "Tensor":
        return False
    allowed = _SCALARS.get(type_, ())
    # True is an int to Python, but not to PyTorch's parser.
    if isinstance(value, bool) and type_ in ("int", "SymInt", "float"):
        return False
    return isinstance(value, allowed)


def _may_be(type_: str, what: Kind) -> bool:
    """Whether a value of the graph can have this type, given its kind."""
    if what == "any":
        return True
    if type_ == "Tensor":
        return what != "host"
    numbers = type_ in ("int", "SymInt", "number", "float", "bool")
    return what != "tensor" and (numbers or what == "host" and type_ in ("Device", "ScalarType"))
