"""The protocol of a converter: its package, its entry point, its runtime if there is one, and the target that says
which calls it converts. A converter is a value: one file in `decomp_rules/converters/` makes one, and so can a user."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import metadata
import pickle
import re
from typing import TYPE_CHECKING, Any

import torch
from torch.export import ExportedProgram

from decomp.errors import ConversionError
from decomp.rules.target import Target

if TYPE_CHECKING:
    from pathlib import Path

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True)
class Converter:
    """A tool that converts an ExportedProgram. Its functions import its package when they are called, and are defined
    at the top level of a module, so that another process finds them."""

    name: str
    package: str
    """What `pip install` takes."""
    at_least: str
    """The oldest version that `convert` works with."""
    target: Target
    """The calls that it converts and computes right."""
    convert: Callable[[ExportedProgram], Any]
    """Its own entry point: the converted model, as the converter returns it. May raise anything."""
    run: Callable[[Any, Tensors], Tensors] | None = None
    """The results of a converted model for the tensors among the inputs, both in the order of the program; None if
    there is no runtime for it."""
    save: Callable[[Any, Path], None] | None = None
    suffix: str = ""
    """Of the files that `save` writes: ".xml"."""
    registry: Callable[[], Sequence[str]] | None = None
    """The overloads that it has rules for, as `aten.topk.default`; those that are not there are not asked about. None
    if it has no registry that can be read."""
    prepare: Callable[[], None] | None = None
    """Called once in a process that only tries the converter, before its package is imported."""
    note: str = field(default="", compare=False)
    """A sentence on what a user of the converted model should know."""
    runtime: str = ""
    """The package that it needs besides, mostly to run models, if pip does not install it with the converter's own."""
    composites: bool = False
    """Whether `convert` takes composite calls (`composites=`); otherwise it is given their bodies in their place."""
    constants: Mapping[str, Sequence[str]] = field(default_factory=dict, hash=False)
    """By the name of an op, the arguments that are constants when it is asked about calls, as weights are in models."""

    @property
    def requirement(self) -> str:
        """What to install, as pip writes it: `openvino>=2026.1`."""
        return f"{self.package}>={self.at_least}"

    @property
    def version(self) -> str:
        """The installed version. Raises `ConversionError` if the package is not installed."""
        return self._version_of(self.package)

    def _version_of(self, package: str) -> str:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            runtime = f' "{self.runtime}"' if self.runtime else ""
            raise failure(
                f'to="{self.name}" needs {package}, which is not installed',
                f'pip install "{self.requirement}"{runtime}',
            ) from None

    def require(self) -> str:
        """The installed version. Raises `ConversionError` if it is absent or too old, or its runtime is absent."""
        found = self.version
        if self.runtime:
            self._version_of(self.runtime)
        if _number(found) < _number(self.at_least):
            raise failure(
                f'to="{self.name}" needs {self.package} {self.at_least} or later, and {found} is installed',
                f'pip install --upgrade "{self.requirement}"',
            )
        return found

    @property
    def can_travel(self) -> bool:
        """Whether another process can have it: a function of `__main__`, or one within another, is found in none."""
        values = [getattr(self, each.name) for each in fields(self) if each.name != "target"]
        try:
            pickle.dumps(values)
        except Exception:  # what is inside may raise anything when it is pickled
            return False
        return "__main__" not in {getattr(value, "__module__", "") for value in values}


def _number(version: str) -> tuple[int, ...]:
    """A version, comparable: the numbers at its beginning."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def failure(problem: str, *remedies: str, facts: Sequence[str] = ()) -> ConversionError:
    """The error with this problem, what is known of it, and what to do, the easiest first."""
    numbered = [f"    {i}. {each}" for i, each in enumerate(remedies, 1)]
    todo = [f"  to do: {remedies[0]}"] if len(remedies) == 1 else ["  to do, the easiest first:", *numbered]
    return ConversionError("\n".join([problem, *(f"  {fact}" for fact in facts), *todo]))
