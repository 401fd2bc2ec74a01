"""Limitations: what cannot be decomposed in principle, declared beside the rules with the reason. One declaration is
what the error prints, what the tests expect and what the documentation lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from decomp.calls import Call
from decomp.needs import Needs, lacking
from decomp.ops import Op
from decomp.target import Target


@dataclass(frozen=True, eq=False)
class Limitation:
    """An op that no rule can take to a target, and why."""

    op: Op
    reason: str
    """One clause, as "the shape of the result depends on data"."""
    needs: Needs = ()
    """Ops that a target must know for the op to be reached: for a target that knows them all there is no limitation.
    Without any, it holds for every target that does not know the op itself."""
    when: Callable[[Call], bool] | None = None
    """Which calls are meant; all, if None."""

    def holds(self, call: Call, target: Target) -> bool:
        """Whether `call`, which `target` does not know, is beyond reach for this reason."""
        return self.concerns(target) and (self.when is None or self.when(call))

    def concerns(self, target: Target) -> bool:
        """Whether some call of the op is beyond reach of `target`."""
        if self.needs:
            return lacking(self.needs, target) is not None
        return self.when is not None or not target.knows(self.op)

    def __str__(self) -> str:
        return f"{self.op}: {self.reason}"


def first(limitations: Iterable[Limitation], call: Call, target: Target) -> str | None:
    """The reason of the first limitation that holds for `call`, if any does."""
    return next((limitation.reason for limitation in limitations if limitation.holds(call, target)), None)
