"""Which ops real models call: counted once over about 100 of them, and shipped as a table."""

from __future__ import annotations

import functools
from importlib import resources
from typing import NamedTuple

from decomp import Sample, op
from decomp_rules.samples import calls_of


class Counted(NamedTuple):
    """An op of the table."""

    op: str
    """The overload, as `aten.add.Tensor`."""
    models: int
    """How many models call it."""
    calls: int
    """How often, in all of them."""


@functools.lru_cache(maxsize=1)
def ops_in_models() -> tuple[Counted, ...]:
    """The ops that models call, those in most models first."""
    text = resources.files(__package__).joinpath("ops_in_models.tsv").read_text(encoding="utf-8")
    rows = [line.split("\t") for line in text.splitlines() if not line.startswith("#")][1:]
    return tuple(sorted((Counted(name, int(models), int(calls)) for name, models, calls in rows), key=_rank))


def _rank(counted: Counted) -> tuple[int, int, str]:
    return -counted.models, -counted.calls, counted.op


def call_of(overload: str) -> Sample | None:
    """A sample call of an overload; None if there is none."""
    packet = op(overload).packet
    found = calls_of(packet) if packet is not None else ()
    return next((sample for sample in found if str(sample.overload) == overload), None)
