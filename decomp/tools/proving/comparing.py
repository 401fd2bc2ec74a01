"""How two proofs differ: what is reached, by which derivation, and what the rest waits for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from decomp.errors import ArgumentError, count_noun
from decomp.record_changes import RecordChange, RecordDifference
from decomp.tools.proving.records import ProvedCall, TargetProof
from decomp.tools.upgrading.comparing import paired

KINDS = {
    "unreached": "no longer reached",
    "reached": "newly reached",
    "needs": "another smallest set to add",
    "derived": "derived otherwise",
    "table": "ops and sample calls",
    "version": "versions",
    "target": "the target",
    "rule": "rules whose code changed",
}
"""Kinds of changes, in the order in which they are shown."""
_CAUSES = ("version", "target", "rule")
"""What may be a cause, and is no change of what is proved."""


class ProofDifference(RecordDifference):
    """What differs between two proofs: `tinygrad: 33 of 33 sample calls reached, were 31 of 33: 2 changes`. They are
    the same if the same calls are reached, by the same programs, and the others need the same."""

    KINDS = KINDS
    CAUSES = _CAUSES


def compare(old: TargetProof, new: TargetProof) -> ProofDifference:
    """What changed from one proof to another. Raises `ArgumentError` for proofs of two targets."""
    if old.target != new.target:
        raise ArgumentError(f"one proof is of the target {old.target}, the other of {new.target}: compare those of one")
    counts = [(sum(call.is_reached for call in each.calls), sum(map(len, each.ops.values()))) for each in (old, new)]
    (was, of), (now, total) = counts
    about = f"{new.target}: {now:,} of {total:,} sample calls reached, were {was:,} of {of:,}"
    return ProofDifference.of(about, (*_of_ops(old, new), *_of_causes(old, new)))


def _of_causes(old: TargetProof, new: TargetProof) -> Iterator[RecordChange]:
    for name, shown in (("torch", "PyTorch"), ("decomp", "decomp")):
        if old.header.get(name) != new.header.get(name):
            yield RecordChange("version", shown, f"{new.header.get(name)}, was {old.header.get(name)}")
    for op, (was, now) in _changed(old.conditions, new.conditions):
        said = [_condition(each) for each in (now, was)]
        yield RecordChange("target", op, f"{said[0]}, was {said[1]}")
    both = old.rules.keys() & new.rules.keys()
    for rule in sorted(each for each in both if old.rules[each] != new.rules[each]):
        yield RecordChange("rule", rule, "its code changed")


def _changed(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[tuple[str, tuple[str | None, str | None]]]:
    for name in sorted({*old} | {*new}):
        if old.get(name) != new.get(name):
            yield name, (old.get(name), new.get(name))


def _condition(said: str | None) -> str:
    return "not in it" if said is None else said or "always legal"


def _of_ops(old: TargetProof, new: TargetProof) -> Iterator[RecordChange]:
    for op in sorted({*old.ops} - {*new.ops}):
        yield RecordChange("table", op, new.lost.get(op, "only in the first proof"))
    for op in sorted({*new.ops} - {*old.ops}):
        yield RecordChange("table", op, "only in the second proof")
    for op in sorted({*old.ops} & {*new.ops}):
        pairs = paired(old.ops[op], new.ops[op])
        if len(pairs) < max(len(old.ops[op]), len(new.ops[op])):
            yield RecordChange("table", op, "its sample calls changed")
        for was, now in pairs:
            change = _of_call(was, now)
            if change is not None:
                yield RecordChange(change[0], now.call, change[1])


def _of_call(old: ProvedCall, new: ProvedCall) -> tuple[str, str] | None:
    if old.is_reached and not new.is_reached:
        return "unreached", f"is {new.verdict} ({new.reason[:160]})"
    if new.is_reached and not old.is_reached:
        return "reached", _way(new)
    if not new.is_reached:
        return None if old.needs == new.needs else ("needs", f"{_sets(new)}, was {_sets(old)}")
    if old.verdict != new.verdict or old.rules != new.rules:
        return "derived", f"{_way(new)}, was {_way(old)}"
    if old.calls != new.calls:
        return "derived", f"{_count(new)}, was {_count(old)} ({_way(new)})"
    return ("derived", "the same calls on other operands") if old.program != new.program else None


def _way(call: ProvedCall) -> str:
    return f"by {call.rules[0]}, {_count(call)}" if call.rules else call.verdict


def _count(call: ProvedCall) -> str:
    return count_noun(sum(call.calls.values()), "call")


def _sets(call: ProvedCall) -> str:
    return " or ".join(", ".join(each) for each in call.needs) or "none but the op itself"
