"""Comparisons, logic, bits and selection: everything whose inputs or results are true and false.

The floor is lt, ne, the bitwise operations and where. A comparison with NaN is false, except for ne.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp_rules.operands import cast, constant, is_scalar, promoted

aten = torch.ops.aten
RULES = Rules()
register = RULES.register


@register(aten.eq)
def eq(x: Tensor, other: Any) -> Tensor:
    """not (x ≠ other)."""
    return torch.ne(torch.ne(x, other), True)


@register(aten.gt)
def gt(x: Tensor, other: Any) -> Tensor:
    """other < x."""
    return torch.lt(_operand(x, other), x)


@register(aten.ge)
def ge(x: Tensor, other: Any) -> Tensor:
    """not (x < other), and neither is NaN."""
    if not promoted(x, other).is_floating_point:
        return torch.logical_not(torch.lt(x, other))
    if is_scalar(other) and other == other:
        return torch.logical_not(torch.lt(x, other) | torch.ne(x, x))
    other = _operand(x, other)
    return torch.lt(other, x) | torch.eq(other, x)


@register(aten.le)
def le(x: Tensor, other: Any) -> Tensor:
    """x < other or x = other; of integers, not (other < x)."""
    if not promoted(x, other).is_floating_point:
        return torch.logical_not(torch.lt(_operand(x, other), x))
    return torch.lt(x, other) | torch.eq(x, other)


def _operand(x: Tensor, other: Any) -> Tensor:
    """`other` as a tensor: a number becomes a 0-d one of the dtype in which PyTorch compares it with x."""
    return constant(x, other, promoted(x, other)) if is_scalar(other) else other


@register(aten.isclose)
def isclose(x: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Tensor:
    """x = other, or |x − other| ≤ atol + rtol · |other| and finite."""
    close = torch.eq(x, other)
    if equal_nan and x.is_floating_point():
        close = close | (torch.ne(x, x) & torch.ne(other, other))
    if rtol == 0 and atol == 0:
        return close
    if not x.is_floating_point():
        x, other = x.to(torch.get_default_dtype()), other.to(torch.get_default_dtype())
    error, allowed = torch.abs(x - other), atol + torch.abs(rtol * other)
    return close | (torch.isfinite(error) & torch.le(error, allowed))


@register(aten.logical_not)
def logical_not(x: Tensor) -> Tensor:
    """x = 0."""
    return torch.ne(_truth(x), True)


@register(aten.logical_and)
def logical_and(x: Tensor, other: Tensor) -> Tensor:
    """(x ≠ 0) & (other ≠ 0)."""
    return torch.bitwise_and(_truth(x), _truth(other))


@register(aten.logical_or)
def logical_or(x: Tensor, other: Tensor) -> Tensor:
    """(x ≠ 0) | (other ≠ 0)."""
    return torch.bitwise_or(_truth(x), _truth(other))


@register(aten.logical_xor)
def logical_xor(x: Tensor, other: Tensor) -> Tensor:
    """(x ≠ 0) ^ (other ≠ 0)."""
    return torch.bitwise_xor(_truth(x), _truth(other))


def _truth(x: Tensor) -> Tensor:
    return x if x.dtype == torch.bool else torch.ne(x, 0)


@register(aten.bitwise_not)
def bitwise_not(x: Tensor) -> Tensor:
    """x ^ −1, x ^ true of booleans."""
    return torch.bitwise_xor(x, True if x.dtype == torch.bool else -1)


@register(getattr(aten, "__and__"))
def dunder_and(x: Tensor, other: Any) -> Tensor:
    """x & other."""
    return torch.bitwise_and(x, other)


@register(getattr(aten, "__or__"))
def dunder_or(x: Tensor, other: Any) -> Tensor:
    """x | other."""
    return torch.bitwise_or(x, other)


@register(getattr(aten, "__xor__"))
def dunder_xor(x: Tensor, other: Any) -> Tensor:
    """x ^ other."""
    return torch.bitwise_xor(x, other)


@register(aten.bitwise_left_shift)
def bitwise_left_shift(x: Tensor, other: Any) -> Tensor:
    """x · 2ᵒᵗʰᵉʳ, modulo the width of the integer."""
    dtype = promoted(x, other)
    return torch.mul(cast(x, dtype), _power_of_two(_operand(x, other), dtype))


@register(aten.bitwise_right_shift)
def bitwise_right_shift(x: Tensor, other: Any) -> Tensor:
    """⌊x / 2ᵒᵗʰᵉʳ⌋, done in two steps for 2ᵒᵗʰᵉʳ to fit the integer."""
    dtype = promoted(x, other)
    count = torch.clamp(cast(_operand(x, other), dtype), max=8 * dtype.itemsize)
    half = torch.div(count, 2, rounding_mode="floor")
    shifted = torch.div(cast(x, dtype), _power_of_two(half, dtype), rounding_mode="floor")
    return torch.div(shifted, _power_of_two(count - half, dtype), rounding_mode="floor")


def _power_of_two(exponent: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.pow(constant(exponent, 2, dtype), cast(exponent, dtype))


@register(aten.isnan)
def isnan(x: Tensor) -> Tensor:
    """x ≠ x."""
    return torch.ne(x, x)


@register(aten.isinf)
def isinf(x: Tensor) -> Tensor:
    """x = ∞ or x = −∞."""
    if x.is_complex():
        return decline("only real inputs")
    if not x.is_floating_point():
        return torch.zeros_like(x, dtype=torch.bool)
    return torch.eq(x, float("inf")) | torch.eq(x, float("-inf"))


@register(aten.isposinf)
def isposinf(x: Tensor) -> Tensor:
    """x = ∞."""
    return torch.eq(x, float("inf")) if x.is_floating_point() else torch.zeros_like(x, dtype=torch.bool)


@register(aten.isneginf)
def isneginf(x: Tensor) -> Tensor:
    """x = −∞."""
    return torch.eq(x, float("-inf")) if x.is_floating_point() else torch.zeros_like(x, dtype=torch.bool)


@register(aten.isfinite)
def isfinite(x: Tensor) -> Tensor:
    """0 · x = 0."""
    if x.is_complex():
        return decline("only real inputs")
    return torch.eq(x * 0, 0) if x.is_floating_point() else torch.ones_like(x, dtype=torch.bool)


@register(aten.where)
def where(condition: Tensor, x: Any, other: Any) -> Tensor:
    """x where the condition holds, else other: numbers become 0-d tensors, bytes a condition."""
    dtype = promoted(x, other) if not (is_scalar(x) and is_scalar(other)) else torch.result_type(x, other)
    x = constant(condition, x, dtype) if is_scalar(x) else x
    other = constant(condition, other, dtype) if is_scalar(other) else other
    return torch.where(_truth(condition), x, other)


@register(aten.masked_fill)
def masked_fill(x: Tensor, mask: Tensor, value: Any) -> Tensor:
    """value where the mask holds, else x."""
    value = constant(x, value) if is_scalar(value) else cast(value, x.dtype)
    return torch.where(mask, value, x)


@register(aten.isin)
def isin(elements: Tensor, test_elements: Tensor, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """Whether an element equals any of the others: a comparison with each."""
    found = torch.any(torch.eq(elements.unsqueeze(-1), test_elements.reshape(-1)), -1)
    return torch.logical_not(found) if invert else found


@register(aten.isin)
def isin_number(elements: Tensor, test_element: Any, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """Whether an element equals the number."""
    return torch.ne(elements, test_element) if invert else torch.eq(elements, test_element)


@register(aten.isin)
def number_isin(element: Any, test_elements: Tensor, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """Whether any element equals the number."""
    found = torch.any(torch.eq(test_elements, element))
    return torch.logical_not(found) if invert else found
