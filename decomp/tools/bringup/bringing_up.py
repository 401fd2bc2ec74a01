"""`bring_up`: compare a backend with PyTorch and return a report. Rows are computed in separate processes, so that a
primitive that hangs or crashes is a row of the report and does not end the run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
import contextlib
from dataclasses import replace
from difflib import get_close_matches
import json
import os
from pathlib import Path
import tempfile
import time
from typing import Any

import torch
from torch import nn

from decomp.errors import ArgumentError, boundary, spell_target
from decomp.ir.ops import Spelling, meant_overload, resolve
from decomp.jobs import Failed, Progress, Threads, answers, can_travel, within
from decomp.rules.library import library, samples as library_samples
from decomp.runtime.tables import Backend
from decomp.tools.bringup import TIMEOUT
from decomp.tools.bringup.jobs import BringUpJob, Made, failed_row, fingerprint
from decomp.tools.bringup.report import KINDS, BringUp
from decomp.tools.bringup.rows import BringUpRow
from decomp.tools.comparing.reproducing import place_of

QUICK_OPS = 24
"""The quick form tries one in this many ops of the library."""
QUICK_MODELS = ("gpt", "mlp")

Models = Iterable[str] | Mapping[str, Made]


@boundary("bring_up")
def bring_up(
    backend: Backend,
    *,
    models: Models | None = None,
    ops: Iterable[Any] | None = None,
    only: Sequence[str] | None = None,
    quick: bool = False,
    rules: Any = None,
    narrow: bool = False,
    training: bool | None = False,
    isolate: bool | None = None,
    workers: int | None = None,
    timeout: float = TIMEOUT,
    results: str | Path | None = None,
    progress: Progress | None = None,
) -> BringUp:
    """Compare a backend with PyTorch and return a `BringUp`: (1) each primitive of its target on sample calls in every
    dtype, with other shapes, strides and special values; (2) each op of the library, lowered to these primitives; (3)
    models. A wrong op or model is blamed on its first primitive that is wrong on its own operands.

    `models`: names of sample models, or, by a name of your own, a module and its inputs (a tuple, or a dict by name);
    by default all samples. `ops`: test only these primitives of the target and ops of the library; by default all.
    `only`: a selection of "primitive", "op" and "model"; by default all, but with `ops` only the models in `models`.
    `quick`: fewer dtypes, samples, ops and models. `rules`, `narrow`, `training`: how models are lowered, as in
    `decomp.lower`; by default for inference. `isolate`: whether to compute rows in other processes, where a crash
    or a hang loses one row; by default if another process can import the backend by name. `workers`: the number of
    processes, by default one per core. `timeout`: the time limit of a row there, in seconds. `results`: a directory
    where rows are cached; they are reused until a function of the backend changes. `progress`: called with the number
    of finished rows, the total, and the last row. Raises `ArgumentError`, a `ValueError`, for invalid options, and for
    a backend that cannot be isolated although `isolate` is True; `UnknownOp`."""
    began = time.perf_counter()
    if not isinstance(backend, Backend):
        raise ArgumentError(f"bring_up takes a decomp.Backend, not {type(backend).__name__}")
    only = _kinds(only, every=ops is None or models is not None)
    if workers is not None and (not isinstance(workers, int) or workers < 1):
        raise ArgumentError(f"workers= takes a number of processes, one or more, not {workers!r}")
    if not isinstance(timeout, (int, float)) or timeout <= 0:
        raise ArgumentError(f"timeout= takes seconds, not {timeout!r}")
    place = place_of(backend) if isolate is not False else None
    if isolate and place is None:
        raise ArgumentError(
            "no other process finds this backend: make it at the top level of a module that can be "
            "imported, or pass isolate=False"
        )
    run = _BringUpRun(
        backend, place, workers or os.cpu_count() or 1, timeout, quick, _RowFiles.at(results, backend, quick)
    )
    run.progress = progress or (lambda done, total, name: None)
    with tempfile.TemporaryDirectory() as scratch:
        run.scratch = scratch
        options = {"rules": rules, "narrow": narrow, "training": training}
        rows = run.rows([replace(job, lowering=options) for job in _jobs(backend, models, ops, only, quick)])
    version = torch.__version__.partition("+")[0]
    return BringUp(backend.name, backend.target.name, rows, quick, round(time.perf_counter() - began, 1), version)


def _kinds(only: Sequence[str] | str | None, every: bool) -> Sequence[str]:
    """The kinds of rows: those that were selected, by default `every` one, or all but models."""
    if only is None:
        return KINDS if every else ("primitive", "op")
    only = (only,) if isinstance(only, str) else only
    unknown = [each for each in only if each not in KINDS]
    if unknown:
        raise ArgumentError(f"only={unknown[0]!r}: available are {', '.join(KINDS)}")
    return only


def _jobs(backend: Backend, models: Models | None, ops: Any, only: Sequence[str], quick: bool) -> list[BringUpJob]:
    missing = set(backend.missing())
    primitives, names = list(backend.target), _library_ops()[:: QUICK_OPS if quick else 1]
    if ops is not None:
        primitives, names = _named(backend, list(_several(ops)), only)
    found = [BringUpJob("primitive", name, "") for name in primitives if name not in missing]
    found += [BringUpJob("op", name, "") for name in names]
    if models is None:
        models = [name for name in library_samples().MODELS if not quick or name in QUICK_MODELS]
    made: Mapping[str, Made | None] = models if isinstance(models, Mapping) else dict.fromkeys(_several(models))
    for name, each in made.items():
        _check_model(name, each)
    found += [BringUpJob("model", name, "", model=each) for name, each in made.items()]
    return [job for job in found if job.kind in only]


def _several(names: Any) -> Iterable[Any]:
    """A list of names, also for a single name."""
    return (names,) if isinstance(names, str) or callable(names) else names


def _check_model(name: str, made: Any) -> None:
    """Raise `ArgumentError` for an invalid model."""
    known = library_samples().MODELS
    if made is None and name not in known:
        raise ArgumentError(f"no sample model {name!r}; available: {', '.join(known)}")
    if made is not None and not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], nn.Module)):
        raise ArgumentError(
            f"models= takes a module and its inputs by name, {{{name!r}: (model, args)}}, and this is "
            f"{type(made).__name__}"
        )


def _library_ops() -> list[str]:
    return sorted({str(rule.op) for rule in library() if rule.op.packet is not None})


def _named(backend: Backend, ops: Sequence[Any], only: Sequence[str]) -> tuple[list[str], list[str]]:
    """The requested primitives and ops. Raises `UnknownOp`, and `ArgumentError` for a name that selects nothing."""
    primitives, names = dict[str, None](), dict[str, None]()
    for spelling in ops:
        meant = resolve(spelling)
        found = [each for each in backend.target if _is_meant(resolve(each), meant)]
        if not found and "op" not in only and "primitive" in only:
            near = get_close_matches(meant.op.short, [each.removeprefix("aten.") for each in backend.target])
            there = f"; there is {' or '.join(near)}" if near else ""
            raise ArgumentError(f"{spell_target(spelling)} is not a primitive of {backend.name}{there}")
        primitives.update(dict.fromkeys(found))
        names[str(meant.op)] = None
    return list(primitives), list(names)


def _is_meant(primitive: Spelling, meant: Spelling) -> bool:
    """Whether a primitive is of an op, and of its overload if one is named (or of all overloads)."""
    overload = meant_overload(meant)
    return primitive.op == meant.op and (overload is None or meant_overload(primitive) in (None, overload))


class _RowFiles:
    """Rows of earlier runs: one line of JSON each, in a file named by a fingerprint of their dependencies."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.rows = path, dict[tuple[str, str], BringUpRow]()
        if path is not None and path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(ValueError, KeyError, TypeError):  # the last line of an interrupted run
                    row = BringUpRow.from_json(json.loads(line))
                    self.rows[row.kind, row.name] = row

    @classmethod
    def at(cls, directory: str | Path | None, backend: Backend, quick: bool) -> _RowFiles:
        """The rows in a directory."""
        if directory is None:
            return cls(None)
        Path(directory).mkdir(parents=True, exist_ok=True)
        return cls(Path(directory) / f"{backend.name}-{fingerprint(backend, quick)}.jsonl")

    def keep(self, job: BringUpJob, row: BringUpRow) -> None:
        """Add a row, except of a user's model, which is run each time."""
        if self.path is not None and job.may_be_kept:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row.to_json()) + "\n")


class _BringUpRun:
    """One bring-up."""

    progress: Progress
    scratch: str
    threads: Threads

    def __init__(
        self,
        backend: Backend,
        place: tuple[str, str] | None,
        workers: int,
        timeout: float,
        quick: bool,
        kept: _RowFiles,
    ) -> None:
        self.backend, self.place, self.workers = backend, place, workers
        self.timeout, self.quick, self.kept = timeout, quick, kept
        self.done: dict[tuple[str, str], BringUpRow] = {}
        self.total = 0

    def rows(self, jobs: Sequence[BringUpJob]) -> tuple[BringUpRow, ...]:
        """All rows: primitives first, so that those that hang or crash are not run again in ops and models."""
        missing = [BringUpRow("primitive", name, "missing") for name in self.backend.missing()]
        self.total = len(jobs)
        first = [job for job in jobs if job.kind == "primitive"]
        with Threads(self.workers) as self.threads:  # each thread keeps one process
            self._make(first, frozenset())
            broken = {row.name.removeprefix("aten.") for row in self.done.values() if _is_lost(row)}
            self._make([job for job in jobs if job.kind != "primitive"], frozenset(broken))
        return (*missing, *(self.done[job.kind, job.name] for job in jobs))

    def _make(self, jobs: Sequence[BringUpJob], broken: frozenset[str]) -> None:
        waiting = []
        for i, job in enumerate(jobs):
            kept = self.kept.rows.get((job.kind, job.name)) if job.may_be_kept else None
            if kept is not None:
                self.done[job.kind, job.name] = kept
            else:
                waiting.append(self._placed(job, broken, i))
        for job, row in self._made(waiting):
            self.done[job.kind, job.name] = row
            self.kept.keep(job, row)
            self.progress(len(self.done), self.total, f"{job.kind} {job.name}")

    def _placed(self, job: BringUpJob, broken: frozenset[str], number: int) -> BringUpJob:
        name, directory = self.place or ("", "")
        log = os.path.join(self.scratch, f"{job.kind}{number}") if self.place is not None else ""
        return replace(job, backend=name, directory=directory, quick=self.quick, broken=broken, log=log)

    def _made(self, jobs: Sequence[BringUpJob]) -> Iterator[tuple[BringUpJob, BringUpRow]]:
        apart = [job for job in jobs if self.place is not None and can_travel((job.model, job.lowering))]
        here = ((job, job.run(self.backend)) for job in jobs if job not in apart)
        for job, answer in answers(apart, self.threads, within(self.timeout), here):
            yield job, failed_row(job, answer) if isinstance(answer, Failed) else answer


def _is_lost(row: BringUpRow) -> bool:
    return row.verdict in ("hangs", "crashes")
