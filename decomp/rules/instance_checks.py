"""Detects `isinstance(x, torch.Tensor)` and `torch.is_tensor(x)` in rules. Rules run on proxies, for which both are
false, so such a rule would silently take its branch for numbers. Proxies cannot pass as tensors: torch's C++ makes the
same check, and then reads the memory of the tensor (torch 2.13). So the check is found in the bytecode of a rule, and
of the functions of the same package that it names, when it is registered."""

from __future__ import annotations

import builtins
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
import dis
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import fx

from decomp.errors import RuleError
from decomp.rules.rule_lines import format_line, python_function

_ASKING = ("isinstance", "is_tensor")
_TRUSTED = ("torch", "decomp", "decomp_rules")
"""Packages whose functions are not looked into: they are called with proxies, or know them."""


def require_no_tensor_checks(rule: Any, function: Callable[..., Any]) -> None:
    """Raise `RuleError` if a rule checks whether something is a tensor, but not whether it is a proxy."""
    own = python_function(function)
    waiting: list[FunctionType] = [own] if own is not None else []
    for each in waiting:
        names = _names(each)
        for code in _codes(each.__code__):
            _require_none(rule, code, names)
            named: Iterator[Any] = (names.get(name) for name in (*code.co_names, *code.co_freevars))
            waiting += [value for value in named if _is_helper(value) and value not in waiting]


def _require_none(rule: Any, code: CodeType, names: Mapping[str, Any]) -> None:
    if not any(name in code.co_names or name in code.co_freevars for name in _ASKING):
        return
    for line, check, kinds in _checks(code, names):
        if check is torch.is_tensor or any(map(_is_tensor_class, kinds)) and fx.Proxy not in kinds:
            asked = "torch.is_tensor(...)" if check is torch.is_tensor else "isinstance(..., torch.Tensor)"
            raise RuleError(
                rule,
                f"calls {asked}, which is false for the proxies that a rule runs on",
                "check isinstance(x, (int, float, complex)) for numbers; every other operand is a tensor",
                line=format_line(code, line),
            )


def _is_tensor_class(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, torch.Tensor)


def _is_helper(value: Any) -> bool:
    """Whether a value is a Python function whose code belongs to the rule."""
    return isinstance(value, FunctionType) and str(value.__module__).partition(".")[0] not in _TRUSTED


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and that of the functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _names(function: FunctionType) -> Mapping[str, Any]:
    """The values of the names in a function's code, except local variables."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or ())
    closed = {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}
    # In the order in which Python looks names up.
    return ChainMap(closed, function.__globals__, vars(builtins))


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _checks(code: CodeType, names: Mapping[str, Any]) -> Iterator[tuple[int, Any, list[Any]]]:
    """Each call of isinstance or torch.is_tensor: its line, the function, and the objects that its arguments name."""
    line, check, kinds = 0, None, []  # type: tuple[int, Any, list[Any]]
    loaded: Any = None
    lines = dict(dis.findlinestarts(code))
    current: int = code.co_firstlineno
    for step in dis.get_instructions(code):
        # From Python 3.13 on instructions may have no line.
        current = lines.get(step.offset) or current
        # The order in bytecode is that of evaluation: the function, the object, the classes, then the call.
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"):
            loaded = names.get(step.argval)
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD") and loaded is not None:
            loaded = getattr(loaded, str(step.argval), None)
            kinds = kinds[:-1]
        # `CALL_FUNCTION` or `CALL_METHOD` up to Python 3.10, `CALL` from 3.11 on.
        elif step.opname.startswith("CALL") and check is not None:
            if step.arg != (2 if check is isinstance else 1):  # a call among the arguments
                loaded = None
                continue
            yield line, check, kinds
            check, kinds, loaded = None, [], None
            continue
        else:
            loaded = None
            continue
        if loaded is isinstance or loaded is torch.is_tensor:
            line, check, kinds = current, loaded, []
        else:
            kinds = [*kinds, loaded]
