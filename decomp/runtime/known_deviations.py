"""Departures: where a runtime computes otherwise than PyTorch by its own design, stated beside the functions of its
backend with the reason. One statement is what bring-up goes by, what its reports show and what users can read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Where = Callable[..., Any]
"""From what PyTorch gives and the tensors among the operands: a mask over the results, or a bool for all of them."""


@dataclass(frozen=True)
class KnownDeviation:
    """Results of an op that are by design not PyTorch's."""

    reason: str
    """One sentence, as "ReduceMax leaves open what NaN gives"."""
    where: Where | None = None
    """The results that are meant; all, if None."""
    epsilons: float = 0.0
    """They may be off by so many of the distances between 1 and the next number of their dtype."""
    ulp: float = 0.0
    """Or by so many units in the last place of each. With neither bound they may be anything."""

    def excuses(
        self, found: torch.Tensor, own: torch.Tensor, unit: torch.Tensor, operands: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """A mask of the results that this is about. `own`: PyTorch's results; `unit`: the ULP of each."""
        meant = torch.ones(own.shape, dtype=torch.bool)
        if self.where is not None:
            meant &= torch.as_tensor(self.where(own, *operands), dtype=torch.bool)
        if (self.epsilons or self.ulp) and (own.is_floating_point() or own.is_complex()):
            wide = torch.complex128 if own.is_complex() else torch.float64
            off = (found.to(wide) - own.to(wide)).abs()
            meant &= off <= torch.clamp(self.ulp * unit.double(), min=self.epsilons * torch.finfo(own.dtype).eps)
        return meant
