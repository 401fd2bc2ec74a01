"""Declining: how a rule says that it cannot serve a call, so that the next alternative is asked."""

from __future__ import annotations

from dataclasses import dataclass, field

from decomp.errors import ReasonMissing, RuleError


@dataclass(frozen=True, slots=True)
class Declined:
    """What a rule returns if it cannot compute a call; `decline` makes one."""

    reason: str
    applicable: bool = True
    """Whether the rule is for calls of this form at all: if not, the reason says little about the call."""
    needs_metadata: bool = False
    """Whether it might serve the call if the program had shapes and dtypes."""
    limitation: str | None = None
    """Why it cannot be done in principle, where that is declared for an op that the rule leads to."""
    error: RuleError | None = field(default=None, compare=False, repr=False)
    """What `decompose` raises, where it is not to leave the call as it is without a word."""


def decline(reason: str) -> Declined:
    """For `return decline("only float inputs")` in a rule: the call goes to the next alternative, and the reason into
    the error if none reaches the target. Raises `ReasonMissing` for an empty reason."""
    if not isinstance(reason, str) or not reason.strip():
        raise ReasonMissing(reason)
    return Declined(reason)
