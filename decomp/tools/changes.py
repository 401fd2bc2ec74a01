"""What differs between two records of one kind: locks, proofs, snapshots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TypeVar

Title = TypeVar("Title")


@dataclass(frozen=True, slots=True)
class RecordChange:
    """One thing that differs."""

    kind: str
    """A key of the kinds of the comparison, in whose order changes are sorted."""
    about: str
    """The op, model, rule or other thing that changed."""
    text: str


def by_kind(changes: Sequence[RecordChange], kinds: Mapping[str, Title]) -> Iterator[tuple[Title, list[RecordChange]]]:
    """Sorted changes in groups, with the entry of `kinds` for each."""
    for kind, same in groupby(changes, lambda change: change.kind):
        yield kinds[kind], list(same)


def as_dicts(changes: Sequence[RecordChange]) -> list[dict[str, str]]:
    """For machines."""
    return list(map(asdict, changes))
