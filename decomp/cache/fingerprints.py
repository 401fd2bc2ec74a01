"""What an expansion depends on beside its call, as a hash: the code of the rules and of this package, the version of
PyTorch, the target, the dialect. What cannot be hashed is not kept."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import functools
import hashlib
import importlib.util
from pathlib import Path
import sys
import time
import types
from typing import Any

import torch

from decomp.rules.rules import Rule, Rules
from decomp.rules.target import Target

FORMAT = 1
"""The form of what is kept."""
_STARTED = time.time()
"""Files that have changed since may not be what was imported."""
_MOST_FILES = 2000


class NoFingerprint(Exception):
    """A value that is not the same in every process, or code that has no source."""


def fingerprint(rules: Rules, target: Target, dialect: str, cost: Any) -> str | None:
    """Hexadecimal digits that differ where anything does that an expansion depends on; None if that cannot be told."""
    try:
        parts = [
            FORMAT, sys.version_info[:2], torch.__version__, _code_of_package("decomp"), dialect, rules.composites,
            *[_of_rule(rule) for rule in rules], type(target).__qualname__, target.name, _of_target(target), of(cost),
        ]  # fmt: skip
    except NoFingerprint:
        return None
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def of(value: Any) -> Any:
    """A value as plain data that tells it from others in every process. Raises `NoFingerprint`."""
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return (type(value).__name__, repr(value))
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format, torch._ops.OpOverload)):
        return (type(value).__name__, str(value))
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *map(of, value))
    if isinstance(value, (set, frozenset)):
        return (type(value).__name__, *sorted(map(repr, map(of, value))))
    if isinstance(value, Mapping):
        return ("mapping", *[(of(key), of(item)) for key, item in value.items()])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [of(getattr(value, each.name)) for each in dataclasses.fields(value)]
        return (_code_of(type(value)), *fields)
    if isinstance(value, (types.FunctionType, type, types.BuiltinFunctionType, functools.partial)):
        return _of_function(value)
    if isinstance(value, torch._ops.OpOverloadPacket):
        return ("packet", str(value))
    raise NoFingerprint(value)


def _of_rule(rule: Rule) -> Any:
    needs = [str(need) for need in rule.needs]
    plain = str(rule.op), str(rule), rule.order, rule.texts, needs, str(rule.overload), rule.level, rule.forward_only
    return (*plain, of([list(each) for each in rule.spelled]), _of_function(rule.function))


def _of_target(target: Target) -> Any:
    ops = [
        (str(op), overload, [[(c.reason, of(c.holds)) for c in conditions] for conditions in alternatives])
        for (op, overload), alternatives in sorted(target._entries.items(), key=str)
    ]
    return [ops, sorted(map(str, target.narrower))]


def _of_function(function: Any) -> Any:
    """The code that a function is defined in, and the data that it closes over."""
    if isinstance(function, functools.partial):
        return ("partial", of(function.func), of(list(function.args)), of(function.keywords))
    if not isinstance(function, types.FunctionType):
        return (_code_of(function), getattr(function, "__qualname__", ""))
    cells = [of(cell.cell_contents) for cell in function.__closure__ or ()]
    wrapped = getattr(function, "__wrapped__", None)
    return (
        _code_of(function), function.__qualname__, function.__code__.co_code.hex(), cells,
        of(function.__defaults__), of(function.__kwdefaults__), of(wrapped),
    )  # fmt: skip


def _code_of(defined: Any) -> Any:
    """The hash of the code of the package, and of the file, that something is defined in."""
    code = getattr(defined, "__code__", None)
    return _code_at(getattr(defined, "__module__", None) or "", code.co_filename if code is not None else None)


@functools.lru_cache(maxsize=None)
def _code_at(module: str, file: str | None) -> Any:
    package = module.partition(".")[0]
    if package in ("torch", "builtins", "_operator", "math"):
        return module
    known = sys.modules.get(package)
    file = file if file is not None else getattr(sys.modules.get(module), "__file__", None)
    if file is None or not Path(file).is_file():
        raise NoFingerprint(module)
    in_package = known is not None and getattr(known, "__path__", None)
    return (_code_of_package(package) if in_package else "", _code_of_file(file))


@functools.lru_cache(maxsize=None)
def _code_of_package(name: str) -> str:
    """The hash of all files of Python of a package."""
    spec = importlib.util.find_spec(name)
    places = spec.submodule_search_locations if spec is not None else None
    if not places:
        raise NoFingerprint(name)
    found = hashlib.sha256()
    for place in map(Path, places):
        files = sorted(place.rglob("*.py"))
        if len(files) > _MOST_FILES:
            raise NoFingerprint(name)
        for path in files:
            found.update(str(path.relative_to(place)).encode() + b"\0" + _read(path) + b"\0")
    return found.hexdigest()


@functools.lru_cache(maxsize=None)
def _code_of_file(path: str) -> str:
    return hashlib.sha256(_read(Path(path))).hexdigest()


def _read(path: Path) -> bytes:
    if path.stat().st_mtime > _STARTED:
        raise NoFingerprint(path)
    return path.read_bytes()
