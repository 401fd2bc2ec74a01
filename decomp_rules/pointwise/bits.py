"""Bits and integers by plain arithmetic: for targets that add, multiply, compare and take remainders. Integers of 8 or
16 bits wrap; with 32 and 64 bits, no intermediate overflows unless the result does, because generated code need not
wrap.

A number is cut at each of its bits by a remainder, all bits at once in a last dimension; integers divide by estimates
in float32 that exact remainders correct.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp.results import Declined
from decomp_rules.support.operands import WIDE_INTEGERS, cast, constant, is_scalar, plain, promoted

RULES = Rules(level="exact")
register = RULES.register
WIDE = "only integers of 32 or 64 bits"


@register(aten.bitwise_and)
def bitwise_and(x: Tensor, other: Any) -> Tensor:
    """x · other of booleans; else the sum of the bits of x, times whether other has them; and the sign of both."""
    x, other = _pair(x, other)
    if x.dtype == torch.bool:
        return x * other
    common = torch.sum(_bits(x) * cast(_bits(other), torch.bool), dim=[-1], dtype=x.dtype)
    if x.dtype == torch.uint8:
        return common
    return common + cast((x < 0) & (other < 0), x.dtype) * torch.iinfo(x.dtype).min


@register(aten.bitwise_or)
def bitwise_or(x: Tensor, other: Any) -> Tensor:
    """x and what other has besides."""
    x, other = _pair(x, other)
    return x + other if x.dtype == torch.bool else x + (other - (x & other))


@register(aten.bitwise_xor)
def bitwise_xor(x: Tensor, other: Any) -> Tensor:
    """The bits that only one of them has; for booleans, one is less than the other."""
    x, other = _pair(x, other)
    if x.dtype == torch.bool:
        return torch.lt(x, other) | torch.lt(other, x)
    common = x & other
    return (x - common) + (other - common)


@register(aten.bitwise_not)
def bitwise_not(x: Tensor) -> Tensor:
    """−1 − x, and −(x + 1) − 1 + 1 of a negative one that may be the least, which has no opposite; of booleans
    x < true."""
    if x.dtype == torch.bool:
        return torch.lt(x, True)
    if x.dtype not in WIDE_INTEGERS:
        return x * -1 + -1
    below = cast(x < 0, x.dtype)
    return (x + below) * -1 + (below + -1)


def _pair(x: Tensor, other: Any) -> tuple[Tensor, Tensor]:
    """Both operands as tensors of the dtype that they promote to."""
    dtype = promoted(x, other)
    return cast(x, dtype), constant(x, other, dtype) if is_scalar(other) else cast(other, dtype)


def _bits(x: Tensor) -> Tensor:
    """For each bit but that of the sign, 2ᵏ if x has it, else 0, in a last dimension."""
    width = 8 * x.dtype.itemsize - int(x.dtype.is_signed)
    x = (_without_sign(x) if x.dtype.is_signed else x).unsqueeze(-1)
    # Not by differences of the rests above neighbouring bits, padded: Inductor also computes the padded elements,
    # and divides by 0 (torch 2.13).
    powers, next_powers = [1 << k for k in range(width)], [2 << k for k in range(width - 1)] + [1]
    below, below_next = (torch.fmod(x, _line(x, numbers)) for numbers in (powers, next_powers))
    return below_next + x * _line(x, [0] * (width - 1) + [1]) - below


def _without_sign(x: Tensor) -> Tensor:
    """x without the bit of its sign: of a negative one, x + 2ᵏ⁻¹, in two steps, because 2ᵏ⁻¹ is not representable."""
    below = cast(x < 0, x.dtype)
    return x + below * torch.iinfo(x.dtype).max + below


def _line(like: Tensor, numbers: list[int]) -> Tensor:
    """A constant of its dtype."""
    return torch.tensor(numbers, dtype=like.dtype, device=like.device)


@register(aten.bitwise_left_shift)
def left_shift_of_integers(x: Tensor, other: Any) -> Tensor:
    """x · 2ᵒᵗʰᵉʳ, 0 where other is negative, of what does not overflow: in 64 bits for 32; for 64, the bits that stay
    below that of the sign, and the one that becomes it."""
    x, count = _pair(x, other)
    if x.dtype == torch.int32:
        return cast(cast(x, torch.int64) * cast(_power_of_two(count), torch.int64), torch.int32)
    return _shifted_left(x, count) if x.dtype == torch.int64 else decline(WIDE)


def _shifted_left(x: Tensor, count: Tensor) -> Tensor:
    """The bit of the sign is set where a remainder by twice the power is another one. Twice the power is 2⁶³ for one
    place, so 2⁶³ − 1 has to do, which is as good there."""
    powers = [*(1 << k for k in range(63)), 0, 0]
    moduli = [1, *reversed(powers[:63]), 1]
    tables = powers, moduli, [1, torch.iinfo(torch.int64).max, *moduli[1:63], 1]
    rest, place = _without_sign(x), torch.where(torch.logical_or(count < 0, count >= 64), 64, count)
    power, modulus, twice = (torch.take(torch.tensor(table, device=x.device), place) for table in tables)
    kept = torch.fmod(rest, modulus)
    sign = cast(torch.ne(torch.fmod(rest, twice), kept), torch.int64) * torch.iinfo(torch.int64).min
    return torch.where(torch.eq(count, 0), x, kept * power + sign)


@register(aten.bitwise_left_shift)
def bitwise_left_shift(x: Tensor, other: Any) -> Tensor:
    """x · 2ᵒᵗʰᵉʳ, modulo the width of the integer; 0 where other is negative."""
    x, count = _pair(x, other)
    return x * _power_of_two(count)


@register(aten.bitwise_right_shift)
def bitwise_right_shift(x: Tensor, other: Any) -> Tensor:
    """⌊x / 2ᵒᵗʰᵉʳ⌋, done in two steps for 2ᵒᵗʰᵉʳ to fit the integer; a negative count is as good as a large one."""
    x, count = _pair(x, other)
    width = 8 * x.dtype.itemsize
    count = torch.where(torch.logical_or(count < 0, count > width), width, count)
    half = torch.div(count, 2, rounding_mode="floor")
    shifted = torch.div(x, _power_of_two(half), rounding_mode="floor")
    return torch.div(shifted, _power_of_two(count - half), rounding_mode="floor")


def _power_of_two(count: Tensor) -> Tensor:
    """2ᶜᵒᵘⁿᵗ, read from a table; 0 where that is beyond the dtype."""
    width = 8 * count.dtype.itemsize
    beyond = torch.logical_or(count < 0, count >= width)
    table = [1 << k for k in range(width)] + [0]
    if count.dtype.is_signed:
        table[width - 1] -= 1 << width
    table_ = torch.tensor(table, dtype=count.dtype, device=count.device)
    return torch.take(table_, cast(torch.where(beyond, width, count), torch.int64))


@register(aten.div)
def integer_quotient(x: Any, other: Any, rounding_mode: str | None) -> Tensor:
    """x − fmod(x, other) is a multiple of other: the quotient is estimated in float32, then that of the rest, until
    nothing is left; one less where the floor is wanted and the remainder has the other sign. Exact."""
    dtype = promoted(x, other)
    if rounding_mode is None or dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
        return decline("only integers that are rounded")
    x, other = _pair(x, other)
    remainder = torch.fmod(x, other)
    quotient = _estimated(x - remainder, other)
    if rounding_mode == "trunc" or dtype == torch.uint8:
        return quotient
    return quotient - cast(_other_side(remainder, other), dtype)


def _estimated(multiple: Tensor, other: Tensor) -> Tensor:
    """How many times `multiple` is the other. The error of one estimate, 2⁻²⁰ of it, is corrected by the next: 63 bits
    take three. The first is rounded down enough that neither it nor its product overflows; the small ones are added
    first."""
    inverse, steps, rest = torch.reciprocal(other.to(torch.float32)), [], multiple
    for _ in range({8: 2, 4: 1}.get(other.dtype.itemsize, 0)):
        factor = inverse if steps else inverse * (1 - 6 * 2.0**-24)
        steps.append((rest.to(torch.float32) * factor).to(other.dtype))
        rest = rest - steps[-1] * other
    quotient = _nearest(rest.to(torch.float32) * inverse, other.dtype)
    for step in reversed(steps):
        quotient = quotient + step
    return quotient


def _nearest(x: Tensor, dtype: torch.dtype) -> Tensor:
    """A float below 2²⁰ in size, to the nearest integer: casts cut off, so it is lifted above zero before."""
    return cast((x + (2.0**20 + 0.5)).to(torch.int32) - 2**20, dtype)


@register(aten.remainder)
def integer_remainder_by_number(x: Tensor, other: Any) -> Tensor:
    """That by a tensor of the number, for targets that have one of two tensors alone. Exact."""
    if not plain(other) or is_scalar(x) or promoted(x, other) not in WIDE_INTEGERS:
        return decline(f"{WIDE}, by a number")
    return torch.remainder(*_pair(x, other))


@register(aten.remainder)
def integer_remainder(x: Any, other: Any) -> Tensor:
    """fmod, plus other where the result has not the sign of other; of integers. Exact."""
    operands = _integer_operands(x, other)
    if isinstance(operands, Declined):
        return operands
    x, other = operands
    remainder = torch.fmod(x, other)
    if x.dtype == torch.uint8:
        return remainder
    return remainder + cast(_other_side(remainder, other), x.dtype) * other


@register(aten.fmod, needs=("remainder",))
def fmod_of_remainder(x: Tensor, other: Any) -> Tensor:
    """The remainder, less other where the result has not the sign of x; of integers. Exact."""
    if promoted(x, other) not in WIDE_INTEGERS:
        return decline(WIDE)
    x, other = _pair(x, other)
    remainder = torch.remainder(x, other)
    return remainder - cast(_other_side(remainder, x), x.dtype) * other


@register(aten.fmod, needs=("div.Tensor_mode",))
def fmod_of_quotient(x: Any, other: Any) -> Tensor:
    """x − trunc(x / other) · other; of integers. Exact."""
    operands = _integer_operands(x, other)
    if isinstance(operands, Declined):
        return operands
    x, other = operands
    return x - torch.div(x, other, rounding_mode="trunc") * other


def _integer_operands(x: Any, other: Any) -> Any:
    """Both as tensors of the dtype that they promote to."""
    dtype = promoted(x, other) if not is_scalar(x) else promoted(other, x)
    if dtype.is_floating_point or dtype == torch.bool:
        return decline("only integers")
    return (constant(other, x, dtype), cast(other, dtype)) if is_scalar(x) else _pair(x, other)


@register(aten.div, needs=("div.Tensor_mode",))
def floored_quotient_of_truncated(x: Any, other: Any, rounding_mode: str | None) -> Tensor:
    """trunc(x / other), one less where there is a remainder and it has the other sign; of integers. Exact."""
    dtype = promoted(x, other)
    if rounding_mode != "floor" or dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
        return decline("only integers that are rounded down")
    x, other = _pair(x, other)
    quotient = torch.div(x, other, rounding_mode="trunc")
    return quotient - cast(_other_side(x - quotient * other, other), dtype)


def _other_side(remainder: Tensor, divisor: Tensor) -> Tensor:
    """Whether the remainder is not 0 and has the other sign."""
    return cast(remainder, torch.bool) & ((remainder < 0) ^ (divisor < 0))


@register(aten.pow)
def power_of_integers(x: Any, exponent: Any) -> Tensor:
    """Over the bits of the exponent, the first first: the square, times x where the bit is set. So all on the way are
    powers of x up to the result, and overflow only where that does. 1/x cut off where the exponent is negative."""
    dtype = promoted(x, exponent)
    if plain(exponent) or plain(x) or dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
        return decline("only integers, both of them tensors")
    x, exponent = cast(x, dtype), cast(exponent, dtype)
    negative, bits = exponent < 0, cast(_bits(exponent), torch.bool)
    base = torch.where(negative, 1, x) if dtype.is_signed else x
    factors = torch.where(bits, base.unsqueeze(-1), 1)
    *lower, result = (factors.select(-1, k) for k in range(factors.shape[-1]))
    for factor in reversed(lower):
        result = result * result * factor
    return torch.where(negative, _inverse(x, bits), result) if dtype.is_signed else result


def _inverse(x: Tensor, bits: Tensor) -> Tensor:
    """1/x to a power of these bits, cut off: 0 unless x is 1 or −1."""
    sign = 1 - 2 * cast(bits.select(-1, 0), x.dtype)
    return cast(torch.eq(x, 1), x.dtype) + cast(torch.eq(x, -1), x.dtype) * sign
