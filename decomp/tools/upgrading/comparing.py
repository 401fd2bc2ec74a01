"""What changed between two snapshots, in plain lines, the gravest first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from decomp.errors import ArgumentError, count_noun
from decomp.record_changes import RecordChange, as_dicts, by_kind
from decomp.tools.upgrading.differing import kernel_changes
from decomp.tools.upgrading.lines import KINDS, Kind, names, op_name
from decomp.tools.upgrading.records import CallRecord, ModelRecord, VersionRecord


@dataclass(frozen=True)
class Upgrade:
    """What changed."""

    target: str
    old: str
    """The version of PyTorch before, and after."""
    new: str
    changes: tuple[RecordChange, ...]
    """The gravest first."""
    models: tuple[str, ...]
    """What became of each model that is in both, changed or not: `gpt: 294 calls, were 294`."""
    notes: tuple[str, ...] = ()
    """What the snapshots were made with, where it differs and is not PyTorch."""

    @property
    def headline(self) -> str:
        """`torch 2.13.0 to 2.14.1, for tinygrad: 31 changes`."""
        said = count_noun(len(self.changes), "change") if self.changes else "nothing changed"
        return f"torch {self.old} to {self.new}, for {self.target}: {said}"

    def by_kind(self) -> Iterator[tuple[Kind, list[RecordChange]]]:
        """The changes in groups."""
        return by_kind(self.changes, KINDS)

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        changes = as_dicts(self.changes)
        head = {"target": self.target, "old": self.old, "new": self.new}
        return {**head, "changes": changes, "models": list(self.models), "notes": list(self.notes)}


def compare(old: VersionRecord, new: VersionRecord, files: tuple[str, str] = ("the first", "the second")) -> Upgrade:
    """What changed from one to the other. Raises `ArgumentError` for snapshots of two targets."""
    if old.target != new.target:
        said = f"{files[0]} is of the target {old.target}, and {files[1]} of {new.target}"
        raise ArgumentError(f"{said}: compare those of one")
    lines = [*_of_ops(old, new), *_of_models(old.models, new.models), *_of_target(old, new)]
    order = list(KINDS)
    lines.sort(key=lambda line: (order.index(line.kind), line.about, line.text))
    both = [name for name in old.models if name in new.models]
    models = (f"{name}: {_outcome(new.models[name])}, {_before(old.models[name])}" for name in both)
    return Upgrade(new.target, old.version, new.version, tuple(lines), tuple(models), tuple(_notes(old, new, files)))


def _notes(old: VersionRecord, new: VersionRecord, files: tuple[str, str]) -> Iterator[str]:
    for key in ("decomp", "python", "processor", "vectors", "system", "rules"):
        before, after = old.header.get(key), new.header.get(key)
        if before != after:
            yield f"note: {key} differs too: {before}, and {after}"
    for file, mine, other in ((files[0], old, new), (files[1], new, old)):
        only = sorted({*mine.models} - {*other.models})
        if only:
            yield f"note: only in {file}: {', '.join(only)}"


def _of_target(old: VersionRecord, new: VersionRecord) -> Iterator[RecordChange]:
    """A target is a set of ops; one that takes those of a tag, as Core ATen, changes with PyTorch."""
    before, after = ({_unsuffixed(op): said for op, said in each.primitives.items()} for each in (old, new))
    gone = sorted(op for op in before if op not in after)
    come = sorted(op for op in after if op not in before)
    if gone:
        yield RecordChange("target", "", f"{new.target} no longer has {names(gone)}")
    if come:
        yield RecordChange("target", "", f"{new.target} has {names(come)} in addition")
    for op in sorted({*before} & {*after}):
        if before[op] != after[op]:
            said = f"condition was {before[op] or 'none'}, is {after[op] or 'none'}"
            yield RecordChange("target", op, f"{op_name(op)}: {said}")


def _unsuffixed(op: str) -> str:
    """An overload that is the only one of its op goes by the name of the op, until there are two."""
    return op.removesuffix(".default")


def _of_ops(old: VersionRecord, new: VersionRecord) -> Iterator[RecordChange]:
    for op in sorted({*old.ops, *old.lost} - {*new.ops, *new.lost}):
        said = "is gone" if op in new.absent else "has no rule and is not an op of the target any more"
        yield RecordChange("gone", op, f"{op_name(op)} {said}")
    for op in sorted({*new.ops, *new.lost} - {*old.ops, *old.lost}):
        yield RecordChange("new", op, f"{op_name(op)} is new")
    others = sorted(op for op in old.absent if op not in new.absent and op not in new.ops)
    if others:
        said = f"PyTorch has {count_noun(len(others), 'op')} more, for which there are no rules"
        yield RecordChange("new", "", f"{said}: {names(others)}")
    others = sorted(op for op in new.absent if op not in old.absent and op not in old.ops)
    if others:
        yield RecordChange("new", "", f"PyTorch no longer has {names(others)}, for which there are no rules")
    for op in sorted({*new.lost} - {*old.lost}):
        yield RecordChange("unreached", op, f"{op_name(op)}: {new.lost[op]}")
    for op in sorted({*old.ops} & {*new.ops}):
        pairs = paired(old.ops[op], new.ops[op])
        yield from _of_derivations(op, pairs)
        yield from kernel_changes(op, pairs, {**old.points, **new.points})


class _Called(Protocol):
    """A record of a call."""

    @property
    def call(self) -> str: ...


_Record = TypeVar("_Record", bound=_Called)


def paired(old: Sequence[_Record], new: Sequence[_Record]) -> list[tuple[_Record, _Record]]:
    """The calls that both have, in order: of two that are written alike the first with the first."""
    waiting: dict[str, list[_Record]] = {}
    for each in new:
        waiting.setdefault(each.call, []).append(each)
    return [(each, waiting[each.call].pop(0)) for each in old if waiting.get(each.call)]


_REACHED = ("legal", "derived")


def _of_derivations(op: str, pairs: Sequence[tuple[CallRecord, CallRecord]]) -> Iterator[RecordChange]:
    """One line for calls of an op that changed alike."""
    found: dict[tuple[str, str], list[str]] = {}
    for old, new in pairs:
        said = _derivation(old, new)
        if said is not None:
            found.setdefault(said, []).append(old.call)
    for (kind, text), calls in found.items():
        more = f", and {len(calls) - 1} more" if len(calls) > 1 else ""
        yield RecordChange(kind, op, f"{op_name(op)} {text}: {calls[0]}{more}")


def _derivation(old: CallRecord, new: CallRecord) -> tuple[str, str] | None:
    if not old.verdict or not new.verdict:
        return None  # derivations were left out
    was, now = old.verdict in _REACHED, new.verdict in _REACHED
    if was and not now:
        return "unreached", f"is {new.verdict} ({new.reason[:160]})"
    if now and not was:
        return "reached", f"is reached {_way(new)}"
    if not now:
        return ("words", f"is {new.verdict} for another reason") if old.reason != new.reason else None
    if (old.verdict, old.calls, old.cost) != (new.verdict, new.calls, new.cost):
        ways = _way(new) if _way(new) == _way(old) else f"{_way(new)}, was {_way(old)}"
        return "derived", f"takes {count_noun(new.calls, 'call')}, took {old.calls} ({ways})"
    if old.rules != new.rules:
        return "derived", f"is reached {_way(new)}, was {_way(old)}"
    return None


def _way(call: CallRecord) -> str:
    return f"by {call.rules[0]}" if call.rules else "as it is"


def _of_models(old: Mapping[str, ModelRecord], new: Mapping[str, ModelRecord]) -> Iterator[RecordChange]:
    for name in old:
        if name in new and old[name] != new[name]:
            yield from _of_model(name, old[name], new[name])


def _of_model(name: str, old: ModelRecord, new: ModelRecord) -> Iterator[RecordChange]:
    if new.error and not old.error:
        yield RecordChange("unreached", name, f"{name} is no longer lowered: {new.error}")
    elif old.error and not new.error:
        yield RecordChange("reached", name, f"{name} is lowered: {_outcome(new)}")
    elif old.error != new.error:
        yield RecordChange("words", name, f"{name} is refused otherwise: {new.error}, was {old.error}")
    if old.exported != new.exported and old.exported and new.exported:
        yield RecordChange("exported", name, f"{name} is exported otherwise: {_counts(old.exported, new.exported)}")
    if old.lowered != new.lowered and old.lowered and new.lowered:
        yield RecordChange(
            "derived", name, f"{name}: {_outcome(new)}, {_before(old)}: {_counts(old.lowered, new.lowered)}"
        )
    elif old.rules != new.rules and old.lowered and new.lowered:
        yield RecordChange("derived", name, f"{name} goes by other rules: {_counts(old.rules, new.rules)}")


def _outcome(model: ModelRecord) -> str:
    return "not lowered" if model.error else count_noun(sum(model.lowered.values()), "call")


def _before(model: ModelRecord) -> str:
    return "was not lowered" if model.error else f"were {sum(model.lowered.values())}"


def _counts(old: Mapping[str, int], new: Mapping[str, int]) -> str:
    """`mul.Tensor 12 (11), exp2 3 (none)`."""
    changed = [name for name in sorted({*old, *new}) if old.get(name, 0) != new.get(name, 0)]
    both = {each: (new.get(each, 0) or "none", old.get(each, 0) or "none") for each in changed}
    said = [f"{each.removeprefix('aten.')} {now} ({was})" for each, (now, was) in both.items()]
    return ", ".join([*said[:6], *([f"{len(said) - 6} more"] if len(said) > 6 else [])])
