"""Identity of ops: one `Op` for every spelling of the same computation. Names resolve by schema: a function, method,
operator, module class or overload is the ATen op of its name; `spellings.py` holds the exceptions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
import functools
import inspect
import operator
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.library import CustomOpDef

from decomp.errors import UnknownOp, spell_target
from decomp.ir import spellings
from decomp.torch_internals.schemas import all_schemas, schemas_of
from decomp.torch_internals.versions import AbsentOp, names_by_version, versions_with

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Op:
    """A computation, independent of its spelling. Two spellings of one op have equal `Op`s."""

    name: str
    """`aten.relu`, `mylib.foo` for a custom op, `module.function` for a function of no library. `mylib::foo`, as in
    PyTorch's schemas, is the same name."""

    def __post_init__(self) -> None:
        if "::" in self.name:
            object.__setattr__(self, "name", self.name.replace("::", "."))

    def __str__(self) -> str:
        return self.name

    @property
    def short(self) -> str:
        """The last part of the name: `relu`."""
        return self.name.rsplit(".", 1)[-1]

    @property
    def packet(self) -> torch._ops.OpOverloadPacket | None:
        """The registered operator behind this op, or None for plain functions."""
        return _packet(self.name)


@dataclass(frozen=True, slots=True)
class Spelling:
    """The way in which a graph or a registration refers to an op."""

    op: Op
    overload: str | None = None
    """The name of the overload, if the spelling determines it: `dim_IntList`."""
    inplace: bool = False
    """Whether this spelling writes its result to its first argument."""
    implied: tuple[tuple[str, Any], ...] = ()
    """Arguments that the spelling implies: `x.float()` is `to` with `dtype=torch.float32`."""
    swapped: bool = False
    """Whether the first two positional arguments are swapped: `x.__rsub__(y)`, `x.where(c, y)`."""


def op(spelling: Any) -> Op:
    """The op that `spelling` refers to: a function, method, operator, overload (packet), module class, or a string such
    as "relu", "aten.sum.dim_IntList", "mylib::foo". An op that only another supported version of PyTorch has is
    accepted, and no program calls it. Raises `UnknownOp`, listing the nearest known ops."""
    return resolve(spelling).op


def meant_overload(found: Spelling) -> str | None:
    """The overload that a spelling denotes: `aten.relu.default` denotes the op if `default` is its only overload;
    `aten.sum.dim_IntList` denotes that overload."""
    packet = found.op.packet
    if found.overload is None or packet is None:
        return None
    others = {name for name in packet.overloads() if "out" not in name}
    return None if others <= {found.overload} else found.overload


def resolve(spelling: Any) -> Spelling:
    """Like `op`, with everything else that the spelling implies: overload, in-place, arguments."""
    if isinstance(spelling, Op):
        return Spelling(spelling)
    if isinstance(spelling, Spelling):
        return spelling
    if isinstance(spelling, AbsentOp):
        namespace, name, *overload = spelling.name.split(".")
        return Spelling(Op(f"{namespace}.{name}"), overload[0] if overload else None)
    if isinstance(spelling, str):
        return _of_text(spelling)
    if isinstance(spelling, type) and issubclass(spelling, nn.Module):
        return Spelling(of_module_class(spelling, strict=True))
    if callable(spelling) and not isinstance(spelling, nn.Module):
        return of_function(spelling)
    raise UnknownOp(spelling, known_names())


@functools.cache
def of_function(function: Any) -> Spelling:
    """The spelling of a `call_function` target. Functions of no library are ops of their own."""
    if isinstance(function, torch._ops.OpOverload):
        packet = function._overloadpacket
        return _of_packet(packet.__module__.rsplit(".", 1)[-1], packet.__name__, function._overloadname)
    if isinstance(function, CustomOpDef):
        return of_function(function._opoverload)
    if isinstance(function, torch._ops.OpOverloadPacket):
        return _of_packet(function.__module__.rsplit(".", 1)[-1], function.__name__, None)
    if isinstance(function, torch._ops.HigherOrderOperator):
        return Spelling(Op(f"higher_order.{function.__name__}"))
    # Exceptions before the rule by name, as some of these functions have the name of another op.
    if function in spellings.OPERATORS:
        return _of_packet("aten", spellings.OPERATORS[function], None)
    if function in spellings.FUNCTIONS:
        return _of_packet("aten", spellings.FUNCTIONS[function], None)
    if function is operator.getitem:
        return Spelling(Op("operator.getitem"))
    if function is operator.setitem:
        return Spelling(Op("operator.setitem"), inplace=True)
    if _is_tensor_method(function):
        return of_method(function.__name__)
    if _is_torch_function(function):
        name = spellings.prefixed(function)
        if _packet(f"aten.{name}") is not None:
            return _of_packet("aten", name, None)
    return Spelling(Op(spell_target(function)))


@functools.cache
def of_method(name: str) -> Spelling:
    """The spelling of a `call_method` target."""
    if name in spellings.METHODS:
        return Spelling(*spellings.method(name))
    if name in spellings.REFLECTED:
        reflected = spellings.REFLECTED[name]
        return Spelling(Op(f"aten.{reflected}"), swapped=reflected not in spellings.COMMUTATIVE)
    if name.startswith("__") and name.endswith("__"):
        function = getattr(operator, name, None)
        if function is not None:
            found = of_function(function)
            return Spelling(found.op, found.overload, found.inplace)
    if _packet(f"aten.{name}") is not None:
        return _of_packet("aten", name, None)
    return Spelling(Op(f"torch.Tensor.{name}"))


def of_module_class(cls: type[nn.Module], strict: bool = False) -> Op:
    """The op that a module class applies: `nn.ReLU` is `relu`, `nn.Conv2d` is `conv2d`. A class that does not simply
    wrap one op is an op of its own; with `strict`, it raises `UnknownOp`."""
    name, known = f"{cls.__module__}.{cls.__qualname__}", _named_by_class(cls.__module__, cls.__name__)
    if known is None and strict:
        raise UnknownOp(name, known_names())
    return Op(known or name)


@functools.cache
def _named_by_class(module: str, name: str) -> str | None:
    found = spellings.MODULES.get(name) if module.startswith("torch.nn") else None
    if found is None and module.startswith("torch.nn.modules"):
        found = _names_without_underscores().get(_flat(name))
    return f"aten.{found}" if found else None


@functools.lru_cache(maxsize=1)
def known_names() -> tuple[str, ...]:
    """Names of all ATen ops, for messages about misspelt ones."""
    names = {schema.name.partition("::")[2] for schema in all_schemas() if schema.name.startswith("aten::")}
    return tuple(sorted(name for name in names if not name.startswith("__")))


@functools.lru_cache(maxsize=1)
def _names_without_underscores() -> dict[str, str]:
    """Names of all ops, including absent ones: a module class is still mapped to its op."""
    names = {name.partition(".")[2] for name in names_by_version() if name.startswith("aten.")}
    # The last name wins: `nn.Softmax` is `softmax`, not `_softmax`.
    public_last = sorted({*known_names(), *names}, key=lambda name: (not name.startswith("_"), name))
    return {_flat(name): name for name in public_last if not name.endswith("_")}


def _flat(name: str) -> str:
    return name.lower().replace("_", "")


def _is_tensor_method(function: Any) -> bool:
    owner = getattr(function, "__objclass__", None)
    if owner is not None:
        return bool(issubclass(torch.Tensor, owner))
    name = getattr(function, "__name__", "")
    return inspect.isfunction(function) and getattr(torch.Tensor, name, None) is function


def _is_torch_function(function: Any) -> bool:
    if function in spellings.OWN:
        return False
    module = getattr(function, "__module__", None) or getattr(getattr(function, "__self__", None), "__name__", None)
    return isinstance(module, str) and module in spellings.LIBRARIES


def _of_text(text: str) -> Spelling:
    parts = text.replace("::", ".").split(".")
    # "add" is the op of ATen; "getitem" is in `operator` alone.
    if len(parts) == 1 and hasattr(operator, text) and not _has_packet("aten", text):
        return of_function(getattr(operator, text))
    if len(parts) == 1 and text in spellings.METHODS:
        return of_method(text)
    if parts[0] in ("torch", "F", "nn", "operator"):
        return _of_path(text, parts)
    if len(parts) == 1 or len(parts) == 2 and _is_of_aten(*parts):
        parts = ["aten", *parts]
    namespace, name, *overload = parts
    packet = _packet(f"{namespace}.{name}")
    if packet is None and versions_with(f"{namespace}.{name}"):
        return Spelling(Op(f"{namespace}.{name}"), overload[0] if overload else None)
    if packet is None or len(overload) > 1 or (overload and overload[0] not in packet.overloads()):
        raise UnknownOp(text, _candidates(namespace, name, packet))
    return _of_packet(namespace, name, overload[0] if overload else None)


def _of_path(text: str, parts: list[str]) -> Spelling:
    roots = {"torch": torch, "F": nn.functional, "nn": nn, "operator": operator}
    value: Any = roots[parts[0]]
    for part in parts[1:]:
        value = getattr(value, part, None)
    if not callable(value):
        raise UnknownOp(text, known_names())
    return resolve(value)


def _candidates(namespace: str, name: str, packet: Any) -> list[str]:
    if packet is not None:
        return [f"{namespace}.{name}.{overload}" for overload in packet.overloads()]
    return [*known_names(), *(f"aten.{known}" for known in known_names())]


def _is_of_aten(first: str, second: str) -> bool:
    """Whether `add.Tensor` is an ATen op with an overload, rather than a namespace with an op."""
    packet = None if _has_packet(first, second) else _packet(f"aten.{first}")
    return packet is not None and second in packet.overloads() or not _has_namespace(first)


def _has_namespace(namespace: str) -> bool:
    return namespace in ("aten", "prims") or any(schema.name.startswith(f"{namespace}::") for schema in all_schemas())


def _has_packet(namespace: str, name: str) -> bool:
    return _packet(f"{namespace}.{name}") is not None


def once_known(function: F) -> F:
    """A cache of successful lookups. What is not found, or empty, may be registered by a library later."""
    found: dict[tuple[Any, ...], Any] = {}

    @functools.wraps(function)
    def remembered(*args: Any) -> Any:
        if args in found:
            return found[args]
        value = function(*args)
        if value:
            found[args] = value
        return value

    return cast(F, remembered)


@once_known
def _packet(qualified: str) -> torch._ops.OpOverloadPacket | None:
    namespace, _, name = qualified.rpartition(".")
    if not namespace or "." in namespace or not name.isidentifier():
        return None
    # Asked before `torch.ops`, which makes a namespace for any name, and raises only for the op.
    if not schemas_of(f"{namespace}::{name}"):
        return None
    return getattr(getattr(torch.ops, namespace), name)


def _of_packet(namespace: str, name: str, overload: str | None) -> Spelling:
    """The spelling of a registered operator; `relu_` and `__ior__` are in-place spellings of `relu` and
    `bitwise_or`."""
    if name in spellings.ALIASES:
        overload = _overload_by_types(namespace, name, overload)
        name = spellings.ALIASES[name]
    functional = spellings.INPLACE.get(name) or (name[:-1] if name.endswith("_") and name[-2:] != "__" else None)
    if functional and _has_packet(namespace, functional):
        return Spelling(Op(f"{namespace}.{functional}"), overload, inplace=True)
    return Spelling(Op(f"{namespace}.{name}"), overload)


def _overload_by_types(namespace: str, alias: str, overload: str | None) -> str | None:
    """The name of an alias's overload in the op itself: `swapaxes.default` is `transpose.int`."""
    own, other = _packet(f"{namespace}.{spellings.ALIASES[alias]}"), _packet(f"{namespace}.{alias}")
    if overload is None or own is None or other is None:
        return overload
    # Overload names differ between alias and op, but the argument types do not.
    types = types_of(getattr(other, overload))
    named_alike_first = sorted(own.overloads(), key=lambda name: name != overload)
    return next((name for name in named_alike_first if types_of(getattr(own, name)) == types), overload)


def types_of(overload: torch._ops.OpOverload) -> list[str]:
    """The types of an overload's arguments, in order."""
    return [str(argument.real_type) for argument in overload._schema.arguments]
