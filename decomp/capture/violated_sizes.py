"""Sizes that torch.export refuses: those that are not declared as it reads them, and what a program assumes of those
that were declared dynamic, and what to declare."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
import re
from typing import Any

import torch

from decomp.errors import CaptureError, first_line

_INPUT_SIZE = re.compile(r"L\['(\w+)'\]((?:\[[^\]]*\])*)\.size\(\)\[(\d+)\]")
_FURTHER = re.compile(r" Alternatively, you could.*| For more information about this error.*")
_NO_FACT = re.compile(r" If you.*|Specializations unexpectedly required.*")
_NO_MAXIMUM = re.compile(r", max=(oo|int_oo)(?=[,)])")
"""A bound of infinity, for which Python has no name."""
_NO_BOUND = re.compile(r" and [^ ]+ <= IntInfinity\(\)")


def violated_sizes(error: BaseException) -> str | None:
    """What torch.export's error says of declared sizes, a line each and a line of what to do; None for other errors."""
    lines = [_in_words(line) for line in str(error).splitlines()]
    if type(error).__name__ == "ConstraintViolationError" and lines and " not in range " in lines[0]:
        remedy = "pass example inputs of sizes in this range, or declare another range"
        return f"an example input has the size {lines[0]}, which dynamic_shapes declares\n  to do: {remedy}"
    if not lines or not lines[0].startswith("Constraints violated"):
        return None
    facts = [f"  {_NO_FACT.sub('', line[4:]).removesuffix('.')}" for line in lines if line.startswith("  - ")]
    remedies = "; ".join(_remedies(lines)) or "leave such sizes out of dynamic_shapes, or declare them Dim.AUTO"
    found = "the program does not take all sizes that dynamic_shapes declares"
    return "\n".join([found, *facts, f"  to do: {remedies}"])


def misdeclared_sizes(error: BaseException, inputs: Iterable[str]) -> str | None:
    """What torch.export's error says of a dynamic_shapes= that does not fit the inputs of these names, and a line of
    what to do; None for other errors."""
    text = first_line(error)
    # torch 2.13 raises the same class for conditions on data, whose text does not name this argument.
    if type(error).__name__ != "UserError" or "dynamic_shapes" not in text:
        return None
    said = _FURTHER.sub("", text).rstrip(".")
    named = ", ".join(inputs) or "there are none"
    return f"dynamic_shapes= does not fit its inputs: {said}\n  to do: give dynamic_shapes= for these inputs: {named}"


def refuse_dimensions_beyond_rank(dynamic_shapes: Any, inputs: Mapping[str, Any]) -> None:
    """Raise `CaptureError` for a size that is declared of a dimension that a tensor lacks: torch.export (2.13) ignores
    it, and the program is captured with all sizes fixed."""
    if isinstance(dynamic_shapes, Mapping):
        pairs = [(name, inputs[name], dynamic_shapes[name]) for name in inputs if name in dynamic_shapes]
    elif isinstance(dynamic_shapes, (list, tuple)):
        pairs = [(name, value, given) for (name, value), given in zip(inputs.items(), dynamic_shapes)]
    else:  # of objects for which PyTorch finds the tensors
        return
    for name, value, given in pairs:
        _refuse_beyond_rank(name, value, given)


def _refuse_beyond_rank(name: str, value: Any, declared: Any) -> None:
    if isinstance(value, (list, tuple)) and isinstance(declared, (list, tuple)):
        for index, pair in enumerate(zip(value, declared)):
            _refuse_beyond_rank(f"{name}[{index}]", *pair)
    elif isinstance(value, Mapping) and isinstance(declared, Mapping):
        for key in value.keys() & declared.keys():
            _refuse_beyond_rank(f"{name}[{key!r}]", value[key], declared[key])
    elif isinstance(value, torch.Tensor) and isinstance(declared, Mapping):
        rank = value.dim()
        beyond = [each for each in declared if isinstance(each, int) and each not in range(-rank, rank)]
        if beyond:
            remedy = f"declare dimensions from 0 to {rank - 1} of it" if rank else "leave it out"
            raise CaptureError(
                f"dynamic_shapes= declares dimension {beyond[0]} of {name}, which has {rank}\n  to do: {remedy}"
            )


def _in_words(line: str) -> str:
    """`x.shape[0]` for `L['x'].size()[0]`, without an upper bound of infinity."""
    return _NO_BOUND.sub("", _INPUT_SIZE.sub(r"\1\2.shape[\3]", line))


def _remedies(lines: list[str]) -> Iterator[str]:
    start = lines.index("Suggested fixes:") + 1 if "Suggested fixes:" in lines else len(lines)
    for line in lines[start:]:
        name, found, value = line.strip().partition(" = ")
        if not found:
            return
        value = _NO_MAXIMUM.sub("", value)
        if value.isdigit():
            yield f"leave {name} out, which is always {value}"
        elif _is_declaration(value):
            yield f"declare {name} = {value}"
        else:
            yield f"leave {name} out of dynamic_shapes, or declare it Dim.AUTO"


def _is_declaration(text: str) -> bool:
    """Whether a value is one that Python has for a size: `Dim(...)`, another size, or a multiple or sum of one."""
    try:
        value = ast.parse(text, mode="eval").body
    except SyntaxError:
        return False
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id == "Dim"
    # `Dim` has the operators +, − and · with integers alone.
    known = (ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Name, ast.Load, ast.Constant)
    parts = list(ast.walk(value))
    return all(isinstance(each, known) for each in parts) and sum(isinstance(each, ast.Name) for each in parts) == 1
