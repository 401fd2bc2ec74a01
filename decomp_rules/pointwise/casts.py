"""Changes of dtype, copies, and ops that return their input."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.support.operands import cast, is_scalar, with_zero_gradient_to

RULES = Rules(level="exact")
register = RULES.register


@register(aten.to)
def to(
    x: Tensor,
    dtype: torch.dtype | None = None,
    device: Any = None,
    other: Tensor | None = None,
    copy: bool = False,
    memory_format: Any = torch.preserve_format,
) -> Tensor:
    """x itself if it already has the requested dtype and device, else its cast."""
    if other is not None:
        dtype, device = other.dtype, other.device
    wanted = x.device if device is None else _device(x, device)
    if wanted != x.device:
        return aten._to_copy(x, dtype=dtype or x.dtype, device=wanted)
    if dtype is None or dtype == x.dtype:
        return x.clone() if copy else _laid_out(x, memory_format)
    return aten._to_copy(x, dtype=dtype)


def _device(x: Tensor, device: Any) -> torch.device:
    """`device` with its index, which a name such as "cuda" leaves to be that of x if x is there."""
    device = torch.device(device)
    return x.device if device.index is None and device.type == x.device.type else device


def _laid_out(x: Tensor, memory_format: Any) -> Tensor:
    if memory_format in (None, torch.preserve_format):
        return x
    return x.contiguous(memory_format=memory_format)


@register(aten._to_copy)
def to_copy(x: Tensor, dtype: torch.dtype | None = None, device: Any = None, memory_format: Any = None) -> Tensor:
    """A cast with nothing but its dtype, or a copy where there is nothing to cast."""
    if _moves(x, device):
        return decline("the copy is to another device")
    return x.clone() if dtype in (None, x.dtype) else aten._to_copy(x, dtype=dtype)


@register(aten._to_copy)
def to_copy_from_bool(
    x: Tensor, dtype: torch.dtype | None = None, device: Any = None, memory_format: Any = None
) -> Tensor:
    """1 where x holds and 0 elsewhere, for targets that cast no bools."""
    if x.dtype != torch.bool or dtype in (None, torch.bool) or _moves(x, device):
        return decline("not a cast of bools on their device")
    one, zero = (torch.full((), value, dtype=dtype, device=x.device) for value in (1, 0))
    return torch.where(x, one, zero)


@register(aten._to_copy)
def to_copy_to_bool(
    x: Tensor, dtype: torch.dtype | None = None, device: Any = None, memory_format: Any = None
) -> Tensor:
    """x ≠ 0, which NaN is, for targets that cast nothing to bool."""
    if x.dtype == torch.bool or dtype != torch.bool or _moves(x, device):
        return decline("not a cast to bool on its device")
    return torch.ne(x, 0)


def _moves(x: Tensor, device: Any) -> bool:
    return device is not None and _device(x, device) != x.device


@register(aten.type_as)
def type_as(x: Tensor, other: Tensor) -> Tensor:
    """x in the dtype of other."""
    if x.device != other.device:
        return decline("the other tensor is on another device")
    return cast(x, other.dtype)


@register(aten._autocast_to_full_precision)
def autocast_to_full_precision(x: Tensor, cuda_enabled: bool, cpu_enabled: bool) -> Tensor:
    """x in float32 if it is of a half type."""
    return x.to(torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x


@register(aten.contiguous)
def contiguous(x: Tensor, memory_format: Any = torch.contiguous_format) -> Tensor:
    """x itself if it has the memory format, else a copy that has."""
    if not isinstance(memory_format, torch.memory_format):  # a default comes as the number 0 of the schema
        memory_format = torch.contiguous_format
    return x if x.is_contiguous(memory_format=memory_format) else x.clone(memory_format=memory_format)


@register(aten.alias, aten.lift_fresh, aten.lift)
def alias(x: Tensor) -> Tensor:
    """x."""
    return x


@register(aten.lift_fresh_copy, aten.alias_copy)
def lift_fresh_copy(x: Tensor) -> Tensor:
    """A copy of x."""
    return x.clone()


@register(aten.clone)
def clone(x: Tensor, memory_format: Any = None) -> Tensor:
    """A copy; its memory format is not part of its value."""
    return x.clone()


@register(aten.copy)
def copy(x: Tensor, src: Any) -> Tensor:
    """src, in the shape and dtype of x."""
    if is_scalar(src):
        src = src.real if isinstance(src, complex) and not x.is_complex() else src
        return torch.full(x.shape, src, dtype=x.dtype, device=x.device)
    return cast(src, x.dtype).expand(x.shape).clone()


@register(aten.fill)
def fill(x: Tensor, value: Any) -> Tensor:
    """The value, in the shape and dtype of x, whose gradient is zero."""
    if is_scalar(value):
        return with_zero_gradient_to(torch.full(x.shape, value, dtype=x.dtype, device=x.device), x)
    return with_zero_gradient_to(cast(value, x.dtype).expand(x.shape).clone(), x)
