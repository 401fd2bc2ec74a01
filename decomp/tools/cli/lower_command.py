"""`decomp lower`, `plan` and `refold`: lower a model and save it, show what lowering would do, and fold it back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
import importlib
from pathlib import Path
from typing import Annotated, Any

import torch
from torch.export import ExportedProgram
import typer

import decomp
from decomp.errors import first_line
from decomp.tools.cli import tables
from decomp.tools.cli.arguments import (
    CostBy,
    Debug,
    Dynamic,
    Freeze,
    Imports,
    Json,
    Keep,
    Levels,
    Model,
    Narrow,
    RulesOf,
    Stages,
    To,
    ToOrNone,
    Training,
    Trust,
    load_accuracy,
    load_cost,
    load_model,
    load_rules,
    load_target,
)
from decomp.tools.cli.extras import require_writer
from decomp.tools.cli.terminal import Unusable, print_json, report_errors, saved, show, working
from decomp.tools.writing import Unfailing, write_atomically

FACTOR = "Pick the cheapest levels such that the error of the model grows by at most this factor."
MaxError = Annotated[float | None, typer.Option("--max-error", metavar="FACTOR", help=FACTOR, show_default=False)]


def lower(
    model: Model,
    to: To,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", help="Save the lowered program (.pt2; for onnx .onnx; for stablehlo .mlir[bc])."
        ),
    ] = None,
    partial: Annotated[bool, typer.Option("--partial", help="Lower what can be lowered and list the rest.")] = False,
    keep: Keep = [],
    rules: RulesOf = [],
    accuracy: Levels = [],
    cost: CostBy = None,
    max_error: MaxError = None,
    dynamic: Dynamic = [],
    no_simplify: Annotated[bool, typer.Option("--no-simplify", help="Do not simplify the lowered program.")] = False,
    freeze: Freeze = False,
    training: Training = None,
    narrow: Narrow = False,
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Skip verification.")] = False,
    lock: Annotated[
        Path | None, typer.Option("--lock", metavar="FILE", help="Write a lock, or hold the lowering to the one there.")
    ] = None,
    stage: Stages = [],
    checks: Annotated[bool, typer.Option("--checks", help="List every invariant that was checked.")] = False,
    trust: Trust = False,
    imports: Imports = [],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Lower a model to a target, show the report and save the result."""
    with report_errors(debug, as_json):
        require_writer(output)
        target, path, chosen = load_target(to), _writable(output, *_WRITERS), load_rules(rules)
        save = _writer(target, path)
        levels, price = load_accuracy(accuracy), load_cost(cost)
        with working(f"loading {model}"):
            program = load_model(model, trust, dynamic)
        how = False if no_verify else "values"
        with working(f"lowering {model} to {target.name}"):
            lowering = decomp.lower(
                program,
                to=target,
                rules=chosen,
                keep=keep,
                accuracy=levels,
                cost=price,
                max_error=max_error,
                partial=partial,
                simplify=not no_simplify,
                freeze=freeze,
                training=training,
                narrow=narrow,
                verify=how,
                lock=lock,
            )
        report = lowering.report()
        if path is not None:
            with working(f"saving {path}"):
                save(lowering, path)
        if as_json:
            print_json(report.as_dict())
        else:
            show(tables.report_table(report))
            show(saved(path) if path is not None else None)
            if checks:
                typer.echo("\n".join(["", "checked:", *(f"  {check}" for check in report.checks)]))
            for name in [each.value for each in stage]:
                typer.echo(f"\n{lowering.stages[name]}" if name in lowering.stages else f"\n{name}: changed nothing")


def refold(
    model: Model,
    to: ToOrNone = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Save the folded program (.pt2).")] = None,
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Skip verification of the whole program.")] = False,
    trust: Trust = False,
    imports: Imports = [],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Find decomposed ops in a program, fold each into one call, and save the result. Without a target, all ops that
    can be recognised are searched for."""
    with report_errors(debug, as_json):
        target, path = load_target(to) if to is not None else None, _writable(output)
        with working(f"loading {model}"):
            program = load_model(model, trust)
        with working(f"folding {model}"):
            found = decomp.refold(program, to=target, verify=False if no_verify else "values")
        if path is not None:
            with working(f"saving {path}"):
                _save(found.result, path)
        report = found.report()
        if as_json:
            print_json(report.as_dict())
        else:
            show(tables.refold_table(report))
            show(saved(path) if path is not None else None)


def plan(
    model: Model,
    to: To,
    keep: Keep = [],
    rules: RulesOf = [],
    accuracy: Levels = [],
    cost: CostBy = None,
    dynamic: Dynamic = [],
    freeze: Freeze = False,
    training: Training = None,
    narrow: Narrow = False,
    trust: Trust = False,
    imports: Imports = [],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show what lowering would do and cost, also at other levels of accuracy, without doing it. If ops are blocked,
    show the fewest ops to add to the target, and exit with 1."""
    with report_errors(debug, as_json):
        target, levels, price, chosen = load_target(to), load_accuracy(accuracy), load_cost(cost), load_rules(rules)
        with working(f"loading {model}"):
            program = load_model(model, trust, dynamic)
        with working(f"planning {model} for {target.name}"):
            found = decomp.plan(
                program,
                to=target,
                rules=chosen,
                keep=keep,
                accuracy=levels,
                cost=price,
                freeze=freeze,
                training=training,
                narrow=narrow,
            )
        with working(f"searching for the ops that {target.name} lacks"):
            lacks = None if found.complete else found.suggest()
        if as_json:
            print_json({**_plan_as_dict(found), "suggestion": None if lacks is None else lacks.as_dict()})
        else:
            show(tables.plan_table(found, lacks))
        if not found.complete:
            raise typer.Exit(1)


def _writable(path: Path | None, *others: str) -> Path | None:
    if path is None:
        return None
    if path.suffix not in (".pt2", *others):
        raise Unusable(f"-o {path}: the name must end in {' or '.join(('.pt2', *others))}")
    if not path.absolute().parent.is_dir():
        raise Unusable(f"-o {path}: there is no directory {path.parent}")
    if path.is_dir():
        raise Unusable(f"-o {path}: it is a directory")
    return path


_XLA, _ONNX = (("stablehlo",), "xla"), (("onnx", "onnxruntime"), "onnx_models")
_WRITERS = {".onnx": _ONNX, ".mlir": _XLA, ".mlirbc": _XLA}
"""By file suffix: the targets whose programs it is for, and their backend's module, which has `save`."""


def _writer(target: decomp.Target, path: Path | None) -> Callable[[decomp.Lowering, Path], None]:
    """The function that saves a lowering to this path. Raises `Unusable` for a wrong target or a missing package."""
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

    def save(lowering: decomp.Lowering, path: Path) -> None:
        try:
            backend.save(lowering, path)
        except OSError as error:
            raise Unusable(f"cannot save {path}: {error.strerror or first_line(error)}") from error

    return save


def _save(program: ExportedProgram, path: Path) -> None:
    try:
        with write_atomically(path) as unfinished, Unfailing(unfinished) as file:
            torch.export.save(program, file)
            file.tell_failure()
    except OSError as error:
        raise Unusable(f"cannot save {path}: {error.strerror or first_line(error)}") from error


def _plan_as_dict(found: decomp.Plan) -> dict[str, Any]:
    derived = [{"node": node.name, "rule": str(decision.rule)} for node, decision in found.derived.items()]
    legal = [node.name for node in found.legal]
    blockers = [asdict(blocker) for blocker in found.blockers]
    costs = asdict(found.costs())
    return {"target": found.target, "legal": legal, "derived": derived, "blockers": blockers, "costs": costs}
