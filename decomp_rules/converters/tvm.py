"""TVM: `tvm.relax.frontend.torch.from_exported_program` of an ExportedProgram, compiled for the CPU by LLVM and run on
the virtual machine of Relax."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import math
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from decomp import Converter
from decomp_rules import targets
from decomp_rules.converters import Quiet, refuse_data_parts, refuse_numbers
from decomp_rules.support import tvm_operands
from decomp_rules.support.tvm_operands import dtype_of


def convert(program: ExportedProgram) -> Any:
    """The `tvm.IRModule` of a program, whose function `main` returns a tuple. `TRANSLATIONS` mends the importer. Raises
    `NotImplementedError` for inputs that are numbers and for parts whose sizes are data, and whatever TVM raises."""
    refuse_numbers(program, "TVM")
    refuse_data_parts(program, "TVM")
    with Quiet():
        from tvm.relax.frontend.torch import from_exported_program

        return from_exported_program(program, custom_convert_map=dict(TRANSLATIONS))


def run(model: Any, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The results on the CPU."""
    with Quiet():
        import tvm

        machine = tvm.relax.VirtualMachine(_compiled(model), tvm.cpu())
        results = machine["main"](*(_as_tvm(tensor) for tensor in inputs))
    return [torch.from_dlpack(result).clone() for result in results]


def _compiled(model: Any) -> Any:
    import tvm

    return tvm.compile(model, target="llvm")


def _as_tvm(tensor: torch.Tensor) -> Any:
    import tvm

    return tvm.runtime.from_dlpack(tensor.detach().contiguous())


def save(model: Any, path: Path) -> None:
    """Write the library for this machine's processor that `tvm.runtime.load_module` loads; a C compiler links it. TVM
    (0.27) ends the process where it writes a module with weights as JSON."""
    _compiled(model).export_library(str(path))


def registry() -> list[str]:
    """The overloads in the table of TVM's importer, which has Python's operators, too, and in `TRANSLATIONS`."""
    with Quiet():
        from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    names = {*ExportedProgramImporter().convert_map, *TRANSLATIONS}
    return sorted(f"aten.{name}" for name in names if "." in name)


def _amax(node: fx.Node, importer: Any) -> Any:
    from tvm import relax

    return _reduced(relax.op.max, -math.inf, node, importer)


def _amin(node: fx.Node, importer: Any) -> Any:
    from tvm import relax

    return _reduced(relax.op.min, math.inf, node, importer)


def _reduced(op: Callable[..., Any], neutral: float, node: fx.Node, importer: Any) -> Any:
    """A reduction of the node's operand over its dimensions, all of them if it names none. TVM starts at the extreme
    finite number, which is its result where all elements are infinite: it becomes infinite."""
    from tvm import relax

    given = {"dim": [], "keepdim": False, **dict(zip(("self", "dim", "keepdim"), node.args)), **node.kwargs}
    x, emit = importer.env[given["self"]], importer.block_builder.emit
    sizes = {"axis": list(given["dim"]) or None, "keepdims": given["keepdim"]}
    found = emit(op(x, **sizes))
    if not node.meta["val"].dtype.is_floating_point:
        return found
    number = relax.const(neutral, dtype_of(node))
    others = emit(relax.op.astype(relax.op.not_equal(x, number), "int32"))
    return emit(relax.op.where(relax.op.greater(emit(relax.op.max(others, **sizes)), relax.const(0)), found, number))


def _full(node: fx.Node, importer: Any) -> Any:
    """A number, broadcast: `relax.op.full` of one that is not finite cannot be compiled."""
    from tvm import relax

    size, value = importer.retrieve_args(node)[:2]
    if not isinstance(value, (bool, int, float)):
        return importer._full(node)  # a size of an input, which is finite
    number = relax.const(value, dtype_of(node))
    return importer.block_builder.emit(relax.op.broadcast_to(number, relax.ShapeExpr(size)))


TRANSLATIONS: Mapping[str, Callable[[fx.Node, Any], Any]] = {
    **tvm_operands.TRANSLATIONS,
    "amax.default": _amax,
    "amin.default": _amin,
    "full.default": _full,
}
"""The `custom_convert_map` that mends TVM's importer (0.27): it has no rule for `amax` and `amin`, which Relax has, and
what it makes of `full` cannot be compiled if the number is infinite or NaN; and operands of several dtypes."""

CONVERTER = Converter(
    "tvm",
    package="apache-tvm",
    at_least="0.27",
    target=targets.get("tvm"),
    convert=convert,
    run=run,
    save=save,
    suffix=".so",
    registry=registry,
    note="what is saved is compiled for this machine's processor; tvm.compile of the module compiles it for others",
)
