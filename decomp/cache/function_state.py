"""The state that the user's functions read besides their arguments, as a comparable value: globals, closure cells,
defaults, the object of a method, attributes of modules and classes that they name, and the same for the functions that
they call. A rule whose state has changed since it ran is run again. Reads through PyTorch, files or the time are not
tracked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
import enum
import functools
from itertools import chain
import logging
import pickle
import sys
import threading
import types
from typing import Any

import torch

from decomp.ops import aten

MAX_TRACKED_VALUES = 5000
"""The most values tracked for one function; one that reads more is run again each time."""
_LARGEST = 1 << 20
"""The most bytes of an array whose data is compared; a rule that reads a larger one is run again each time."""
_ASSUMED_CONSTANT = (sys.stdlib_module_names | {"torch", "decomp", "decomp_rules", "numpy"}) - {"os", "__main__"}
"""Packages whose functions are assumed to read only constant state."""
_NUMBERS, _ROWS = {int, float, bool}, {list, tuple}
_DEEPEST = 8
"""The most dimensions of a table that is compared as a whole. (A list can contain itself.)"""
_PLAIN = (int, bool, str, bytes, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
_BY_IDENTITY = (
    enum.Enum,
    logging.Logger,
    type(threading.Lock()),
    type(threading.RLock()),
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    torch._ops.OpOverload,
    torch._ops.OpOverloadPacket,
    type(aten),
)
_SMALL = 256
"""The most elements of a tensor whose data is compared, as some writes do not change its version."""


def state_of(functions: Iterable[Callable[..., Any]]) -> tuple[Any, ...]:
    """The state that functions read: equal while unchanged; never equal if it cannot be determined."""
    return tuple(_StateReader().read(function, ()) for function in functions)


class _Same:
    """An object compared by identity; kept alive, so that its id is not reused."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class _TooMuch(Exception):
    """The function reads more values than are tracked."""


class _StateReader:
    """Reads the state of one function."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        """Numbers of the visited objects, which may contain themselves."""
        self._left = MAX_TRACKED_VALUES

    def read(self, value: Any, names: tuple[str, ...]) -> Any:
        """The state of a value, of which code reads attributes with these names."""
        try:
            return self._read(value, names)
        except (_TooMuch, RecursionError):
            return object()

    def _read(self, value: Any, names: tuple[str, ...]) -> Any:
        self._left -= 1
        if self._left < 0:
            raise _TooMuch
        if isinstance(value, _PLAIN):
            return (type(value), value)
        if isinstance(value, (float, complex)):
            return (type(value), repr(value))  # by repr, which distinguishes NaN and −0
        if isinstance(value, _BY_IDENTITY):
            return _Same(value)
        number = self._seen.get(id(value))
        # Of a module or a class only the attributes that the code at hand names are read, so another visit may read
        # others.
        if number is not None and not isinstance(value, (types.ModuleType, type)):
            return ("seen", number)
        self._seen[id(value)] = len(self._seen)
        return self._read_object(value, names)

    def _read_object(self, value: Any, names: tuple[str, ...]) -> Any:
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.MethodType):
            return self._read(value.__func__, names), self._read(value.__self__, names)
        if isinstance(value, functools.partial):
            return self._items((value.func, value.args, value.keywords), names)
        if isinstance(value, (types.ModuleType, type)):
            return (_Same(value), *self._attributes(value, names))
        if isinstance(value, (list, tuple)):
            if type(value) in (list, tuple) and is_table(value):
                return (type(value), repr(value))
            return (type(value), *self._items(value, names), *self._instance(value, names))
        if isinstance(value, (set, frozenset)):
            return (type(value), frozenset(self._items(value, names)))
        if isinstance(value, Mapping):
            return (_Same(type(value)), *self._items(value.keys(), names), *self._items(value.values(), names))
        if isinstance(value, torch.Tensor):
            return _tensor(value)
        if isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
            return self._builtin(value, names)
        return self._opaque(value, names)

    def _items(self, values: Iterable[Any], names: tuple[str, ...]) -> tuple[Any, ...]:
        return tuple([self._read(each, names) for each in values])

    def _function(self, function: types.FunctionType) -> Any:
        # A closure may be a wrapper that such a package put around the user's own function.
        if _package(function.__module__) in _ASSUMED_CONSTANT and function.__closure__ is None:
            return _Same(function)
        names = _names(function.__code__)
        found = function.__globals__
        read = [self._read(found[name], names) for name in names if name in found]
        cells = [self._cell(cell, names) for cell in function.__closure__ or ()]
        given = self._items((function.__defaults__, function.__kwdefaults__, vars(function)), names)
        return (_Same(function), _Same(function.__code__), tuple(read), tuple(cells), given)

    def _cell(self, cell: types.CellType, names: tuple[str, ...]) -> Any:
        try:
            return self._read(cell.cell_contents, names)
        except ValueError:  # the cell is still empty
            return None

    def _attributes(self, owner: Any, names: tuple[str, ...]) -> Iterator[Any]:
        """The state that code reads of a module or a class, by the names in the code."""
        name = owner.__name__ if isinstance(owner, types.ModuleType) else owner.__module__
        if _package(name) in _ASSUMED_CONSTANT:
            return
        if isinstance(owner, types.ModuleType):
            yield from (self._read(vars(owner)[name], names) for name in names if name in vars(owner))
            return
        for space in map(vars, owner.__mro__):
            # Operators call these methods without their names being in the code.
            called = (name for name, each in space.items() if name[:2] == "__" and isinstance(each, types.FunctionType))
            yield from (self._read(space[name], names) for name in (*names, *called) if name in space)

    def _builtin(self, function: Any, names: tuple[str, ...]) -> Any:
        owner = function.__self__
        is_bound = owner is not None and not isinstance(owner, types.ModuleType)
        return (function.__name__, self._read(owner, names)) if is_bound else _Same(function)

    def _opaque(self, value: Any, names: tuple[str, ...]) -> Any:
        """The state of an object: its attributes, or, if it has none, its pickled state."""
        found = tuple(self._instance(value, names))
        if found:
            return (_Same(value), *found)
        if isinstance(value, (property, classmethod, staticmethod)):
            parts = (getattr(value, name, None) for name in ("fget", "__func__"))
            return (_Same(value), *(self._read(part, names) for part in parts if part is not None))
        if type(value) is object:
            return _Same(value)
        try:
            # NumPy arrays and random generators, for instance. A new `object()` equals no earlier state.
            return (_Same(type(value)), pickle.dumps(value)) if getattr(value, "nbytes", 0) <= _LARGEST else object()
        except Exception:  # any exception, depending on the class
            return object()

    def _instance(self, value: Any, names: tuple[str, ...]) -> Iterator[Any]:
        """The attributes of an object, and the attributes of its class that code reads."""
        space = getattr(value, "__dict__", None)
        if isinstance(space, dict):
            yield self._read(space, names)
        slots = [slot for each in type(value).__mro__ for slot in _slots(each)]
        yield from (self._read(getattr(value, slot), names) for slot in slots if hasattr(value, slot))
        if isinstance(space, dict) or slots:
            yield self._read(type(value), names)


def is_table(value: Iterable[Any]) -> bool:
    """Whether it contains only numbers, or rows of them, or rows of rows: such a table can be long, and is compared as
    a whole."""
    level = list(value)
    for _ in range(_DEEPEST):
        kinds = {*map(type, level)}
        if not kinds or not kinds <= _ROWS:
            return kinds <= _NUMBERS
        level = list(chain.from_iterable(level))
    return False


def _slots(cls: type) -> tuple[str, ...]:
    found = cls.__dict__.get("__slots__", ())
    names = (found,) if isinstance(found, str) else tuple(found)
    return tuple(name for name in names if not name.startswith("__"))


def _package(name: str | None) -> str:
    return (name or "").partition(".")[0]


def _tensor(tensor: torch.Tensor) -> Any:
    """The identity of a tensor, its version, and its data if it is small."""
    try:
        version = tensor._version
    except RuntimeError:  # inference tensors have no version
        version = -1
    data = None
    if type(tensor) is torch.Tensor and tensor.device.type == "cpu" and tensor.numel() <= _SMALL:
        data = repr(tensor.detach().tolist()) if tensor.layout is torch.strided else None
    return (_Same(tensor), version, data)


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> tuple[str, ...]:
    """Names of the globals and attributes that code reads, including nested functions."""
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return tuple(dict.fromkeys([*code.co_names, *(name for each in inner for name in _names(each))]))
