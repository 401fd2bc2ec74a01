"""torch-mlir: `torch_mlir.fx.export_and_import` of an ExportedProgram to linalg on tensors; the passes of MLIR that it
ships compile that for the CPU, and MLIR's execution engine runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import ctypes
import io
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind, OutputSpec

from decomp import Converter
from decomp_rules import targets
from decomp_rules.converters import Quiet, StandardError, refuse_number_results, refuse_numbers
from decomp_rules.support.fx_importer import Importable
from decomp_rules.support.mlir import mlir_overloads, mlir_reason


def convert(program: ExportedProgram) -> Any:
    """The `torch_mlir.ir.Module` of a program, whose function `main` is made of linalg. Raises `NotImplementedError`
    for numbers among inputs and results, for a program that writes to its operands or has other effects, and for a call
    that torch-mlir does not translate, and whatever its importer raises."""
    refuse_numbers(program, "torch-mlir")
    refuse_number_results(program, "torch-mlir")
    with Quiet(), StandardError() as said:
        from torch_mlir import fx
        from torch_mlir.compiler_utils import TorchMlirCompilerError

        decomposed = _decomposed(program)
        _refuse_writes(decomposed)
        try:
            with Importable(decomposed) as importable:
                return fx.export_and_import(importable, output_type="linalg-on-tensors", decomposition_table={})
        except TorchMlirCompilerError as error:
            raise NotImplementedError(mlir_reason(said.text()) or str(error)) from error


def _decomposed(program: ExportedProgram) -> ExportedProgram:
    """A program as `export_and_import` decomposes it itself; as it is, where PyTorch cannot (2.13: views of what
    attention returns with other strides than on fake tensors)."""
    from torch_mlir.extras.fx_decomp_util import get_decomposition_table

    try:
        return program.run_decompositions(get_decomposition_table())
    except Exception:  # of any class
        return program


def _refuse_writes(program: ExportedProgram) -> None:
    """What a call such as `batch_norm` in training writes would be the first results."""
    for spec in program.graph_signature.output_specs:
        if spec.kind is not OutputKind.USER_OUTPUT:
            raise NotImplementedError(f"torch-mlir returns results alone, and {_described(spec, program)}")


def _described(spec: OutputSpec, program: ExportedProgram) -> str:
    """What an output that is not a result is for; some have no target."""
    if spec.kind is OutputKind.TOKEN:
        calls = [node for node in program.graph.nodes if str(node.target) == "with_effects"]
        return f"{', '.join(dict.fromkeys(str(node.args[1]) for node in calls))} has side effects"
    if spec.target is None:
        return f"{spec.arg.name} is a {spec.kind.name.lower().replace('_', ' ')}"
    return f"the program writes to {spec.target}"


def run(model: Any, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The results on the CPU. Raises `RuntimeError` with the error of a pass that fails."""
    from torch_mlir.execution_engine import ExecutionEngine

    results: list[torch.Tensor] = []
    compiled = _compiled(model)
    receive = _receiver(_result_dtypes(model), results)
    engine = ExecutionEngine(compiled, opt_level=1)
    engine.register_runtime(_receiver_name(compiled), receive)
    arrays = [tensor.detach().contiguous().numpy() for tensor in inputs]  # alive while they are read
    engine.invoke("main", *map(_as_argument, arrays))
    return results


def _compiled(model: Any) -> Any:
    """A copy of the module, in the dialect of LLVM."""
    from torch_mlir.ir import Module
    from torch_mlir.passmanager import PassManager

    copy = io.BytesIO()
    model.operation.write_bytecode(copy)
    with StandardError() as said, model.context:
        module = Module.parse(copy.getvalue())
        try:
            PassManager.parse(f"builtin.module({','.join(PASSES)})").run(module.operation)
        except Exception as error:  # of a class of the bindings
            raise RuntimeError(mlir_reason(said.text()) or str(error)) from error
    return module


PASSES = (
    # every op as loops over elements, and neighbours in one loop
    "func.func(linalg-generalize-named-ops,refback-generalize-tensor-pad,refback-generalize-tensor-concat)",
    "func.func(linalg-fuse-elementwise-ops)",
    # tensors become memory
    "func.func(tm-tensor-bufferize)",
    "one-shot-bufferize{copy-before-write bufferize-function-boundaries "
    "function-boundary-type-conversion=identity-layout-map}",
    "refback-mlprogram-bufferize",
    "buffer-deallocation-pipeline",
    "convert-bufferization-to-memref",
    # `main` passes its results to a function that is registered
    "refback-munge-calling-conventions",
    # loops
    "func.func(tm-tensor-to-loops,refback-munge-memref-copy,convert-linalg-to-loops,lower-affine)",
    "convert-scf-to-cf",
    # LLVM
    "func.func(refback-expand-ops-for-llvm,arith-expand,convert-math-to-llvm)",
    "convert-math-to-libm",
    "expand-strided-metadata",
    "lower-affine",
    "finalize-memref-to-llvm",
    "func.func(convert-arith-to-llvm)",
    "convert-func-to-llvm",
    "convert-cf-to-llvm",
    "convert-complex-to-llvm",
    "reconcile-unrealized-casts",
)
"""The passes from linalg on tensors to LLVM, those of MLIR and those of torch-mlir (`refback`, `tm-tensor`)."""

_DTYPES: Mapping[str, torch.dtype] = {
    "f16": torch.float16,
    "f32": torch.float32,
    "f64": torch.float64,
    "i1": torch.bool,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "complex<f32>": torch.complex64,
    "complex<f64>": torch.complex128,
}


def _result_dtypes(model: Any) -> list[torch.dtype]:
    """The elements of results such as `tensor<2x3xi8>` have no sign: uint8 is returned as int8."""
    (main,) = (each for each in model.body if str(each.attributes["sym_name"]) == '"main"')
    elements = [str(result.element_type) for result in main.type.results]
    return [_DTYPES[element] for element in elements]


def _receiver_name(compiled: Any) -> str:
    names = (str(each.attributes["sym_name"]).strip('"') for each in compiled.body if "sym_name" in each.attributes)
    return next(name for name in names if name.startswith("refbackend_consume_func_return_"))


def _receiver(dtypes: Sequence[torch.dtype], results: list[torch.Tensor]) -> Callable[..., None]:
    """The C function that `main` calls with its results, which copies them to a list."""
    from torch_mlir.runtime import UnrankedMemRefDescriptor

    def receive(*memory: Any) -> None:
        results.extend(map(_as_torch, memory, dtypes))

    made: Callable[..., None] = ctypes.CFUNCTYPE(None, *[ctypes.POINTER(UnrankedMemRefDescriptor)] * len(dtypes))(
        receive
    )
    return made


def _as_torch(memory: Any, dtype: torch.dtype) -> torch.Tensor:
    import numpy
    from torch_mlir.runtime import unranked_memref_to_numpy

    return torch.tensor(unranked_memref_to_numpy(memory, numpy.dtype(str(dtype).removeprefix("torch."))))


def _as_argument(array: Any) -> Any:
    from torch_mlir.runtime import get_unranked_memref_descriptor

    return ctypes.pointer(ctypes.pointer(get_unranked_memref_descriptor(array)))


def save(model: Any, path: Path) -> None:
    """Write the module as text, with its weights."""
    with path.open("wb") as file:
        model.operation.print(file=file, binary=True)


def registry() -> list[str]:
    """The overloads that torch-mlir has ops for (20261001)."""
    import torch_mlir.ir

    return mlir_overloads((Path(torch_mlir.ir.__file__).parent / "_mlir_libs").glob("*TorchMLIRAggregateCAPI*"))


CONVERTER = Converter(
    "torch_mlir",
    package="torch-mlir",
    at_least="20261001",
    target=targets.get("torch_mlir"),
    convert=convert,
    run=run,
    save=save,
    suffix=".mlir",
    registry=registry,
)
