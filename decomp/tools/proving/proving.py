"""Proves for each op of a table how its sample calls reach a target. Ops are jobs, over any executor; what is done is
kept, so that a proof that was interrupted goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
import functools
from importlib import metadata as distributions
import time
from typing import Any

import torch

from decomp.advice.jobs import Setting
from decomp.cache.portable import dump_program
from decomp.cache.symbols import NotSerialisable
from decomp.derive.decisions import Derived
from decomp.errors import Blocker, NotLowered, first_line
from decomp.ir.call import calls as calls_in
from decomp.ir.ops import op as op_of
from decomp.jobs import NO_PROGRESS, Failed, Progress, answers, can_travel, within
from decomp.lowering import Lowering, lower
from decomp.rules.certificates import identity
from decomp.rules.library import library, samples
from decomp.rules.options import Options
from decomp.rules.rules import Rule
from decomp.rules.sources import content_hash
from decomp.rules.target import Target
from decomp.samples import Sample, program_of
from decomp.tools.measurement.trials import silenced
from decomp.tools.proving.records import BLOCKED, DERIVED, LEGAL, REFUSED, TIMEOUT, ProvedCall, TargetProof
from decomp.tools.upgrading.taking import calls_of, ops_of
from decomp.validation.plan_prices import certified_error

SAVED_EVERY = 5.0
"""Seconds between two times that an unfinished proof is written."""

Asked = tuple[Target, Options]


@dataclass(frozen=True)
class OpAnswer:
    """The calls of one op, and the rules that they use with digests of their code."""

    calls: tuple[ProvedCall, ...]
    rules: Mapping[str, str]


@dataclass(frozen=True)
class ProofJob:
    """One op to prove, in another process, which makes target and options again."""

    op: str
    asked: Callable[[], Asked]

    def run(self) -> OpAnswer:
        """Lower its sample calls."""
        library()  # which registers what is not PyTorch's from the start, as the ops of quantised programs
        target, options = _made(self.asked)
        rules: dict[str, str] = {}
        with torch.random.fork_rng(devices=[]):
            return OpAnswer(tuple(proved(each, target, options, rules) for each in calls_of(self.op)), rules)


@functools.cache
def _made(asked: Callable[[], Asked]) -> Asked:
    """Made once in each process."""
    return asked()


def proved(sample: Sample, target: Target, options: Options, rules: dict[str, str]) -> ProvedCall:
    """How a call reaches the target. The rules that it uses are added to `rules`."""
    module, tensors = program_of(sample)
    try:
        with silenced():
            lowering = lower(module, to=target, args=tensors, options=options, simplify=False, verify=False)
            return _reached(str(sample), lowering, rules)
    except NotLowered as error:
        return _blocked(str(sample), error)
    except Exception as error:  # an export or a rule may raise anything
        return ProvedCall(str(sample), REFUSED, reason=f"{type(error).__name__}: {first_line(error)}"[:300])


def _reached(call: str, lowering: Lowering, rules: dict[str, str]) -> ProvedCall:
    derived = lowering.plan.derived
    if not derived and not lowering.plan.notes:
        return ProvedCall(call, LEGAL)
    used = {rule for each in derived.values() for rule in _rules_of(each)}
    rules.update((named(rule), content_hash([rule]) if isinstance(rule, Rule) else "") for rule in used)
    errors = [certified_error(decision, lowering.target.name, node) for node, decision in derived.items()]
    ulp, own = max(error for error in errors if error is not None) if errors and None not in errors else (None, None)
    counts = Counter(f"{each.op}.{each.overload or 'default'}" for each in calls_in(lowering.result))
    return ProvedCall(
        call,
        DERIVED,
        tuple(dict.fromkeys(chain for each in derived.values() for chain in _chains(each))),
        dict(sorted(counts.items())),
        ulp,
        own if own is None or own >= 0 else None,
        program=_program(lowering.result),
    )


def _rules_of(decision: Derived) -> Iterator[Any]:
    yield decision.rule
    for entry in decision.template.entries:
        yield from entry.chain


def named(rule: Any) -> str:
    """How a proof names a rule, or a kernel of PyTorch's own."""
    return identity(rule) if isinstance(rule, Rule) else rule.name


def _chains(decision: Derived) -> Iterator[str]:
    for entry in decision.template.entries:
        names = [rule.name for rule in entry.chain]
        yield from (" > ".join(names[:end]) for end in range(1, len(names) + 1))


def _program(result: Any) -> tuple[Any, ...]:
    try:
        return tuple(dump_program(result))
    except NotSerialisable:  # a large constant, or a body of a loop
        return ()


def _blocked(call: str, error: NotLowered) -> ProvedCall:
    reason = "; ".join(dict.fromkeys(map(_why, error.blockers)))
    with silenced():
        found = error.suggestion()
    if found is None:  # what its result depends on is not known before it runs: the op itself would do
        itself = tuple(dict.fromkeys(each.op.removeprefix("aten.") for each in error.blockers))
        return ProvedCall(call, BLOCKED, needs=(itself,), reason=reason)
    alone = found.requirements[0].needs if len(found.requirements) == 1 else ()
    together = tuple(each.op for each in found.additions)
    needs = alone or ((together,) if together and not found.out_of_reach else ())
    return ProvedCall(call, BLOCKED, needs=needs, is_smallest=found.smallest, reason=reason)


def _why(blocker: Blocker) -> str:
    """The last reason why a call is blocked."""
    last = blocker.tried[-1][1] if blocker.tried else ""
    return f"{blocker.op}: {blocker.condition or last or blocker.limitation or 'no rule is registered for it'}"


def prove(
    asked: Callable[[], Asked],
    *,
    ops: Sequence[str] | None = None,
    known: TargetProof | None = None,
    executor: Executor | int | None = None,
    timeout: float | None = None,
    header: Mapping[str, Any] = {},
    progress: Progress = NO_PROGRESS,
    save: Callable[[TargetProof], object] = lambda proof: None,
) -> TargetProof:
    """How the sample calls of ops reach a target.

    `asked` makes target and options, here and in other processes. `ops`: those to look at, in any spelling; by default
    all of the table. `known`: a proof to go on with, if it is of the same target, rules, options and
    versions. `executor`: any executor, or a number of processes, by default one a core. `timeout`: seconds that an op
    may take. `header`: more entries for the header. `save` is called with the unfinished proof now and then, and at the
    end, also of an interrupted run. Raises `UnknownOp`."""
    target, options = asked()
    setting = Setting.of(target, options)
    names = table_of(setting) if ops is None else sorted({str(op_of(each)) for each in ops})
    proof = TargetProof(
        {**_versions(), "digest": setting.digest, **header},
        target.name,
        dict(setting.matching.target.conditions()),
        {},
        {},
        {},
    )
    if known is not None and is_continued(known, proof):
        proof = replace(proof, rules=known.rules, ops=known.ops)
    return _completed(proof, [ProofJob(name, asked) for name in names], executor, timeout, progress, save)


def table_of(setting: Setting) -> list[str]:
    """The ops of the table: those of the rules, the target's own, and all others that have sample calls."""
    others = {name if name in samples().FUNCTIONS else str(op_of(name)) for name in samples().names()}
    return sorted({*ops_of(setting), *others})


def is_continued(known: TargetProof, proof: TargetProof) -> bool:
    """Whether a proof is of the same target, rules, options and versions. With functions of yours it is not known."""
    same = all(known.header.get(key) == proof.header.get(key) for key in (*_versions(), "digest"))
    return same and proof.header["digest"] is not None and known.target == proof.target


def _completed(
    proof: TargetProof,
    jobs: Sequence[ProofJob],
    executor: Executor | int | None,
    timeout: float | None,
    progress: Progress,
    save: Callable[[TargetProof], object],
) -> TargetProof:
    left = [job for job in jobs if job.op not in proof.ops]
    ops, rules, lost = dict(proof.ops), dict(proof.rules), dict[str, str]()
    proof = replace(proof, ops=ops, rules=rules, lost=lost)
    done, saved_at = len(jobs) - len(left), time.monotonic()
    away = left if not left or can_travel(left[0]) else []
    here = ((job, _here(job)) for job in left if job not in away)
    try:
        for job, answer in answers(away, executor, within(timeout or TIMEOUT), here):
            if isinstance(answer, Failed):
                lost[job.op] = answer.partition("\n")[0]
            else:
                ops[job.op] = answer.calls
                rules.update(answer.rules)
            done += 1
            progress(done, len(jobs), job.op)
            if time.monotonic() - saved_at > SAVED_EVERY:
                save(proof)
                saved_at = time.monotonic()
    finally:
        proof = replace(proof, ops=dict(sorted(ops.items())))
        save(proof)
    return proof


def _here(job: ProofJob) -> OpAnswer | Failed:
    try:
        return job.run()
    except Exception as error:  # as another process would answer
        return Failed(f"{type(error).__name__}: {first_line(error)}")


def _versions() -> dict[str, str]:
    try:
        own = distributions.version("decomp")
    except distributions.PackageNotFoundError:
        own = "?"
    return {"torch": torch.__version__, "decomp": own}
