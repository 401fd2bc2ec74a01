"""Binding: from the arguments as a graph spells them to arguments by the names of the op's schema. Python functions are
bound through their own signature and translated; everything else through the first overload that the values fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
import functools
import inspect
from typing import Any

import torch
from torch import fx

from decomp import _spellings as spellings
from decomp.ops import Op, Spelling, of_function, of_method

Kind = str
"""What a value can be told to be: "tensor", "host" (a size, a number known at run time) or "unknown"."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of a schema."""

    name: str
    type: str
    """As the schema says it, without Optional: `Tensor`, `int[]`, `number`."""
    optional: bool
    default: Any
    keyword_only: bool
    length: int | None = None
    """How long a list a lone number stands for: `int[2]` has 2."""

    @property
    def required(self) -> bool:
        """Whether a call must give this argument."""
        return self.default is MISSING and self.name not in spellings.IGNORED


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING = _Missing()


@dataclass(frozen=True, slots=True)
class Bound:
    """Arguments of one call by the schema's names, defaults filled in."""

    op: Op
    overload: str | None
    arguments: dict[str, Any]
    inplace: bool = False
    given: frozenset[str] = frozenset()
    """Names of the arguments that the call wrote, the others being defaults."""


class BindingError(TypeError):
    """The arguments of a call fit no overload of its op."""


def bind_function(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], kind: Callable[[Any], Kind]) -> Bound:
    """Bind a `call_function`. `kind` tells what a graph value is. Raises `BindingError`."""
    spelling = of_function(function)
    if isinstance(function, torch._ops.OpOverload):
        arguments, given = _fill(parameters(function), args, kwargs)
        return Bound(spelling.op, spelling.overload, arguments, spelling.inplace, given)
    signature = _python_signature(function)
    if signature is not None:
        return _bind_python(spelling, function, signature, args, kwargs)
    return bind_spelling(spelling, args, kwargs, kind)


def bind_method(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], kind: Callable[[Any], Kind]) -> Bound:
    """Bind a `call_method`, the tensor being the first of `args`. Raises `BindingError`."""
    spelling = of_method(name)
    method = getattr(torch.Tensor, name, None)
    if not spelling.implied and inspect.isfunction(method):
        signature = _python_signature(method)
        if signature is not None:
            return _bind_python(spelling, method, signature, args, kwargs)
    return bind_spelling(spelling, args, kwargs, kind)


def bind_spelling(
    spelling: Spelling, args: Sequence[Any], kwargs: Mapping[str, Any], kind: Callable[[Any], Kind]
) -> Bound:
    """Bind by the schemas of the op: the first overload that the values fit."""
    kwargs = {**dict(spelling.implied), **kwargs}
    args = list(args)
    if spelling.swapped and len(args) > 1:
        args[0], args[1] = args[1], args[0]
    if not overloads(spelling.op):
        return _bind_plain(spelling, args, kwargs)
    for overload, params in _in_order(spelling.op):
        for attempt in _attempts(params, args):
            try:
                arguments, given = _fill(params, attempt, _known_keywords(params, kwargs))
            except BindingError:
                continue
            if all(_fits(p, arguments[p.name], kind) or _number_as_tensor(spelling.op, p, arguments[p.name])
                   for p in params if p.name in given):
                arguments = {name: value for name, value in arguments.items() if name not in spellings.IGNORED}
                return Bound(spelling.op, overload, arguments, spelling.inplace, given)
    raise BindingError(f"the arguments fit no overload of {spelling.op}")


@functools.lru_cache(maxsize=None)
def overloads(op: Op) -> tuple[tuple[str, tuple[Parameter, ...]], ...]:
    """Name and parameters of each functional overload of `op`; the in-place ones where there is no other."""
    packet = op.packet
    if packet is None:
        return ()
    found = [(name, getattr(packet, name)) for name in packet.overloads()]
    usable = [(name, parameters(overload)) for name, overload in found if not _unusable(overload)]
    tensors = [item for item in usable if any(p.type.startswith("Tensor") for p in item[1])]
    return tuple(tensors or usable)


@functools.lru_cache(maxsize=None)
def parameters(overload: torch._ops.OpOverload) -> tuple[Parameter, ...]:
    """The parameters of an overload, those that are written to (`out=`) left out."""
    return tuple(_parameter(a) for a in overload._schema.arguments if not a.is_out)


@functools.lru_cache(maxsize=None)
def names(op: Op) -> tuple[str, ...]:
    """Names of the arguments of all overloads, in order of first appearance."""
    ordered: dict[str, None] = {}
    for _, params in overloads(op):
        ordered.update(dict.fromkeys(p.name for p in params))
    return tuple(ordered)


def _parameter(argument: torch._C.Argument) -> Parameter:
    text = str(argument.real_type)
    optional = text.startswith("Optional[")
    default = argument.default_value if argument.has_default_value() else MISSING
    return Parameter(argument.name, _element(text), optional, default, argument.kwarg_only, argument.N)


def _element(text: str) -> str:
    """`Optional[List[int]]` as `int[]`."""
    while text.startswith("Optional["):
        text = text[len("Optional[") : -1]
    if text.startswith("List["):
        return _element(text[len("List[") : -1]) + "[]"
    return text


def _unusable(overload: torch._ops.OpOverload) -> bool:
    schema = overload._schema
    return any(a.is_out or "Dimname" in str(a.real_type) for a in schema.arguments) or "str" == overload._overloadname


def _in_order(op: Op) -> list[tuple[str, tuple[Parameter, ...]]]:
    """Overloads as PyTorch's parser would try them: those that take a number for a tensor first where it does so."""
    found = list(overloads(op))
    if op.short in spellings.NUMBER_AS_TENSOR:
        return sorted(found, key=lambda item: not item[0].startswith("Tensor"))
    return found


def _number_as_tensor(op: Op, parameter: Parameter, value: Any) -> bool:
    return parameter.type == "Tensor" and isinstance(value, (int, float, complex)) and (
        op.short in spellings.NUMBER_AS_TENSOR)


def _attempts(params: Sequence[Parameter], args: list[Any]) -> list[list[Any]]:
    """The positional arguments as written, and with trailing ones packed into a list: `x.view(2, 3)`."""
    tries = [args]
    for i, parameter in enumerate(params):
        if parameter.type in ("int[]", "SymInt[]", "Tensor[]") and len(args) > i:
            rest = args[i:]
            if not isinstance(rest[0], (list, tuple)):
                tries.append([*args[:i], list(rest)])
            break
    return tries


def _known_keywords(params: Sequence[Parameter], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    known = {p.name for p in params}
    renamed = {}
    for name, value in kwargs.items():
        if name == "out" and value is None:
            continue
        if name not in known and spellings.KEYWORDS.get(name) in known:
            name = spellings.KEYWORDS[name]
        renamed[name] = value
    return renamed


def _fill(
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


def _fits(parameter: Parameter, value: Any, kind: Callable[[Any], Kind]) -> bool:
    if value is None:
        return parameter.optional or parameter.default is None
    if parameter.type.endswith("[]"):
        return _fits_list(parameter, value, kind)
    return _fits_one(parameter.type, value, kind)


def _fits_list(parameter: Parameter, value: Any, kind: Callable[[Any], Kind]) -> bool:
    element = parameter.type[:-2]
    if isinstance(value, (list, tuple)):
        return all(v is None or _fits_one(element, v, kind) for v in value)
    # A number is taken for a list of one where the schema says `int[1]`; a graph value that is a size likewise.
    return element in ("int", "SymInt") and parameter.name in ("dim", "dims", "size", "kernel_size", "stride", "padding"
        , "dilation", "output_size", "output_padding", "shifts", "normalized_shape") and _fits_one(element, value, kind)


def _fits_one(type_: str, value: Any, kind: Callable[[Any], Kind]) -> bool:
    if isinstance(value, (fx.Node, fx.Proxy)):
        what = kind(value)
        if type_ == "Tensor":
            return what != "host"
        allowed = ("int", "SymInt", "number", "float", "bool")
        return type_ in (allowed + ("Device", "ScalarType") if what == "host" else allowed) and what != "tensor"
    if isinstance(value, torch.Tensor):
        return type_ == "Tensor"
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return type_ in ("int", "SymInt", "number", "float")
    if type_ == "Generator":
        return isinstance(value, torch.Generator)
    if type_ == "Tensor":
        return False
    allowed = _SCALARS.get(type_, ())
    if isinstance(value, bool) and type_ in ("int", "SymInt", "float"):
        return False
    return isinstance(value, allowed)


@functools.lru_cache(maxsize=None)
def _python_signature(function: Any) -> inspect.Signature | None:
    """The signature of a plain Python function (not of a builtin, whose schemas say more), or None."""
    if isinstance(function, torch._ops.OpOverloadPacket) or not inspect.isfunction(inspect.unwrap(function)):
        return None
    name = getattr(function, "__name__", "")
    if name.startswith(("max_pool", "adaptive_max_pool", "fractional_max_pool")):
        function = getattr(torch.nn.functional, f"{name}_with_indices", function)
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def _bind_python(
    spelling: Spelling, function: Any, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Bound:
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise BindingError(str(error)) from None
    given = frozenset(bound.arguments)
    bound.apply_defaults()
    values = dict(bound.arguments)
    inplace = spelling.inplace or values.get("inplace") is True
    op = spelling.op
    if values.pop("return_indices", False) is True:
        op = Op(f"{op.name}_with_indices") if Op(f"{op.name}_with_indices").packet else op
    if op.packet is None:
        return Bound(op, None, values, inplace, given)
    values = {k: v for k, v in values.items() if k not in spellings.IGNORED and k not in ("size_average", "reduce")
              or k == "reduce" and isinstance(v, str)}
    if op == _SPLIT and isinstance(list(values.values())[1], (list, tuple)):
        op, values = _SPLIT_WITH_SIZES, dict(zip(("self", "split_sizes", "dim"), values.values()))
    return _translated(op, signature, values, inplace, given)


_SPLIT, _SPLIT_WITH_SIZES = Op("aten.split"), Op("aten.split_with_sizes")


def _translated(
    op: Op, signature: inspect.Signature, values: dict[str, Any], inplace: bool, given: frozenset[str]
) -> Bound:
    """`values`, by the function's own names, as the schema names and means them."""
    known = names(op)
    renamed = spellings.RENAMED.get(op.short, {})
    first = next(iter(values), None)
    arguments: dict[str, Any] = {}
    renames: dict[str, str] = {}
    for name, value in values.items():
        canonical = renamed.get(name, name)
        if canonical not in known:
            canonical = spellings.KEYWORDS.get(name, name)
        if canonical not in known and name == first and known:
            canonical = known[0]
        parameter = signature.parameters.get(name)
        if parameter is not None and parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            if name == "args" and op.short == "einsum":
                arguments["equation"], value, canonical = value[0], value[1:], "tensors"
            value = list(value[0]) if len(value) == 1 and isinstance(value[0], (list, tuple)) else list(value)
        renames[name] = canonical
        arguments[canonical] = _as_schema_means(canonical, value)
    overload, params = _overload_of(op, arguments)
    known_here = {p.name: p for p in params}
    dropped = {n for n, v in arguments.items() if n not in known_here and v in (None, False)}
    arguments = {n: v for n, v in arguments.items() if n not in dropped}
    for parameter_ in params:
        if parameter_.default is not MISSING and parameter_.name not in spellings.IGNORED:
            if arguments.get(parameter_.name) is None and parameter_.name not in arguments:
                arguments[parameter_.name] = parameter_.default
    return Bound(op, overload, arguments, inplace, frozenset(renames.get(n, n) for n in given))


def _as_schema_means(name: str, value: Any) -> Any:
    if name == "reduction" and isinstance(value, str):
        return spellings.REDUCTIONS.get(value, value)
    if name == "p" and value == "fro":
        return 2
    return value


def _overload_of(op: Op, arguments: Mapping[str, Any]) -> tuple[str | None, tuple[Parameter, ...]]:
    """The overload that knows most of the argument names, the first of equals."""
    best: tuple[int, str | None, tuple[Parameter, ...]] = (-1, None, ())
    for name, params in overloads(op):
        known = {p.name for p in params}
        missing = [p for p in params if p.required and p.name not in arguments]
        score = sum(n in known for n, v in arguments.items() if v is not None) - 2 * len(missing)
        if score > best[0]:
            best = (score, name, params)
    return best[1], best[2]


def _bind_plain(spelling: Spelling, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Bound:
    """No schema and no signature: positional arguments are known by their place."""
    arguments = {f"arg{i}": value for i, value in enumerate(args)}
    return Bound(spelling.op, None, {**arguments, **kwargs}, spelling.inplace, frozenset(arguments) | set(kwargs))
