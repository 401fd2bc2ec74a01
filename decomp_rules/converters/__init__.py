"""Converters that people run behind `decomp`, one file each: `decomp_rules.converters.get("openvino")`. A package may
add one by an entry point in the group `decomp_converters`, whose name is that of the converter."""

from __future__ import annotations

import importlib
from importlib import metadata
import logging
import os
from pathlib import Path
import sys
import tempfile
from typing import TYPE_CHECKING, Any
import warnings

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from decomp import Converter

_HERE = Path(__file__).parent
_made: dict[str, Converter] = {}


def names() -> tuple[str, ...]:
    """The names of all converters, whether installed or not."""
    shipped = {path.stem for path in _HERE.glob("*.py")} - {"__init__"}
    return tuple(sorted(shipped | _registered().keys()))


def get(name: str) -> Converter:
    """The converter called `name`. Its own package is not imported. Raises `LookupError`."""
    if name not in names():
        raise LookupError(f"no converter {name!r}; there are {', '.join(names())}")
    if name not in _made:
        entry = _registered().get(name)
        made: Converter = entry.load() if entry else importlib.import_module(f"{__name__}.{name}").CONVERTER
        _made[name] = made
    return _made[name]


def _registered() -> dict[str, metadata.EntryPoint]:
    return {entry.name: entry for entry in metadata.entry_points(group="decomp_converters")}


class Quiet(warnings.catch_warnings):
    """Without the warnings of PyTorch (2.13) about the way in which a converter decomposes and copies a program, and
    without its own log."""

    def __enter__(self) -> None:
        super().__enter__()
        warnings.simplefilter("ignore")
        self.level = logging.root.manager.disable
        logging.disable(logging.WARNING)

    def __exit__(self, *error: Any) -> None:
        logging.disable(self.level)
        super().__exit__(*error)


class StandardError:
    """What is written to standard error meanwhile, where some libraries alone say what fails, and why."""

    def __enter__(self) -> StandardError:
        sys.stderr.flush()
        self.file = tempfile.TemporaryFile("w+", errors="replace")  # closed on leaving
        self.own, self.stream = os.dup(2), sys.stderr
        os.dup2(self.file.fileno(), 2)
        sys.stderr = self.file  # Python writes to the one, and libraries to the other
        return self

    def text(self) -> str:
        """So far."""
        self.file.flush()
        self.file.seek(0)
        return self.file.read()

    def __exit__(self, *error: Any) -> None:
        sys.stderr = self.stream
        os.dup2(self.own, 2)
        os.close(self.own)
        self.file.close()


def refuse_dynamic_sizes(program: ExportedProgram, converter: str) -> None:
    """Raise `NotImplementedError` for a program with a size that is not a number."""
    from torch import SymInt  # deferred: the command line shows its help without PyTorch

    for node in program.graph.nodes:
        sizes = getattr(node.meta.get("val"), "shape", ())
        if node.op == "placeholder" and any(isinstance(size, SymInt) for size in sizes):
            raise NotImplementedError(
                f"{converter} is given static sizes alone, and {node.name} has {list(map(str, sizes))}: "
                "export without dynamic_shapes=, once for each size"
            )


def refuse_numbers(program: ExportedProgram, converter: str) -> None:
    """Raise `NotImplementedError` for a program with an input that is not a tensor."""
    from torch.export.graph_signature import ConstantArgument, InputKind  # deferred likewise

    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT and isinstance(spec.arg, ConstantArgument):
            said = f"the input {spec.arg.name} is {spec.arg.value!r}"
            raise NotImplementedError(f"{converter} takes tensors alone, and {said}")


def refuse_number_results(program: ExportedProgram, converter: str) -> None:
    """Raise `NotImplementedError` for a program with a result that is a number."""
    from torch.export.graph_signature import ConstantArgument  # deferred likewise

    for place, spec in enumerate(program.graph_signature.output_specs):
        if isinstance(spec.arg, ConstantArgument) and spec.arg.value is not None:
            raise NotImplementedError(f"{converter} returns tensors alone, and result {place} is {spec.arg.value!r}")


def refuse_data_parts(program: ExportedProgram, converter: str) -> None:
    """Raise `NotImplementedError` for a program that splits a tensor by sizes which it reads from data."""
    for node in program.graph.nodes:
        if str(node.target).startswith("aten.split_with_sizes") and any(map(_is_read, node.all_input_nodes)):
            raise NotImplementedError(
                f"{converter} takes parts whose sizes are known beforehand, and those of {node.target} ({node.name}) "
                "are data: write the model with parts of fixed sizes, such as all experts on all tokens"
            )


def _is_read(node: Any) -> bool:
    return str(node.target) in ("aten.item.default", "aten._local_scalar_dense.default")
