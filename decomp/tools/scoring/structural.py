"""The structural half of a score: how many ops of the table of sample calls reach a target, how many of the calls that
real models make, and how many sample models and families of language models. No hardware takes part, and nothing in it
depends on the machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
import functools
from typing import Any

import torch

from decomp.errors import NotLowered, UnknownOp
from decomp.ir.ops import op as op_of
from decomp.jobs import NO_PROGRESS, Failed, Progress, answers, can_travel, within
from decomp.lowering import lower
from decomp.tools.measurement.trials import silenced
from decomp.tools.proving.proving import Asked
from decomp.tools.proving.records import TargetProof
from decomp.tools.scoring.families import FAMILIES
from decomp.tools.scoring.records import Figure, Lack, ScoreHalf, ordered
from decomp_rules import samples
from decomp_rules.samples.in_models import ops_in_models

TIMEOUT = 600.0
"""Seconds that a model may take."""

Maker = Callable[[str], tuple[Any, Any]]
"""Makes a model and its inputs by name."""


def structural(
    proof: TargetProof,
    asked: Callable[[], Asked],
    *,
    models: Sequence[str] = tuple(samples.MODELS),
    families: Mapping[str, str] = FAMILIES,
    configured: Maker | str = "not asked for",
    executor: Executor | int | None = None,
    timeout: float | None = None,
    progress: Progress = NO_PROGRESS,
) -> ScoreHalf:
    """The structural half of a score, from a proof. `asked` makes target and options, here and in other processes;
    `models` are names of sample models, which are lowered. `families`: by name, what `configured` makes of them on the
    meta device; if it is a text, they are not tried, for this reason."""
    jobs = [ModelJob("models", name, asked, functools.partial(samples.model, name)) for name in models]
    if not isinstance(configured, str):
        made = {name: functools.partial(configured, source) for name, source in families.items()}
        jobs += [ModelJob("families", name, asked, make) for name, make in made.items()]
    found = _answers(jobs, executor, timeout, progress)
    own, others = (
        {job.name: found[job] for job in jobs if job.figure == figure and job in found}
        for figure in ("models", "families")
    )
    figures = (
        of_ops(proof),
        of_calls_in_models(proof),
        of_models("models", "sample models", own),
        _of_families(others, configured),
    )
    return ScoreHalf(figures, proof.counts())


def _answers(
    jobs: Sequence[ModelJob], executor: Executor | int | None, timeout: float | None, progress: Progress
) -> dict[ModelJob, ModelAnswer]:
    away = jobs if not jobs or can_travel(jobs[0]) else []
    here = ((job, job.run()) for job in jobs if job not in away)
    found: dict[ModelJob, ModelAnswer] = {}
    for job, answer in answers(away, executor, within(timeout or TIMEOUT), here):
        found[job] = ModelAnswer(False, why=answer.partition(":")[0]) if isinstance(answer, Failed) else answer
        progress(len(found), len(jobs), job.name)
    return {job: found[job] for job in jobs}


def _of_families(found: Mapping[str, ModelAnswer], configured: Maker | str) -> Figure:
    unit = "families of language models"
    if isinstance(configured, str):
        return Figure("families", unit, 0, 0, note=configured)
    return of_models("families", unit, found)


def of_ops(proof: TargetProof) -> Figure:
    """The ops of the table: each counts if all its sample calls reach the target."""
    tried = [op for op, calls in proof.ops.items() if calls] + list(proof.lost)
    waiting: dict[tuple[str, ...], list[str]] = {}
    reached = {*proof.reached}
    for op in tried:
        if op not in reached:
            waiting.setdefault(_needs(proof, op), []).append(op)
    lacks = [Lack(add, len(ops), tuple(ops)) for add, ops in waiting.items()]
    return Figure(
        "ops", "ops of the table of sample calls", len(reached), len(tried), ordered(lacks), tuple(proof.untried)
    )


def _needs(proof: TargetProof, op: str) -> tuple[str, ...]:
    """All that the calls of an op wait for; nothing if that is unknown for one of them."""
    sets = [call.needs[0] if call.needs else () for call in proof.ops.get(op, ()) if not call.is_reached]
    return tuple(sorted({each for needs in sets for each in needs})) if sets and all(sets) else ()


def of_calls_in_models(proof: TargetProof) -> Figure:
    """The calls that about 100 real models make: those of an overload count if its sample calls reach the target; if it
    has none, those of its op, and for a call in place, those of the op that returns a new tensor."""
    waiting: Counter[tuple[tuple[str, ...], str]] = Counter()
    reached = total = 0
    untried = []
    for row in ops_in_models():
        op = _op_in(proof, row.op)
        if op is None:
            untried.append(row.op)
            continue
        calls = proof.ops[op]
        own = [call for call in calls if call.call.startswith(f"{row.op}(")] or calls
        total += row.calls
        if all(call.is_reached for call in own):
            reached += row.calls
        else:
            waiting[_needs(proof, op), op] += row.calls
    groups: dict[tuple[str, ...], list[tuple[str, int]]] = {}
    for (add, op), count in waiting.items():
        groups.setdefault(add, []).append((op, count))
    lacks = [Lack(add, sum(n for _, n in ops), tuple(op for op, _ in ops)) for add, ops in groups.items()]
    return Figure("calls", "calls of about 100 real models", reached, total, ordered(lacks), tuple(untried))


def _op_in(proof: TargetProof, overload: str) -> str | None:
    """The op of an overload that the proof has sample calls of; None if it has none."""
    try:
        name = str(op_of(overload.rpartition(".")[0]))
    except UnknownOp:  # another version of PyTorch has it
        return None
    return name if proof.ops.get(name) else None


def of_models(name: str, unit: str, found: Mapping[str, ModelAnswer]) -> Figure:
    """A figure of models that were lowered; those that could not be made are not counted."""
    waiting: dict[tuple[tuple[str, ...], str], list[str]] = {}
    tried = {each: answer for each, answer in found.items() if answer.is_made}
    for each, answer in tried.items():
        if not answer.is_lowered:
            waiting.setdefault((answer.needs, answer.why), []).append(each)
    lacks = [Lack(add, len(names), tuple(names), why) for (add, why), names in waiting.items()]
    reached = len(tried) - sum(map(len, waiting.values()))
    unmade = tuple(each for each in found if each not in tried)
    note = "they could not be made: the installed transformers does not have them" if unmade else ""
    return Figure(name, unit, reached, len(tried), ordered(lacks), unmade, note)


@dataclass(frozen=True)
class ModelAnswer:
    """What became of a model."""

    is_lowered: bool
    needs: tuple[str, ...] = ()
    """The ops that it needs, or nothing if these are unknown."""
    is_made: bool = True
    why: str = ""
    """What happened, in one word, if ops are not what is missing."""


@dataclass(frozen=True)
class ModelJob:
    """One model to lower, in another process."""

    figure: str
    name: str
    asked: Callable[[], Asked]
    make: Callable[[], tuple[Any, Any]]

    def run(self) -> ModelAnswer:
        """Make it, and lower it."""
        target, options = self.asked()
        try:
            module, args = self.make()
        except Exception:  # another version of transformers has other models and settings
            return ModelAnswer(False, is_made=False)
        kwargs = args if isinstance(args, dict) else None
        try:
            with silenced(), torch.random.fork_rng(devices=[]):
                lower(module, to=target, args=None if kwargs else args, kwargs=kwargs, options=options, verify=False)
        except NotLowered as error:
            found = error.suggestion()
            enough = found is not None and not found.out_of_reach
            return ModelAnswer(False, found.ops + found.dtypes if enough else (), why="" if enough else "blocked")
        except Exception as error:  # a capture or a rule may raise anything
            return ModelAnswer(False, why=type(error).__name__)
        return ModelAnswer(True)
