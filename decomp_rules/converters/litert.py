"""LiteRT, which was TensorFlow Lite: `litert_torch.convert` of an ExportedProgram, the interpreter of `ai_edge_litert`
on the CPU as the runtime."""

from __future__ import annotations

from collections.abc import Sequence
import os
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from decomp import Converter
from decomp_rules import targets
from decomp_rules.converters import Quiet, refuse_dynamic_sizes, refuse_numbers


def convert(program: ExportedProgram) -> Any:
    """The `litert_torch.model.LiteRTModel` of a program, whose inputs and results keep the dtypes that they have.
    Raises `NotImplementedError` for dynamic sizes and for inputs that are numbers, and whatever LiteRT raises."""
    refuse_dynamic_sizes(program, "LiteRT")
    refuse_numbers(program, "LiteRT")
    args, kwargs = program.example_inputs
    with Quiet(), _WithoutProgress():
        import litert_torch

        model = litert_torch.convert(program.module(), args, kwargs, enable_x64=True)
        model.model_content()  # it is written late, and what cannot be written is refused there
    return model


def run(model: Any, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The results on the CPU."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=model.model_content())
    interpreter.allocate_tensors()
    for place, tensor in zip(interpreter.get_input_details(), inputs, strict=True):
        interpreter.set_tensor(place["index"], _as_numpy(tensor.detach()))
    interpreter.invoke()
    results = [interpreter.get_tensor(place["index"]) for place in interpreter.get_output_details()]
    return [torch.tensor(result) for result in results]


def _as_numpy(tensor: torch.Tensor) -> Any:
    """NumPy has no bfloat16, and LiteRT takes such an input as float32."""
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor.contiguous()).numpy()


def save(model: Any, path: Path) -> None:
    """Write the `.tflite` that the runtime loads."""
    model.export(str(path))


def registry() -> list[str]:
    """The overloads that it has lowerings for, and those that it takes as a whole where Core ATen takes them apart."""
    with Quiet(), _WithoutProgress():
        from litert_torch import fx_infra
        from litert_torch.backend.lowerings.registry import global_registry

    kept = torch.export.default_decompositions().keys() - fx_infra.decomp.pre_convert_decomp().keys()
    return sorted({str(op) for op in (*global_registry.registered_ops, *kept)})


class _WithoutProgress:
    """LiteRT (0.10) prints its progress, unless this variable of the environment says that it is not to."""

    def __enter__(self) -> None:
        self.own = os.environ.get(_PROGRESS)
        os.environ[_PROGRESS] = "n"

    def __exit__(self, *error: Any) -> None:
        if self.own is None:
            del os.environ[_PROGRESS]
        else:
            os.environ[_PROGRESS] = self.own


_PROGRESS = "LITERT_TORCH_SHOW_PROGRESS"

CONVERTER = Converter(
    "litert",
    package="litert-torch",
    at_least="0.10",
    target=targets.get("litert"),
    convert=convert,
    run=run,
    save=save,
    suffix=".tflite",
    registry=registry,
    note="int64 stays int64, which few accelerators have: narrow=True computes in int32",
)
