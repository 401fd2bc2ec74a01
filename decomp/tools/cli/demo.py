"""The demonstration: lower a model, then compare it with the original in values, gradients and speed. The reference for
both is the original in float64, which distinguishes a difference from an error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import copy
from dataclasses import dataclass
import math
import time
from typing import Any

import torch
from torch import Tensor, nn

from decomp.lowering import Lowering, lower
from decomp.rules.rules import Rules
from decomp.rules.target import Target
from decomp.runtime.tables import Backend


@dataclass(frozen=True, slots=True)
class DemoComparison:
    """The difference between tensors of the lowered model and of the original: the largest over all elements and
    tensors. A ULP is one unit in the last place of the largest element of a tensor."""

    what: str
    difference: float
    """Largest absolute difference between lowered and original."""
    ulp: float
    """The same in ULP."""
    original_error: float
    """Error of the original against the original in float64, in ULP."""
    lowered_error: float
    """Error of the lowered model against the original in float64, in ULP."""


@dataclass(frozen=True, slots=True)
class Demo:
    """The results of the demonstration."""

    lowering: Lowering
    outputs: DemoComparison
    gradients: DemoComparison
    fused_seconds: float
    """Time of one forward pass of the original: the fastest of many, as other load on the machine only adds to it."""
    primitive_seconds: float
    """The same of the lowered model."""
    elsewhere: DemoComparison | None = None
    """The outputs of the lowered model on a backend, if one was given."""
    functions: int = 0
    """The number of functions of that backend."""


def demonstrate(
    model: nn.Module,
    args: Sequence[Tensor],
    target: Target,
    *,
    rules: Rules | None = None,
    repeats: int = 30,
    backend: Backend | None = None,
) -> Demo:
    """Lower `model`, which returns one float tensor, and compare. Gradients are those of its mean square with respect
    to every parameter. Raises what `lower` and `Backend.load` raise."""
    lowering = lower(model, to=target, args=args, rules=rules, verify="values")
    precise = [arg.double() if arg.is_floating_point() else arg for arg in args]
    truth = _evaluated(copy.deepcopy(model).double(), precise)
    original, lowered = _evaluated(model, args), _evaluated(lowering.result, args)
    names = original[1].keys()
    outputs = _compared("outputs", [original[0]], [lowered[0]], [truth[0]])
    gradients = _compared("gradients", *([found[1][name] for name in names] for found in (original, lowered, truth)))
    fused, primitive = _timed([lambda: model(*args), lambda: lowering.result(*args)], repeats)
    if backend is None:
        return Demo(lowering, outputs, gradients, fused, primitive)
    found = backend.load(lowering)(*args)
    elsewhere = _compared(f"outputs on {backend.name}", [original[0]], [found], [truth[0]])
    return Demo(lowering, outputs, gradients, fused, primitive, elsewhere, len({each.function for each in backend}))


def _evaluated(model: nn.Module, args: Sequence[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """The output, and the gradients of its mean square."""
    parameters = dict(model.named_parameters())
    output = model(*args)
    gradients = torch.autograd.grad(output.square().mean(), list(parameters.values()))
    return output.detach(), dict(zip(parameters, gradients))


def _compared(what: str, original: list[Tensor], lowered: list[Tensor], truth: list[Tensor]) -> DemoComparison:
    return DemoComparison(
        what,
        max(float((a - b).abs().max()) for a, b in zip(lowered, original)),
        _worst(lowered, original, original),
        _worst(original, truth, original),
        _worst(lowered, truth, original),
    )


def _worst(found: list[Tensor], expected: list[Tensor], scale: list[Tensor]) -> float:
    return max(float((a.double() - b.double()).abs().max()) / ulp(c) for a, b, c in zip(found, expected, scale))


def ulp(x: Tensor) -> float:
    """One unit in the last place of the largest element of `x`; of the smallest normal number, if all are smaller."""
    info = torch.finfo(x.dtype)
    largest = max(float(x.abs().max()), info.smallest_normal)
    return float(info.eps * 2.0 ** (math.frexp(largest)[1] - 1))


def _timed(functions: Sequence[Callable[[], Any]], repeats: int) -> list[float]:
    """Seconds of the fastest call of each function, called in turn, without autograd."""
    spent: list[list[float]] = [[] for _ in functions]
    with torch.no_grad():
        for _ in range(repeats + 1):
            for seconds, function in zip(spent, functions):
                began = time.perf_counter()
                function()
                seconds.append(time.perf_counter() - began)
    return [min(seconds[1:]) for seconds in spent]
