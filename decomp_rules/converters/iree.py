"""IREE: `iree.turbine.aot.export` of an ExportedProgram, which writes it in the torch dialect of MLIR; its compiler
translates that by torch-mlir, compiles it for the CPU by LLVM, and its runtime runs it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import io
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from decomp import Converter
from decomp_rules import targets
from decomp_rules.converters import Quiet, StandardError, refuse_number_results
from decomp_rules.support.fx_importer import Importable
from decomp_rules.support.mlir import mlir_overloads, mlir_reason


def convert(program: ExportedProgram) -> Any:
    """The `iree.turbine.aot.ExportOutput` of a program, which keeps float64, for any device. Raises
    `NotImplementedError` for a result that is a number and for a call that torch-mlir does not translate, and whatever
    the importer raises."""
    refuse_number_results(program, "IREE")
    with Quiet():
        from iree.turbine import aot

        with Importable(program) as importable:
            model = aot.export(importable)
    model.session.set_flags("--iree-input-demote-f64-to-f32=false")
    with StandardError() as said:
        if not _translates(model):
            raise NotImplementedError(mlir_reason(said.text()) or "torch-mlir refuses it, and does not say why")
    return model


def _translates(model: Any) -> bool:
    """Whether the passes of `torch-mlir` that the compiler begins with take the model; those say why not on standard
    error. They are run on a copy."""
    from iree.compiler.api import Source

    copy = io.BytesIO()
    model.mlir_module.write_bytecode(copy)
    with model.session.invocation() as invocation:
        invocation.enable_console_diagnostics()
        is_read = invocation.parse_source(Source.wrap_buffer(model.session, copy.getvalue()))
        return bool(is_read and invocation.execute_text_pass_pipeline("torch-to-iree"))


def run(model: Any, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The results on the CPU. Raises `RuntimeError` with the error of the compiler."""
    from iree import runtime

    binary = _compiled(model, None).map_memory()
    config = runtime.Config("local-task")
    module = runtime.load_vm_module(runtime.VmModule.copy_buffer(config.vm_instance, binary), config)
    results = module["main"](*(_as_numpy(tensor.detach()) for tensor in inputs))
    arrays = [each.to_host() for each in (results if isinstance(results, tuple) else [results])]
    return [_as_torch(array, is_unsigned) for array, is_unsigned in zip(arrays, _unsigned(model))]


def _compiled(model: Any, path: Path | None) -> Any:
    """What the compiler writes to a file, or without one keeps in memory."""
    model.session.set_flags("--iree-llvmcpu-target-cpu=host")
    with StandardError() as said:
        try:
            return model.compile(save_to=path, target_backends=("llvm-cpu",))
        except RuntimeError as error:
            raise RuntimeError(mlir_reason(said.text()) or str(error)) from error


def _as_numpy(tensor: torch.Tensor) -> Any:
    """NumPy has no bfloat16 of its own."""
    if tensor.dtype is not torch.bfloat16:
        return tensor.contiguous().numpy()
    import ml_dtypes

    return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)


def _as_torch(array: Any, is_unsigned: bool) -> torch.Tensor:
    if array.dtype.name == "bfloat16":
        return torch.tensor(array.view("int16")).view(torch.bfloat16)
    return torch.tensor(array.view(f"u{array.dtype}") if is_unsigned else array)


def _unsigned(model: Any) -> Iterator[bool]:
    """Of each result, whether its integers are unsigned, which the runtime does not know: `!torch.vtensor<[3],ui8>`."""
    functions = model.mlir_module.regions[0].blocks[0]
    (main,) = (each for each in functions if str(each.attributes["sym_name"]) == '"main"')
    return (",ui" in str(result) for result in main.type.results)


def save(model: Any, path: Path) -> None:
    """Write the `.vmfb` that the runtime loads, for this machine's processor."""
    _compiled(model, path)


def registry() -> list[str]:
    """The overloads that torch-mlir has ops for (3.13)."""
    import iree.compiler

    return mlir_overloads((Path(iree.compiler.__file__).parent / "_mlir_libs").glob("*IREECompiler*"))


CONVERTER = Converter(
    "iree",
    package="iree-base-compiler",
    at_least="3.13",
    target=targets.get("iree"),
    convert=convert,
    run=run,
    save=save,
    suffix=".vmfb",
    registry=registry,
    runtime="iree-turbine",
    note="what is saved is compiled for this machine's processor; ExportOutput.compile compiles for other devices",
)
