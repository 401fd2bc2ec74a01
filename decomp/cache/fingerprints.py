"""Fingerprints of everything that an expansion depends on besides its call. The behaviour of a function does not follow
from its text: it can read globals, objects and files that differ in the next process. So only expansions by installed
code are cached on disk: this package and its library, whose content is hashed, PyTorch, whose version is, and rules
with a version from their author. Everything else, the user's own functions, is valid only in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
import dataclasses
from dataclasses import dataclass
import functools
import hashlib
import importlib.util
import os
from pathlib import Path
import sys
import time
import types
from typing import Any
import weakref

import torch

from decomp.cache.function_state import is_table
from decomp.ir.ops import Op
from decomp.rules.limitation import Limitation
from decomp.rules.rules import Rule, Rules
from decomp.rules.target import Condition, MatchAllTarget, Target

FORMAT = 2
"""The version of the cache format."""
SHIPPED = ("decomp", "decomp_rules")
"""Packages whose content is hashed, file by file."""
_VERSIONED = ("torch", "builtins", "_operator", "math")
"""Modules and packages identified by the versions of PyTorch and Python."""
_LEFT_OUT = ("__pycache__", "certificates")
"""Directories of a package with nothing that a rule reads."""
_STARTED = time.time()
"""Files that were changed later may differ from what was imported."""
_MOST_FILES = 2000

Source = tuple[str, str | None]
"""A module, and the file of its code if known."""


class NoFingerprint(Exception):
    """A value that differs between processes, or code without a source."""


@dataclass(frozen=True)
class Origins:
    """The origins of the functions of rules and of a target."""

    data: tuple[Any, ...]
    """Data on all of them; on the user's own functions, only their location."""
    sources: frozenset[Source]
    """The code that defines the others."""
    own: tuple[Callable[..., Any], ...]
    """The user's own functions, which may differ in the next process."""
    own_ops: frozenset[Op]
    """Ops with such a rule, limitation or condition."""
    own_rules: frozenset[Rule]

    @classmethod
    def of(cls, rules: Rules, target: Target) -> Origins:
        """The origins for rules and a target."""
        if rules.origins is None:
            rules.origins = _join_origins([*map(_of_entry, rules.entries)])
        if target not in _TARGETS:
            _TARGETS[target] = _join_origins([*_of_target(target)])
        return _join_origins([rules.origins, _TARGETS[target]])

    def name(self, rules: Rules, target: Target, dialect: str, cost: Any) -> str | None:
        """A hash of everything that an expansion depends on, except the user's own functions; None if that is
        unknown."""
        # A subclass may override anything.
        if type(rules) is not Rules or type(target) not in (Target, MatchAllTarget):
            return None
        describing = _Describing()
        try:
            priced = describing.of(cost)
            sources = {*((name, None) for name in SHIPPED), *self.sources, *describing.sources}
            code = [_content(source) for source in sorted(sources, key=str)]
        except NoFingerprint:
            return None
        if not describing.is_shipped:
            return None
        known = sorted(map(str, target.narrower)), rules.composites, rules.trains, dialect, torch.get_default_dtype()
        # The version of Python counts because bytecode is part of the data.
        parts = [FORMAT, sys.version_info[:2], torch.__version__, code, self.data, target.name, known, priced]
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def fingerprint(rules: Rules, target: Target, dialect: str, cost: Any) -> str | None:
    """A hash of everything that an expansion depends on; None if that is unknown, as for the user's own functions."""
    origins = Origins.of(rules, target)
    return None if origins.own else origins.name(rules, target, dialect, cost)


_TARGETS: weakref.WeakKeyDictionary[Target, Origins] = weakref.WeakKeyDictionary()
_ENTRIES: weakref.WeakKeyDictionary[Rule | Limitation, Origins] = weakref.WeakKeyDictionary()
"""Rules are immutable, and most collections share them, so their origins are cached."""
_OWN = "own"


def _join_origins(parts: list[Origins]) -> Origins:
    return Origins(
        tuple(part.data for part in parts),
        frozenset().union(*(part.sources for part in parts)),
        tuple(function for part in parts for function in part.own),
        frozenset().union(*(part.own_ops for part in parts)),
        frozenset().union(*(part.own_rules for part in parts)),
    )


def _of_entry(entry: Rule | Limitation) -> Origins:
    found = _ENTRIES.get(entry)
    if found is None:
        found = _ENTRIES[entry] = _of_rule(entry) if isinstance(entry, Rule) else _of_limitation(entry)
    return found


def _of_rule(rule: Rule) -> Origins:
    needs = [str(need) for need in rule.needs]
    plain = str(rule.op), str(rule), rule.order, rule.texts, needs, str(rule.overload), rule.level, rule.forward_only
    what = (rule.function, [list(each) for each in rule.spelled])
    return _describe_function(rule.op, plain, what, rule.function, rule, rule.version)


def _of_limitation(limitation: Limitation) -> Origins:
    plain = str(limitation.op), limitation.reason, [str(need) for need in limitation.needs]
    return _describe_function(limitation.op, plain, limitation.when, limitation.when)


def _of_target(target: Target) -> Iterator[Origins]:
    for (op, overload), alternatives in sorted(target._entries.items(), key=str):
        place = str(op), overload, list(map(len, alternatives))
        yield Origins((place,), frozenset(), (), frozenset(), frozenset())
        yield from (_of_condition(op, condition) for conditions in alternatives for condition in conditions)


def _of_condition(op: Op, condition: Condition) -> Origins:
    return _describe_function(op, (condition.reason,), condition.holds, condition.holds)


def _describe_function(
    op: Op, plain: tuple[Any, ...], what: Any, function: Any, rule: Rule | None = None, version: str | None = None
) -> Origins:
    """The origin of one function, with related data."""
    describing = _Describing()
    try:
        found = describing.of(what)
    except NoFingerprint:
        found = None
    if found is None or version is None and not describing.is_shipped:
        rules = frozenset() if rule is None else frozenset([rule])
        return Origins((str(op), _OWN), frozenset(), (function,), frozenset([op]), rules)
    return Origins((plain, version, found), frozenset(describing.sources), (), frozenset(), frozenset())


class _Describing:
    """Describes values as plain data that is equal for equal values, in every process."""

    def __init__(self) -> None:
        self.sources: set[Source] = set()
        """The code that was visited."""
        self._open: list[Any] = []
        """The functions being described."""

    @property
    def is_shipped(self) -> bool:
        """Whether all visited code is in packages whose content is hashed."""
        return all(module.partition(".")[0] in SHIPPED for module, _ in self.sources)

    def of(self, value: Any) -> Any:
        """A value as plain data. Raises `NoFingerprint`."""
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
            # By `repr`, in which −0.0 and 0.0 differ, and NaN is NaN.
            return (type(value).__name__, repr(value))
        if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
            return (type(value).__name__, str(value))
        if isinstance(value, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
            return (type(value).__name__, str(value))
        if isinstance(value, (list, tuple)):
            if is_table(value):
                return (type(value).__name__, repr(value))
            return (type(value).__name__, *map(self.of, value))
        if isinstance(value, (set, frozenset)):
            # The order of a set of strings is another one in each process.
            return (type(value).__name__, *sorted(map(repr, map(self.of, value))))
        if isinstance(value, Mapping):
            return ("mapping", *[(self.of(key), self.of(item)) for key, item in value.items()])
        if isinstance(value, types.FunctionType):
            return self._of_function(value)
        if isinstance(value, functools.partial):
            return ("partial", self.of(value.func), self.of(value.args), self.of(value.keywords))
        if isinstance(value, types.BuiltinFunctionType):
            return self._of_builtin(value)
        if isinstance(value, type):
            return self._of_class(value)
        if dataclasses.is_dataclass(value):
            fields = [self.of(getattr(value, each.name)) for each in dataclasses.fields(value)]
            return (self._of_class(type(value)), *fields)
        raise NoFingerprint(value)

    def _of_function(self, function: types.FunctionType) -> Any:
        """The code that defines a function, and the data that it closes over."""
        # By its globals, as `functools.wraps` sets `__module__` of a wrapper to that of the wrapped function.
        module = function.__globals__.get("__name__", "")
        if getattr(sys.modules.get(module), "__dict__", None) is not function.__globals__:
            raise NoFingerprint(function)
        self._met(module, function.__code__.co_filename)
        if function in self._open:
            return (module, function.__qualname__)  # recursive
        self._open.append(function)
        cells = [self.of(cell.cell_contents) for cell in function.__closure__ or ()]
        defaults = self.of(function.__defaults__), self.of(function.__kwdefaults__)
        wrapped = self.of(getattr(function, "__wrapped__", None))
        self._open.pop()
        return (module, function.__qualname__, _of_code(function.__code__), cells, defaults, wrapped)

    def _of_builtin(self, function: types.BuiltinFunctionType) -> Any:
        if not (function.__self__ is None or isinstance(function.__self__, types.ModuleType)):
            raise NoFingerprint(function)
        module = function.__module__ or getattr(function.__self__, "__name__", "")
        self._met(module, None)
        return (module, function.__qualname__)

    def _of_class(self, cls: type) -> Any:
        found: Any = sys.modules.get(cls.__module__)
        for name in cls.__qualname__.split("."):
            found = getattr(found, name, None)
        if found is not cls:
            raise NoFingerprint(cls)
        self._met(cls.__module__, None)
        return (cls.__module__, cls.__qualname__)

    def _met(self, module: str, file: str | None) -> None:
        package = module.partition(".")[0]
        if package in SHIPPED:
            self.sources.add((package, None))
        elif package not in _VERSIONED:
            # Code from a prompt or a notebook has no file of which a later process could see that it is the same.
            if file is not None and not os.path.isfile(file):
                raise NoFingerprint(file)
            self.sources.add((module, file))


def _of_code(code: types.CodeType) -> Any:
    return (code.co_firstlineno, code.co_code.hex(), code.co_names, [*map(_of_constant, code.co_consts)])


def _of_constant(constant: Any) -> Any:
    if isinstance(constant, types.CodeType):
        return _of_code(constant)
    if isinstance(constant, frozenset):  # its order differs between processes
        return sorted(map(repr, constant))
    return [*map(_of_constant, constant)] if isinstance(constant, tuple) else repr(constant)


# The content of files.


def _content(source: Source) -> Any:
    """The hash of a module's package, and of its file."""
    module, file = source
    package = module.partition(".")[0]
    if package in SHIPPED:
        return _code_of_package(package)
    file = file if file is not None else getattr(sys.modules.get(module), "__file__", None)
    if file is None or not Path(file).is_file():
        raise NoFingerprint(module)
    in_package = getattr(sys.modules.get(package), "__path__", None)
    return (_code_of_package(package) if in_package else "", _code_of_file(file))


@functools.cache
def _code_of_package(name: str) -> str:
    """The hash of all files of a package."""
    spec = importlib.util.find_spec(name)
    places = spec.submodule_search_locations if spec is not None else None
    if not places:
        raise NoFingerprint(name)
    found = hashlib.sha256()
    for place in map(str, places):
        files = sorted(_files(place), key=lambda entry: entry.path)
        # A package that large (or a namespace over site-packages) would take seconds to hash.
        if len(files) > _MOST_FILES:
            raise NoFingerprint(name)
        for entry in files:
            found.update(entry.path.removeprefix(place).encode() + b"\0" + _read(entry.path, entry.stat()) + b"\0")
    return found.hexdigest()


def _files(place: str) -> Iterator[os.DirEntry[str]]:
    for entry in os.scandir(place):
        if not entry.is_dir():
            yield entry
        elif entry.name not in _LEFT_OUT:
            yield from _files(entry.path)


@functools.cache
def _code_of_file(path: str) -> str:
    return hashlib.sha256(_read(path, os.stat(path))).hexdigest()


def _read(path: str, stat: os.stat_result) -> bytes:
    # The imported code is older than the file, whose hash would be that of code that does not run.
    if stat.st_mtime > _STARTED:
        raise NoFingerprint(path)
    return Path(path).read_bytes()
