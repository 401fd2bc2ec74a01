"""The command line: the verbs of the package on models and targets named by text. A verb finds its model and its
target, calls the function of the same name, and shows what it returns; a failure ends in one of three exit codes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
import contextlib
from dataclasses import asdict
import difflib
import importlib
import json
import logging
import os
from pathlib import Path
import sys
import traceback
from typing import Annotated, Any
import warnings

from rich.console import Console, RenderableType
from rich.text import Text
import torch
from torch import nn
from torch.export import ExportedProgram
import typer

import decomp
from decomp import frontends, tables
from decomp.certification import certificates, tables as certificate_tables
from decomp.certification.ways import identity
from decomp.demo import demonstrate
from decomp.explanation import routes
from decomp.lowering import library

EXIT_CODES = (
    "Exit codes: 0 done; 1 not lowered, some ops do not reach the target, or a rule is worse than its certificate; "
    "2 wrong usage, or a model, target or op that is unknown or cannot be read; 3 the model could not be captured, or "
    "a rule or the verification failed."
)

app = typer.Typer(
    help="Lower any PyTorch model to the ops that your backend knows, and prove it.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

MODEL = "A .pt2 file, package.module:callable (it returns a module and example inputs), or the name of a sample."
TARGET = "The name of a target that ships with the project, or a .toml file."

Model = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL, show_default=False)]
To = Annotated[str, typer.Option("--to", metavar="TARGET", help=TARGET, show_default=False)]
Keep = Annotated[list[str], typer.Option("--keep", metavar="OP", help="Leave this op as it is (may be repeated).")]
Json = Annotated[bool, typer.Option("--json", help="Print data for machines, and nothing else.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


class Unusable(decomp.DecompError):
    """What was named on the command line cannot be found or read."""


@app.command(epilog=EXIT_CODES)
def lower(
    model: Model,
    to: To,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Save the lowered program (.pt2).")] = None,
    partial: Annotated[bool, typer.Option("--partial", help="Lower what can be lowered, and list the rest.")] = False,
    keep: Keep = [],
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Skip the proof.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Lower a model to a target, show the report, and save the result."""
    with _failing(debug, as_json):
        target, path = load_target(to), _writable(output)
        with _working(f"loading {model}"):
            program = load_model(model)
        with _working(f"lowering {model} to {target.name}"):
            lowering = decomp.lower(program, to=target, keep=keep, partial=partial, verify=not no_verify)
        report = lowering.report()
        if path is not None:
            with _working(f"saving {path}"):
                _save(lowering.result, path)
        if as_json:
            _print_json(report.as_dict())
        else:
            _show(tables.report_table(report))
            _show(Text(f"saved {path}") if path is not None else None)


@app.command(epilog=EXIT_CODES)
def plan(model: Model, to: To, keep: Keep = [], as_json: Json = False, debug: Debug = False) -> None:
    """Show what lowering would do, without doing it. Exits with 1 if something blocks."""
    with _failing(debug, as_json):
        target = load_target(to)
        with _working(f"loading {model}"):
            program = load_model(model)
        with _working(f"planning {model} for {target.name}"):
            found = decomp.plan(program, to=target, keep=keep)
        if as_json:
            _print_json(_plan_as_dict(found))
        else:
            _show(tables.plan_table(found))
        if not found.complete:
            raise typer.Exit(1)


@app.command(epilog=EXIT_CODES)
def explain(
    op: Annotated[str, typer.Argument(metavar="OP", help="Any spelling: relu, F.relu, aten.sum, nn.GELU.")],
    to: Annotated[str | None, typer.Option("--to", metavar="TARGET", help=TARGET, show_default=False)] = None,
    debug: Debug = False,
) -> None:
    """Show the rules of an op, and how sample calls of it reach a target."""
    with _failing(debug):
        found = decomp.op(op)
        target = load_target(to) if to is not None else None
        packet = found.packet
        taken: list[Any] = []
        if target is not None and packet is not None:
            from decomp_rules import samples

            with _working(f"lowering sample calls of {found}"):
                taken = routes(samples.calls_of(packet), target, library())
        _show(tables.explanation(found, library().of(found), taken, target))


@app.command(epilog=EXIT_CODES)
def rules(
    text: Annotated[str, typer.Argument(metavar="[FILTER]", help="Only rules whose op, name or file has this.")] = "",
    debug: Debug = False,
) -> None:
    """List the rules of the library."""
    with _failing(debug):
        found = [rule for rule in library() if text in f"{rule.op} {rule}"]
        if not found:
            raise Unusable(f"no rule with {text!r} in its op, name or file")
        _show(tables.rules_table(sorted(found, key=lambda rule: str(rule.op)), certificates.committed()))
        _show(Text(f"{len(found)} rules for {len({rule.op for rule in found})} ops"))


@app.command(epilog=EXIT_CODES)
def certify(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="An op in any spelling, or a rule.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every rule of the library.")] = False,
    family: Annotated[str | None, typer.Option(help="The rules of one module of the library: activation.")] = None,
    stale: Annotated[bool, typer.Option("--stale", help="Only rules that changed since they were measured.")] = False,
    to: Annotated[list[str], typer.Option("--to", metavar="TARGET", help=TARGET)] = list(certificates.TARGETS),
    stored: Annotated[bool, typer.Option("--stored", help="Show what is committed, and measure nothing.")] = False,
    update: Annotated[bool, typer.Option("--update", help="Commit what is measured.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw errors against inputs, for rules of one argument.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes to measure in; by default one a core.")] = None,
    executor: Annotated[str | None, typer.Option(metavar="MODULE:CALLABLE", help="Makes a futures executor.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds that one rule may take.")] = None,
    seed: int = 0,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure rules against exact results and PyTorch's own, and compare with the committed certificates."""
    with _failing(debug, as_json):
        before = certificates.committed()
        chosen = _chosen_rules(name, family, everything or stale)
        if stale:
            chosen = [rule for rule in chosen if certificates.stale(rule, before.get(identity(rule)))]
        if stored:
            measured = [before[rule] for rule in map(identity, chosen) if rule in before]
        else:
            targets = [load_target(each) for each in to]
            with _executor(executor, workers) as pool:
                found = decomp.certify(chosen, to=targets, seed=seed, executor=pool, timeout=timeout)
            measured = list(found.values()) if isinstance(found, decomp.Certificates) else [found]
        worse = {one.rule: one.worse_than(before[one.rule]) for one in measured if one.rule in before}
        worse = {rule: lines for rule, lines in worse.items() if lines}
        _show_certificates(measured, worse, as_json)
        if plot is not None:
            from decomp.certification.ulp_plot import plot_errors

            _show(Text(f"saved {plot_errors(chosen, [load_target(each) for each in to], plot)}"))
        if update:
            written = certificates.commit(measured)
            _show(Text(f"{len(written)} files of certificates written", style="bold") if not as_json else None)
        elif worse:
            raise typer.Exit(1)


def _chosen_rules(name: str | None, family: str | None, everything: bool) -> list[decomp.Rule]:
    """The rules that `certify` is about. Raises `Unusable`, `UnknownOp`."""
    rules = list(library())
    if name is not None:
        named = [rule for rule in rules if rule.name == name]
        rules = list(library().of(decomp.op(name))) if not named else _of_op_or_name(name, named)
        if not rules:
            raise Unusable(f"there is no rule for {decomp.op(name)}")
    elif family is not None:
        known = sorted({certificates.family(rule) for rule in rules})
        rules = [rule for rule in rules if certificates.family(rule) == family]
        if not rules:
            raise Unusable(f"no family {family!r}.{_near(family, known)} There are {', '.join(known)}")
    elif not everything:
        raise Unusable("which rules? Name an op, or pass --family FAMILY, --stale or --all")
    return rules


def _of_op_or_name(name: str, named: list[decomp.Rule]) -> list[decomp.Rule]:
    """`relu` is an op and a rule: the op is meant. `sort_scattered` is a rule alone."""
    try:
        return list(library().of(decomp.op(name))) or named
    except decomp.UnknownOp:
        return named


@contextlib.contextmanager
def _executor(name: str | None, workers: int | None) -> Iterator[Executor | None]:
    """The executor that `module:callable` makes, or threads that each measure in a process of their own."""
    if name is None and workers is None:
        yield None
    elif name is None:
        with ThreadPoolExecutor(workers) as threads:
            yield threads
    else:
        made = _attribute_called(name)()
        if not isinstance(made, Executor) and not hasattr(made, "submit"):
            raise Unusable(f"{name} must return a concurrent.futures.Executor, not {type(made).__name__}")
        with made:
            yield made


def _show_certificates(measured: list[decomp.Certificate], worse: dict[str, tuple[str, ...]], as_json: bool) -> None:
    if as_json:
        _print_json([one.to_json() for one in measured])
    elif len(measured) <= 4:
        for one in measured:
            _show(certificate_tables.certificate_table(one), "")
        _show(*(Text(f"worse than committed: {line}", style="red") for lines in worse.values() for line in lines))
    else:
        _show(certificate_tables.summary(measured, worse))


@app.command(epilog=EXIT_CODES)
def targets(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help=TARGET, show_default=False)] = None,
    debug: Debug = False,
) -> None:
    """List the targets, or the ops of one."""
    with _failing(debug):
        if name is not None:
            _show(tables.target_table(load_target(name)))
            return
        from decomp_rules import targets as known

        _show(tables.targets_table(known.get(each) for each in known.names()))


@app.command(epilog=EXIT_CODES)
def demo(debug: Debug = False) -> None:
    """Lower a small GPT to tinygrad's primitives, and compare it with the original."""
    from decomp_rules import samples

    with _failing(debug):
        model, args = samples.model("gpt")
        size = sum(p.numel() for p in model.parameters())
        _show(Text(f"a GPT of {len(model.blocks)} layers, {size:,} parameters, random weights", style="bold"))
        with _working("lowering it to tinygrad, and comparing"):
            found = demonstrate(model, args, load_target("tinygrad"))
        _show("", tables.report_table(found.lowering.report()), "", tables.demo_table(found))
        _show("", Text("Next: decomp targets; decomp lower resnet --to core_aten; decomp explain gelu --to tinygrad"))


def load_target(name: str) -> decomp.Target:
    """The target that a name or a .toml path means. Raises `Unusable`, `TargetError`."""
    if name.endswith(".toml"):
        return decomp.Target.load(name)
    from decomp_rules import targets as known

    if name in known.names():
        return known.get(name)
    there_are = ", ".join(known.names())
    raise Unusable(f"no target {name!r}.{_near(name, known.names())} There are {there_are}, and .toml files")


def load_model(name: str) -> ExportedProgram:
    """The program that MODEL means on the command line. Raises `Unusable`, `CaptureError`."""
    from decomp_rules import samples

    if name in samples.MODELS:
        return _exported(*samples.model(name))
    if ":" in name and not name.endswith(".pt2"):
        return _called(name)
    if name.endswith(".pt2"):
        return _read(Path(name))
    raise Unusable(
        f"no model {name!r}.{_near(name, samples.MODELS)} There are the samples {', '.join(samples.MODELS)}, "
        ".pt2 files, and package.module:callable"
    )


def _near(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=2)
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""


def _exported(module: nn.Module, args: Any) -> ExportedProgram:
    kwargs = args if isinstance(args, dict) else None
    positional = () if kwargs is not None else tuple(args) if isinstance(args, (tuple, list)) else (args,)
    with warnings.catch_warnings():
        # torch 2.13 warns of the bookkeeping of its own recurrent modules whenever it exports one.
        warnings.filterwarnings("ignore", "The tensor attributes? .*_flat_weights")
        program = frontends.capture(module, positional, kwargs).exported
    assert program is not None
    return program


def _read(path: Path) -> ExportedProgram:
    if not path.is_file():
        raise Unusable(f"no file {path}")
    log = logging.getLogger("torch.export")
    level = log.level
    log.setLevel(logging.CRITICAL)  # torch 2.13 logs two tracebacks before it raises
    try:
        return torch.export.load(path)
    except Exception as error:
        reason = "it is no .pt2 archive, or damaged"
        raise Unusable(f"cannot read {path}: {reason} ({type(error).__name__}: {_first_line(error)})") from error
    finally:
        log.setLevel(level)


def _called(name: str) -> ExportedProgram:
    """The program that `package.module:callable` makes; the current directory is on the path."""
    with _importing_from(os.getcwd()):
        made = _attribute_called(name)()
    if isinstance(made, ExportedProgram):
        return made
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], nn.Module):
        return _exported(*made)
    raise Unusable(f"{name} must return a module and example inputs, or an ExportedProgram, not {type(made).__name__}")


def _attribute_called(name: str) -> Any:
    """The callable that `package.module:callable` names. Raises `Unusable`."""
    module_name, _, attribute = name.partition(":")
    with _importing_from(os.getcwd()):
        try:
            value: Any = importlib.import_module(module_name)
            for part in attribute.split("."):
                value = getattr(value, part)
        except (ImportError, AttributeError) as error:
            raise Unusable(f"cannot find {name}: {_first_line(error)}") from error
    if not callable(value):
        raise Unusable(f"{name} is no callable, but {type(value).__name__}")
    return value


@contextlib.contextmanager
def _importing_from(directory: str) -> Iterator[None]:
    sys.path.insert(0, directory)
    try:
        yield
    finally:
        sys.path.remove(directory)


def _writable(path: Path | None) -> Path | None:
    if path is None:
        return None
    if path.suffix != ".pt2":
        raise Unusable(f"-o {path}: the name must end in .pt2")
    if not path.absolute().parent.is_dir():
        raise Unusable(f"-o {path}: there is no directory {path.parent}")
    return path


def _save(program: ExportedProgram, path: Path) -> None:
    """Save whole or not at all: a file that was there stays until the new one is written."""
    unfinished = path.with_name(f".{path.stem}.unfinished.pt2")
    try:
        torch.export.save(program, unfinished)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _plan_as_dict(found: decomp.Plan) -> dict[str, Any]:
    derived = [{"node": node.name, "rule": str(decision.rule)} for node, decision in found.derived.items()]
    legal = [node.name for node in found.legal]
    return {"target": found.target, "legal": legal, "derived": derived, "blockers": [asdict(b) for b in found.blockers]}


@contextlib.contextmanager
def _failing(debug: bool, as_json: bool = False) -> Iterator[None]:
    """An error becomes a message and an exit code; `--debug` adds the traceback."""
    try:
        yield
    except typer.Exit:
        raise
    except Exception as error:
        if debug:
            traceback.print_exc()
        if as_json:
            _print_json({"error": type(error).__name__, "message": str(error), "blockers": _blockers(error)})
        elif not debug:
            _console(stderr=True).print(Text.assemble(("error: ", "bold red"), _message(error)), soft_wrap=True)
        raise typer.Exit(_code(error)) from None


def _message(error: Exception) -> str:
    if isinstance(error, decomp.NotLowered):
        return f"{error}\n  on the command line: --keep OP, --partial"
    if isinstance(error, decomp.DecompError):
        return str(error)
    return f"{type(error).__name__}: {_first_line(error)} (--debug shows where)"


def _code(error: Exception) -> int:
    if isinstance(error, decomp.NotLowered):
        return 1
    return 2 if isinstance(error, (Unusable, decomp.UnknownOp, decomp.TargetError)) else 3


def _blockers(error: Exception) -> list[dict[str, Any]]:
    return [asdict(blocker) for blocker in error.blockers] if isinstance(error, decomp.NotLowered) else []


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _console(stderr: bool = False) -> Console:
    """As wide as the terminal; into a file or a pipe, lines are not folded at 80."""
    console = Console(stderr=stderr, highlight=False, emoji=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, emoji=False, width=160)


def _show(*parts: RenderableType | None) -> None:
    console = _console()
    for part in parts:
        if part is not None:
            console.print(part)


def _print_json(data: Any) -> None:
    print(json.dumps(data, indent=2))


@contextlib.contextmanager
def _working(what: str) -> Iterator[None]:
    """A spinner while something takes its time, on a terminal."""
    console = _console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(what):
        yield
