"""The nouns of a score, to JSON and back: two halves, each of figures that say what is missing or wrong. Nothing in it
depends on the machine, so that two of one version are equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from decomp.files import write_atomically
from decomp.records import one_row_a_line, read_record

KIND, FORMAT = "decomp score", 2
STRUCTURAL, NUMERIC = "structural", "numeric"


@dataclass(frozen=True, slots=True)
class Lack:
    """What the target would have to add, or the backend to mend, and what it would gain."""

    add: tuple[str, ...]
    """The smallest set of ops, or nothing if only a reason is known."""
    gain: int
    """How much more would be reached, in the unit of the figure."""
    of: tuple[str, ...]
    """The ops or models that wait for it."""
    why: str = ""
    """What is wrong, in one word, if it is not that ops are missing."""


@dataclass(frozen=True)
class Figure:
    """One figure of a score."""

    name: str
    unit: str
    """What is counted."""
    reached: int
    total: int
    lacks: tuple[Lack, ...] = ()
    """What is not reached, that with most gain first; what no op is known to help comes last."""
    untried: tuple[str, ...] = ()
    """What is not counted."""
    note: str = ""
    """Why that is not counted, or nothing at all."""

    @property
    def share(self) -> float:
        """From 0 to 1."""
        return self.reached / self.total if self.total else 0.0


@dataclass(frozen=True)
class ScoreHalf:
    """The structural half of a score, or the numeric one."""

    figures: tuple[Figure, ...]
    counts: Mapping[str, int]
    """By verdict: the sample calls, or what was run of a backend."""

    @property
    def value(self) -> float:
        """The mean of the figures that were tried, from 0 to 100."""
        tried = [each for each in self.figures if each.total]
        return 100.0 * sum(each.share for each in tried) / len(tried) if tried else 0.0

    def figure(self, name: str) -> Figure:
        """The figure of that name. Raises `LookupError`."""
        for each in self.figures:
            if each.name == name:
                return each
        raise LookupError(f"no figure {name!r}; there are {', '.join(each.name for each in self.figures)}")

    def as_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        return {"score": round(self.value, 1), **asdict(self)}

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> ScoreHalf:
        """The half from the result of `as_dict`."""
        return cls(tuple(map(_figure, data["figures"])), dict(data["counts"]))


@dataclass(frozen=True)
class TargetScore:
    """The score of a target, or of a backend."""

    target: str
    versions: Mapping[str, str]
    """Of PyTorch, this package, and transformers if it made models."""
    structural: ScoreHalf
    numeric: ScoreHalf | None = None
    """Of a backend whose functions were run."""

    @property
    def halves(self) -> Mapping[str, ScoreHalf]:
        """Those that there are, by name."""
        found = {STRUCTURAL: self.structural, NUMERIC: self.numeric}
        return {name: half for name, half in found.items() if half is not None}

    @property
    def headline(self) -> str:
        """`chip: 98.3 of 100, structural; 91.0 of 100, numeric`."""
        said = (f"{half.value:.1f} of 100, {name}" for name, half in self.halves.items())
        return f"{self.target}: {'; '.join(said)}"

    def as_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        halves = {name: half.as_dict() for name, half in self.halves.items()}
        return {"target": self.target, "versions": dict(self.versions), **halves}

    def save(self, path: Path) -> None:
        """Write as JSON. Raises `OSError`."""
        with write_atomically(path) as unfinished:
            text = one_row_a_line({"kind": KIND, "format": FORMAT, **self.as_dict()})
            unfinished.write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> TargetScore:
        """Read what `save` wrote. Raises `ArgumentError`, which names the file, and `OSError`."""
        return read_record(path, KIND, FORMAT, "score", "make it by decomp score TARGET -o FILE.json", cls.read)

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> TargetScore:
        """The score from the result of `as_dict`."""
        numeric = data.get(NUMERIC)
        structural = ScoreHalf.read(data[STRUCTURAL])
        return cls(data["target"], data["versions"], structural, ScoreHalf.read(numeric) if numeric else None)


def _figure(data: Mapping[str, Any]) -> Figure:
    lacks = tuple(Lack(**{**each, "add": tuple(each["add"]), "of": tuple(each["of"])}) for each in data["lacks"])
    return Figure(**{**data, "lacks": lacks, "untried": tuple(data["untried"])})


def ordered(lacks: Sequence[Lack]) -> tuple[Lack, ...]:
    """Those with most gain first, and what no op is known to help last."""
    return tuple(sorted(lacks, key=lambda lack: (not lack.add, -lack.gain, -len(lack.of), lack.add, lack.of)))
