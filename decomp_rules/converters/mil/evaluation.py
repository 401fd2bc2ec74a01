"""Evaluates a program of MIL where there is no Core ML: op by op, on NumPy arrays. The value of an op is the one that
coremltools itself computes when it folds constants, or, for ops that it does not fold, that of `definitions`, which
follow the documentation of MIL. What Core ML computes on a device was not run: it may compute in other precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from decomp_rules.converters.mil.definitions import DEFINITIONS

Values = dict[Any, Any]


def evaluate(program: Any, inputs: Sequence[Any]) -> list[Any]:
    """The results of the function `main` of a `coremltools.converters.mil.Program` for arrays, in the dtypes of its
    inputs. Raises `NotImplementedError` for an op that has no value here."""
    import numpy

    main = program.functions["main"]
    values: Values = dict(zip(main.inputs.values(), inputs, strict=True))
    for op in main.operations:
        computed = [op.outputs[0].val] if op.op_type == "const" else _results(op, _operands(op, values), main)
        values |= zip(op.outputs, computed, strict=True)
    return [numpy.array(values[result], order="C") for result in main.outputs]


def _operands(op: Any, values: Values) -> dict[str, Any]:
    """By name; the parts of a tuple as a list."""

    def value(operand: Any) -> Any:
        return [*map(value, operand)] if isinstance(operand, (list, tuple)) else values[operand]

    return {name: value(operand) for name, operand in op.inputs.items() if operand is not None}


def _results(op: Any, operands: Mapping[str, Any], main: Any) -> list[Any]:
    if op.blocks:
        raise NotImplementedError(f"MIL's {op.op_type} has blocks, which are not evaluated outside Core ML")
    if op.op_type in DEFINITIONS:
        return _defined(op.op_type, operands)
    made = _folded(op.op_type, operands, main.opset_version)
    if any(each.val is None for each in made):
        raise NotImplementedError(f"MIL's {op.op_type} has no value outside Core ML: coremltools does not fold it")
    return [each.val for each in made]


def _folded(op_type: str, operands: Mapping[str, Any], opset: Any) -> Sequence[Any]:
    """The `Var`s of the op, made with constants as operands."""
    from coremltools.converters.mil import Builder
    from coremltools.converters.mil.mil import Function

    with Function({}, opset_version=opset):
        made = getattr(Builder, op_type)(**{name: _as_constant(each) for name, each in operands.items()})
    return made if isinstance(made, (list, tuple)) else [made]


def _as_constant(value: Any) -> Any:
    """NumPy's own functions, by which constants are folded, take none of its booleans as options."""
    return value.item() if getattr(value, "dtype", None) == "bool" and value.ndim == 0 else value


def _defined(op_type: str, operands: Mapping[str, Any]) -> list[Any]:
    made = DEFINITIONS[op_type](**{name: _as_torch(each) for name, each in operands.items()})
    return [each.numpy() for each in (made if isinstance(made, tuple) else (made,))]


def _as_torch(value: Any) -> Any:
    """Arrays as tensors, also those in a list; numbers and texts stay."""
    if isinstance(value, list):
        return [*map(_as_torch, value)]
    return torch.from_numpy(value.copy()) if getattr(value, "ndim", 0) else getattr(value, "item", lambda: value)()
