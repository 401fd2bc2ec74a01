"""The nouns of a snapshot, to JSON and back: what one version of PyTorch does with the library's sample calls and with
some models, for one target. A record is data alone, without dates, so that two of one environment are equal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from decomp.files import write_atomically
from decomp.records import one_row_a_line, read_record

FORMAT = 1
"""Of the JSON; another is refused."""
KIND = "decomp snapshot"
"""How a file says what it is."""
KINDS = ("derivations", "kernels", "models")
"""What a snapshot is made of."""
TIMEOUT = 120.0
"""Seconds that an op may take."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What PyTorch's own kernel does with one call on some inputs. Tensors are texts, as `numbers.written` has them."""

    values: tuple[str, ...] = ()
    gradients: tuple[str, ...] = ()
    """By each float tensor of the call."""
    open_values: tuple[str, ...] = ()
    """The values in the form that leaves out what the op leaves open, where it leaves anything open."""
    open_gradients: tuple[str, ...] = ()
    at: str = ""
    """The key of the points that it was tried on, for a call that computes element by element."""
    error: str = ""
    """What the kernel raises."""


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One sample call: how it reaches the target, and what it computes."""

    call: str
    """`aten.mm.default(float32[4, 4], float32[4, 4])`"""
    verdict: str = ""
    """"legal", "derived", "blocked" or "refused"; nothing where derivations are left out."""
    rules: tuple[str, ...] = ()
    """Those of its derivation, each behind what leads to it: "gelu", "gelu > erf"."""
    calls: int = 0
    """Of the target, that it becomes."""
    cost: float = 0.0
    reason: str = ""
    """Why it is blocked or refused."""
    numbers: tuple[float, ...] = ()
    """The numbers among its arguments."""
    draws: bool = False
    """Whether it draws random numbers."""
    behaviours: Mapping[str, Behaviour] = field(default_factory=dict)
    """By dtype and kind of inputs: "float32, points", "float32, with ties"."""


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """One model: how it is exported, and what it is lowered to."""

    exported: Mapping[str, int] = field(default_factory=dict)
    """Calls by op in the exported graph."""
    lowered: Mapping[str, int] = field(default_factory=dict)
    rules: Mapping[str, int] = field(default_factory=dict)
    """How often each rule served."""
    error: str = ""
    """Why it is not lowered, by the name of the error."""
    blocked: tuple[str, ...] = ()
    """The ops that do not reach the target."""


@dataclass(frozen=True, slots=True)
class VersionRecord:
    """A snapshot."""

    header: Mapping[str, Any]
    """Versions, the machine and what was asked for; left out when two are compared."""
    target: str
    primitives: Mapping[str, str]
    """The ops of the target, each with the condition under which it is legal, if there is one."""
    absent: tuple[str, ...]
    """Ops that some tested version of PyTorch has, and this one lacks."""
    ops: Mapping[str, tuple[CallRecord, ...]]
    lost: Mapping[str, str]
    """Ops whose calls crash or hang, and how."""
    models: Mapping[str, ModelRecord]
    points: Mapping[str, tuple[str, ...]]
    """By key, the tensors that calls were tried on which compute element by element."""

    @property
    def version(self) -> str:
        """That of PyTorch."""
        return str(self.header.get("torch", "?"))

    def save(self, path: Path) -> None:
        """Write as JSON: whole, or not at all."""
        data = {"kind": KIND, "format": FORMAT, **asdict(self)}
        with write_atomically(path) as unfinished:
            unfinished.write_text(one_row_a_line(_without_empty(data)), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> VersionRecord:
        """Read what `save` wrote. Raises `ArgumentError`, which names the file, and `OSError`."""
        remedy = "make it by decomp snapshot --to TARGET -o FILE.json"
        return read_record(path, KIND, FORMAT, "snapshot", remedy, _record)


def _without_empty(value: Any) -> Any:
    """The same without entries of dicts that are empty, which are read again as what they are by default."""
    if isinstance(value, dict):
        whole_ones = ("header", "primitives")
        kept = {key: item if key in whole_ones else _without_empty(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item not in ("", (), [], {}, 0, False) or key in _KEPT}
    return [_without_empty(item) for item in value] if isinstance(value, (list, tuple)) else value


_KEPT = frozenset(each.name for each in fields(VersionRecord))


def call_record(data: Mapping[str, Any]) -> CallRecord:
    """A call of the data of one. Raises `TypeError` for others."""
    behaviours = {label: Behaviour(**_tuples(each)) for label, each in data.get("behaviours", {}).items()}
    return CallRecord(**{**_tuples(data), "behaviours": behaviours})


def _record(data: Mapping[str, Any]) -> VersionRecord:
    return VersionRecord(
        dict(data["header"]),
        str(data["target"]),
        dict(data["primitives"]),
        tuple(data["absent"]),
        {op: tuple(map(call_record, calls)) for op, calls in data["ops"].items()},
        dict(data["lost"]),
        {name: ModelRecord(**_tuples(each)) for name, each in data["models"].items()},
        {key: tuple(each) for key, each in data["points"].items()},
    )


def _tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
