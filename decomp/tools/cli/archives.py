"""Reading `.pt2` archives without executing their content. `torch.export.load` unpickles tensors and sample inputs,
evaluates sizes and guards as Python, and generates code with names; here all of this is checked first, and anything
that is not plain data is refused."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
import contextlib
import functools
import json
import logging
import os
from pathlib import Path
import pickle
import re
from typing import Any
import zipfile

import torch
from torch.export import ExportedProgram
from torch.export.pt2_archive.constants import (
    AOTINDUCTOR_DIR,
    CONSTANTS_DIR,
    MODELS_DIR,
    TENSOR_CONSTANT_FILENAME_PREFIX,
)

from decomp.errors import first_line
from decomp.tools.cli.archive_contents import OLD_LAYOUT, programs_in, require_readable
from decomp.tools.cli.terminal import Unusable
from decomp.torch_internals.archives import SYM_OPS, PT2ArchiveReader


class UnreadableArchive(Unusable):
    """A file is not an archive of a program, or is damaged."""


class Untrusted(Unusable):
    """A file holds more than data: reading it would execute code from it."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path = path
        super().__init__(
            f"cannot read {path} without executing code from it: {reason}\n"
            "  to do: if you trust its origin, pass --trust, which reads it as torch.export.load does"
        )


def read_program(path: Path, trust: bool = False) -> ExportedProgram:
    """The program in an archive. Unless trusted, nothing in it is executed. Raises `Untrusted`, `UnreadableArchive`,
    `Unregistered`, `Newer`."""
    try:
        if not trust:
            _refuse_code(path)
        require_readable(path)
        with contextlib.nullcontext() if trust else _weights_only():
            return _loaded(path)
    except Unusable:
        raise
    except _ExecutableContent as found:
        raise Untrusted(path, str(found)) from None
    except pickle.UnpicklingError as error:
        raise Untrusted(path, f"its tensors or sample inputs are pickled with {_global_in(error)}") from error
    except MemoryError:
        raise
    except Exception as error:
        first = _first_of(error)
        reason = "it is damaged" if _holds_program(path) else "it is not a .pt2 archive, or damaged"
        raise UnreadableArchive(
            f"cannot read {path}: {reason} ({type(first).__name__}: {first_line(first)})"
        ) from error


def _holds_program(path: Path) -> bool:
    with contextlib.suppress(RecursionError):
        return bool(programs_in(path))
    return False


def _first_of(error: BaseException) -> BaseException:
    """The first exception of a chain."""
    while error.__cause__ is not None or error.__context__ is not None:
        error = error.__cause__ or error.__context__ or error
    return error


def _loaded(path: Path) -> ExportedProgram:
    logs = [logging.getLogger(name) for name in ("torch.export", "torch._export.serde.serialize")]
    kept = _FirstLogged()
    try:
        for log in logs:
            log.addFilter(kept)
        return torch.export.load(path)
    except Exception as error:
        raise error from (error.__cause__ or error.__context__ or kept.first)
    finally:
        for log in logs:
            log.removeFilter(kept)


class _FirstLogged(logging.Filter):
    """Records the first logged exception, and prints none: torch.export.load (2.13) logs the actual error, as
    tracebacks and as a message with a missing argument, and raises another error that refers to it."""

    first: BaseException | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        if self.first is None and record.exc_info is not None:
            self.first = record.exc_info[1]
        return False


@contextlib.contextmanager
def _weights_only() -> Iterator[None]:
    """Context manager: force weights_only=True in every `torch.load`. For the content of archives torch 2.13 passes
    weights_only=False, with no option to change that."""
    names = ("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")
    before = {name: os.environ.pop(name, None) for name in names}
    os.environ[names[0]] = "1"
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _global_in(error: pickle.UnpicklingError) -> str:
    found = re.search(r"GLOBAL ([\w.]+)|type (?:\S+ )?<class '([\w.]+)'>", str(error))
    return next(filter(None, found.groups())) if found else "more than tensors and containers"


class _ExecutableContent(Exception):
    """Content that would be executed."""


def _refuse_code(path: Path) -> None:
    """Raise `_ExecutableContent` for an archive that contains more than a program."""
    with zipfile.ZipFile(path) as archive:
        if OLD_LAYOUT in archive.namelist():
            _check(json.loads(archive.read(OLD_LAYOUT)), "")
    try:
        reader = PT2ArchiveReader(os.fspath(path))
    except RuntimeError:  # torch.export.load then reads the old layout, which is already checked
        return
    for name in reader.get_file_names():
        _refuse_code_in_record(reader, name)


def _refuse_code_in_record(reader: PT2ArchiveReader, name: str) -> None:
    if name.startswith(AOTINDUCTOR_DIR):
        raise _ExecutableContent(f"it holds a compiled library ({_shown(name)})")
    if name.startswith(MODELS_DIR):
        _check(json.loads(reader.read_bytes(name)), "")
    elif name.startswith(CONSTANTS_DIR) and name.endswith(".json"):
        for constant, payload in json.loads(reader.read_bytes(name))["config"].items():
            if not payload["path_name"].startswith(TENSOR_CONSTANT_FILENAME_PREFIX):
                raise _ExecutableContent(f"its constant {_shown(constant)} is a pickled object")


def _check(value: Any, key: str) -> None:
    """Check every string of a serialized program, by the key of its value."""
    if isinstance(value, dict):
        if key == "range_constraints":
            _each(_name, list(value))
        for inner, item in value.items():
            if inner in _REFUSED and item:
                raise _ExecutableContent(_REFUSED[inner])
            _check(item, inner)
    elif isinstance(value, list):
        for item in value:
            _check(item, key)
    elif isinstance(value, str):
        check = _CHECKS.get(key)
        if check is not None:
            check(value)


def _each(check: Callable[[str], None], values: list[str]) -> None:
    for value in values:
        check(value)


def _name(text: str) -> None:
    """Names of nodes and arguments appear unquoted in the generated code."""
    if text and not text.isidentifier():
        raise _ExecutableContent(f"{_shown(text)} is not a valid name")


def _qualified(text: str) -> None:
    """Names of parameters appear between quotes in the generated code."""
    if not text.isprintable() or any(character in "\"'\\" for character in text):
        raise _ExecutableContent(f"{_shown(text)} is not a valid name of a parameter")


def _op(text: str) -> None:
    """The target of a node must be an op: any function of torch could be named there."""
    parts = text.split(".")
    found = functools.reduce(lambda value, part: getattr(value, part, None), parts[1:], _roots().get(parts[0]))
    if found is None and text.startswith("torch.ops."):
        return  # the op's library is not imported: torch.export.load reports it
    if isinstance(found, torch._ops.OpOverload) and found._schema.name in _FILES:
        raise _ExecutableContent(f"it calls {_shown(text)}, which reads or writes files")
    if not isinstance(found, (torch._ops.OpOverload, torch._ops.HigherOrderOperator)) and not _is_listed(found):
        raise _ExecutableContent(f"it calls {_shown(text)}, which is not an op")


def _roots() -> dict[str, Any]:
    import math
    import operator

    return {"torch": torch, "_operator": operator, "math": math}


def _is_listed(function: Any) -> bool:
    """Whether it is one of the functions on sizes, or one that vmap leaves in graphs."""
    predispatch = getattr(function, "__module__", None) == "torch._functorch.predispatch"
    return any(function is known for known in SYM_OPS) or predispatch and callable(function)


def _size(text: str) -> None:
    """Sizes are evaluated as Python, by sympy."""
    _only(text, "size", _SYMPY, None, frozenset(), r"\w*|[\d.e+-]+")


def _guard(text: str) -> None:
    """Guards are compiled as Python."""
    if any(character in '"\\#\n' for character in text):
        raise _ExecutableContent(f"the guard {_shown(text)} is not a comparison of sizes")
    _only(text, "guard", _GUARD_FUNCTIONS, frozenset(["L", "math", "torch"]), _GUARD_ATTRIBUTES, ".*")


def _only(
    text: str,
    what: str,
    functions: frozenset[str],
    names: frozenset[str] | None,
    attributes: frozenset[str],
    texts: str,
) -> None:
    """Raise `_ExecutableContent` unless `text` is arithmetic with these functions, names (None: any symbol) and
    attributes, and strings of this form."""
    try:
        nodes = list(ast.walk(ast.parse(text, mode="eval")))
    except (SyntaxError, ValueError):
        raise _ExecutableContent(f"the {what} {_shown(text)} is not an expression") from None
    for node in nodes:
        fine = isinstance(node, _ARITHMETIC)
        if isinstance(node, ast.Call):
            fine = isinstance(node.func, ast.Attribute) or getattr(node.func, "id", None) in functions
        elif isinstance(node, ast.Name):
            symbol = names is None and re.fullmatch(r"[a-z_]*[0-9]+", node.id)
            fine = bool(symbol) or node.id in functions or node.id in (names or ())
        elif isinstance(node, ast.Attribute):
            fine = node.attr in attributes
        elif isinstance(node, ast.Constant):
            fine = not isinstance(node.value, (str, bytes)) or bool(re.fullmatch(texts, str(node.value), re.ASCII))
        if not fine:
            raise _ExecutableContent(f"the {what} {_shown(text)} is not arithmetic")


_ARITHMETIC = (
    ast.Expression,
    ast.expr_context,
    ast.operator,
    ast.unaryop,
    ast.boolop,
    ast.cmpop,
    ast.keyword,
    ast.BinOp,
    ast.UnaryOp,
    ast.BoolOp,
    ast.Compare,
    ast.IfExp,
    ast.Subscript,
)
_SYMPY = frozenset(
    "Symbol Integer Float Rational Add Mul Pow Max Min Mod Abs floor ceiling log exp sqrt Piecewise ExprCondPair true "
    "false True False oo int_oo Eq Ne Lt Le Gt Ge And Or Not Equality Unequality StrictLessThan LessThan "
    "StrictGreaterThan GreaterThan FloorDiv ModularIndexing Where PythonMod CleanDiv CeilToInt FloorToInt CeilDiv "
    "LShift RShift PowByNatural FloatPow FloatTrueDiv IntTrueDiv IsNonOverlappingAndDenseIndicator TruncToFloat "
    "TruncToInt RoundToInt RoundDecimal ToFloat Identity".split()
)
_GUARD_FUNCTIONS = frozenset(
    "max min abs int float bool round IsNonOverlappingAndDenseIndicator cast_symbool_to_symint_guardless".split()
)
_GUARD_ATTRIBUTES = frozenset(
    "size stride storage_offset dim ndim numel shape floor ceil trunc pow sqrt log2 sym_float sym_int sym_max sym_min "
    "sym_ite sym_not _sym_sqrt".split()
)
_FILES = frozenset(["aten::from_file", "aten::save", "debugprims::load_tensor"])


def _container(text: str) -> None:
    """Containers of inputs and results can name classes and functions, which would be imported."""
    _plain(json.loads(text)[1])


def _inputs(text: str) -> None:
    _container(text)
    for part in json.loads(text)[1]["children_spec"][1:]:  # keyword arguments, whose names appear in the code
        if part.get("type") == "builtins.dict":
            _each(_name, json.loads(part["context"]))


def _plain(value: Any) -> None:
    if isinstance(value, dict):
        factory = (value.get("default_factory_module"), value.get("default_factory_name"))
        if "__enum__" in value or any(factory) and factory not in _FACTORIES:
            raise _ExecutableContent("the containers of its inputs or results name classes to import")
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _plain(item)
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            unfolded = json.loads(value)
            _plain(unfolded if not isinstance(unfolded, str) else None)


_FACTORIES = {("builtins", name) for name in ("list", "dict", "set", "tuple", "int", "float", "str", "bool")}
_REFUSED = {
    "as_custom_obj": "it takes an object of a custom class",
    "custom_obj": "it holds an object of a custom class",
    "custom_obj_values": "it holds objects of custom classes",
}
_CHECKS: dict[str, Callable[[str], None]] = {
    "name": _name,
    "as_name": _name,
    "forward_arg_names": _name,
    "field_names": _name,
    "parameter_name": _qualified,
    "buffer_name": _qualified,
    "tensor_constant_name": _qualified,
    "user_input_name": _qualified,
    "fqn": _qualified,
    "target": _op,
    "as_operator": _op,
    "expr_str": _size,
    "guards_code": _guard,
    "in_spec": _inputs,
    "out_spec": _container,
}
"""By key: the check of a string value."""


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
