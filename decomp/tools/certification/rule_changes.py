"""What changed in a library between two sets of certificates: rules that are new or gone, their errors, and the calls
that they become on targets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from decomp.errors import ArgumentError, count_noun
from decomp.record_changes import RecordChange, RecordDifference
from decomp.rules.certificate import Certificate, Implementation
from decomp.rules.certificates import SUFFIX, read_committed

KINDS = {
    "gone": "rules that are gone",
    "new": "new rules",
    "reached": "what is reached",
    "error": "errors",
    "calls": "calls",
    "code": "rules whose code changed, and whose figures did not",
}
"""Kinds of changes, in the order in which they are shown."""
LEAST = 0.25
"""Errors that differ by a smaller share of the larger are the same: another processor or seed is off by as much."""


class RuleChanges(RecordDifference):
    """What differs between the certificates of two libraries: `1,337 rules, were 1,324: 40 changes`. They are the same
    if all figures are."""

    KINDS = KINDS
    CAUSES = ("code",)


def read(directory: Path) -> dict[str, Certificate]:
    """The certificates in a directory. Raises `ArgumentError`."""
    if not any(directory.glob(f"*{SUFFIX}")):
        raise ArgumentError(f"{directory} has no certificates (*{SUFFIX}), as decomp_rules/certificates/ has")
    try:
        return read_committed(directory)
    except (ValueError, KeyError, TypeError) as error:
        raise ArgumentError(f"{directory}: {error}") from error


def compare(old: Mapping[str, Certificate], new: Mapping[str, Certificate]) -> RuleChanges:
    """What changed from one set of certificates to another. A rule that moved to another module is the same."""
    was, now = _by_name(old, new), _by_name(new, old)
    found = sorted(_changes(was, now), key=lambda each: each.about)
    return RuleChanges.of(f"{len(new):,} rules, were {len(old):,}", found)


def _by_name(own: Mapping[str, Certificate], other: Mapping[str, Certificate]) -> dict[str, Certificate]:
    """By `gelu_of_parts for aten.gelu`; with its module where several rules of one of the two have that name."""
    counts = [Counter(map(_name, table)) for table in (own, other)]
    several = {name for count in counts for name, times in count.items() if times > 1}
    return {each if _name(each) in several else _name(each): certificate for each, certificate in own.items()}


def _name(identity: str) -> str:
    return identity.partition(":")[2] or identity


def _changes(old: Mapping[str, Certificate], new: Mapping[str, Certificate]) -> Iterator[RecordChange]:
    for name in old.keys() - new.keys():
        yield RecordChange("gone", name, "gone")
    for name in new.keys() - old.keys():
        yield RecordChange("new", name, "new")
    for name in old.keys() & new.keys():
        found = list(_of_rule(name, old[name], new[name]))
        yield from found
        if not found and old[name].hash != new[name].hash:
            yield RecordChange("code", name, "its code changed")


def _of_rule(name: str, old: Certificate, new: Certificate) -> Iterator[RecordChange]:
    was, now = ({way.title: way for way in each.ways} for each in (old, new))
    for title in [title for title in was if title in now]:
        yield from _of_way(name, title, was[title], now[title])


def _of_way(name: str, title: str, old: Implementation, new: Implementation) -> Iterator[RecordChange]:
    if old.verdict != new.verdict:
        yield RecordChange("reached", name, f"{title}: {new.verdict}, was {old.verdict}")
        return
    for what, was, now in (("", old.values, new.values), ("gradient, ", old.gradients, new.gradients)):
        for dtype in [dtype for dtype in was if dtype in now]:
            before, after = was[dtype].max, now[dtype].max
            if abs(after - before) > LEAST * max(before, after):
                yield RecordChange("error", name, f"{title}, {what}{dtype}: {after:.3g} ULP, was {before:.3g} ULP")
    before_calls, after_calls = old.cost.get("calls"), new.cost.get("calls")
    if before_calls is not None and after_calls is not None and before_calls != after_calls:
        yield RecordChange("calls", name, f"{title}: {count_noun(int(after_calls), 'call')}, was {before_calls:g}")
