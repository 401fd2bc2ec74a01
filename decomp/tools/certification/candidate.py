"""A candidate: an implementation of an op (the rule as written, or lowered to a target), and its measurements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from decomp import errors
from decomp.ir.dtypes import name_of
from decomp.rules.certificate import FINITE, GOOD, OF_PRIMS, Implementation
from decomp.rules.certificates import identity
from decomp.rules.sources import content_hash
from decomp.tools.certification.implementations import AlreadyLegal, AsWritten, Lowered, NotServed
from decomp.tools.certification.results import MismatchedResults, Refused, match_kernel_metadata
from decomp.tools.measurement.tally import Tally
from decomp.tools.measurement.trials import Function, Trial


@dataclass(eq=False)
class MeasuredCandidate:
    """One implementation of the op of a rule, and its measurements."""

    implementation: AsWritten | Lowered
    tallies: dict[tuple[str, str], Tally] = field(default_factory=dict)
    """By quantity ("values", "gradients", "second") and dtype."""
    dtypes: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    flushed: dict[str, str] = field(default_factory=dict)
    """By dtype, the verdict with subnormal numbers flushed to zero."""
    reasons: list[str] = field(default_factory=list)
    served: int = 0
    legal: bool = False

    @property
    def level(self) -> str:
        """The level of accuracy whose limits apply."""
        return self.implementation.level

    @property
    def as_written(self) -> bool:
        """Whether this is the rule itself, over PyTorch's own kernels."""
        return isinstance(self.implementation, AsWritten)

    def try_bind(self, what: Trial) -> Function | str:
        """The implementation as a function of the trial's tensors; or "legal", "declines: …", "fails: …"."""
        try:
            return self.implementation.bind(what)
        except AlreadyLegal:
            return "legal"
        except NotServed as refused:
            return f"declines: {refused}"
        except Exception as error:  # any exception of a rule is a finding
            return f"fails: {type(error).__name__}: {first_line(error)}"

    def bind_or_note(self, what: Trial) -> Function | None:
        """The implementation as a function of the trial's tensors; None, with the reason noted, if it fails."""
        found = self.try_bind(what)
        if not isinstance(found, str):
            self.served += 1
            return found
        if found == "legal":
            self.legal = True
        elif found.startswith("fails"):
            self.note("failures", f"{found.removeprefix('fails: ')} on {what.sample}")
        else:
            self.reasons.append(found.removeprefix("declines: "))
        return None

    def results(
        self, what: Trial, run: Callable[[], list[torch.Tensor] | None], own: list[torch.Tensor], where: str
    ) -> list[torch.Tensor] | None:
        """The results of `run` if they have the structure of the op's own; otherwise None, with a note."""
        try:
            found = run()
            found = [torch.zeros_like(t) for t in own] if found is None else found
            return match_kernel_metadata(found, own, lambda: what.predicted(what.sample.tensors))
        except MismatchedResults as mismatch:
            self.note("shapes", f"{where}: {mismatch} for {what.sample}")
        except Refused as refused:
            self.note("failures", f"{where}: declines at run time: {refused}")
        except Exception as error:
            if _is_of_prims(error):
                self.note("gradients", OF_PRIMS)
                return None
            self.note("failures", f"{where}: {type(error).__name__}: {first_line(error)} for {what.sample}")
        return None

    def tally(self, what: str, dtype: torch.dtype, against_own: bool) -> Tally:
        """The tally of one quantity in one dtype."""
        return self.tallies.setdefault((what, name_of(dtype)), Tally(against_own))

    def note(self, what: str, verdict: str) -> None:
        """Keep the first bad verdict, or else a good one."""
        if self.notes.get(what, "equal") in GOOD:
            self.notes[what] = verdict

    def note_flushed(self, dtype: str, verdict: str) -> None:
        """Keep the first bad verdict with subnormal numbers flushed, or else a good one."""
        if self.flushed.get(dtype, FINITE) == FINITE:
            self.flushed[dtype] = verdict

    def result(self) -> Implementation:
        """The measurements, as a part of the certificate."""
        values, first, second = (
            {dtype: tally.figures() for (of, dtype), tally in self.tallies.items() if of == kind}
            for kind in ("values", "gradients", "second")
        )
        used, served = self.implementation.used, bool(self.served or "failures" in self.notes)
        missing = "not served" if self.as_written else "not reached"
        return Implementation(
            name=self.implementation.name,
            verdict="measured" if served else "legal" if self.legal else missing,
            reason="" if served or self.legal else "; ".join(dict.fromkeys(self.reasons))[:300],
            rules=tuple(sorted({identity(rule) for rule in used})),
            hash=content_hash(used) if used else "",
            values=values,
            gradients=first,
            second=second,
            dtypes=self.dtypes,
            notes=self.notes,
            level=self.level,
            cost=self.implementation.cost,
            flushed=self.flushed,
        )


def _is_of_prims(error: Exception) -> bool:
    """Whether a gradient fails because `torch.ops.prims` have none (torch 2.13), and not because of the rule."""
    return str(error).startswith(("Trying to backward through prims.", "backwards not supported on prim"))


def first_line(error: BaseException) -> str:
    """The message of an error, cut to one line of limited length."""
    return errors.first_line(error)[:200]
