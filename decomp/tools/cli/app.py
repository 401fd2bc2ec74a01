"""The command line: the verbs of the package on models and targets given by name. A command loads its model and target,
calls the function of the same name, and prints the result; a failure ends with one of three exit codes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
import importlib
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from rich.text import Text
import torch
from torch.export import ExportedProgram
import typer

import decomp
from decomp._library import library
from decomp.errors import first_line
from decomp.tools.certification import certificates, fronts
from decomp.tools.certification.tables import front_table
from decomp.tools.cli import tables
from decomp.tools.cli.advise_command import advise
from decomp.tools.cli.arguments import (
    TARGET,
    TO,
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
    attribute,
    load_accuracy,
    load_cost,
    load_model,
    load_rules,
    load_target,
)
from decomp.tools.cli.bench import bench
from decomp.tools.cli.bringup_command import bringup
from decomp.tools.cli.cache_command import cache
from decomp.tools.cli.certify_command import certify
from decomp.tools.cli.demo import demonstrate
from decomp.tools.cli.doctor_command import doctor
from decomp.tools.cli.explain_command import explain
from decomp.tools.cli.extras import require_matplotlib, require_writer
from decomp.tools.cli.snapshot_command import snapshot, upgrade
from decomp.tools.cli.terminal import EXIT_CODES, Unusable, print_json, report_errors, saved, show, working
from decomp.tools.writing import Unfailing, write_atomically

RULES = "package.module:name of rules, or of a table of functions by op; by default the rules of the library."

FACTOR = "Pick the cheapest levels such that the error of the model grows by at most this factor."
MaxError = Annotated[float | None, typer.Option("--max-error", metavar="FACTOR", help=FACTOR, show_default=False)]

app = typer.Typer(
    help="Lower any PyTorch model to the ops that your backend has, and verify it.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _say_version(wanted: bool) -> None:
    if wanted:
        show(Text(f"decomp {version('decomp')}, torch {torch.__version__}"))
        raise typer.Exit()


@app.callback()
def _decomp(
    _: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Show the versions and exit.")
    ] = False,
) -> None:
    """Lower any PyTorch model to the ops that your backend has, and verify it."""


@app.command()
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


@app.command()
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


@app.command()
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


app.command()(explain)


@app.command()
def rules(
    text: Annotated[
        str, typer.Argument(metavar="[FILTER]", help="Only rules whose op, name or file contains this.")
    ] = "",
    limitations: Annotated[
        bool, typer.Option("--limitations", help="List the ops that cannot be decomposed, and why.")
    ] = False,
    to: Annotated[
        str | None,
        typer.Option(*TO, metavar="TARGET", help="Compare the errors and calls of one op's rules on a target."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Plot errors over calls, with --to.")] = None,
    debug: Debug = False,
) -> None:
    """List the rules of the library or its declared limitations, or show what accuracy costs on a target."""
    with report_errors(debug):
        require_matplotlib(plot)
        if to is not None:
            _show_front(text, load_target(to), plot)
            return
        if limitations:
            declared = [each for each in library().limitations if text in str(each)]
            if not declared:
                raise Unusable(f"no limitation with {text!r} in its op or reason")
            show(tables.limitations_table(sorted(declared, key=str)))
            show(Text(f"{len(declared)} limitations of {len({each.op for each in declared})} ops"))
            return
        found = [rule for rule in library() if text in f"{rule.op} {rule}"]
        if not found:
            raise Unusable(f"no rule with {text!r} in its op, name or file")
        show(tables.rules_table(sorted(found, key=lambda rule: str(rule.op)), certificates.read_committed()))
        show(Text(f"{len(found)} rules for {len({rule.op for rule in found})} ops"))


def _show_front(op: str, target: decomp.Target, plot: Path | None) -> None:
    """Show the alternatives for an op on a target. Raises `Unusable`, `UnknownOp`, `ArgumentError`."""
    found = library().of(decomp.op(op)) if op else ()
    if not found:
        raise Unusable(f"there is no rule for {decomp.op(op)}" if op else "which op? decomp rules exp --to tinygrad")
    ways = fronts.front(found, target, certificates.read_committed())
    show(front_table(ways))
    if plot is not None:
        show(saved(fronts.plot_front(ways, plot)))


@app.command()
def lint(
    name: Annotated[str | None, typer.Argument(metavar="[RULES]", help=RULES, show_default=False)] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare the parameters of rules with the schemas of their ops. Exits with 1 if one contradicts its schema."""
    with report_errors(debug, as_json):
        checked = library() if name is None else attribute(name)
        if not isinstance(checked, (decomp.Rules, Mapping)):
            raise Unusable(f"{name} must be a decomp.Rules or a table of functions by op, not {type(checked).__name__}")
        findings = decomp.lint(checked)
        if as_json:
            print_json([asdict(finding) for finding in findings])
        else:
            show(tables.findings_table(findings) if findings else None)
            count = len(list(checked))
            show(Text(f"{len(findings)} findings in {count} {'rules' if count != 1 else 'rule'}"))
        if findings:
            raise typer.Exit(1)


app.command()(advise)
app.command()(certify)
app.command()(bench)
app.command()(bringup)
app.command()(cache)
app.command()(doctor)
app.command()(snapshot)
app.command()(upgrade)


@app.command()
def budget(
    model: Model,
    to: To,
    keep: Keep = [],
    rules: RulesOf = [],
    accuracy: Levels = [],
    cost: CostBy = None,
    seed: Annotated[int, typer.Option(help="The seed for ops that draw random numbers.")] = 0,
    trust: Trust = False,
    imports: Imports = [],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show the error of a lowered model against float64, by op, next to its error in PyTorch, and which levels of
    accuracy would be better."""
    with report_errors(debug, as_json):
        target, levels, price = load_target(to), load_accuracy(accuracy), load_cost(cost)
        chosen = load_rules(rules)
        with working(f"loading {model}"):
            program = load_model(model, trust)
        with working(f"running {model}, op by op"):
            found = decomp.budget(program, to=target, rules=chosen, keep=keep, accuracy=levels, cost=price, seed=seed)
        if as_json:
            print_json(found.as_dict())
        else:
            show(tables.budget_table(found))


@app.command()
def memory(
    model: Model,
    to: ToOrNone = None,
    rules: RulesOf = [],
    accuracy: Levels = [],
    plot: Annotated[Path | None, typer.Option("--plot", help="Plot lifetimes and offsets (.svg, .png).")] = None,
    trust: Trust = False,
    imports: Imports = [],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show how much memory a model needs when it is interpreted, unchanged or lowered to a target, and how much with
    in-place ops, an arena and blocks of rows."""
    with report_errors(debug, as_json):
        require_matplotlib(plot)
        target, chosen = load_target(to) if to is not None else None, load_rules(rules)
        with working(f"loading {model}"):
            program = load_model(model, trust)
        with working(f"planning the memory of {model}"):
            if target is not None:
                program = decomp.lower(program, to=target, rules=chosen, accuracy=load_accuracy(accuracy))
            found = decomp.memory_plan(program)
        if plot is not None:
            found.plot(plot)
        if as_json:
            print_json(found.as_dict())
        else:
            show(Text(str(found)))


@app.command()
def targets(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help=TARGET, show_default=False)] = None,
    debug: Debug = False,
) -> None:
    """List the targets, or the ops of one."""
    with report_errors(debug):
        if name is not None:
            show(tables.target_table(load_target(name)))
            return
        from decomp_rules import targets as known

        show(tables.targets_table(known.get(each) for each in known.names()))


@app.command()
def demo(debug: Debug = False) -> None:
    """Lower a small GPT to tinygrad's primitives, compare it with the original, and run it on NumPy."""
    from decomp_rules import backends, samples

    with report_errors(debug):
        model, args = samples.model("gpt")
        size = sum(p.numel() for p in model.parameters())
        show(Text(f"a GPT of {len(model.blocks)} layers, {size:,} parameters, random weights", style="bold"))
        with working("lowering it to tinygrad and comparing"):
            found = demonstrate(model, args, load_target("tinygrad"), backend=backends.get("numpy"))
        show("", tables.report_table(found.lowering.report()), "", tables.demo_table(found))
        show("", Text("Next: decomp targets; decomp lower resnet --to core_aten; decomp explain gelu --to tinygrad"))


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
