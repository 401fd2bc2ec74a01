"""Detects `isinstance(x, torch.Tensor)` in rules. Rules run on proxies, for which it is false, so such a rule would
silently take its branch for numbers. Proxies cannot pass as tensors: torch's C++ makes the same check, and then reads
the memory of the tensor (torch 2.13). So the check is found in the bytecode of a rule when it is registered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import dis
import inspect
from typing import Any

import torch
from torch import fx

from decomp.errors import RuleError
from decomp.rules.rule_lines import code_of, format_line


def require_no_tensor_checks(rule: Any, function: Callable[..., Any]) -> None:
    """Raise `RuleError` if a rule checks whether something is a tensor, but not whether it is a proxy."""
    code = code_of(function)
    if code is None or "isinstance" not in code.co_names:
        return
    names = _names(function)
    for line, kinds in _checks(code, names):
        if torch.Tensor in kinds and fx.Proxy not in kinds:
            raise RuleError(
                rule,
                "calls isinstance(..., torch.Tensor), which is false for the proxies that a rule runs on",
                "check isinstance(x, (int, float, complex)) for numbers; every other operand is a tensor",
                line=format_line(code, line),
            )


def _names(function: Callable[..., Any]) -> dict[str, Any]:
    """The values of the names in a function's code, except local variables."""
    inner = inspect.unwrap(function)
    try:
        found = inspect.getclosurevars(inner) if inspect.isfunction(inner) else None
    except ValueError:  # an empty closure cell
        return dict(getattr(inner, "__globals__", {}))
    return {**found.builtins, **found.globals, **found.nonlocals} if found is not None else {}


def _checks(code: Any, names: dict[str, Any]) -> Iterator[tuple[int, list[Any]]]:
    """Each call of isinstance: its line, and the objects that its arguments name."""
    line: int = 0
    kinds: list[Any] | None = None
    lines = dict(dis.findlinestarts(code))
    current: int = code.co_firstlineno
    for step in dis.get_instructions(code):
        current = lines.get(step.offset) or current
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"):
            if names.get(step.argval) is isinstance:
                line, kinds = current, []
            elif kinds is not None:
                kinds.append(names.get(step.argval))
        elif step.opname == "LOAD_ATTR" and kinds:
            kinds[-1] = getattr(kinds[-1], str(step.argval), None)
        elif step.opname.startswith("CALL") and kinds is not None:
            yield line, kinds
            kinds = None
