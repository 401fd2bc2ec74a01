"""Collectives, each as a program, and the collectives that it is derived from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
import torch.distributed._functional_collectives  # which registers the ops

c10d = torch.ops._c10d_functional
wait = c10d.wait_tensor
GROUP = "0"
"""The name of the group of all processes."""


class Program(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor, int], Any], size: int) -> None:
        super().__init__()
        self.function, self.size = function, size

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x, self.size)


@dataclass(frozen=True)
class Call:
    """A collective on the tensor of a rank, given the number of processes."""

    function: Callable[[torch.Tensor, int], Any]
    derived_from: tuple[str, ...]
    shape: Callable[[int], tuple[int, ...]] = lambda size: (5, 3)
    dtype: torch.dtype = torch.float32

    def module(self, size: int) -> Program:
        return Program(self.function, size)

    def example(self, size: int, rank: int) -> torch.Tensor:
        """Small numbers, other ones on each rank."""
        generator = torch.Generator().manual_seed(rank)
        return torch.randn(self.shape(size), generator=generator).mul(3).to(self.dtype)


def _rows(size: int) -> tuple[int, int]:
    return 2 * size, 3


REDUCED_BY = ("all_gather_into_tensor", "all_to_all_single", "reduce_scatter_tensor")
CALLS: Mapping[str, Call] = {
    "sum": Call(lambda x, n: wait(c10d.all_reduce(x, "sum", GROUP)), REDUCED_BY[:2]),
    "sum of integers": Call(lambda x, n: wait(c10d.all_reduce(x, "sum", GROUP)), REDUCED_BY[:1], dtype=torch.int32),
    "product": Call(lambda x, n: wait(c10d.all_reduce(x, "product", GROUP)), REDUCED_BY[:1]),
    "largest": Call(lambda x, n: wait(c10d.all_reduce(x, "max", GROUP)), REDUCED_BY[:1]),
    "smallest": Call(lambda x, n: wait(c10d.all_reduce(x, "min", GROUP)), REDUCED_BY[:1]),
    "sum of a number": Call(lambda x, n: wait(c10d.all_reduce(x, "sum", GROUP)), REDUCED_BY[:1], lambda n: ()),
    "bits": Call(lambda x, n: wait(c10d.all_reduce(x, "bor", GROUP)), REDUCED_BY[:1], dtype=torch.int64),
    "sum of several": Call(
        lambda x, n: [wait(y) for y in c10d.all_reduce_coalesced([x, x * 2], "sum", GROUP)], ("all_reduce",)
    ),
    "sum in place": Call(lambda x, n: wait(c10d.all_reduce_(x * 1, "sum", GROUP)), REDUCED_BY[:1]),
    "part of a sum": Call(
        lambda x, n: wait(c10d.reduce_scatter_tensor(x, "sum", n, GROUP)), ("all_to_all_single", "all_reduce"), _rows
    ),
    "gather": Call(lambda x, n: wait(c10d.all_gather_into_tensor(x, n, GROUP)), ("all_to_all_single", "all_reduce")),
    "broadcast": Call(lambda x, n: wait(c10d.broadcast(x, n - 1, GROUP)), ("all_gather_into_tensor",)),
    "exchange": Call(
        lambda x, n: wait(c10d.all_to_all_single(x, [2] * n, [2] * n, GROUP)), ("all_gather_into_tensor",), _rows
    ),
}
