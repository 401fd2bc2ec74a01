"""The promises of a level of accuracy, compared with float64: an op is lowered to a target at a level, and its values
and its first and second gradients are compared on points of every exponent."""

from collections.abc import Callable, Sequence
import math
from typing import Any

import torch
from torch import Tensor

import decomp
from decomp_rules import targets

DIGITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
ULPS = {"exact": 2.0, "standard": 4.0, "fast": 64.0}
SPECIAL = (0.0, 1.0, -1.0, 2.5, math.inf, -math.inf, math.nan, 1e30, -1e30)


class _Of(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Any:
        return self.function(*args)


def at_level(function: Callable[..., Any], args: Sequence[Tensor], level: Any, target: Any = targets.tinygrad) -> Any:
    """The program of `function` lowered for such arguments, at a level of accuracy."""
    return decomp.lower(_Of(function), to=target, args=tuple(args), accuracy=level).result


def calls(function: Callable[..., Any], args: Sequence[Tensor], level: Any, target: Any = targets.tinygrad) -> int:
    """How many calls `function` comes to, those that give constants and those that change the shape included."""
    graph = at_level(function, args, level, target).graph
    return sum(node.op == "call_function" for node in graph.nodes)


def of_every_exponent(
    count: int = 8, lowest: int = -126, highest: int = 127, seed: int = 0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """`count` numbers of each exponent, of either sign, in random order."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.arange(lowest, highest + 1, dtype=torch.float64)[:, None]
    size = torch.exp2(exponents) * (1 + torch.rand(len(exponents), count, generator=generator, dtype=torch.float64))
    signed = (size * (torch.randint(0, 2, size.shape, generator=generator) * 2 - 1)).flatten()
    return signed[torch.randperm(signed.numel(), generator=generator)].to(dtype)


def ulps(found: Tensor, exact: Tensor, dtype: torch.dtype, row: int | tuple[()] | None = None) -> Tensor:
    """The error in units in the last place of `dtype`, those of the largest of a row if its dimension is given, or of
    all; infinite where one of both alone is NaN or infinite."""
    found, exact = found.double(), exact.double()
    size = exact.abs() if row is None else exact.abs().amax(row, keepdim=True).expand_as(exact)
    lowest = math.frexp(torch.finfo(dtype).tiny)[1] - 1
    exponent = (torch.frexp(size)[1].double() - 1).clamp(min=lowest)
    error = (found - exact).abs() / torch.exp2(exponent - (DIGITS[dtype] - 1))
    same = (found == exact) | (found.isnan() & exact.isnan())
    return torch.where(same, 0.0, error).nan_to_num(nan=math.inf)


def holds(
    function: Callable[..., Tensor],
    level: str,
    points: Sequence[Tensor],
    target: Any = targets.tinygrad,
    *,
    most: float | None = None,
    gradient_most: float = 8.0,
    orders: int = 2,
    row: int | None = None,
) -> None:
    """Check `function`, lowered at a level: where the exact value is a normal number and PyTorch's is finite, its error
    is at most `most` ULP (what the level promises unless given) or four times the largest of PyTorch's own; and that of
    the gradients up to `orders` at most `gradient_most` ULP, or four times PyTorch's own. With `row`, in ULP of the
    largest along that dimension, and gradients in those of the largest of all."""
    dtype = points[0].dtype
    program = at_level(function, points, level, target)
    mine, theirs = _derivatives(program, points, orders), _derivatives(function, points, orders)
    exact = _derivatives(function, [x.double() for x in points], orders)
    limits = torch.finfo(dtype)
    for name, value in exact.items():
        most_here = limits.max if name == "value" else limits.max / 16  # next to overflow a gradient is not promised
        counted = theirs[name].isfinite() & (value.abs() <= most_here)
        if row is None:
            counted &= value.abs() >= limits.tiny
        unit = row if row is None or name == "value" else ()
        worst, own = (torch.where(counted, ulps(found[name], value, dtype, unit), 0.0) for found in (mine, theirs))
        allowed = max(4 * float(own.max()), (most or ULPS[level]) if name == "value" else gradient_most)
        at = int(worst.argmax())
        where = [float(x.flatten()[at]) for x in points if x.numel() == worst.numel()]
        assert worst.max() <= allowed, f"{name}: {float(worst.max()):.3g} ULP, not {allowed:.3g}, at {where}"


def _derivatives(function: Callable[..., Tensor], points: Sequence[Tensor], orders: int) -> dict[str, Tensor]:
    """The value, and the gradients of a sum whose terms count from 1 to 5, and those of their sums, by name."""
    leaves = [x.detach().clone().requires_grad_() for x in points]
    found = {"value": function(*leaves)}
    level = dict(found)
    for _ in range(orders):
        level = {
            f"{name}, by {i}": gradient
            for name, value in level.items()
            if value.requires_grad
            for i, gradient in enumerate(_gradients(value, leaves))
            if gradient is not None
        }
        found |= level
    return {name: value.detach() for name, value in found.items()}


def _gradients(value: Tensor, leaves: Sequence[Tensor]) -> Sequence[Tensor | None]:
    order = torch.arange(value.numel())
    weights = (order * (order + 1) // 2 % 5 + 1).view(value.shape).to(value.dtype)
    return torch.autograd.grad(value, leaves, weights, create_graph=True, allow_unused=True)


def keeps_special_values(
    function: Callable[..., Tensor], level: str, points: Sequence[Tensor], target: Any = targets.tinygrad
) -> None:
    """Check that `function`, lowered at a level, is NaN, infinite and 0 where the op is in float64, of whatever sign.
    (In float32 GELU of ∞ is ∞, or NaN where oneDNN computes it, by the processor.)"""
    found = at_level(function, points, level, target)(*points)
    expected = function(*(x.double() if x.is_floating_point() else x for x in points)).to(found.dtype)
    torch.testing.assert_close(found, expected, rtol=64 * torch.finfo(expected.dtype).eps, atol=0, equal_nan=True)
