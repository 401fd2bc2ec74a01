"""Arguments of the command line: models, targets and callables given by name. What needs PyTorch is imported by the
functions that load something, so that the help of a command does without."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
import contextlib
import difflib
from enum import Enum
import importlib
import importlib.util
import inspect
import os
from pathlib import Path
import sys
from typing import TYPE_CHECKING, Annotated, Any
import warnings

import typer

import decomp
from decomp import costs
from decomp.errors import first_line
from decomp.tools.cli.terminal import Unusable

if TYPE_CHECKING:
    from torch import nn
    from torch.export import ExportedProgram

    from decomp.costs.model import Cost
    from decomp.rules.accuracy import Accuracy

MODEL = (
    "A .pt2 file, which is read as data: nothing in it is executed unless you pass --trust; package.module:callable or "
    "file.py:callable, which is imported and called (it returns a module and example inputs); the name of a sample; or "
    "hf:NAME, a model type of transformers or the path of a config.json, made without weights (hf:llama,tokens=512)."
)
TARGET = "The name of a target that ships with the project, a .toml file, or package.module:name or file.py:name."
BACKEND = "package.module:name or file.py:name of a decomp.Backend, or one that ships: numpy, tinygrad, stablehlo, onnx"
SEVERAL = f"{MODEL} Several models may be named, also by patterns: 'models/*.pt2'."
Model = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL, show_default=False)]
Models = Annotated[list[str], typer.Argument(metavar="MODEL...", help=SEVERAL, show_default=False)]
CONFIGURED = "hf:"
"""What a model of transformers by its configuration alone begins with."""
TO = ("--to", "--target")
To = Annotated[str, typer.Option(*TO, metavar="TARGET", help=TARGET, show_default=False)]
ToOrNone = Annotated[str | None, typer.Option(*TO, metavar="TARGET", help=TARGET, show_default=False)]


class StageName(str, Enum):
    """A stage of a lowering (typer takes no list of literals)."""

    capture = "capture"
    functionalize = "functionalize"
    expand = "expand"
    simplify = "simplify"


STAGES = "Print the program as it is after a stage: calls, where each comes from, and why (may be repeated)."
Stages = Annotated[list[StageName], typer.Option("--stage", help=STAGES)]


class Unit(str, Enum):
    """What a command also lists calls and costs by."""

    layer = "layer"


BY = "Also show calls, weights, operations and bytes by layer; repeated blocks are one row."
By = Annotated[Unit | None, typer.Option("--by", help=BY, show_default=False)]


# On Python 3.10 `list[str]` counts as a class, which typer takes for one where it annotates a callback.
def import_modules(modules: Any) -> list[str]:
    """Import modules given on the command line, also from the current directory. Raises `BadParameter`."""
    for name in modules or ():
        if not all(part.isidentifier() for part in name.split(".")):
            raise typer.BadParameter(f"{name!r} is not the name of a module")
        try:
            with _importing_from(os.getcwd()):
                importlib.import_module(name)
        except Exception as error:
            raise typer.BadParameter(f"importing {name} raised {type(error).__name__}: {first_line(error)}") from error
    return list(modules or ())


def load_target(name: str) -> decomp.Target:
    """The target of a name or a .toml path, or that of a backend. Raises `Unusable`, `TargetError`."""
    if name.endswith(".toml"):
        return decomp.Target.load(name)
    if ":" in name:
        found = attribute(name)
        if isinstance(found, decomp.Backend):
            return found.target
        if not isinstance(found, decomp.Target):
            raise Unusable(f"{name} is of type {type(found).__name__}, not a decomp.Target")
        return found
    from decomp_rules import backends, targets as known

    if name in known.names():
        return known.get(name)
    if name in backends.names():
        return load_backend(name).target
    there_are = ", ".join(known.names())
    others = ".toml files, and file.py:name"
    raise Unusable(f"no target {name!r}.{near(name, known.names())} Available: {there_are}, {others}")


def load_backend(name: str) -> decomp.Backend:
    """The backend of a name. Raises `Unusable`."""
    from decomp_rules import backends

    if ":" in name:
        found = attribute(name)
        if not isinstance(found, decomp.Backend):
            raise Unusable(f"{name} is of type {type(found).__name__}, not a decomp.Backend")
        return found
    if name not in backends.names():
        there_are = ", ".join(backends.names())
        raise Unusable(f"no backend {name!r}.{near(name, backends.names())} Available: {there_are}, and file.py:name")
    try:
        return backends.get(name)
    except ImportError as error:
        raise Unusable(str(error)) from error


def load_rules(names: Sequence[str]) -> decomp.Rules | None:
    """The rules of these names, before those of the library; None, which means the library's, without names. Raises
    `Unusable`."""
    if not names:
        return None
    from decomp.rules.library import library
    from decomp.rules.rules import as_rules

    found = library()
    for name in reversed(names):
        value = attribute(name)
        if not isinstance(value, (decomp.Rules, Mapping)):
            raise Unusable(f"{name} is of type {type(value).__name__}, not decomp.Rules or a dict from op to function")
        found = as_rules(value) | found
    return found


def load_cost(name: str | None) -> Cost | None:
    """The cost model of a name or a .toml path; None for None. Raises `Unusable`, `TargetError`."""
    if name is None:
        return None
    if name.endswith(".toml"):
        return costs.table(name)
    if name not in costs.NAMED:
        there_are = ", ".join(costs.NAMED)
        raise Unusable(f"no cost {name!r}.{near(name, costs.NAMED)} Available: {there_are}, and .toml files")
    found: Cost = getattr(costs, name)
    return found


def load_accuracy(words: Sequence[str]) -> Accuracy:
    """The accuracy of several arguments, each a level or OP=LEVEL. Raises `Unusable`, `UnknownOp`."""
    from decomp.rules.accuracy import LEVELS, Accuracy

    levels = _by_op("--accuracy", "level", words)
    for word, level in zip(words, levels.values()):
        if level not in LEVELS:
            known = ", ".join(LEVELS)
            raise Unusable(f"--accuracy {word}: no level {level!r}.{near(level, LEVELS)} Available: {known}")
    return Accuracy.of(levels)


def load_limits(words: Sequence[str]) -> dict[Any, float] | None:
    """The limits of several arguments, each ULP or OP=ULP; None without any. Raises `Unusable`."""
    limits: dict[Any, float] = {}
    for word, (op, ulp) in zip(words, _by_op("--max-ulp", "limit", words).items()):
        try:
            limits[op] = float(ulp)
        except ValueError:
            raise Unusable(f"--max-ulp {word}: must be a number of ULP, or OP=ULP") from None
    return limits or None


def _by_op(flag: str, what: str, words: Sequence[str]) -> dict[Any, str]:
    """The values of arguments that are each VALUE, for all ops, or OP=VALUE. Raises `Unusable`."""
    found: dict[Any, str] = {}
    for word in words:
        op, _, value = word.rpartition("=")
        if (op or ...) in found:
            raise Unusable(f"{flag} {word}: duplicate {what} for {op or 'all ops'}")
        found[op or ...] = value
    return found


def load_model(name: str, trust: bool = False, dynamic: Sequence[str] = ()) -> ExportedProgram:
    """The program of MODEL on the command line, with dynamic dimensions of inputs, as `x:0`. Raises `Unusable`,
    `CaptureError`, `Untrusted`, `UnreadableArchive`."""
    from decomp_rules import samples

    require_model(name)
    if name.startswith(CONFIGURED):
        from decomp.tools.cli.configured_models import configured

        return _exported(*configured(name), dynamic)
    if name.endswith(".pt2"):
        if dynamic:
            raise Unusable(f"--dynamic {dynamic[0]}: the sizes of {name} were fixed when it was exported")
        return _read(Path(name), trust)
    return _called(name, dynamic) if ":" in name else _exported(*samples.model(name), dynamic)


def load_methods(name: str, methods: Sequence[str]) -> dict[str, ExportedProgram]:
    """The programs of some methods of a model of transformers, which share its weights. Raises `Unusable`,
    `CaptureError`."""
    if not name.startswith(CONFIGURED):
        raise Unusable(
            f"--methods is for models of transformers, hf:NAME, not {name}\n"
            "  to do: plan each method of your own in Python, and call decomp.results.Methods.of({name: plan})"
        )
    from decomp.tools.cli.configured_methods import methods_of
    from decomp.tools.cli.configured_models import make

    return methods_of(name, make(name), methods, _exported)


def require_model(name: str) -> None:
    """Raise `Unusable` for a name that cannot be a model, before anything is loaded."""
    from decomp_rules import samples

    if name.startswith(CONFIGURED):
        return
    file = file_of(name)
    if file is not None and not file.is_file():
        raise Unusable(f"no file {file}" if not file.exists() else f"{file} is a directory, not a file")
    if file is None and ":" not in name and name not in samples.MODELS:
        raise Unusable(
            f"no model {name!r}.{near(name, samples.MODELS)} Available: the samples {', '.join(samples.MODELS)}, "
            ".pt2 files, package.module:callable, file.py:callable, and hf:NAME"
        )


def require_weights(name: str) -> None:
    """Raise `Unusable` for a model that cannot be run."""
    if name.startswith(CONFIGURED):
        raise Unusable(f"{name} has no weights, and this command runs the model: pass file.py:callable")


def file_of(name: str) -> Path | None:
    """The file that MODEL names, or None."""
    if name.endswith(".pt2"):
        return Path(name)
    module, _, path = name.rpartition(":")
    return Path(module) if path and module.endswith(".py") else None


def near(name: str, known: Iterable[str]) -> str:
    """A sentence with similar names; empty without any."""
    close = difflib.get_close_matches(name, list(known), n=2)
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""


def _sizes(inputs: Sequence[str], words: Sequence[str]) -> dict[str, Any] | None:
    """The dynamic dimensions of each input, as `torch.export` takes them. Raises `Unusable`."""
    from torch.export import Dim

    found: dict[str, dict[int, Any]] = {}
    for word in words:
        name, _, dim = word.rpartition(":")
        if not name or not dim.isdecimal():
            raise Unusable(f"--dynamic {word}: must be the name of an input and a dimension, as x:0")
        if name not in inputs:
            raise Unusable(f"--dynamic {word}: no input {name!r}.{near(name, inputs)} Available: {', '.join(inputs)}")
        found.setdefault(name, {})[int(dim)] = Dim.AUTO
    return {name: found.get(name) for name in inputs} if words else None


def _exported(module: nn.Module, args: Any, dynamic: Sequence[str] = ()) -> ExportedProgram:
    from torch import fx

    from decomp.capture import frontends
    from decomp.capture.exporting import export

    kwargs = args if isinstance(args, dict) else None
    positional = () if kwargs is not None else tuple(args) if isinstance(args, (tuple, list)) else (args,)
    with warnings.catch_warnings():
        # torch 2.13 warns about the `_flat_weights` of its own recurrent modules whenever it exports one.
        warnings.filterwarnings("ignore", "The tensor attributes? .*_flat_weights")
        inputs = list(inspect.signature(module.forward).parameters)[: len(positional)] + list(kwargs or ())
        sizes = _sizes(inputs, dynamic)
        if not isinstance(module, fx.GraphModule):
            program = frontends.capture(module, positional, kwargs, dynamic_shapes=sizes).exported
            if program is not None:
                return program
        return export(module, positional, kwargs, sizes)


def _read(path: Path, trust: bool) -> ExportedProgram:
    from decomp.tools.cli.archives import read_program  # deferred: it imports torch.export, which takes seconds

    return read_program(path, trust)


def _called(name: str, dynamic: Sequence[str] = ()) -> ExportedProgram:
    """The program that `package.module:callable` or `file.py:callable` returns; its directory is on the path."""
    from torch import nn
    from torch.export import ExportedProgram

    make = load_callable(name)
    directory = os.path.dirname(os.path.abspath(name.rpartition(":")[0])) if ".py:" in name else os.getcwd()
    with _importing_from(directory), _report_user_errors(name):
        made = make()
    if isinstance(made, ExportedProgram):
        if dynamic:
            raise Unusable(f"--dynamic {dynamic[0]}: {name} returns an exported program, whose sizes are fixed")
        return made
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], nn.Module):
        return _exported(*made, dynamic)
    raise Unusable(f"{name} must return a module and example inputs, or an ExportedProgram, not {type(made).__name__}")


def load_callable(name: str) -> Any:
    """The callable that `package.module:callable` names. Raises `Unusable`."""
    from torch import nn

    require_weights(name)
    value = attribute(name)
    if isinstance(value, nn.Module):  # it would be called without the inputs that are wanted of it
        raise Unusable(
            f"{name} is a module, without example inputs\n"
            "  to do: name a function that returns both: def example(): return model, (x,)"
        )
    if not callable(value):
        raise Unusable(f"{name} is of type {type(value).__name__}, not a callable")
    return value


def attribute(name: str) -> Any:
    """The value of `package.module:name` or `file.py:name`; the current directory, or that of the file, is on the path.
    Raises `Unusable`."""
    module_name, _, path = name.rpartition(":")
    file = Path(module_name) if module_name.endswith(".py") else None
    if file is not None and not file.is_file():
        raise Unusable(f"no file {file}")
    module_name, directory = (module_name, os.getcwd()) if file is None else (file.stem, str(file.resolve().parent))
    # A file may have any name: `importlib` imports a `my-model.py`, which no `import` statement can spell.
    identifiers = [*(module_name.split(".") if file is None else ()), *path.split(".")]
    if not all(part.isidentifier() for part in identifiers):
        raise Unusable(f"{name!r} must be package.module:name or file.py:name")
    with _importing_from(directory), _report_user_errors(f"importing {module_name}"):
        try:
            value: Any = importlib.import_module(module_name) if file is None else _imported(file)
        except ModuleNotFoundError as error:
            raise Unusable(f"cannot find {name}: {first_line(error)}") from error
    if file is not None and Path(value.__file__ or "").resolve() != file.resolve():
        raise Unusable(f"{file} has the same name as the module {value.__file__}: rename it")
    with _importing_from(directory), _report_user_errors(name):
        for part in path.split("."):
            value = _part_of(value, part, name)
    return value


def _imported(file: Path) -> Any:
    """The module of a file, whose directory is on the path."""
    if "." not in file.stem:
        return importlib.import_module(file.stem)
    # `import_module` would look for a package: `v1` for v1.2.py.
    if file.stem not in sys.modules:
        spec = importlib.util.spec_from_file_location(file.stem, file.resolve())
        assert spec is not None and spec.loader is not None  # the name ends in .py
        sys.modules[file.stem] = module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:  # as the import system itself does
            del sys.modules[file.stem]
            raise
    return sys.modules[file.stem]


def _part_of(value: Any, part: str, name: str) -> Any:
    try:
        return getattr(value, part)
    except AttributeError as error:
        # Errors raised by a property of the user are reported as such.
        if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
            raise
        raise Unusable(f"cannot find {name}: {first_line(error)}") from error


@contextlib.contextmanager
def _report_user_errors(what: str) -> Iterator[None]:
    """Report exceptions of the user's code, including SystemExit, as `Unusable`."""
    try:
        yield
    except (decomp.DecompError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        place = f" at {error.filename}:{error.lineno}" if isinstance(error, SyntaxError) else ""
        said = error.msg if isinstance(error, SyntaxError) else first_line(error)
        raise Unusable(f"{what} raised {type(error).__name__}: {said}{place} (--debug shows where)") from error


@contextlib.contextmanager
def _importing_from(directory: str) -> Iterator[None]:
    sys.path.insert(0, directory)
    try:
        yield
    finally:
        sys.path.remove(directory)
