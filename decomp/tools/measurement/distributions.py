"""Tests whether two samples of random numbers have the same distribution, by the Kolmogorov-Smirnov statistic."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from decomp.tools.certification.results import flat, require_same_metadata
from decomp.tools.measurement.trials import Function

DRAWS = 4096
SIGNIFICANT = 2.5
"""The threshold in units of √(2/n): one in 10⁵ pairs of samples of the same distribution differs more."""


def disagreement(ours: Function, own: Function, tensors: Sequence[torch.Tensor], seed: int) -> str:
    """ "distributions agree", or which result differs by how much. Raises `MismatchedResults`."""
    # The samples have different seeds: with equal ones, arguments and results would be correlated.
    first, second = _drawn(ours, own, tensors, seed + 10_007), _drawn(own, own, tensors, seed + 10_009)
    for i, (mine, theirs) in enumerate(zip(first, second)):
        distance = _distance(mine, theirs)
        if distance > SIGNIFICANT * (2 / min(len(mine), len(theirs))) ** 0.5:
            return f"result {i} has another distribution: they differ by {distance:.3f}"
    return "distributions agree"


def _drawn(function: Function, own: Function, tensors: Sequence[torch.Tensor], seed: int) -> list[torch.Tensor]:
    """Each result of several calls, flattened and joined."""
    torch.manual_seed(seed)
    expected = flat(own(tensors))
    size = max([1, *(r.numel() for r in expected)])
    rounds = [flat(function(tensors)) for _ in range(min(64, DRAWS // size + 1))]
    require_same_metadata(rounds[0], expected)
    return [torch.cat([_numbers(r.detach()) for r in column]) for column in zip(*rounds)]


def _numbers(drawn: torch.Tensor) -> torch.Tensor:
    """The numbers drawn, flat, with both parts of complex numbers."""
    return (torch.view_as_real(drawn.resolve_conj()) if drawn.is_complex() else drawn).flatten().double()


def _distance(x: torch.Tensor, y: torch.Tensor) -> float:
    """The largest difference of the two empirical distribution functions."""
    if not len(x) or not len(y):
        return 0.0
    at = torch.cat([x, y]).unique()
    below = [torch.searchsorted(t.sort().values, at, right=True).double() / len(t) for t in (x, y)]
    return float((below[0] - below[1]).abs().max())
