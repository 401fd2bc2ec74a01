"""The nouns of a proof, to JSON and back: how each sample call reaches a target, with the program that it becomes, or
what the target would have to add. Nothing in it depends on the machine, so that two of one version are equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from decomp.files import write_atomically
from decomp.records import one_row_a_line, read_record

KIND, FORMAT = "decomp proof", 1
TIMEOUT = 120.0
"""Seconds that an op may take."""
LEGAL, DERIVED, BLOCKED, REFUSED = "legal", "derived", "blocked", "refused"
VERDICTS = {
    LEGAL: "calls that the target takes",
    DERIVED: "calls that rules derive",
    BLOCKED: "calls that do not reach it",
    REFUSED: "calls that cannot be lowered at all",
}
"""By verdict, what a summary calls them."""


@dataclass(frozen=True, slots=True)
class ProvedCall:
    """One sample call, and how it reaches the target."""

    call: str
    """`aten.mm.default(float32[4, 4], float32[4, 4])`"""
    verdict: str
    """A key of `VERDICTS`."""
    rules: tuple[str, ...] = ()
    """Those of its derivation, each behind what leads to it: "gelu", "gelu > erf"."""
    calls: Mapping[str, int] = field(default_factory=dict)
    """The calls that it becomes, by op."""
    ulp: float | None = None
    """The largest error of the outermost rule in its certificate, if it was measured on this target."""
    own_ulp: float | None = None
    """That of PyTorch's own kernel on the same operands."""
    needs: tuple[tuple[str, ...], ...] = ()
    """Sets of ops to add to the target, the smallest first: each is enough for this call."""
    is_smallest: bool = True
    """Whether no set smaller than the first is enough, by an exact search."""
    reason: str = ""
    """Why it is blocked or refused."""
    program: tuple[Any, ...] = ()
    """The program that a derived call becomes, as `load_program` reads it; empty if it cannot be written as data."""

    @property
    def is_reached(self) -> bool:
        """Whether it reaches the target."""
        return self.verdict in (LEGAL, DERIVED)


@dataclass(frozen=True)
class TargetProof:
    """How the sample calls of ops reach a target."""

    header: Mapping[str, Any]
    """Versions, what was asked for, and a digest of target, rules and options."""
    target: str
    conditions: Mapping[str, str]
    """The ops of the target, each with its condition."""
    rules: Mapping[str, str]
    """The rules that were used, each with a digest of its code; empty for a kernel of PyTorch's own."""
    ops: Mapping[str, tuple[ProvedCall, ...]]
    lost: Mapping[str, str]
    """Ops that have no answer, as their calls crash or hang, and how."""

    @property
    def calls(self) -> Iterator[ProvedCall]:
        """The calls of all ops."""
        return (call for calls in self.ops.values() for call in calls)

    @property
    def reached(self) -> list[str]:
        """The ops of which every sample call reaches the target."""
        return [op for op, calls in self.ops.items() if calls and all(call.is_reached for call in calls)]

    @property
    def untried(self) -> list[str]:
        """The ops for which the table has no sample call."""
        return [op for op, calls in self.ops.items() if not calls]

    @property
    def headline(self) -> str:
        """`tinygrad: 820 of 823 ops reached, by 1,523 of 1,528 sample calls`."""
        total = sum(map(len, self.ops.values()))
        reached = sum(call.is_reached for call in self.calls)
        tried = len(self.ops) - len(self.untried) + len(self.lost)
        ops = f"{len(self.reached):,} of {tried:,} ops reached"
        return f"{self.target}: {ops}, by {reached:,} of {total:,} sample calls"

    def counts(self) -> dict[str, int]:
        """How many calls there are of each verdict."""
        found = Counter(call.verdict for call in self.calls)
        return {verdict: found[verdict] for verdict in VERDICTS}

    def blocking_sets(self) -> list[tuple[tuple[str, ...], list[str], int]]:
        """The smallest sets that unblock calls, each with the ops of these and their number, most calls first. An empty
        set: nothing that the target could add is enough, but the op itself."""
        groups: dict[tuple[str, ...], list[str]] = {}
        for op, calls in self.ops.items():
            for call in calls:
                if call.verdict == BLOCKED:
                    groups.setdefault(call.needs[0] if call.needs else (), []).append(op)
        found = [(needs, list(dict.fromkeys(ops)), len(ops)) for needs, ops in groups.items()]
        return sorted(found, key=lambda each: (-each[2], each[0]))

    def as_dict(self) -> dict[str, Any]:
        """The summary, for machines."""
        sets = [{"add": list(needs), "calls": count, "ops": ops} for needs, ops, count in self.blocking_sets()]
        figures = {"ops": len(self.ops), "reached": len(self.reached), "untried": self.untried, "calls": self.counts()}
        return {**self.header, "target": self.target, **figures, "blocking_sets": sets, "lost": dict(self.lost)}

    def save(self, path: Path) -> None:
        """Write as JSON: whole, or not at all. Raises `OSError`."""
        data = {
            "kind": KIND,
            "format": FORMAT,
            "header": dict(self.header),
            "target": self.target,
            "conditions": sorted(self.conditions.items()),
            "rules": sorted(self.rules.items()),
            "lost": sorted(self.lost.items()),
            "ops": {op: [_row(call) for call in self.ops[op]] for op in sorted(self.ops)},
        }
        with write_atomically(path) as unfinished:
            unfinished.write_text(one_row_a_line(data), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> TargetProof:
        """Read what `save` wrote. Raises `ArgumentError`, which names the file, and `OSError`."""
        return read_record(path, KIND, FORMAT, "proof", "make it by decomp prove --to TARGET -o FILE.json", cls._read)

    @classmethod
    def _read(cls, data: Mapping[str, Any]) -> TargetProof:
        return cls(
            dict(data["header"]),
            str(data["target"]),
            dict(data["conditions"]),
            dict(data["rules"]),
            {op: tuple(map(_call, calls)) for op, calls in data["ops"].items()},
            dict(data["lost"]),
        )


def some_of(names: Sequence[str], most: int = 4) -> str:
    """`a, b, c, d and 3 more`, without namespaces."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(name.removeprefix("aten.") for name in names[:most]) + more


_DEFAULTS = {each.name: each.default for each in fields(ProvedCall)}


def _row(call: ProvedCall) -> dict[str, Any]:
    """What is written of a call: what is not as it is by default."""
    values = {each.name: getattr(call, each.name) for each in fields(call)}
    return {name: value for name, value in values.items() if value != _DEFAULTS[name] and value != {}}


def _call(row: Mapping[str, Any]) -> ProvedCall:
    sets = tuple(map(tuple, row.get("needs", ())))
    lists = {name: tuple(row.get(name, ())) for name in ("rules", "program")}
    return ProvedCall(**{**row, **lists, "needs": sets})
