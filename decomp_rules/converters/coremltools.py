"""Core ML: `coremltools.convert` of an ExportedProgram to an ML program. Core ML itself runs on Apple's systems alone,
so the program that is written is read back and evaluated op by op (`mil/`), on any system."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import contextlib
import io
import logging
from pathlib import Path
import re
import shutil
from typing import Any

import torch
from torch.export import ExportedProgram

from decomp import Converter
from decomp.ops import aten
from decomp_rules import targets
from decomp_rules.converters import Quiet, refuse_numbers
from decomp_rules.converters.mil.evaluation import evaluate

_DTYPES = "decomp.result_dtypes"


def convert(program: ExportedProgram) -> Any:
    """The `coremltools.models.MLModel` of a program, for iOS 18 and macOS 15, in float32 where PyTorch computes in it.
    Its metadata has the dtypes of the program's results, as those of Core ML are float16, float32 and int32 alone.
    Raises `NotImplementedError` for inputs that are numbers, and with the call that coremltools refuses."""
    refuse_numbers(program, "Core ML")
    with Quiet():
        import coremltools

        given = _completed(program.run_decompositions({}))  # a copy, in the dialect that coremltools takes
        try:
            with _Quiet() as quiet:
                model = coremltools.convert(
                    given,
                    convert_to="mlprogram",
                    compute_precision=coremltools.precision.FLOAT32,
                    minimum_deployment_target=coremltools.target.iOS18,
                    skip_model_load=True,
                )
        except Exception as error:  # of any class
            raise _refusal(error, quiet.errors, given) from error
    model.user_defined_metadata[_DTYPES] = " ".join(_result_dtypes(program))
    return model


def _completed(program: ExportedProgram) -> ExportedProgram:
    """The program, with arguments that are left out where coremltools (9.0) requires them."""
    for node in program.graph.nodes:
        if node.target in COMPLETED:
            node.args = COMPLETED[node.target](*node.args)
        # Core ML makes an integer of a number that is one, also in a tensor of floats.
        if node.target is aten.full.default and node.kwargs.get("dtype") is None:
            node.kwargs = {**node.kwargs, "dtype": node.meta["val"].dtype}
    program.graph_module.recompile()
    return program


def _pooled(x: Any, kernel: Any, stride: Any = None, *rest: Any) -> tuple[Any, ...]:
    return x, kernel, stride or kernel, *rest


def _cumulated(x: Any, dim: int) -> tuple[Any, ...]:
    return x, dim % (x.meta["val"].dim() or 1)


COMPLETED: Mapping[Any, Callable[..., tuple[Any, ...]]] = {
    aten.max_pool1d.default: _pooled,
    aten.max_pool2d.default: _pooled,
    aten.max_pool3d.default: _pooled,
    aten.cumsum.default: _cumulated,
    aten.hardtanh.default: lambda x, low=-1.0, high=1.0: (x, low, high),
}
"""The arguments of a call, with those that are left out, and dimensions counted from the start."""


def _refusal(error: Exception, logged: Sequence[str], program: ExportedProgram) -> Exception:
    """What coremltools raises says little of the call at which it was, which it logs by a name of its own."""
    from coremltools.converters.mil.frontend.torch.utils import sanitize_op_kind

    kinds = [found[1] for text in logged if (found := re.search(r"converting '(.+?)' op", text))]
    calls = (str(node.target) for node in program.graph.nodes if node.op == "call_function")
    names = [name for name in calls if sanitize_op_kind(name) in kinds]
    said = str(error) or type(error).__name__
    return NotImplementedError(f"{names[0]}: {said}") if names else error


def run(model: Any, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The results of the written program, evaluated by coremltools' own constant folding and the definitions of MIL, in
    the dtypes that the exported program has. Raises `NotImplementedError` for an op without a value, and for a result
    of floats where the exported program has integers: of more than 2²⁴ it would not hold all."""
    with Quiet(), _Quiet():
        from coremltools.converters.mil.frontend.milproto.load import load

        spec = model.get_spec()
        program = load(spec, spec.specificationVersion, model.weights_dir)
        places = program.functions["main"].inputs.values()
        results = evaluate(program, [_as_input(x, place) for x, place in zip(inputs, places, strict=True)])
    dtypes = [getattr(torch, name) for name in model.user_defined_metadata[_DTYPES].split()]
    return [_as_result(torch.tensor(result), dtype) for result, dtype in zip(results, dtypes, strict=True)]


def _as_result(found: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    is_integer = dtype is not torch.bool and not dtype.is_floating_point
    if is_integer and found.is_floating_point():
        raise NotImplementedError(f"Core ML returns {found.dtype} where the program has {dtype}")
    return found.to(dtype)


def _as_input(tensor: torch.Tensor, place: Any) -> Any:
    """The array that Core ML takes: it has neither int64 nor bool inputs, nor any without dimensions."""
    from coremltools.converters.mil.mil import types

    array = tensor.detach().numpy().astype(types.nptype_from_builtin(place.dtype))
    return array if array.ndim else array.reshape(1)


def _result_dtypes(program: ExportedProgram) -> list[str]:
    """Of the tensors that it returns."""
    (output,) = (node for node in program.graph.nodes if node.op == "output")
    values = [node.meta["val"] for node in output.args[0] if isinstance(node, torch.fx.Node)]
    return [str(value.dtype).removeprefix("torch.") for value in values if isinstance(value, torch.Tensor)]


def save(model: Any, path: Path) -> None:
    """Write the `.mlpackage`, a folder. One that is there is replaced."""
    if path.is_dir():
        shutil.rmtree(path)
    model.save(str(path))


def registry() -> list[str]:
    """The overloads of the ops in the table of coremltools, which has names of ops, and of some overloads."""
    with Quiet():
        from coremltools.converters.mil.frontend.torch.torch_op_registry import _TORCH_OPS_REGISTRY
        from coremltools.converters.mil.frontend.torch.utils import sanitize_op_kind

    known = _TORCH_OPS_REGISTRY.name_to_func_mapping.keys()
    packets = (getattr(torch.ops.aten, name) for name in dir(torch.ops.aten) if not name.startswith("__"))
    named = (packet for packet in packets if isinstance(packet, torch._ops.OpOverloadPacket))
    overloads = [str(getattr(packet, name)) for packet in named for name in packet.overloads()]
    return sorted(name for name in overloads if sanitize_op_kind(name) in known)


class _Quiet(logging.Handler):
    """Keeps what coremltools (9.0) logs as errors, and hides that it shows its progress on standard error, for which it
    has no option."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.errors: list[str] = []
        self.logger = logging.getLogger("coremltools")
        self.hidden = contextlib.redirect_stderr(io.StringIO())

    def emit(self, record: logging.LogRecord) -> None:
        self.errors.append(record.getMessage())

    def __enter__(self) -> _Quiet:
        self.own, self.logger.handlers = self.logger.handlers, [self]
        self.hidden.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.hidden.__exit__(*error)
        self.logger.handlers = self.own


_WEIGHTS = ("weight", "bias")
_STATISTICS = ("running_mean", "running_var")
CONSTANTS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(["_convolution", "convolution", "conv1d", "conv2d", "conv3d"], _WEIGHTS),
    **dict.fromkeys(["conv_transpose1d", "conv_transpose2d", "conv_transpose3d"], _WEIGHTS),
    **dict.fromkeys(["linear", "layer_norm", "native_layer_norm", "group_norm", "prelu", "rms_norm"], _WEIGHTS),
    **dict.fromkeys(["batch_norm", "_native_batch_norm_legit_no_training"], (*_WEIGHTS, *_STATISTICS)),
    "instance_norm": (*_WEIGHTS, *_STATISTICS),
}
"""Dilated and transposed convolutions are converted with constant weights alone."""

CONVERTER = Converter(
    "coremltools",
    package="coremltools",
    at_least="9.0",
    target=targets.get("coremltools"),
    convert=convert,
    run=run,
    save=save,
    suffix=".mlpackage",
    registry=registry,
    constants=CONSTANTS,
    note="the program was evaluated op by op and not run by Core ML, which may compute in float16",
)
