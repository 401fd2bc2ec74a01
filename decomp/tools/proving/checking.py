"""Checks a proof again, without a rule. Each recorded program is read as data, every call of it must be one that the
target takes, and it is compared with its op: by the structural checks between two programs, and by running both on the
sample call. A legal call must still be legal, and a blocked one illegal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
import operator
from typing import Any

import torch
from torch import fx

from decomp.cache.portable import load_program
from decomp.cache.symbols import NotSerialisable
from decomp.errors import first_line, spell_target
from decomp.ir.agreement import described, same_metadata
from decomp.ir.call import is_free, is_host
from decomp.ir.ops import of_function
from decomp.jobs import NO_PROGRESS, Failed, Progress, answers, can_travel, within
from decomp.metadata.nonfinite_constants import same_constant
from decomp.ops import aten
from decomp.proof.correspondence import IllegalCall, MetadataChanged, VerificationError
from decomp.proof.legality import why_illegal_in
from decomp.rules.accuracy import LIMITS_BY_LEVEL, Within
from decomp.rules.library import library
from decomp.rules.options import Options
from decomp.rules.sources import content_hash
from decomp.rules.target import Target
from decomp.samples import Sample, program_of
from decomp.tools.measurement.trials import silenced
from decomp.tools.proving.proving import named
from decomp.tools.proving.records import BLOCKED, DERIVED, LEGAL, REFUSED, TIMEOUT, ProvedCall, TargetProof
from decomp.tools.upgrading.taking import calls_of
from decomp.torch_internals.pytree import tensors_in
from decomp.type_conversion.pair_programs import border_conversions
from decomp.validation.promises import UNMEASURED
from decomp.validation.whole_programs import whole_programs
from decomp.verification import verify

HELD = "checked"
KINDS = {
    HELD: "as the proof says",
    "open": "as it says, without values: they are random, or the op leaves them open",
    "unseen": "not checked: only the rules know why it is blocked, or what it becomes",
    "wrong": "not as the proof says",
}
"""What a check finds of a call."""


@dataclass(frozen=True)
class CheckedProof:
    """What a check found."""

    proof: TargetProof
    found: Mapping[str, tuple[tuple[str, str], ...]]
    """By op: for each call, a key of `KINDS`, and why if it is wrong."""
    notes: tuple[str, ...] = ()
    """What differs between the proof and what it was checked with."""

    @property
    def counts(self) -> dict[str, int]:
        """How many calls there are of each kind."""
        kinds = [kind for each in self.found.values() for kind, _ in each]
        return {kind: kinds.count(kind) for kind in KINDS}

    @property
    def faults(self) -> list[tuple[str, str]]:
        """The calls that are not as the proof says, and why."""
        pairs = ((call, each) for op, calls in self.proof.ops.items() for call, each in zip(calls, self.found[op]))
        return [(call.call, why) for call, (kind, why) in pairs if kind == "wrong"]

    @property
    def headline(self) -> str:
        """`tinygrad: the proof holds in 1,498 calls, and is wrong in 2`."""
        counts = self.counts
        wrong = f", and is wrong in {counts['wrong']:,}" if counts["wrong"] else ""
        return f"{self.proof.target}: the proof holds in {counts[HELD] + counts['open']:,} calls{wrong}"

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        faults = [{"call": call, "why": why} for call, why in self.faults]
        return {"target": self.proof.target, "calls": self.counts, "wrong": faults, "notes": list(self.notes)}

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults


@dataclass(frozen=True)
class CheckJob:
    """One op to check."""

    op: str
    calls: tuple[ProvedCall, ...]
    asked: Callable[[], tuple[Target, Options]]

    def run(self) -> tuple[tuple[str, str], ...]:
        """What is found of each of its calls."""
        library()  # which registers what is not PyTorch's from the start
        target, options = self.asked()
        target = options.target(target)
        samples: dict[str, list[Sample]] = {}
        for sample in calls_of(self.op):
            samples.setdefault(str(sample), []).append(sample)
        found = []
        for call in self.calls:
            waiting = samples.get(call.call)
            if not waiting:
                found.append(("wrong", "the table of sample calls does not have it"))
            else:
                found.append(_checked(call, waiting.pop(0), target, options))
        return tuple(found)


def check(
    proof: TargetProof,
    asked: Callable[[], tuple[Target, Options]],
    *,
    executor: Executor | int | None = None,
    timeout: float | None = None,
    progress: Progress = NO_PROGRESS,
) -> CheckedProof:
    """Check a proof without running a rule. `asked` makes target and options, here and in other processes."""
    target, options = asked()
    changed = _changed_rules(proof, options)
    jobs = [CheckJob(op, calls, asked) for op, calls in proof.ops.items()]
    away = jobs if not jobs or can_travel(jobs[0]) else []
    here = ((job, job.run()) for job in jobs if job not in away)
    found: dict[str, tuple[tuple[str, str], ...]] = {}
    for job, answer in answers(away, executor, within(timeout or TIMEOUT), here):
        found[job.op] = (("wrong", str(answer)),) * len(job.calls) if isinstance(answer, Failed) else answer
        progress(len(found), len(jobs), job.op)
    return CheckedProof(proof, found, tuple(_notes(proof, options.target(target), changed)))


def _changed_rules(proof: TargetProof, options: Options) -> list[str]:
    """The rules of the proof whose code is not what it was."""
    rules = {named(rule): rule for rule in options.chosen_rules}
    return sorted(
        name
        for name, code in proof.rules.items()
        if code and (name not in rules or content_hash([rules[name]]) != code)
    )


def _notes(proof: TargetProof, target: Target, changed: Sequence[str]) -> Iterator[str]:
    if torch.__version__ != proof.header.get("torch"):
        yield f"it was made with torch {proof.header.get('torch')}, and checked with {torch.__version__}"
    now = dict(target.conditions())
    if now != dict(proof.conditions):
        differ = sorted(
            {*now} ^ {*proof.conditions} | {op for op in now if now[op] != proof.conditions.get(op, now[op])}
        )
        yield f"the target {target.name} changed since: {', '.join(differ[:6])}{' and more' * (len(differ) > 6)}"
    if changed:
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        yield f"rules that changed since, or are gone: {', '.join(changed[:3])}{more}; what they recorded is checked"


def _checked(call: ProvedCall, sample: Sample, target: Target, options: Options) -> tuple[str, str]:
    try:
        with silenced(), torch.random.fork_rng(devices=[]):
            if call.verdict == REFUSED or call.verdict == DERIVED and not call.program:
                return "unseen", ""
            if call.verdict in (LEGAL, BLOCKED):
                return _of_target(call, sample, target)
            return _of_program(call, sample, target, options)
    except VerificationError as error:
        return "wrong", first_line(error)
    except NotSerialisable as error:
        return "wrong", f"its program is damaged: {first_line(error)}"
    except Exception as error:  # a program of the file may do anything that the target can
        return "wrong", f"{type(error).__name__}: {first_line(error)}"


def _of_target(call: ProvedCall, sample: Sample, target: Target) -> tuple[str, str]:
    """Whether the target takes a call that is legal by the proof, and does not take one that is blocked."""
    module, tensors = program_of(sample)
    made = module.graph.output_node().args[0]
    for node, tensor in zip(module.graph.find_nodes(op="placeholder"), tensors):
        node.meta["val"] = tensor
    made.meta["val"] = sample.run()
    why = why_illegal_in(target, ())(made)
    if call.verdict == LEGAL:
        return (HELD, "") if why is None else ("wrong", f"it is not legal: {why}")
    taken = why is None and target.knows(of_function(sample.overload).op)  # a number may be computed on the host
    return ("wrong", "the target takes it") if taken else ("unseen", "")


def _of_program(call: ProvedCall, sample: Sample, target: Target, options: Options) -> tuple[str, str]:
    """Whether the recorded program is made of calls that the target takes, and computes what the op computes."""
    program, (source, tensors) = load_program(call.program), program_of(sample)
    results = _run(program.graph, program, tensors, target)
    expected = sample.run()
    if not same_metadata(_as_sequences(expected), _as_sequences(results)):
        raise MetadataChanged(f"it returns {described(results)}, and the op {described(expected)}")
    _require_legal(program.graph, target)
    _return_as(source, expected, program.graph.output_node().args[0])
    verify(source, program)
    if sample.exact == "shape":
        return "open", ""
    compared = source if sample.documented is None else _documented(source, sample)
    try:
        said = whole_programs(
            compared,
            program,
            tensors,
            {},
            _allowed(call, options) * _widening(tensors, tensors_in(expected)),
            gradients=options.trains is not False,
            subnormals=False,
        )
    except VerificationError:
        if sample.leeway is None:
            raise
        return "open", ""  # results of which several are right
    return ("open" if "random" in said else HELD), ""


def _allowed(call: ProvedCall, options: Options) -> float:
    """The error in ULP that a call may have: that of its level of accuracy, or what the proof says of its rule, if that
    is not too much for a value to be compared at all."""
    accuracy = options.policy.accuracy
    levels = (accuracy.default, *(level for _, level in accuracy.by_op))
    allowed = max(each.ulp if isinstance(each, Within) else LIMITS_BY_LEVEL[each]["float32"] for each in levels)
    return max(allowed, min(call.ulp or 0.0, UNMEASURED))


def _widening(operands: Sequence[torch.Tensor], results: Any) -> float:
    """How much finer the ULP of a result is than that of the operands: a float64 scale of float32 values is as exact as
    these are."""
    given, found = ([torch.finfo(t.dtype).eps for t in each if t.is_floating_point()] for each in (operands, results))
    return max(1.0, max(given) / min(found)) if given and found else 1.0


def _run(graph: fx.Graph, program: fx.GraphModule, tensors: Sequence[torch.Tensor], target: Target) -> Any:
    """Run a program on copies of tensors; each node gets its value as metadata. Raises `IllegalCall` before it runs an
    op that the target does not have."""
    rest = iter([tensor.clone() for tensor in tensors])
    values: dict[fx.Node, Any] = {}
    for node in graph.nodes:
        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), values.__getitem__)
        if node.op == "output":
            return args[0]
        if node.op == "placeholder":
            found = next(rest)
        elif node.op == "get_attr":
            found = getattr(program, str(node.target))
        else:
            _require_known(node, target)
            found = node.target(*args, **kwargs)
        values[node] = node.meta["val"] = found
    raise NotSerialisable("a program without results")


def _require_known(node: fx.Node, target: Target) -> None:
    free = is_host(node) or isinstance(node.target, torch._ops.OpOverload) and is_free(node.target)
    if not free and not target.knows(of_function(node.target).op) and node.target not in _AT_BORDERS:
        raise IllegalCall(f"{target.name} does not have {spell_target(node.target)}", node)


_AT_BORDERS = (aten.view_as_real.default, aten.view_as_complex.default, aten.copy_.default)
"""Calls that split complex inputs and merge complex results, where the target has real numbers alone, and that write
inputs back: not the target's to take."""


def _require_legal(graph: fx.Graph, target: Target) -> None:
    written = {node for node in graph.nodes if node.target is _AT_BORDERS[-1] and node.args[0].op == "placeholder"}
    border = {node for node in border_conversions(graph) if _is_outside(node)}
    illegal = why_illegal_in(target, written | border)
    for node in graph.nodes:
        why = illegal(node)
        if why is not None:
            raise IllegalCall(why, node)


def _is_outside(node: fx.Node) -> bool:
    """Whether a conversion is of an input, or of a result."""
    return node.args[0].op == "placeholder" or any(user.op == "output" for user in node.users)


def _return_as(source: fx.GraphModule, results: Any, like: Any) -> None:
    """Have the program of a sample call return its results one by one, in the containers of the recorded one."""
    output = source.graph.output_node()
    call = output.args[0]
    with source.graph.inserting_before(output):
        output.args = (_taken(source.graph, call, results, like),)
    source.recompile()


def _taken(graph: fx.Graph, node: fx.Node, value: Any, like: Any) -> Any:
    if not isinstance(value, (tuple, list)) or not isinstance(like, (tuple, list)):
        # A number is a constant of the recorded program, and what only a backward pass reads need not be computed.
        is_constant = like is None or not isinstance(value, torch.Tensor) and same_constant(value, like)
        return like if is_constant else node
    items = [graph.call_function(operator.getitem, (node, index)) for index in range(len(value))]
    taken = [_taken(graph, *each) for each in zip(items, value, like)]
    return tuple(taken) if isinstance(like, tuple) else taken


def _as_sequences(results: Any) -> Any:
    return [*map(_as_sequences, results)] if isinstance(results, (tuple, list)) else results


def _documented(source: fx.GraphModule, sample: Sample) -> fx.GraphModule:
    """The program of a sample call whose op has no kernel here, by the function that it is documented to compute."""
    for node in source.graph.find_nodes(op="call_function", target=sample.overload):
        node.target = sample.documented
    source.recompile()
    return source
