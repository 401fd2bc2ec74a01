"""Declining: how a rule reports that it does not support a call, so that the next alternative is tried."""

from __future__ import annotations

from dataclasses import dataclass, field

from decomp.errors import ReasonMissing, RuleError


@dataclass(frozen=True, slots=True)
class Declined:
    """Returned by a rule that cannot compute a call; created by `decline`."""

    reason: str
    applicable: bool = True
    """Whether the rule is meant for calls of this form; if not, the reason says little about the call."""
    needs_metadata: bool = False
    """Whether it might support the call if the program had shapes and dtypes."""
    limitation: str | None = None
    """The declared limitation of an op that the rule calls, if that is the cause."""
    error: RuleError | None = field(default=None, compare=False, repr=False)
    """The error that `decompose` raises instead of silently keeping the call."""


def decline(reason: str) -> Declined:
    """For `return decline("only float inputs")` in a rule: the next alternative is tried, and the reason is part of the
    error if none reaches the target. Raises `ReasonMissing` for an empty reason."""
    if not isinstance(reason, str) or not reason.strip():
        raise ReasonMissing(reason)
    return Declined(reason)
