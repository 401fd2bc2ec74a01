"""Open sizes as JSON: a symbol by name, a number, or a list of a function and its operands, `["mul", 2, "s0"]`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
import math
import operator
from typing import Any

import torch

from decomp.errors import NotPortable
from decomp.metadata.symbolic_sizes import SYMBOLIC

_WRITTEN = {
    "Add": "add",
    "Mul": "mul",
    "Pow": "pow",
    "PowByNatural": "pow",
    "FloatPow": "pow",
    "FloorDiv": "floordiv",
    "CleanDiv": "floordiv",
    "IntTrueDiv": "truediv",
    "FloatTrueDiv": "truediv",
    "Mod": "mod",
    "PythonMod": "mod",
    "LShift": "shl",
    "RShift": "shr",
    "Max": "max",
    "Min": "min",
    "Abs": "abs",
    "ToFloat": "float",
    "TruncToInt": "trunc",
    "FloorToInt": "floor",
    "floor": "floor",
    "CeilToInt": "ceil",
    "ceiling": "ceil",
    "RoundToInt": "round",
    "Where": "where",
    "Equality": "eq",
    "Unequality": "ne",
    "StrictLessThan": "lt",
    "LessThan": "le",
    "StrictGreaterThan": "gt",
    "GreaterThan": "ge",
    "And": "and",
    "Or": "or",
    "Not": "not",
}
"""By the class of a sympy expression: its function in the file."""
_FUNCTIONS: Mapping[str, tuple[Callable[..., Any], int | None]] = {
    "add": (operator.add, None),
    "mul": (operator.mul, None),
    "max": (torch.sym_max, None),
    "min": (torch.sym_min, None),
    "and": (operator.and_, None),
    "or": (operator.or_, None),
    "pow": (operator.pow, 2),
    "floordiv": (operator.floordiv, 2),
    "truediv": (operator.truediv, 2),
    "mod": (operator.mod, 2),
    "shl": (operator.lshift, 2),
    "shr": (operator.rshift, 2),
    "abs": (abs, 1),
    "float": (torch.sym_float, 1),
    "trunc": (math.trunc, 1),
    "floor": (math.floor, 1),
    "ceil": (math.ceil, 1),
    "round": (round, 1),
    "where": (torch.sym_ite, 3),
    "eq": (operator.eq, 2),
    "ne": (operator.ne, 2),
    "lt": (operator.lt, 2),
    "le": (operator.le, 2),
    "gt": (operator.gt, 2),
    "ge": (operator.ge, 2),
    "not": (torch.sym_not, 1),
}
"""What the functions of the file compute, and of how many operands; None: of two or more, from the left."""
FUNCTIONS = tuple(sorted(_FUNCTIONS))


def written(number: Any, use: Callable[[Any, Any], None]) -> Any:
    """A size as JSON. `use(symbol, environment)` is called for each of its symbols. Raises `NotPortable`."""
    if not isinstance(number, SYMBOLIC):
        return number
    expr = number.node.expr
    for symbol in expr.free_symbols:
        use(symbol, number.node.shape_env)
    return _written(expr)


def _written(expr: Any) -> Any:
    kind = type(expr).__name__
    if expr.is_Symbol:
        return expr.name
    if kind in ("BooleanTrue", "BooleanFalse"):
        return bool(expr)
    if expr.is_Integer:
        return int(expr)
    if expr.is_Rational:
        return ["truediv", int(expr.p), int(expr.q)]
    if expr.is_Float:
        return float(expr)
    operands = [_written(each) for each in expr.args]
    if kind == "Identity":
        return operands[0]
    if kind == "ModularIndexing":
        return ["mod", ["floordiv", *operands[:2]], operands[2]]
    if kind not in _WRITTEN:
        raise NotPortable(
            f"the size {expr} cannot be written: the format has no function {kind}\n"
            "  to do: lower the model with this size fixed, without dynamic_shapes= for it"
        )
    return [_WRITTEN[kind], *operands]


def read(text: Any, symbols: Mapping[str, Any]) -> Any:
    """The size that was written, given the value of each symbol. Raises `ValueError` or `LookupError` for another
    text."""
    if isinstance(text, str):
        return symbols[text]
    if not isinstance(text, list):
        return text
    function, count = _FUNCTIONS[text[0]]
    operands = [read(each, symbols) for each in text[1:]]
    if count is not None and len(operands) != count or not operands:
        raise ValueError(f"{text[0]} of {len(operands)} operands")
    if count is not None:
        return function(*operands)
    found = operands[0]
    for each in operands[1:]:
        found = function(found, each)
    return found
