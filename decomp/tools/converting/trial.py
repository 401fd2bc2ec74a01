"""A first run of a converter on a program, in a process of its own: what it returns there is thrown away, and the
results of the converted model are kept. Programs and tensors travel in files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
import tempfile
from typing import Any
import warnings

import torch
from torch.export import ExportedProgram

from decomp.jobs import Failed, run_in_process
from decomp.rules.target import Target
from decomp.tools.converting.converter import Converter, Tensors

TIMEOUT = 3600.0


class NoTrial(Exception):
    """The converter failed; the message is its own, or how its process ended."""


@dataclass(frozen=True)
class TrialJob:
    """Convert the program of a directory, and run it on the inputs there, if any."""

    converter: Converter
    directory: str

    def run(self) -> None:
        """Write the results to the directory."""
        if self.converter.prepare is not None:
            self.converter.prepare()
        place = Path(self.directory)
        results = _results(self.converter, torch.export.load(place / "program.pt2"), _read(place / "inputs.pt"))
        if results is not None:
            torch.save(results, place / "results.pt")


def try_out(converter: Converter, program: ExportedProgram, inputs: Tensors | None) -> list[torch.Tensor] | None:
    """The results of the converted program; None without inputs. In this process, if the converter or the program
    cannot be sent to another. Raises `NoTrial`."""
    with tempfile.TemporaryDirectory(prefix="decomp-convert-") as directory:
        place = Path(directory)
        if not converter.can_travel or not _written(program, inputs, place):
            return _here(converter, program, inputs)
        answer = run_in_process(TrialJob(replace(converter, target=Target("", [])), directory), TIMEOUT)
        if isinstance(answer, Failed):
            raise NoTrial(answer)
        results: list[torch.Tensor] | None = _read(place / "results.pt")
        return results


def _here(converter: Converter, program: ExportedProgram, inputs: Tensors | None) -> list[torch.Tensor] | None:
    try:
        return _results(converter, program, inputs)
    except Exception as error:  # a converter may raise anything
        raise NoTrial(f"{type(error).__name__}: {error}") from error


def _results(converter: Converter, program: ExportedProgram, inputs: Tensors | None) -> list[torch.Tensor] | None:
    model = converter.convert(program)
    if inputs is None or converter.run is None:
        return None
    return [result.detach() for result in converter.run(model, inputs)]


def _written(program: ExportedProgram, inputs: Tensors | None, place: Path) -> bool:
    """Whether the program could be written; `torch.export.save` does not take all of them."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch 2.13's own, of constants that share memory
            torch.export.save(program, place / "program.pt2")
        if inputs is not None:
            torch.save([tensor.detach() for tensor in inputs], place / "inputs.pt")
    except Exception:  # whatever the program holds
        return False
    return True


def _read(path: Path) -> Any:
    return torch.load(path) if path.exists() else None
