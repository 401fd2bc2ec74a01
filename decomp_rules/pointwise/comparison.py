"""Comparisons, logic and selection: everything whose inputs or results are true and false.

The floor is lt of numbers, with ne, the bitwise operations and where if the target has them. A comparison with NaN is
false, except for ne.
"""

from __future__ import annotations

from collections.abc import Callable
import math
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.complex.numbers import parts
from decomp_rules.support.floating import square_error
from decomp_rules.support.operands import (
    HALVES,
    WIDE_INTEGERS,
    above_zero,
    cast,
    constant,
    is_scalar,
    number_below,
    plain,
    promoted,
    rounded,
)

RULES = Rules(level="exact")
register = RULES.register


@register(aten.eq, needs=("ne",))
def eq_unless_different(x: Tensor, other: Any) -> Tensor:
    """not (x ≠ other)."""
    return torch.ne(torch.ne(x, other), True)


@register(aten.eq)
def eq_infinity(x: Tensor, other: Any) -> Tensor:
    """Beyond the largest number."""
    if not (plain(other) and math.isinf(other) and x.is_floating_point()):
        return decline("not a float with an infinity")
    largest = torch.finfo(x.dtype).max
    return torch.gt(x, largest) if other > 0 else torch.lt(x, -largest)


@register(aten.eq)
def eq_of_integers(x: Tensor, other: Any) -> Tensor:
    """Neither x < other nor other < x, as x − other may overflow; of 0 the opposite of x."""
    if promoted(x, other) not in WIDE_INTEGERS:
        return decline("only integers of 32 or 64 bits")
    return torch.logical_not(x if plain(other) and other == 0 else _apart(*_pair(x, other)))


@register(aten.eq)
def eq(x: Tensor, other: Any) -> Tensor:
    """Neither x < other nor other < x, and neither is NaN."""
    if plain(other) and math.isfinite(other):
        return torch.logical_not(_differs(x, other))
    x, other = _pair(x, other)
    if x.is_complex():
        return decline("complex numbers have no order")
    return torch.lt(_apart(x, other), _ordered(x, other))


@register(aten.ne, needs=("eq",))
def ne_unless_equal(x: Tensor, other: Any) -> Tensor:
    """not (x = other)."""
    return torch.logical_not(torch.eq(x, other))


@register(aten.ne)
def ne_of_integers(x: Tensor, other: Any) -> Tensor:
    """x < other or other < x, as x − other may overflow; of 0 the truth of x."""
    if promoted(x, other) not in WIDE_INTEGERS:
        return decline("only integers of 32 or 64 bits")
    return truth(x) if plain(other) and other == 0 else _apart(*_pair(x, other))


@register(aten.ne)
def ne(x: Tensor, other: Any) -> Tensor:
    """x < other or other < x, or one is NaN; of a finite number, x − other is not 0, as no difference underflows."""
    if plain(other) and math.isfinite(other):
        return _differs(x, other)
    x, other = _pair(x, other)
    if x.is_complex():
        return decline("complex numbers have no order")
    apart = _apart(x, other)
    return apart | torch.logical_not(_ordered(x, other)) if x.is_floating_point() else apart


@register(aten.lt)
def lt_of_booleans(x: Tensor, other: Any) -> Tensor:
    """¬x & other, for targets that order numbers alone."""
    if promoted(x, other) != torch.bool:
        return decline("only booleans")
    x, other = _pair(x, other)
    return torch.logical_not(x) & other


@register(aten.lt)
def lt_of_boolean_and_number(x: Tensor, other: Any) -> Tensor:
    """The boolean in the dtype of what it is compared with, for targets that order no booleans."""
    dtype = promoted(x, other)
    if x.dtype != torch.bool or dtype == torch.bool:
        return decline("only a boolean beside numbers")
    return torch.lt(cast(x, dtype), other)


@register(aten.gt)
def gt(x: Tensor, other: Any) -> Tensor:
    """other < x."""
    return torch.lt(_operand(x, other), x)


@register(aten.ge)
def ge_number(x: Tensor, other: Any) -> Tensor:
    """x > the float below the number."""
    dtype = promoted(x, other)
    bound = number_below(other, dtype) if plain(other) and dtype.is_floating_point else None
    if bound is None:
        return decline("no number, or one whose neighbour is no normal float")
    return torch.lt(constant(x, bound, dtype), x)


@register(aten.ge)
def ge(x: Tensor, other: Any) -> Tensor:
    """other ≤ x."""
    return torch.le(_operand(x, other), x)


@register(aten.le)
def le_number(x: Tensor, other: Any) -> Tensor:
    """x < the float above the number."""
    dtype = promoted(x, other)
    bound = number_below(-other, dtype) if plain(other) and dtype.is_floating_point else None
    if bound is None:
        return decline("no number, or one whose neighbour is no normal float")
    return torch.lt(x, -bound)


@register(aten.le)
def le_whole(x: Tensor, other: Any) -> Tensor:
    """Of integers, not (other < x)."""
    if promoted(x, other).is_floating_point:
        return decline("only integers")
    return torch.logical_not(torch.lt(_operand(x, other), x))


@register(aten.le, needs=(("eq", "ne"),))
def le_or_equal(x: Tensor, other: Any) -> Tensor:
    """x < other or x = other."""
    return torch.lt(x, other) | torch.eq(x, other)


@register(aten.le)
def le(x: Tensor, other: Any) -> Tensor:
    """Not (other < x), and neither is NaN."""
    if plain(other) and other == 0:
        return torch.lt(x, other) | torch.eq(x, other)
    x, other = _pair(x, other)
    return torch.lt(torch.lt(other, x), _ordered(x, other))


@register(aten.le, level="standard")
def le_zero(x: Tensor, other: Any) -> Tensor:
    """x < the first normal number."""
    dtype = promoted(x, other)
    if not (plain(other) and other == 0 and dtype.is_floating_point):
        return decline("no float beside 0")
    return torch.lt(x, above_zero(dtype))


@register(aten.ge, level="standard")
def ge_zero(x: Tensor, other: Any) -> Tensor:
    """The last normal number below 0 < x."""
    dtype = promoted(x, other)
    if not (plain(other) and other == 0 and dtype.is_floating_point):
        return decline("no float beside 0")
    return torch.lt(constant(x, -above_zero(dtype), dtype), x)


@register(aten.le, level="standard", needs=("maximum",))
def le_by_maximum(x: Tensor, other: Any) -> Tensor:
    """max(x, other) = other, which NaN is not."""
    x, other = _pair(x, other)
    return torch.eq(torch.maximum(x, other), other)


def _operand(x: Tensor, other: Any) -> Tensor:
    """`other` as a tensor: a number becomes a 0-d one of the dtype in which PyTorch compares it with x."""
    return constant(x, other, promoted(x, other)) if is_scalar(other) else other


def _pair(x: Tensor, other: Any) -> tuple[Tensor, Tensor]:
    """Both as tensors of the dtype in which PyTorch compares them."""
    dtype = promoted(x, other)
    return cast(x, dtype), constant(x, other, dtype) if is_scalar(other) else cast(other, dtype)


def _apart(x: Tensor, other: Tensor) -> Tensor:
    return torch.lt(x, other) | torch.lt(other, x)


def _ordered(x: Tensor, other: Tensor) -> Tensor:
    """Whether neither is NaN: −(x² + y²) < 1, as squares have no sign that could make ∞ − ∞."""
    if not x.is_floating_point():
        return constant(x, True, torch.bool)
    return torch.lt((x * x + other * other) * -1, 1)


def _differs(x: Tensor, number: Any) -> Tensor:
    """Whether x is NaN or another number: the truth of x − number, where that is in the dtype of x."""
    dtype = promoted(x, number)
    if dtype in HALVES and rounded(number, dtype) != number:
        return _apart(x, constant(x, number)) | torch.isnan(x)
    x = cast(x, dtype)
    return truth(x if number == 0 else x + -number)


@register(aten.isclose, needs=("abs",))
def isclose(x: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Tensor:
    """x = other, or |x − other| ≤ atol + rtol · |other| and finite."""
    return _close(x, other, rtol, atol, equal_nan, torch.abs)


@register(aten.isclose)
def isclose_by_parts(
    x: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> Tensor:
    """The same, for targets without absolute values: those of complex numbers are rounded as the op's are, for their
    last digit decides. Beside an infinite part, a target that only multiplies complex numbers, as luminal, does not see
    the other one."""
    return _close(x, other, rtol, atol, equal_nan, _modulus if x.is_complex() else torch.abs)


def _close(
    x: Tensor, other: Tensor, rtol: float, atol: float, equal_nan: bool, size: Callable[[Tensor], Tensor]
) -> Tensor:
    close = torch.eq(x, other)
    whole = not (x.is_floating_point() or x.is_complex())
    if equal_nan and not whole:
        close = close | (torch.isnan(x) & torch.isnan(other))
    if rtol == 0 and atol == 0:
        return close
    if whole:
        x, other = x.to(torch.get_default_dtype()), other.to(torch.get_default_dtype())
    error, allowed = size(x - other), atol + size(rtol * other)
    return close | (torch.isfinite(error) & torch.le(error, allowed))


def _modulus(x: Tensor) -> Tensor:
    """√(a² + b²), plus half of what its square is off by over itself unless squares vanish or overflow: ≤ 0.51 ULP."""
    re, im = (part.detach() for part in parts(x))
    root = torch.hypot(re, im)
    between = torch.gt(root, 2.0**-40) & torch.lt(root, 2.0**60)
    swap = torch.lt(re * re, im * im)
    sides = torch.where(swap, im, re), torch.where(swap, re, im), root
    larger, smaller, whole = (torch.where(between, side, 1.0) for side in sides)
    squares = larger * larger, smaller * smaller, whole * whole
    lost = [square_error(side, square) for side, square in zip((larger, smaller, whole), squares)]
    # Exact as long as the largest two come first.
    rest = ((squares[0] - squares[2]) + squares[1]) + ((lost[0] - lost[2]) + lost[1])
    return root + torch.where(between, rest * 0.5 * torch.reciprocal(whole), 0.0)


@register(aten.logical_not, needs=("ne",))
def logical_not_by_difference(x: Tensor) -> Tensor:
    """x = 0."""
    return torch.ne(truth(x), True)


@register(aten.logical_not)
def logical_not(x: Tensor) -> Tensor:
    """truth of x < true."""
    return torch.lt(truth(x), True)


@register(aten.logical_and)
def logical_and(x: Tensor, other: Tensor) -> Tensor:
    """(x ≠ 0) & (other ≠ 0)."""
    return torch.bitwise_and(truth(x), truth(other))


@register(aten.logical_or)
def logical_or(x: Tensor, other: Tensor) -> Tensor:
    """(x ≠ 0) | (other ≠ 0)."""
    return torch.bitwise_or(truth(x), truth(other))


@register(aten.logical_xor)
def logical_xor(x: Tensor, other: Tensor) -> Tensor:
    """(x ≠ 0) ^ (other ≠ 0)."""
    return torch.bitwise_xor(truth(x), truth(other))


def truth(x: Tensor) -> Tensor:
    """x ≠ 0, which is what a cast to bool means; NaN is true."""
    return cast(x, torch.bool)


@register(aten.bitwise_not, needs=("bitwise_xor",))
def bitwise_not_by_xor(x: Tensor) -> Tensor:
    """x ^ −1, x ^ true of booleans."""
    return torch.bitwise_xor(x, True if x.dtype == torch.bool else -1)


@register(aten.__and__)
def dunder_and(x: Tensor, other: Any) -> Tensor:
    """x & other."""
    return torch.bitwise_and(x, other)


@register(aten.__or__)
def dunder_or(x: Tensor, other: Any) -> Tensor:
    """x | other."""
    return torch.bitwise_or(x, other)


@register(aten.__xor__)
def dunder_xor(x: Tensor, other: Any) -> Tensor:
    """x ^ other."""
    return torch.bitwise_xor(x, other)


@register(aten.isnan, needs=("ne",))
def isnan_unequal(x: Tensor) -> Tensor:
    """x ≠ x."""
    return torch.ne(x, x)


@register(aten.isnan)
def isnan(x: Tensor) -> Tensor:
    """Not −x² < 1, which every number satisfies."""
    if x.is_complex():
        return decline("only real inputs")
    if not x.is_floating_point():
        return torch.zeros_like(x, dtype=torch.bool)
    return torch.logical_not(torch.lt(x * x * -1, 1))


@register(aten.isinf)
def isinf(x: Tensor) -> Tensor:
    """x = ∞ or x = −∞."""
    if x.is_complex():
        return decline("only real inputs")
    if not x.is_floating_point():
        return torch.zeros_like(x, dtype=torch.bool)
    return torch.eq(x, float("inf")) | torch.eq(x, float("-inf"))


@register(aten.isfinite, level="standard")
def isfinite_below(x: Tensor) -> Tensor:
    """0 · x < 1."""
    return torch.lt(x * 0, 1) if x.is_floating_point() else decline("only floats")


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


@register(aten.where, needs=("where",))
def where(condition: Tensor, x: Any, other: Any) -> Tensor:
    """x where the condition holds, else other: numbers become 0-d tensors, bytes a condition."""
    dtype = promoted(x, other) if not (is_scalar(x) and is_scalar(other)) else torch.result_type(x, other)
    x = constant(condition, x, dtype) if is_scalar(x) else x
    other = constant(condition, other, dtype) if is_scalar(other) else other
    return torch.where(truth(condition), x, other)


@register(aten.where, level="standard")
def where_scaled(condition: Tensor, x: Any, other: Any) -> Tensor:
    """c · x for a finite number x, and 0 elsewhere; ¬c · other where that is x."""
    if not (plain(x) and plain(other) and math.isfinite(x) and math.isfinite(other)) or 0 not in (x, other):
        return decline("not a finite number and 0")
    dtype = torch.result_type(x, other)
    if dtype == torch.bool:
        return decline("the result is a condition")
    condition = truth(condition)
    chosen, value = (condition, x) if other == 0 else (torch.logical_not(condition), other)
    return cast(chosen, dtype) if value == 1 else chosen * (float(value) if dtype.is_floating_point else value)


@register(aten.masked_fill, needs=("where",))
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
