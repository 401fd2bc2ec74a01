"""PyTorch's own ONNX exporter: `torch.onnx.export` of an ExportedProgram, ONNX Runtime on the CPU as the runtime. The
backend "onnx" of this library writes models by operators of its own choice instead."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
import re
from typing import Any

import torch
from torch.export import ExportedProgram

from decomp import Converter
from decomp_rules import targets
from decomp_rules.converters import Quiet


def convert(program: ExportedProgram) -> Any:
    """The `torch.onnx.ONNXProgram` of a program, optimized unless the optimizer would drop numbers that count. Raises
    `NotImplementedError` with the call that the exporter does not translate, or the step at which it fails, and
    whatever else it raises."""
    try:
        with Quiet():
            made = torch.onnx.export(program, dynamo=True, verbose=False, optimize=False)
            assert made is not None
            if not any(map(_may_be_dropped, made.model.graph.all_nodes())):
                made.optimize()
            return made
    except torch.onnx.OnnxExporterError as error:
        raise NotImplementedError(_reason(error)) from error


# onnxscript 0.7 takes a constant for the 0 or 1 of its patterns if it is as close as that (`Constant` in
# onnxscript/rewriter/_pattern_ir.py), and drops the ε of a norm: `x + 1e-9` becomes x.
_DROPPED = {"Add": (0.0, 1e-8), "Sub": (0.0, 1e-8), "Mul": (1.0, 1e-5), "Div": (1.0, 1e-5)}
"""By operator, what changes nothing as its operand, and the distance up to which onnxscript takes a number for it."""


def _may_be_dropped(node: Any) -> bool:
    """Whether onnxscript's optimizer takes an operator for one that changes nothing, because of a number that is nearly
    0 or 1."""
    if node.op_type not in _DROPPED:
        return False
    unit, distance = _DROPPED[node.op_type]
    numbers = [_number(value) for value in node.inputs]
    return any(number is not None and 0 < abs(number - unit) <= 1.001 * distance for number in numbers)


def _number(value: Any) -> float | None:
    """The floating-point constant without dimensions that a value is, behind casts; None for other values."""
    from onnx_ir.convenience import get_const_tensor

    while value.producer() is not None and value.producer().op_type in ("Cast", "CastLike", "Identity"):
        value = value.producer().inputs[0]
    tensor = get_const_tensor(value)
    if tensor is None or len(tensor.shape) or not tensor.dtype.is_floating_point():
        return None
    return float(tensor.numpy())


def _reason(error: BaseException) -> str:
    """The call or the step, and why: each cause of an error says more, after the exporter's advice in the first."""
    outer, cause = [], error
    while cause.__cause__ is not None:
        outer, cause = [*outer, str(cause)], cause.__cause__
    calls = [found[1] for text in outer if (found := re.search(r"target=torch\.ops\.([\w.]+)\]", text))]
    steps = [text.partition(". See ")[0] for text in outer[1:]]
    reason = (str(cause) or repr(cause)).splitlines()[0]
    return ": ".join([*(calls or steps)[:1], reason])


def run(model: Any, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The results of ONNX Runtime on the CPU."""
    with Quiet():
        return list(model(*(tensor.detach() for tensor in inputs)))


def save(model: Any, path: Path) -> None:
    """Write the model, with the weights of a large one in a file beside it."""
    model.save(path)


def registry() -> list[str]:
    """The overloads in the table of torchlib, which `onnxscript` holds; the exporter lets PyTorch decompose others."""
    with Quiet():
        from onnxscript.function_libs.torch_lib import ops  # noqa: F401  it fills the table
        from onnxscript.function_libs.torch_lib.registration import default_registry

        names = [name.removeprefix("aten::") for name, _ in default_registry.items() if name.startswith("aten::")]
    return sorted(f"aten.{name}" if "." in name else f"aten.{name}.default" for name in names)


CONVERTER = Converter(
    "torch_onnx",
    package="onnxscript",
    at_least="0.7",
    target=targets.get("torch_onnx"),
    convert=convert,
    run=run,
    save=save,
    suffix=".onnx",
    registry=registry,
    runtime="onnxruntime",
)
