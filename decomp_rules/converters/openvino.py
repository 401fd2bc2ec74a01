"""OpenVINO: `openvino.convert_model` of an ExportedProgram, its CPU plugin as the runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
import re
import sys
from typing import Any

import torch
from torch.export import ExportedProgram

from decomp import Converter
from decomp_rules import targets
from decomp_rules.converters import Quiet


def convert(program: ExportedProgram) -> Any:
    """The `openvino.Model` of a program, for the sizes that it was exported with: OpenVINO opens all of them, and the
    shapes that a lowered program has computed with would be wrong for others."""
    import openvino

    with Quiet():
        model = openvino.convert_model(program)
    shapes = [_shape(value) for value in _inputs(program)]
    model.reshape({port: openvino.PartialShape(shape) for port, shape in zip(model.inputs, shapes)})
    return model


def run(model: Any, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The results on the CPU, in float32 where that is the dtype: the plugin picks bfloat16 on processors that have
    it."""
    import openvino

    compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    given = [_as_openvino(tensor.detach()) for tensor in inputs[: len(model.inputs)]]
    results = compiled(given, share_inputs=False)
    return [_as_torch(results[port], port.get_element_type().get_type_name()) for port in compiled.outputs]


def save(model: Any, path: Path) -> None:
    """Write `model.xml` and `model.bin`, with weights in the dtypes that they have."""
    import openvino

    openvino.save_model(model, path, compress_to_fp16=False)


def registry() -> list[str]:
    """The overloads in the table of OpenVINO's frontend. No function returns it (2026.4), so its keys are read from the
    library, where they are literals."""
    import openvino

    libraries = (Path(openvino.__file__).parent / "libs").glob("*pytorch_frontend*")
    keys = (key for path in libraries for key in re.findall(rb"aten\.\w+\.\w+(?=\0)", path.read_bytes()))
    return sorted({key.decode() for key in keys})


def without_telemetry() -> None:
    """OpenVINO (2026.4) reports each conversion to its makers, from a process that it forks, where the package
    `openvino_telemetry` is installed. Trials are not reported."""
    sys.modules["openvino_telemetry"] = None  # as if it were not installed


def _inputs(program: ExportedProgram) -> list[torch.Tensor]:
    """The tensors that the program takes, as metadata, in order."""
    names = set(program.graph_signature.user_inputs)
    values = [node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder" and node.name in names]
    return [value for value in values if isinstance(value, torch.Tensor)]


def _shape(value: torch.Tensor) -> list[int]:
    """Sizes, -1 for dynamic ones."""
    return [size if isinstance(size, int) else -1 for size in value.shape]


def _as_openvino(tensor: torch.Tensor) -> Any:
    import openvino

    if tensor.dtype is torch.bfloat16:  # NumPy has none
        raw = tensor.contiguous().view(torch.int16).numpy()
        return openvino.Tensor(raw, list(tensor.shape), openvino.Type.bf16)
    return openvino.Tensor(tensor.contiguous().numpy().copy())


def _as_torch(result: Any, dtype: str) -> torch.Tensor:
    if dtype == "bf16":
        import numpy

        return torch.from_numpy(result.view(numpy.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(result.copy())


CONVERTER = Converter(
    "openvino",
    package="openvino",
    at_least="2026.1",
    target=targets.get("openvino"),
    convert=convert,
    run=run,
    save=save,
    suffix=".xml",
    registry=registry,
    prepare=without_telemetry,
    note="OpenVINO computes in bfloat16 or float16 on devices that have them; INFERENCE_PRECISION_HINT=f32 forbids it",
)
