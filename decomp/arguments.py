"""What is named on the command line: models, targets and callables, by text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import contextlib
import difflib
import importlib
import logging
import os
from pathlib import Path
import sys
from typing import Annotated, Any
import warnings

import torch
from torch import nn
from torch.export import ExportedProgram
import typer

import decomp
from decomp import frontends
from decomp.errors import first_line
from decomp.terminal import Unusable

MODEL = "A .pt2 file, package.module:callable (it returns a module and example inputs), or the name of a sample."
TARGET = "The name of a target that ships with the project, or a .toml file."

Model = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL, show_default=False)]
To = Annotated[str, typer.Option("--to", metavar="TARGET", help=TARGET, show_default=False)]
Keep = Annotated[list[str], typer.Option("--keep", metavar="OP", help="Leave this op as it is (may be repeated).")]
Json = Annotated[bool, typer.Option("--json", help="Print data for machines, and nothing else.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def load_target(name: str) -> decomp.Target:
    """The target that a name or a .toml path means. Raises `Unusable`, `TargetError`."""
    if name.endswith(".toml"):
        return decomp.Target.load(name)
    from decomp_rules import targets as known

    if name in known.names():
        return known.get(name)
    there_are = ", ".join(known.names())
    raise Unusable(f"no target {name!r}.{near(name, known.names())} There are {there_are}, and .toml files")


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
        f"no model {name!r}.{near(name, samples.MODELS)} There are the samples {', '.join(samples.MODELS)}, "
        ".pt2 files, and package.module:callable"
    )


def near(name: str, known: Iterable[str]) -> str:
    """What the user may have meant, as a sentence; nothing if nothing is near."""
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
        raise Unusable(f"cannot read {path}: {reason} ({type(error).__name__}: {first_line(error)})") from error
    finally:
        log.setLevel(level)


def _called(name: str) -> ExportedProgram:
    """The program that `package.module:callable` makes; the current directory is on the path."""
    with _importing_from(os.getcwd()):
        made = attribute_called(name)()
    if isinstance(made, ExportedProgram):
        return made
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], nn.Module):
        return _exported(*made)
    raise Unusable(f"{name} must return a module and example inputs, or an ExportedProgram, not {type(made).__name__}")


def attribute_called(name: str) -> Any:
    """The callable that `package.module:callable` names. Raises `Unusable`."""
    value = attribute(name)
    if not callable(value):
        raise Unusable(f"{name} is no callable, but {type(value).__name__}")
    return value


def attribute(name: str) -> Any:
    """What `package.module:name` names; the current directory is on the path. Raises `Unusable`."""
    module_name, _, path = name.partition(":")
    with _importing_from(os.getcwd()):
        try:
            value: Any = importlib.import_module(module_name)
            for part in path.split("."):
                value = getattr(value, part)
        except (ImportError, AttributeError) as error:
            raise Unusable(f"cannot find {name}: {first_line(error)}") from error
    return value


@contextlib.contextmanager
def _importing_from(directory: str) -> Iterator[None]:
    sys.path.insert(0, directory)
    try:
        yield
    finally:
        sys.path.remove(directory)
