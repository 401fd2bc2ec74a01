"""The error of a lowered function in units of the last place: in float64 against mpmath at a few points, in float32
against float64 at many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import torch

import decomp
from decomp.validation.ulp import Exact, deviation
from decomp_rules import targets
from tests.forms import Holder


def lowered(function: Callable[..., Any], *args: torch.Tensor) -> Any:
    """`function` in tinygrad's primitives, for arguments like these."""
    return decomp.lower(Holder(function), to=targets.tinygrad, args=args, accuracy="exact").result


def worst(function: Callable[..., Any], *args: torch.Tensor) -> tuple[float, float]:
    """The largest error of the lowered function on float32, in ULP, against itself in float64, and the place of it;
    infinite where it gives another kind of value."""
    wide = [x.double() for x in args]
    return _largest(lowered(function, *args)(*args), Exact(lowered(function, *wide)(*wide)), args[-1])


def worst_in_double(
    function: Callable[..., Any], exact: Callable[..., Any], *points: Sequence[float]
) -> tuple[float, float]:
    """The largest error of the lowered function on float64, in ULP, against mpmath, and the place of it."""
    args = [torch.tensor(numbers, dtype=torch.float64) for numbers in points]
    with mpmath.workdps(40):
        values = [exact(*map(mpmath.mpf, point)) for point in zip(*points)]
        rounded = [float(value) for value in values]
        rest = [float(value - number) for value, number in zip(values, rounded)]
    high, low = torch.tensor(rounded, dtype=torch.float64), torch.tensor(rest, dtype=torch.float64)
    return _largest(lowered(function, *args)(*args), Exact(high, low), args[-1])


def _largest(found: torch.Tensor, exact: Exact, places: torch.Tensor) -> tuple[float, float]:
    error = deviation(found, exact).error.nan_to_num(nan=float("inf"))
    place = int(error.argmax())
    return float(error[place]), float(places[place])


def spread(lowest: float, highest: float, count: int = 20_000) -> torch.Tensor:
    """float32 numbers between two positive bounds, of every size alike, in no pattern."""
    steps = torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return (lowest * (highest / lowest) ** steps).float()
