"""The source of a rule: the definitions that it uses within its own package, as syntax trees. They yield a hash that is
independent of comments, docstrings, annotations, formatting and line numbers, and the numbers in a rule's code.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
import dataclasses
import functools
import hashlib
import importlib.util
import inspect
from pathlib import Path
import types
from typing import Any

from decomp.errors import spell_target
from decomp.rules.rules import Rule

Definition = tuple[str, str]
"""A module and a name that it defines."""


def content_hash(rules: Iterable[Rule]) -> str:
    """Sixteen hexadecimal digits that change when the code of one of the rules changes, or that of a function or
    constant of its package that it uses."""
    parts = sorted({part for rule in rules for part in _parts(rule.function)})
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def numbers_in(rule: Rule) -> tuple[float, ...]:
    """The numbers in the code of a rule, sorted. They include its thresholds."""
    found: set[float] = set()
    for definition in _definitions(rule.function).values():
        for node in ast.walk(definition):
            value = node.value if isinstance(node, ast.Constant) else None
            if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e38:
                found.add(abs(float(value)))
    return tuple(sorted(found))


@functools.lru_cache(maxsize=4096)
def _parts(function: Callable[..., Any]) -> tuple[str, ...]:
    definitions = _definitions(function)
    parts = [f"{module}:{name} {_dump(node)}" for (module, name), node in definitions.items()]
    inner = inspect.unwrap(function)
    if not parts and not isinstance(inner, types.FunctionType):
        return (spell_target(function),)
    if not parts:
        parts = _lambdas(inner) or [_compiled(inner)]
    elif "<" in inner.__qualname__:
        parts.append(f"{inner.__qualname__} {_closed(inner)}")
    return tuple(parts)


def _definitions(function: Callable[..., Any]) -> dict[Definition, ast.AST]:
    """The definitions of a function and of everything it uses within its package, by place."""
    inner = inspect.unwrap(function)
    if not isinstance(inner, types.FunctionType):
        return {}
    start = (inner.__module__ or "", inner.__qualname__.split(".")[0])
    if _definition(start) is None:
        return {}
    found: dict[Definition, ast.AST] = {}
    waiting = [start]
    while waiting:
        place = waiting.pop()
        node = _definition(place)
        if node is not None and place not in found:
            found[place] = node
            waiting += _reached(place[0], node)
    return found


def _lambdas(function: types.FunctionType) -> list[str]:
    """The lambda expressions on the line of a function that a module's top level makes in passing."""
    tree = _tree(function.__module__ or "")
    if tree is None or function.__qualname__ != "<lambda>":
        return []
    line = function.__code__.co_firstlineno
    return [_dump(node) for node in ast.walk(tree) if isinstance(node, ast.Lambda) and node.lineno == line]


def _compiled(function: types.FunctionType) -> str:
    """The bytecode of a function whose source is not found, with the values that it closes over. It differs between
    versions of Python."""
    code = function.__code__
    consts = [c.co_code.hex() if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    return f"{function.__qualname__} {code.co_code.hex()} {consts} {code.co_names} {_closed(function)}"


def _closed(function: types.FunctionType) -> list[str]:
    """What a function closes over: the values that tell functions apart which one factory makes."""
    return [_plain(cell.cell_contents) for cell in function.__closure__ or ()]


def _plain(value: Any) -> str:
    """The text of a closed-over value, the same in every process: functions print their address."""
    if isinstance(value, types.FunctionType):
        return " ".join(_parts(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        inner = [_plain(getattr(value, field.name)) for field in dataclasses.fields(value)]
        return f"{type(value).__name__}{inner}"
    if callable(value):
        return spell_target(value)
    text = repr(value)
    if " at 0x" not in text:
        return text
    items = [*value.items()] if isinstance(value, dict) else value
    return str([*map(_plain, items)]) if isinstance(items, (list, tuple)) else type(value).__qualname__


def _reached(module: str, node: ast.AST) -> Iterator[Definition]:
    """Places in the same package that a definition names, without those of its registration."""
    _, imported = _module(module)
    bodies = [
        inner
        for name, value in ast.iter_fields(node)
        for inner in (value if isinstance(value, list) else [value])
        if isinstance(inner, ast.AST) and not (name == "decorator_list" and _registers(inner))
    ]
    for inner in (each for body in bodies for each in ast.walk(body)):
        if isinstance(inner, ast.Name):
            yield imported.get(inner.id, (module, inner.id))
        elif isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name):
            source, name = imported.get(inner.value.id, ("", ""))
            if source:
                yield (f"{source}.{name}" if name else source, inner.attr)


def _definition(place: Definition) -> ast.AST | None:
    """The definition of a name in a module, except that of its collection of rules."""
    return _module(place[0])[0].get(place[1]) if place[1] not in _COLLECTIONS else None


@functools.cache
def _module(name: str) -> tuple[dict[str, ast.AST], dict[str, Definition]]:
    """The top-level definitions of a module, and its imports from its own package."""
    tree = _tree(name)
    if tree is None:
        return {}, {}
    defined: dict[str, ast.AST] = {}
    imported: dict[str, Definition] = {}
    package = name.split(".")[0]
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            defined[node.name] = node
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            defined.update({n.id: node for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)})
        elif isinstance(node, ast.ImportFrom) and node.module == "decomp.ops":
            defined.update({a.name: ast.parse(f"{a.name} = torch.ops.{a.name}").body[0] for a in node.names})
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == package:
            imported.update({a.asname or a.name: (node.module, a.name) for a in node.names})
        elif isinstance(node, ast.Import):
            mine = [a for a in node.names if a.name.split(".")[0] == package]
            imported.update({a.asname or a.name: (a.name, "") for a in mine})
    return defined, imported


def _tree(name: str) -> ast.Module | None:
    try:
        spec = importlib.util.find_spec(name) if name else None
        path = spec.origin if spec is not None else None
        return ast.parse(Path(path).read_text(encoding="utf-8")) if path and path.endswith(".py") else None
    except (ImportError, ValueError, OSError, SyntaxError):
        return None


_COLLECTIONS = ("RULES", "register")
_LEFT_OUT = {"annotation", "returns", "type_comment", "ctx", "type_params", "kind"}


def _dump(node: Any) -> str:
    """A syntax tree as text, the same in every Python version: `ast.dump` differs in what it omits."""
    if isinstance(node, list):
        return f"[{','.join(map(_dump, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = []
    for name, value in ast.iter_fields(node):
        if name == "body" and isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            value = value[1:] if ast.get_docstring(node, clean=False) is not None else value
        if name == "decorator_list":
            value = [decorator for decorator in value if not _registers(decorator)]
        if name not in _LEFT_OUT and value not in (None, []):
            fields.append(f"{name}={_dump(value)}")
    return f"{type(node).__name__}({','.join(fields)})"


def _registers(decorator: ast.AST) -> bool:
    """Whether a decorator only registers a rule."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name == "register"
