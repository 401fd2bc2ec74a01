"""Floats of a byte: float8, and float4 in pairs. PyTorch moves and casts such numbers, and hardly computes in them, so
that what only moves them is done on their bytes, as int32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten

RULES = Rules(level="exact")
register = RULES.register

_OTHERS = "only floats of a byte"


def _is_byte_float(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and dtype.itemsize == 1


def _bytes(x: Tensor) -> Tensor:
    return x.view(torch.uint8).to(torch.int32)


def _of_bytes(found: Tensor, dtype: torch.dtype) -> Tensor:
    return found.to(torch.uint8).view(dtype)


@register(aten.index_select)
def index_select_of_bytes(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """index_select of the bytes. Exact."""
    return (
        _of_bytes(torch.index_select(_bytes(x), dim, index), x.dtype) if _is_byte_float(x.dtype) else decline(_OTHERS)
    )


@register(aten.gather)
def gather_of_bytes(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """gather of the bytes. Exact."""
    if not _is_byte_float(x.dtype):
        return decline(_OTHERS)
    return _of_bytes(torch.gather(_bytes(x), dim, index), x.dtype)


@register(aten.index, aten._unsafe_index)
def index_of_bytes(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """index of the bytes. Exact."""
    if not _is_byte_float(x.dtype):
        return decline(_OTHERS)
    return _of_bytes(aten.index.Tensor(_bytes(x), indices), x.dtype)


@register(aten.abs)
def absolute_of_float8(x: Tensor) -> Tensor:
    """abs in float32. Exact."""
    return torch.abs(x.to(torch.float32)).to(x.dtype) if _is_byte_float(x.dtype) else decline(_OTHERS)


@register(aten.zeros, aten.empty)
def zero_bytes(size: Sequence[Any], dtype: torch.dtype | None = None, device: Any = None) -> Tensor:
    """Bytes of 0: in float8_e8m0fnu, which has no 0, they are 2⁻¹²⁷. Exact."""
    if dtype == torch.float8_e8m0fnu:
        return torch.full(size, 2.0**-127, dtype=dtype, device=device)
    if dtype == torch.float4_e2m1fn_x2:
        return torch.full(size, 0, dtype=torch.uint8, device=device).view(dtype)
    return decline("only dtypes that cannot be filled with 0")


@register(aten.zeros_like, aten.empty_like)
def zero_bytes_like(x: Tensor, dtype: torch.dtype | None = None, device: Any = None) -> Tensor:
    """zeros of the shape of x. Exact."""
    return zero_bytes(x.shape, dtype or x.dtype, device or x.device)


@register(aten.new_zeros, aten.new_empty)
def new_zero_bytes(x: Tensor, size: Sequence[Any], dtype: torch.dtype | None = None, device: Any = None) -> Tensor:
    """zeros on the device of x. Exact."""
    return zero_bytes(size, dtype or x.dtype, device or x.device)
