"""What differs between two records of one kind: locks, proofs, snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from decomp.errors import count_noun

if TYPE_CHECKING:
    from typing_extensions import Self

Title = TypeVar("Title")


@dataclass(frozen=True, slots=True)
class RecordChange:
    """One thing that differs."""

    kind: str
    """A key of the kinds of the comparison, in whose order changes are sorted."""
    about: str
    """The op, model, rule or other thing that changed."""
    text: str


@dataclass(frozen=True)
class RecordDifference:
    """What differs between two records."""

    headline: str
    """What they are, and how many changes there are."""
    changes: tuple[RecordChange, ...]

    KINDS: ClassVar[Mapping[str, str]]
    """Kinds of changes, in the order in which they are shown, with the title of each."""
    CAUSES: ClassVar[tuple[str, ...]]
    """The kinds that may be a cause of changes, and are none themselves."""

    @classmethod
    def of(cls, about: str, changes: Iterable[RecordChange]) -> Self:
        """The changes in order, under a headline that counts them."""
        order = list(cls.KINDS)
        found = tuple(sorted(changes, key=lambda each: order.index(each.kind)))
        return cls(f"{about}: {counted(found)}", found)

    @property
    def is_same(self) -> bool:
        """Whether nothing changed but causes."""
        return all(change.kind in self.CAUSES for change in self.changes)

    def by_kind(self) -> Iterator[tuple[str, list[RecordChange]]]:
        """The changes in groups, with the title of each."""
        return by_kind(self.changes, self.KINDS)

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        return {"same": self.is_same, "changes": as_dicts(self.changes)}


def counted(changes: Sequence[RecordChange]) -> str:
    """`3 changes`."""
    return count_noun(len(changes), "change") if changes else "the same in everything"


def by_kind(changes: Sequence[RecordChange], kinds: Mapping[str, Title]) -> Iterator[tuple[Title, list[RecordChange]]]:
    """Sorted changes in groups, with the entry of `kinds` for each."""
    for kind, same in groupby(changes, lambda change: change.kind):
        yield kinds[kind], list(same)


def as_dicts(changes: Sequence[RecordChange]) -> list[dict[str, str]]:
    """For machines."""
    return list(map(asdict, changes))
