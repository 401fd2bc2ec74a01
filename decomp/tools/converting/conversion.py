"""The verb `convert`: capture a model, lower it to the calls that a converter takes, hand it over, and verify what
comes back. The converter first runs in a process of its own, as one that crashes would take this one with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
import json
import re
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from decomp.capture.exporting import export, lacks_data
from decomp.derive.rule_selection import RuleSelection
from decomp.errors import (
    ArgumentError,
    CaptureError,
    ConversionError,
    NotLowered,
    boundary,
    count_noun,
    first_line,
    warn,
)
from decomp.ir.ops import known_names, op as op_of
from decomp.lowering import Lowering, lower
from decomp.metadata.meta_values import is_abstract
from decomp.proof.correspondence import ValuesDiffer
from decomp.rules.options import CHECKS, Options
from decomp.rules.target import Target
from decomp.simplifying import simplify
from decomp.tools.converting.converter import Converter, failure
from decomp.tools.converting.trial import NoTrial, try_out
from decomp.tools.converting.writes import refuse_writes, without_idle_writes, without_unread_weights
from decomp.torch_internals import pytree
from decomp.validation.draws import drawn_values
from decomp.validation.running_programs import without_numbers
from decomp.validation.values import example_inputs
from decomp.validation.whole_programs import require_as_captured, whole_programs
from decomp_rules import converters


@dataclass(frozen=True)
class Conversion:
    """A converted model, and how it came about."""

    result: Any
    """What the converter returns."""
    converter: Converter
    version: str
    lowering: Lowering
    verified: str
    """What was compared, or why nothing was."""


@boundary("convert", {name: check for name, check in CHECKS.items() if name != "to"})
def convert(
    model: Any,
    *,
    to: str | Converter,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    target: Target | None = None,
    verify: bool = True,
    **options: Any,
) -> Any:
    """Lower a model to the calls that a converter takes, and return a program of the converter's own kind, made of it.

    - `model`: an `nn.Module` with `args` and `kwargs`, as for `lower`, or an `ExportedProgram`.
    - `to`: the name of a converter, such as "openvino", or a `decomp.Converter`. Its package must be installed.
    - `target`: by default the converter's own. `decomp probe` makes one of the version that is installed.
    - `verify`: the conversion is first tried in another process, and the converted model is run there on `args` and
      `kwargs`. Its results must be as close to those of the model in float64 as the model's own, by the measure of
      `verify="values"`. False converts at once.
    - `options`: those of `lower`; `training=False` by default, as a converted model only infers, and
      `drop_draws=True`, as a runtime draws its own random numbers.

    Results that depend on random numbers are not compared, as a runtime draws its own; a warning says how many.

    Raises `ConversionError` if the converter is absent or too old, crashes, refuses the lowered program, or converts it
    to one with other results; `VerificationError` if the exported program computes something else than the model; and
    what `lower` raises, such as `NotLowered`.
    """
    return conversion(model, to, args, kwargs, dynamic_shapes, target, verify, options).result


def conversion(
    model: Any,
    to: str | Converter,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
    target: Target | None,
    verify: bool,
    options: Mapping[str, Any],
) -> Conversion:
    """The same, with how it came about."""
    converter = to if isinstance(to, Converter) else converter_named(to)
    version = converter.require()
    target, options = target or converter.target, {**DEFAULTS, **options}
    program = _exported(model, args, kwargs, dynamic_shapes, target, options)
    _require_values(program)
    lowering = _lowered(program, target, _without_unknown_composites(converter, options))
    lowering = replace(lowering, result=without_unread_weights(without_idle_writes(lowering.result)))
    refuse_writes(converter, lowering.result)
    verified = _verified(converter, version, lowering, model, program, args, kwargs) if verify else "not verified"
    try:
        result = converter.convert(lowering.result)
    except Exception as error:  # a converter may raise anything
        raise _refusal(converter, version, lowering, f"{type(error).__name__}: {error}") from error
    return Conversion(result, converter, version, lowering, verified)


def _require_values(program: ExportedProgram) -> None:
    """Raise `ConversionError` for weights of which only shapes are known: a converter writes their numbers."""
    weights = {**program.state_dict, **program.constants}
    absent = [name for name, value in weights.items() if isinstance(value, torch.Tensor) and is_abstract(value)]
    if absent:
        others = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        raise ConversionError(
            f"the weight {absent[0]!r}{others} has no values (the meta device or fake tensors)\n"
            "  to do: convert the model with its weights"
        )


def _lowered(program: ExportedProgram, target: Target, options: Mapping[str, Any]) -> Lowering:
    """The program lowered to the target; if only calls that no input reaches are in the way, as the cast of a constant
    that has a dtype of no kernel, then they are computed once before. Raises `NotLowered`."""
    try:
        return lower(program, to=target, **options)
    except NotLowered as error:
        if Options.of(options).training is not False or _reached(program, error):
            raise
    return lower(simplify(program, freeze=True), to=target, **options)


def _reached(program: ExportedProgram, error: NotLowered) -> bool:
    """Whether a call that cannot be lowered depends on an input, or is in the body of another call."""
    blocked = {name for blocker in error.blockers for name in blocker.nodes}
    reached, found = set(program.graph_signature.user_inputs), set[str]()
    for node in program.graph.nodes:
        if any(operand.name in reached for operand in node.all_input_nodes):
            reached.add(node.name)
        elif node.name in blocked:
            found.add(node.name)
    return found != blocked


DEFAULTS: Mapping[str, Any] = {"training": False, "drop_draws": True}
"""The options of `lower` that have another default in front of a converter."""


def _without_unknown_composites(converter: Converter, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options, without composites for a converter that takes none."""
    if converter.composites or not Options.of(options).composites:
        return options
    warn(f"{converter.name} takes no composites: the calls that would be some are lowered to its target")
    return {**options, "composites": ()}


def converter_named(name: Any) -> Converter:
    """A shipped or registered converter. Raises `ArgumentError`."""
    if not isinstance(name, str):
        raise ArgumentError(f"to= must be the name of a converter or a decomp.Converter, not {type(name).__name__}")
    if name in ("onnx", "onnxruntime"):
        raise ArgumentError(
            f'to="{name}" is not a converter: the ONNX backend writes models itself\n'
            f"  to do: decomp_rules.backends.onnx_models.save(decomp.lower(model, to=decomp_rules.targets.{name}, "
            'args=args), "model.onnx"), or to="torch_onnx" for the exporter of PyTorch'
        )
    try:
        return converters.get(name)
    except LookupError as error:
        raise ArgumentError(f"{error.args[0]}, and any decomp.Converter") from error


def _exported(
    model: Any, args: Any, kwargs: Any, dynamic_shapes: Any, target: Target, options: Mapping[str, Any]
) -> ExportedProgram:
    """The model as an exported program; with rules in place of calls that PyTorch cannot run on fake tensors, if it
    makes any."""
    if isinstance(model, ExportedProgram):
        if dynamic_shapes is not None:
            raise ArgumentError(
                "dynamic_shapes= is for modules: the sizes of a program were fixed when it was exported"
            )
        return model
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"a model must be an nn.Module or an ExportedProgram, not {type(model).__name__}")
    if args is None and kwargs is None:
        raise ArgumentError("a module is captured by running it: pass args=(...), or an ExportedProgram")
    given = (model, tuple(args or ()), kwargs, dynamic_shapes)
    try:
        return export(*given)
    except CaptureError as error:
        if not lacks_data(error.__cause__):
            raise
        return export(*given, RuleSelection.of(target, Options.of(options)).infer)


def _verified(
    converter: Converter, version: str, lowering: Lowering, model: Any, program: ExportedProgram, args: Any, kwargs: Any
) -> str:
    """What was compared. Raises `ConversionError`, and `CaptureDiffers` if the program is not the model."""
    given = example_inputs(model, args, kwargs)
    missing = "there are no example inputs" if given is None else without_numbers(model, *given)
    if converter.run is None:
        missing = f"there is no runtime for models of {converter.name} here"
    inputs = pytree.tensors_in(given) if given is not None and missing is None else None
    try:
        results = try_out(converter, lowering.result, inputs)
    except NoTrial as error:
        raise _refusal(converter, version, lowering, str(error)) from error
    if results is None or given is None:
        return f"converted in a process of its own, but not run, as {missing}"
    drawn = drawn_values(model, lowering.result)
    try:
        made = Results(lowering.result, results)
        compared = whole_programs(model, made, *given, gradients=False, drawn=drawn)
    except ValuesDiffer as error:
        if program is not model:
            require_as_captured(model, program, *given)
        raise failure(
            f"{converter.name} {version} converts the program to one with other results: {first_line(error)}",
            *_probe_again(converter),
            f"report it to {converter.name}, with the lowered program (decomp.lower) and these inputs",
            facts=[f"the lowered program, {_calls(lowering)}, is verified: the fault is in {converter.name}"],
        ) from error
    said = _NO_GRADIENTS.sub("", compared)
    if drawn:
        warn(f"{converter.name} {version}: {said}")
    return said


_NO_GRADIENTS = re.compile(r", 0 gradients within \S+ \(the source: \S+\)")


class Results(nn.Module):
    """A model that returns given tensors in the structure of a program's results."""

    def __init__(self, program: ExportedProgram, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.program, self.tensors = program.call_spec.out_spec, list(tensors)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return pytree.tree_unflatten(self.tensors, self.program)


def _refusal(converter: Converter, version: str, lowering: Lowering, said: str) -> ConversionError:
    """The error for a converter that refuses a program of which its target takes each call, or that crashes on it."""
    lines = [line.strip()[:160] for line in said.splitlines() if line.strip()]
    crashed = lines[0].startswith(("crashes: ", "hangs: "))
    verb, _, rest = lines[0].partition(": ") if crashed else ("refuses", "", lines[0])
    named = [
        op_of(name).short
        for name in dict.fromkeys(re.findall(r"aten\.\w+", said))
        if name.partition(".")[2] in known_names()
    ]
    left_out = ", ".join(map(json.dumps, named)) or "OP"
    taken = f"its target says that it takes each call, {_calls(lowering)}: {lowering.target.description}"
    return failure(
        f"{converter.name} {version} {verb} {'on ' * crashed}the lowered program: {rest}",
        *_probe_again(converter),
        f"lower it without the op at fault: target=TARGET - {{{left_out}}}",
        facts=[*lines[1:][-3:], taken],
    )


def _probe_again(converter: Converter) -> list[str]:
    file = f"{converter.name}.toml"
    return [
        f"if it is another version than the target's: decomp probe {converter.name} -o {file}, and pass "
        f'target=decomp.Target.load("{file}")'
    ]


def _calls(lowering: Lowering) -> str:
    return count_noun(sum(node.op == "call_function" for node in lowering.result.graph.nodes), "call")
