"""How two lowerings differ, by their locks: versions, options, targets, calls by op and module, rules, programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
import difflib
from pathlib import Path
import re
from typing import Any, TypeVar

from decomp.costs.plans import spell_price
from decomp.errors import ArgumentError, LockMismatch, count_noun
from decomp.locking.lock import Lock, LockedCall, LockedRule
from decomp.lowering import Lowering
from decomp.record_changes import RecordChange, as_dicts, by_kind, counted

KINDS = {
    "version": "versions",
    "option": "options",
    "target": "the target",
    "interface": "inputs and outputs",
    "op": "calls by op",
    "module": "calls by module",
    "cost": "what the program costs",
    "error": "errors by the certificates of rules",
    "rule": "rules",
    "call": "how calls of the source are lowered",
    "program": "the lowered program",
}
"""Kinds of changes, in the order in which they are shown."""
_NAMES = re.compile(r"%[\w.]+")
_T = TypeVar("_T")


@dataclass(frozen=True)
class LockDifference:
    """What differs between two lowerings."""

    headline: str
    """`tinygrad, 21 calls → tinygrad, 18 calls: 5 changes`."""
    changes: tuple[RecordChange, ...]
    is_same_program: bool
    """Whether the lowered programs make the same calls on the same constants, whatever their nodes are called."""
    lines: tuple[str, ...]
    """The programs as a unified diff."""

    def by_kind(self) -> Iterator[tuple[str, list[RecordChange]]]:
        """The changes in groups, with the title of each."""
        return by_kind(self.changes, KINDS)

    def summary(self, most: int = 3) -> list[str]:
        """A line for each kind of change, with the first few changes."""
        lines = []
        for title, changes in self.by_kind():
            shown = [f"{change.about}: {change.text}" for change in changes[:most]]
            left = len(changes) - len(shown)
            lines.append(f"{title}: {'; '.join(shown)}{f'; and {left} more' if left else ''}")
        return lines

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        changes = as_dicts(self.changes)
        return {"same_program": self.is_same_program, "changes": changes, "lines": list(self.lines)}


def compare(old: Lock, new: Lock) -> LockDifference:
    """What differs from one lowering to the other."""
    is_same = _canonical(old) == _canonical(new) and list(old.tensors.values()) == list(new.tensors.values())
    changes = (*_of_settings(old, new), *_of_counts(old, new), *_of_calls(old, new), *_of_programs(old, new, is_same))
    calls = [f"{each.target}, {count_noun(sum(each.after.values()), 'call')}" for each in (old, new)]
    lines = () if is_same else tuple(_unified(old, new))
    return LockDifference(f"{calls[0]} → {calls[1]}: {counted(changes)}", changes, is_same, lines)


def hold_to_lock(lowering: Lowering, path: Path) -> None:
    """Write the lock of a lowering, or, if the file is there, compare: raises `LockMismatch` if the program is another,
    and `ArgumentError` if the file cannot be read or written."""
    made = Lock.of(lowering)
    try:
        if not path.exists():
            made.save(path)
            return
        locked = Lock.load(path)
    except OSError as error:
        raise ArgumentError(f"lock: {path}: {error.strerror or error}") from error
    found = compare(locked, made)
    if not found.is_same_program:
        raise LockMismatch(path, found.summary())


def _of_settings(old: Lock, new: Lock) -> Iterator[RecordChange]:
    named = {"torch": "PyTorch", "decomp": "decomp", "python": "Python"}
    yield from _changed("version", old.versions, new.versions, str, name=lambda each: named.get(each, each))
    yield from _changed("option", old.options, new.options, str)
    if old.target != new.target:
        yield RecordChange("target", "target", f"{_of_ops(new)}, was {_of_ops(old)}")
    else:
        yield from _changed("target", old.conditions, new.conditions, lambda said: said or "always legal")


def _of_ops(lock: Lock) -> str:
    return f"{lock.target} of {count_noun(len(lock.conditions), 'op')}" if lock.conditions else lock.target


def _of_counts(old: Lock, new: Lock) -> Iterator[RecordChange]:
    def calls(count: int) -> str:
        return count_noun(count, "call")

    yield from _changed("interface", old.interface, new.interface, str)
    yield from _changed("op", _without_zeros(old.after), _without_zeros(new.after), calls)
    yield from _changed("module", old.modules, new.modules, calls)
    yield from _of_costs(old, new)
    yield from _of_errors(old, new)
    yield from _changed("rule", old.rules, new.rules, _of_rule)


def _of_costs(old: Lock, new: Lock) -> Iterator[RecordChange]:
    for unit in [each for each in old.costs if each in new.costs]:
        was, now = old.costs[unit], new.costs[unit]
        if was != now:
            by = f" ({(now - was) / was:+.1%})" if was else ""
            yield RecordChange("cost", unit, f"{spell_price(now)}, were {spell_price(was)}{by}")


def _of_errors(old: Lock, new: Lock) -> Iterator[RecordChange]:
    """Where both have an error, on operands of the same types."""
    for name in sorted(old.calls.keys() & new.calls.keys()):
        was, now = old.calls[name].error, new.calls[name].error
        if was and now and was != now:
            yield RecordChange("error", name, f"{_ulp(now)}, was {_ulp(was)}")


def _ulp(error: str) -> str:
    return f"{error} ULP" if error[-1:].isdigit() else error


def _of_calls(old: Lock, new: Lock) -> Iterator[RecordChange]:
    def shown(call: LockedCall) -> str:
        return f"{call.decided}, {count_noun(call.calls, 'call')}" if call.calls > 1 else call.decided

    alike = [{name: (each.decided, each.calls) for name, each in lock.calls.items()} for lock in (old, new)]
    for name in sorted({*old.calls} | {*new.calls}):
        if alike[0].get(name) != alike[1].get(name):
            yield from _changed("call", _only(old.calls, name), _only(new.calls, name), shown)


def _of_programs(old: Lock, new: Lock, is_same: bool) -> Iterator[RecordChange]:
    if is_same:
        return
    for name in sorted({*old.program} | {*new.program}):
        lines = [_numbered(each.program.get(name, ())) for each in (old, new)]
        if lines[0] != lines[1]:
            yield RecordChange("program", name or "program", _first_difference(old, new, name))
    was, now = _unmatched(old.tensors, new.tensors), _unmatched(new.tensors, old.tensors)
    for change in _changed("program", was, now, str):
        both = change.about in was and change.about in now
        yield replace(change, text="a constant of other values") if both else change
    if not was and not now and list(old.tensors.values()) != list(new.tensors.values()):
        yield RecordChange("program", "constants", "the same values in another order")


def _unmatched(own: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    """The constants that the other lacks. They are numbered: one of the same values under another name did not
    change."""
    left, found = Counter(other.values()), dict[str, str]()
    for name, value in own.items():
        if left[value]:
            left[value] -= 1
        else:
            found[name] = value
    return found


def _first_difference(old: Lock, new: Lock, name: str) -> str:
    was, now = (each.program.get(name, ()) for each in (old, new))
    pairs = zip([*_numbered(was), ""], [*_numbered(now), ""])
    place = next((i for i, (one, other) in enumerate(pairs) if one != other), min(len(was), len(now)))
    first = [lines[place] if place < len(lines) else "nothing" for lines in (was, now)]
    return f"line {place + 1} is {first[1]}, was {first[0]}"


def _changed(
    kind: str,
    old: Mapping[str, _T],
    new: Mapping[str, _T],
    shown: Callable[[_T], str],
    name: Callable[[str], str] = str,
) -> Iterator[RecordChange]:
    """What a table has in one and not in the other, and what differs."""
    for key in sorted({*old} | {*new}):
        if key not in new:
            yield RecordChange(kind, name(key), f"gone, was {shown(old[key])}")
        elif key not in old:
            yield RecordChange(kind, name(key), f"new, {shown(new[key])}")
        elif old[key] != new[key]:
            was, now = shown(old[key]), shown(new[key])
            yield RecordChange(kind, name(key), f"{now}, was {was}" if was != now else "its code changed")


def _of_rule(rule: LockedRule) -> str:
    return f"used {rule.used} ×"


def _without_zeros(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}


def _only(table: Mapping[str, _T], name: str) -> dict[str, _T]:
    return {name: table[name]} if name in table else {}


def _canonical(lock: Lock) -> list[Sequence[str]]:
    return [_numbered(lines) for lines in lock.program.values()]


def _numbered(lines: Sequence[str]) -> list[str]:
    """Lines in which nodes are numbered, so that names make no difference."""
    numbers: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        return numbers.setdefault(match[0], f"%{len(numbers)}")

    return [_NAMES.sub(number, line) for line in lines]


def _unified(old: Lock, new: Lock) -> Iterator[str]:
    for name in sorted({*old.program} | {*new.program}):
        was, now = (each.program.get(name, ()) for each in (old, new))
        yield from difflib.unified_diff(was, now, f"before {name}".strip(), f"after {name}".strip(), lineterm="")
