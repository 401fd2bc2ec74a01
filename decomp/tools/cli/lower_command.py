"""`decomp lower`, `plan` and `refold`: lower a model and save it, show what lowering would do, and fold it back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
import functools
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.text import Text
import typer

import decomp
from decomp.errors import first_line
from decomp.files import write_atomically
from decomp.rules.keywords import LowerOptions, PlanOptions
from decomp.tools.cli.arguments import By, Model, Models, Stages, To, ToOrNone, Unit, load_target
from decomp.tools.cli.extras import require_writer
from decomp.tools.cli.flags import Words, command
from decomp.tools.cli.outputs import require_output
from decomp.tools.cli.several import Outcome, models_named, run_models
from decomp.tools.cli.terminal import Unusable, print_json, saved, show, working

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from decomp.breakdown.layers import Layers

OUTPUT = (
    "Save the lowered program (.pt2; .json with .weights beside it, for runtimes that are not Python; for onnx .onnx; "
    "for stablehlo .mlir[bc]); of several models a directory, for a .pt2 file of each."
)
NO_WEIGHTS = "Leave parameters and buffers out of a .json program, as for a model on the meta device."
WEIGHTS = (
    "Write parameters and buffers of an .mlir[bc] program beside it, as .safetensors by the names of its arguments."
)
METHODS = "Plan methods of an hf: model that share its weights, with a table: forward, prefill, decode, vision."
OPSET = "The version of ONNX's operators in an .onnx file, from 18 on; 21 by default."


@command(LowerOptions)
def lower(
    models: Models,
    to: To,
    output: Annotated[Path | None, typer.Option("-o", "--output", help=OUTPUT)] = None,
    *,
    words: Words,
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Skip verification.")] = False,
    by: By = None,
    stage: Stages = [],
    checks: Annotated[bool, typer.Option("--checks", help="List every invariant that was checked.")] = False,
    opset: Annotated[int | None, typer.Option("--opset", min=1, help=OPSET, show_default=False)] = None,
    no_weights: Annotated[bool, typer.Option("--no-weights", help=NO_WEIGHTS)] = False,
    weights: Annotated[bool, typer.Option("--weights", help=WEIGHTS)] = False,
) -> None:
    """Lower a model to a target, show the report and save the result; or several models, with a table of all."""
    from decomp.tools.cli import tables

    require_writer(output)
    names, target = models_named(models), load_target(to)
    paths = _paths(output, names)
    save = _writer(target, paths[0], opset, not no_weights, weights)
    options = words.options(verify=False if no_verify else "values")
    if len(names) > 1 and options.lock is not None:
        raise Unusable(f"--lock {options.lock}: a lock is of one model")

    def run(model: str) -> Outcome:
        program, path = words.program(model), paths[names.index(model)]
        with working(f"lowering {model} to {target.name}"):
            lowering = decomp.lower(program, to=target, options=options)
        report = lowering.report()
        if path is not None:
            with working(f"saving {path}"):
                save(lowering, path)
        shown = [tables.report_table(report), saved(path) if path is not None else None]
        layers = lowering.layers() if by is not None else None
        shown += [tables.layers_table(layers)] if layers is not None else []
        shown += [tables.checks_table(report)] if checks or words.verbose else []
        for name in [each.value for each in stage]:
            text = lowering.stages.get(name, f"{name}: changed nothing")
            shown.append(Text(f"\n{text}", no_wrap=True))
        after = sum(report.after.values())
        cells = sum(report.before.values()), report.unsimplified, after, report.costs or "", report.worst
        data = report.as_dict() | _layers_as_dict(layers)
        return Outcome(shown, cells, data, "lowered in part" if report.blockers else "lowered")

    run_models(names, words, (">calls", ">expanded", ">simplified", "cost", "worst rule"), run)


@command(shared="trust imports as_json")
def refold(
    model: Model,
    to: ToOrNone = None,
    *,
    words: Words,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Save the folded program (.pt2).")] = None,
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Skip verification of the whole program.")] = False,
) -> None:
    """Find decomposed ops in a program, fold each into one call, and save the result. Without a target, all ops that
    can be recognised are searched for."""
    from decomp.tools.cli import tables

    require_output("-o", output, ".pt2")
    target = load_target(to) if to is not None else None
    program = words.program(model)
    with working(f"folding {model}"):
        found = decomp.refold(program, to=target, verify=False if no_verify else "values")
    if output is not None:
        with working(f"saving {output}"):
            _save(found.result, output)
    report = found.report()
    if words.as_json:
        print_json(report.as_dict())
    else:
        show(tables.refold_table(report))
        show(saved(output) if output is not None else None)


@command(PlanOptions)
def plan(
    models: Models,
    to: To,
    *,
    words: Words,
    by: By = None,
    methods: Annotated[
        str | None, typer.Option("--methods", metavar="NAME,…", help=METHODS, show_default=False)
    ] = None,
) -> None:
    """Show what lowering would do and cost, also at other levels of accuracy, without doing it; of several models with
    a table of all. If ops are blocked, show the fewest ops to add to the target, and exit with 1."""
    from decomp.tools.cli import tables

    names, target, options = models_named(models), load_target(to), words.options()
    if methods is not None:
        return run_models(names, words, METHODS_COLUMNS, lambda model: _plan_methods(model, methods, by, target, words))

    def run(model: str) -> Outcome:
        program = words.program(model)
        with working(f"planning {model} for {target.name}"):
            found = decomp.plan(program, to=target, options=options)
        with working(f"searching for the ops that {target.name} lacks"):
            lacks = None if found.complete else found.suggest()
        layers = found.layers() if by is not None else None
        data = {**_plan_as_dict(found), "suggestion": None if lacks is None else lacks.as_dict()}
        shown = [tables.plan_table(found, lacks), *([tables.layers_table(layers)] if layers is not None else [])]
        costs, counts = found.costs(), (len(found.legal), len(found.derived), len(found.blocked))
        verdict = "lowers" if found.complete else f"blocked: {', '.join(blocker.op for blocker in found.blockers)}"
        cells = *counts, costs.calls if found.complete else "", costs.totals or ""
        return Outcome(shown, cells, data | _layers_as_dict(layers), verdict, 0 if found.complete else 1)

    run_models(names, words, (">legal", ">derived", ">blocked", ">comes to calls", "cost"), run)


METHODS_COLUMNS = (">ops", ">bytes of weights")


def _plan_methods(model: str, names: str, by: Unit | None, target: decomp.Target, words: Words) -> Outcome:
    """Plan several methods of a model, and report on all of them."""
    from decomp.tools.cli import tables

    options, shown, data = words.options(), list[Any](), dict[str, Any]()
    programs, plans = words.methods(model, names.split(",")), dict[str, decomp.Plan]()
    for name in list(programs):
        with working(f"planning {name} of {model} for {target.name}"):
            plans[name] = decomp.plan(programs.pop(name), to=target, options=options)
        shown += [*tables.blockers_table(plans[name])]
        if by is not None:
            layers = plans[name].layers()
            shown += ["", Text(name, style="bold"), tables.layers_table(layers)]
            data[name] = _layers_as_dict(layers)
    found = decomp.results.Methods.of(plans)
    verdict = "lowers" if found.complete else f"blocked: {', '.join(found.blocked)}"
    data = {**found.as_dict(), "by_layer": data} if by is not None else found.as_dict()
    code = 0 if found.complete else 1
    return Outcome([tables.methods_table(found), *shown], (len(found.ops), found.weights), data, verdict, code)


def _paths(output: Path | None, names: list[str]) -> list[Path | None]:
    """The file of each model; with several, OUTPUT is a directory. Raises `Unusable`."""
    if len(names) == 1 or output is None:
        require_output("-o", output, ".pt2", ".json", *_WRITERS)
        return [output] * len(names)
    if not output.is_dir():
        raise Unusable(f"-o {output}: for several models it must be a directory that is there")
    paths = [output / f"{Path(name.rpartition(':')[2]).stem}.pt2" for name in names]
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        raise Unusable(f"-o {output}: two models would be saved as {twice}")
    return [*paths]


_XLA, _ONNX = (("stablehlo",), "xla"), (("onnx", "onnxruntime"), "onnx_models")
_WRITERS = {".onnx": _ONNX, ".mlir": _XLA, ".mlirbc": _XLA}
"""By file suffix: the targets whose programs it is for, and their backend's module, which has `save`; .pt2 and .json
are for all targets."""


def _writer(
    target: decomp.Target, path: Path | None, opset: int | None, weights: bool, beside: bool
) -> Callable[[decomp.Lowering, Path], None]:
    """The function that saves a lowering to this path. Raises `Unusable` for a wrong target or a missing package."""
    if opset is not None and (path is None or path.suffix != ".onnx"):
        raise Unusable("--opset is for -o FILE.onnx")
    if beside and (path is None or path.suffix not in (".mlir", ".mlirbc")):
        raise Unusable("--weights is for -o FILE.mlir or FILE.mlirbc")
    if path is not None and path.suffix == ".json":
        return functools.partial(_save_portable, weights=weights)
    if not weights:
        raise Unusable("--no-weights is for -o FILE.json")
    if path is None or path.suffix not in _WRITERS:
        return lambda lowering, path: _save(lowering.result, path)
    names, module = _WRITERS[path.suffix]
    if target.name not in names:
        raise Unusable(
            f"-o {path}: {path.suffix} is for programs lowered to {' or '.join(names)}, not to {target.name}"
        )
    try:
        backend = importlib.import_module(f"decomp_rules.backends.{module}")
    except ModuleNotFoundError as error:
        raise Unusable(f"-o {path}: this needs the package {error.name}: pip install decomp[{names[0]}]") from error

    given = ({} if opset is None else {"opset": opset}) | ({"weights": True} if beside else {})

    def save(lowering: decomp.Lowering, path: Path) -> None:
        try:
            backend.save(lowering, path, **given)
        except OSError as error:
            raise Unusable(f"cannot save {path}: {error.strerror or first_line(error)}") from error

    return save


def _save_portable(lowering: decomp.Lowering, path: Path, weights: bool) -> None:
    lowering.save(path, weights=weights)


def _save(program: ExportedProgram, path: Path) -> None:
    import torch

    from decomp.records import Unfailing

    try:
        with write_atomically(path) as unfinished, Unfailing(unfinished) as file:
            torch.export.save(program, file)
            file.tell_failure()
    except OSError as error:
        raise Unusable(f"cannot save {path}: {error.strerror or first_line(error)}") from error


def _layers_as_dict(layers: Layers | None) -> dict[str, Any]:
    return {} if layers is None else {"layers": layers.as_dict()}


def _plan_as_dict(found: decomp.Plan) -> dict[str, Any]:
    derived = [{"node": node.name, "rule": str(decision.rule)} for node, decision in found.derived.items()]
    legal = [node.name for node in found.legal]
    blockers = [asdict(blocker) for blocker in found.blockers]
    costs = found.costs().as_dict()
    return {"target": found.target, "legal": legal, "derived": derived, "blockers": blockers, "costs": costs}
