"""Lines about what changed, and the kinds of changes, the gravest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """Changes of one kind."""

    title: str
    short: str
    """For the head of a column."""
    is_grave: bool = False


KINDS: Mapping[str, Kind] = {
    "gone": Kind("ops that are gone", "gone", True),
    "unreached": Kind("no longer reached", "not reached", True),
    "meaning": Kind("another meaning: values and gradients of PyTorch's own kernels", "meaning", True),
    "taken": Kind("what kernels take", "taken"),
    "open": Kind("other choices where the op leaves one", "open"),
    "draws": Kind("other random numbers of the same seed", "draws"),
    "target": Kind("the target", "target"),
    "exported": Kind("exported graphs", "exported"),
    "derived": Kind("derived otherwise", "derived"),
    "reached": Kind("newly reached", "reached"),
    "new": Kind("new", "new"),
    "layout": Kind("other strides", "strides"),
    "digits": Kind("last digits, and signs of zero", "digits"),
    "words": Kind("other words", "words"),
}
"""By name, in the order in which they are shown."""


def op_name(op: str) -> str:
    """`clamp` of `aten.clamp`, in backquotes."""
    return f"`{op.removeprefix('aten.')}`"


def names(ops: Sequence[str], most: int = 6) -> str:
    """`a`, `b` and 3 more."""
    more = f" and {len(ops) - most} more" if len(ops) > most else ""
    return ", ".join(map(op_name, ops[:most])) + more
