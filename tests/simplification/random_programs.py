"""Random programs full of what simplification removes: copies, casts, views, constants and repeated calls."""

from __future__ import annotations

from collections.abc import Callable
import random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

STEPS: dict[str, Callable[[random.Random, Tensor], Tensor]] = {
    "plus zero": lambda draw, x: x + draw.choice([0, 0.0, -0.0]),
    "minus zero": lambda draw, x: x - draw.choice([0, 0.0, -0.0]),
    "times one": lambda draw, x: x * draw.choice([1, 1.0]),
    "over one": lambda draw, x: x / 1,
    "negated": lambda draw, x: -x,
    "halved": lambda draw, x: x * 0.5,
    "full": lambda draw, x: x + torch.full((), draw.choice([-0.0, 1.0]), dtype=x.dtype),
    "full of the shape": lambda draw, x: x * torch.ones(x.shape, dtype=x.dtype),
    "copied": lambda draw, x: x.clone(),
    "copied in order": lambda draw, x: x.clone(memory_format=torch.contiguous_format),
    "detached": lambda draw, x: x.detach(),
    "cast there and back": lambda draw, x: x.to(torch.float64).to(x.dtype),
    "cast narrow and back": lambda draw, x: x.to(torch.float16).to(x.dtype),
    "cast to the same": lambda draw, x: torch.ops.aten._to_copy.default(x, dtype=x.dtype),
    "flattened and back": lambda draw, x: x.reshape(-1).reshape(x.shape),
    "unsqueezed": lambda draw, x: x.unsqueeze(0).unsqueeze(-1).squeeze(-1).squeeze(0),
    "transposed twice": lambda draw, x: x.permute(1, 0).permute(1, 0),
    "transposed": lambda draw, x: x.permute(1, 0),
    "permuted in place": lambda draw, x: x.permute(0, 1),
    "sliced twice": lambda draw, x: F.pad(x, (1, 2))[:, 1:][:, : x.shape[1]],
    "padded twice": lambda draw, x: F.pad(F.pad(x, (1, 0)), (0, 1))[:, 1:-1],
    "padded by nothing": lambda draw, x: F.pad(x, (0, 0)),
    "expanded": lambda draw, x: x + x[:1].expand(x.shape),
    "led": lambda draw, x: (x.view(1, *x.shape) * x)[0] if x.is_contiguous() else x,
    "chosen": lambda draw, x: torch.where(torch.logical_not(x < 0), x, x * 2),
    "chosen twice": lambda draw, x: torch.where(torch.logical_not(torch.logical_not(x < 0)), x.clone(), x),
    "compared": lambda draw, x: (x != x).logical_not().to(x.dtype) * x,
    "squared": lambda draw, x: x * x,
    "halved while flat": lambda draw, x: (x.reshape(-1) * 0.5).reshape(x.shape),
    "negated while transposed": lambda draw, x: x.permute(1, 0).neg().permute(1, 0),
    "summed while flat": lambda draw, x: (x.reshape(-1) + x.reshape(-1).abs() * 2).reshape(2, -1).reshape(x.shape),
    "led by one": lambda draw, x: (x[None] - x[None].amax(2, keepdim=True)).reshape(x.shape),
    "flattened by other ops": lambda draw, x: x.flatten().unflatten(0, x.shape),
    "led and expanded": lambda draw, x: torch.maximum(x[None], x[0].expand(1, *x.shape))[0],
    "sliced as a whole": lambda draw, x: x[:, -x.shape[1] :],
    "full of a number, turned": lambda draw, x: torch.full((1, 1), draw.choice([1, 2.0])).t() * x,
    "waste": lambda draw, x: (x.exp(), x)[1],
}


class Program(nn.Module):
    """A few steps from a seed, on a tensor, a parameter and a buffer that it writes."""

    buffer: Tensor

    def __init__(self, seed: int, length: int = 9) -> None:
        super().__init__()
        self.seed, self.length = seed, length
        self.weight = nn.Parameter(torch.arange(12.0).reshape(3, 4) - 5)
        self.register_buffer("buffer", torch.ones(3, 4))

    def forward(self, x: Tensor) -> Any:
        draw = random.Random(self.seed)
        values = [x, self.weight, self.buffer]
        for _ in range(self.length):
            step = STEPS[draw.choice(list(STEPS))]
            value = step(draw, draw.choice(values[-4:]))
            values.append(value)
            if draw.random() < 0.4:  # the same again
                values.append(step(draw, values[-2]))
            if draw.random() < 0.15:
                self.buffer.add_(1)
        square = [value for value in values if value.shape == x.shape]
        signs = torch.stack([torch.signbit(value) for value in square])  # zeros of another sign are other values
        return sum(square), values[-1], draw.choice(values), signs


def inputs() -> tuple[Tensor]:
    """Small whole numbers, a zero of each sign among them: sums of products of them are exact in any order."""
    return (torch.tensor([[0.0, -0.0, 1.0, 2.0], [-1.0, 3.0, 0.0, -0.0], [2.0, -3.0, 1.0, -2.0]]),)
