"""Jobs of a bring-up, in a form that can be sent to another process: backends are sent by name, as their functions
cannot be pickled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
import hashlib
import importlib
import inspect
import os
from pathlib import Path
import sys
import time
from typing import Any

import torch
from torch import nn

from decomp.errors import ArgumentError, first_line
from decomp.runtime.tables import Backend
from decomp.tools.bringup import trying
from decomp.tools.bringup.rows import BringUpRow, Problem

Made = tuple[nn.Module, Any]
"""A module and the inputs to call it with."""


@dataclass(frozen=True)
class BringUpJob:
    """One row to compute."""

    kind: str
    name: str
    backend: str
    """`package.module:name`, or the name of a shipped backend."""
    directory: str = ""
    """The directory of its module, in addition to the search path."""
    quick: bool = False
    broken: frozenset[str] = field(default_factory=frozenset)
    """Primitives that hang or crash: programs with these are not run."""
    model: Made | None = None
    lowering: Mapping[str, Any] = field(default_factory=dict)
    """The options with which a model is lowered."""
    log: str = ""
    """A file that each case is logged to before it runs."""

    @property
    def may_be_kept(self) -> bool:
        """Whether the row depends on nothing but what is shipped and the backend: not on a user's model or rules."""
        options = self.lowering if self.kind == "model" else {}
        return self.model is None and not any(options.values())

    def run(self, backend: Backend | None = None) -> BringUpRow:
        """Compute the row. Raises `LookupError` if the backend is not found."""
        backend = backend or backend_named(self.backend, self.directory)
        began = time.perf_counter()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            row = self._row(backend)
        row.seconds = round(time.perf_counter() - began, 2)
        return row

    def _row(self, backend: Backend) -> BringUpRow:
        try:
            if self.kind == "primitive":
                return trying.primitive(backend, self.name, self.quick, self._tell)
            if self.kind == "op":
                return trying.op(backend, self.name, self.quick, self.broken, self._tell)
            made = self.model or trying.sample_model(self.name)
            return trying.model(backend, self.name, made, self.broken, self._tell, self.lowering)
        except Exception as error:  # only this row is lost
            return failed_row(self, f"{type(error).__name__}: {first_line(error)}")

    def _tell(self, case: str) -> None:
        if self.log:
            Path(self.log).write_text(case, encoding="utf-8")


def failed_row(job: BringUpJob, answer: str) -> BringUpRow:
    """The row of a job that hung or crashed."""
    verdict = answer.partition(":")[0]
    case = ""
    if job.log and os.path.exists(job.log):
        case = Path(job.log).read_text(encoding="utf-8")
    where, _, call = case.partition(": ") if job.kind == "primitive" else ("", "", case)
    row = BringUpRow(job.kind, job.name)
    row.blame(verdict if verdict in ("hangs", "crashes") else "fails", Problem(where or job.kind, answer, call))
    return row


def backend_named(name: str, directory: str = "") -> Backend:
    """A shipped backend by name, or `module:name`. Raises `LookupError`, and `ArgumentError` if it is not a
    backend."""
    module, colon, attribute = name.partition(":")
    if not colon:
        found = importlib.import_module("decomp_rules.backends").get(name)
    else:
        if directory and directory not in sys.path:
            sys.path.insert(0, directory)
        found = getattr(importlib.import_module(module), attribute, None)
    if not isinstance(found, Backend):
        raise ArgumentError(f"{name} is of type {type(found).__name__}, not a decomp.Backend")
    return found


def fingerprint(backend: Backend, quick: bool) -> str:
    """A hash of everything that rows depend on: the sources of the backend's modules and of this package, its target,
    and the version of PyTorch."""
    functions = [backend.from_torch, backend.to_torch, backend.jit, *(each.function for each in backend)]
    modules = {getattr(inspect.unwrap(each), "__module__", None) for each in functions if each is not None}
    modules |= {type(each).__module__ for each in functions}
    parts = [torch.__version__, str(quick), backend.name, repr(backend.target.conditions()), repr(backend.dtypes)]
    for name in sorted(each for each in modules if each and each.partition(".")[0] not in ("builtins", "torch")):
        file = getattr(sys.modules.get(name), "__file__", None)
        parts.append(Path(file).read_text(encoding="utf-8") if file and file.endswith(".py") else name)
    for package in ("decomp", "decomp_rules"):
        top = Path(str(importlib.import_module(package).__file__)).parent
        for path in sorted(top.rglob("*.py")):
            parts.append(f"{path.relative_to(top)} {path.stat().st_size} {path.stat().st_mtime_ns}")
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]
