"""Builds the arguments of sample calls: small tensors of each kind. The random state is the caller's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Calls = Mapping[str, Callable[[], tuple[tuple[Any, ...], ...]]]
"""Calls by the name of an ATen op: the positional arguments of each, and its keyword arguments as a dict at the end."""


def f(*shape: int) -> Tensor:
    """Floats, normally distributed."""
    return torch.randn(shape)


def f8(*shape: int) -> Tensor:
    """The same in float8 (e4m3)."""
    return f(*shape).to(torch.float8_e4m3fn)


def u(*shape: int) -> Tensor:
    """Floats between 0.02 and 0.98."""
    return torch.rand(shape) * 0.96 + 0.02


def p(*shape: int) -> Tensor:
    """Positive floats between 0.5 and 2."""
    return torch.rand(shape) * 1.5 + 0.5


def z(*shape: int) -> Tensor:
    """Complex numbers."""
    return torch.randn(shape, dtype=torch.complex64)


def i(high: int, *shape: int) -> Tensor:
    """Integers below `high`, from 0."""
    return torch.randint(high, shape)


def b(*shape: int) -> Tensor:
    """Bools."""
    return torch.rand(shape) < 0.5


def t(*values: Any) -> Tensor:
    """These values."""
    return torch.tensor(values)


def spd(n: int, *batch: int) -> Tensor:
    """Symmetric positive definite matrices, well conditioned."""
    x = torch.randn(*batch, n, n)
    return x @ x.mT / n + torch.eye(n)


def regular(n: int, *batch: int) -> Tensor:
    """Matrices that are far from singular."""
    return torch.randn(*batch, n, n) / n + torch.eye(n) * 1.5


def triangle(n: int, *batch: int) -> Tensor:
    """Lower triangular matrices, well conditioned."""
    return torch.linalg.cholesky(spd(n, *batch))
