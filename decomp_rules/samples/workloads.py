"""Workloads: op families at three sizes and whole models, to be run as they are and lowered. Sizes are in elements of
the largest tensor: tens of thousands (it fits the first caches, calls cost more than arithmetic), a quarter of a
million to a million, and several millions (memory decides). At the size "cached", a million in the cache of one core,
arithmetic decides: it is for one thread. "huge", tens of millions, fills a GPU, on which the others cost a launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from decomp.ops import aten
from decomp.results import Workload
from decomp_rules.samples import architectures
from decomp_rules.samples.models import Example

PRODUCTS = (aten.mm, aten.bmm, aten.addmm, aten.baddbmm, aten.convolution, aten.embedding)
"""Ops that a compiler has kernels for, or that are written as products with matrices: what a target without matrix
products may keep. An embedding is the product of a matrix of ones and zeros with the table."""

SIZES = ("small", "medium", "large")
ROWS: Mapping[str, int] = {"small": 64, "cached": 2048, "medium": 512, "large": 8192, "huge": 131_072}
WIDTH = 512


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Any:
        return self.function(*args)


def _rows(module: Callable[[], nn.Module], size: str) -> Example:
    return module(), (torch.randn(ROWS[size], WIDTH),)


def _pointwise(function: Callable[[Tensor], Tensor], size: str) -> Example:
    return _rows(lambda: Function(function), size)


ATTENTION: Mapping[str, tuple[int, int, int]] = {
    "small": (1, 2, 64),
    "medium": (1, 4, 512),
    "large": (2, 8, 1024),
    "huge": (8, 16, 2048),
}
"""Batch, heads, time."""


def _attention(masked: bool, size: str) -> Example:
    batch, heads, time = ATTENTION["medium" if size == "cached" else size]
    inputs = [torch.randn(batch, heads, time, 64) for _ in range(3)]
    if not masked:
        return Function(F.scaled_dot_product_attention), tuple(inputs)
    mask = torch.ones(time, time, dtype=torch.bool).tril()
    return Function(F.scaled_dot_product_attention), (*inputs, mask)


IMAGE: Mapping[str, tuple[int, int, int]] = {
    "small": (1, 8, 32),
    "medium": (2, 16, 96),
    "large": (4, 32, 128),
    "huge": (32, 64, 128),
}
"""Batch, channels, edge."""


def _image(module: Callable[[int], nn.Module], size: str) -> Example:
    batch, channels, edge = IMAGE["medium" if size == "cached" else size]
    return module(channels).eval(), (torch.randn(batch, channels, edge, edge),)


def _convolved(channels: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU())


def _embedding(size: str) -> Example:
    return nn.Embedding(1000, 256), (torch.randint(0, 1000, (ROWS[size],)),)


def _cross_entropy(size: str) -> Example:
    rows = ROWS[size]
    return Function(F.cross_entropy), (torch.randn(rows, WIDTH), torch.randint(0, WIDTH, (rows,)))


def _cell(kind: Callable[[int, int], nn.Module], size: str) -> Example:
    rows, width = {"small": (32, 64), "large": (1024, 512), "huge": (16_384, 1024)}.get(size, (128, 256))
    return kind(width, width), (torch.randn(rows, width),)


def _linear(size: str) -> Example:
    rows, width = {"small": (64, 64), "large": (1024, 1024), "huge": (8192, 4096)}.get(size, (256, 256))
    return nn.Linear(width, width), (torch.randn(rows, width),)


OPS: Mapping[str, Callable[[str], Example]] = {
    "softmax": functools.partial(_pointwise, lambda x: F.softmax(x, -1)),
    "log_softmax": functools.partial(_pointwise, lambda x: F.log_softmax(x, -1)),
    "layer_norm": functools.partial(_rows, lambda: nn.LayerNorm(WIDTH)),
    "rms_norm": functools.partial(_rows, lambda: nn.RMSNorm(WIDTH)),
    "group_norm": functools.partial(_image, lambda channels: nn.GroupNorm(4, channels)),
    "batch_norm": functools.partial(_image, nn.BatchNorm2d),
    "gelu": functools.partial(_pointwise, F.gelu),
    "silu": functools.partial(_pointwise, F.silu),
    "attention": functools.partial(_attention, False),
    "masked attention": functools.partial(_attention, True),
    "convolution + norm + relu": functools.partial(_image, _convolved),
    "max_pool": functools.partial(_image, lambda channels: nn.MaxPool2d(3, 2, 1)),
    "avg_pool": functools.partial(_image, lambda channels: nn.AvgPool2d(2)),
    "embedding": _embedding,
    "cross_entropy": _cross_entropy,
    "lstm_cell": functools.partial(_cell, nn.LSTMCell),
    "gru_cell": functools.partial(_cell, nn.GRUCell),
    "linear": _linear,
}
"""Op families by name; each makes a module and its inputs at a size."""

QUICK = ("softmax", "layer_norm", "gelu", "linear")


def workloads(names: Sequence[str] = (), sizes: Sequence[str] = SIZES, models: bool = True) -> list[Workload]:
    """The op families at these sizes, then the models; by default all. Raises `LookupError` for an unknown name."""
    known = {**dict.fromkeys(OPS, "op"), **dict.fromkeys(architectures.MODELS, "model")}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise LookupError(f"no workload {unknown[0]!r}; there are {', '.join(known)}")
    chosen = [name for name in known if name in names or not names]
    found = [
        Workload(name, "op", size, functools.partial(OPS[name], size))
        for size in ROWS
        if size in sizes
        for name in chosen
        if known[name] == "op"
    ]
    wanted = [name for name in chosen if known[name] == "model" and (models or names)]
    return found + [Workload(name, "model", "whole", architectures.MODELS[name]) for name in wanted]
