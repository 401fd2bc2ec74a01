"""Deviations: results of a runtime that differ from PyTorch by design, declared next to the functions of its backend
with the reason. Bring-up, its reports and users all read the same declaration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Where = Callable[..., Any]
"""From PyTorch's results and the tensors among the operands: a mask over the results, or a bool for all of them."""


@dataclass(frozen=True)
class KnownDeviation:
    """Results of an op that differ from PyTorch's by design."""

    reason: str
    """One sentence, as "the result of ReduceMax for NaN is undefined"."""
    where: Where | None = None
    """The results that differ; all, if None."""
    epsilons: float = 0.0
    """The allowed error in multiples of their dtype's machine epsilon."""
    ulp: float = 0.0
    """The allowed error in units in the last place of each result. If neither bound is set, any result is allowed."""

    def excuses(
        self, found: torch.Tensor, own: torch.Tensor, unit: torch.Tensor, operands: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """A mask of the results that this allows. `own`: PyTorch's results; `unit`: the ULP of each."""
        meant = torch.ones(own.shape, dtype=torch.bool)
        if self.where is not None:
            meant &= torch.as_tensor(self.where(own, *operands), dtype=torch.bool)
        if (self.epsilons or self.ulp) and (own.is_floating_point() or own.is_complex()):
            wide = torch.complex128 if own.is_complex() else torch.float64
            off = (found.to(wide) - own.to(wide)).abs()
            # Whichever bound allows more: ULPs shrink with the result, epsilons do not.
            meant &= off <= torch.clamp(self.ulp * unit.double(), min=self.epsilons * torch.finfo(own.dtype).eps)
        return meant
