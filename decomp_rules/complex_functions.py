"""Elementary functions of complex numbers, by real functions of the two parts: moduli, exponentials, logarithms,
quotients and powers. (Trigonometry is in `complex_trigonometry`.)

Each formula is one that neither cancels nor overflows where the function does not. Errors are relative to the modulus
of the result, in units of the last place of float32, over moduli from 1e-30 to 1e30 or as far as the function is
finite, next to 1 above all.
"""

from __future__ import annotations

from collections.abc import Callable
import math
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp_rules.complex_numbers import parts
from decomp_rules.floating import is_tensor, promoted_in_any_order
from decomp_rules.operands import cast, constant

RULES = Rules()
register = RULES.register
aten = torch.ops.aten

Parts = tuple[Tensor, Tensor]
LOG2_E = 1 / math.log(2)


def by_parts(function: Callable[[Tensor, Tensor], Parts]) -> Callable[[Tensor], Any]:
    """A rule from the function of the parts. Numbers that are not complex are left to other rules."""

    def rule(x: Tensor) -> Any:
        if not x.is_complex():
            return decline("only complex numbers")
        return torch.complex(*function(*parts(x)))

    rule.__name__, rule.__doc__ = function.__name__, function.__doc__
    return rule


def product(size: Tensor, wave: Tensor, *zeros: Tensor) -> Tensor:
    """size·wave, which is 0 where one of `zeros` is: also where the other factor is infinite or no number."""
    nothing = zeros[0] == 0
    for value in zeros[1:]:
        nothing = nothing | (value == 0)
    found = size * wave
    return torch.where(nothing & (found != found), 0.0, found)


# Modulus and direction


@register(aten.abs)
def absolute(x: Tensor) -> Tensor:
    """√(a² + b²) that does not overflow; the gradient at 0 is 0. ≤ 1.5 ULP."""
    return _modulus(*parts(x)) if x.is_complex() else decline("only complex numbers")


@register(aten.angle)
def angle(x: Tensor) -> Tensor:
    """The angle of the point (a, b); of a real number 0 or π, without a gradient. ≤ 2 ULP."""
    if x.is_complex():
        re, im = parts(x)
        return torch.atan2(im, re)
    x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    return torch.where(x != x, x, torch.where(x < 0, constant(x, math.pi), 0.0))


@register(aten.sgn)
def sgn(x: Tensor) -> Tensor:
    """z / |z|, 0 of 0. ≤ 2.5 ULP a part."""
    if not x.is_complex():
        return decline("only complex numbers")
    re, im = parts(x)
    size = _modulus(re, im)
    size = torch.where(size == 0, 1.0, size)
    return torch.complex(re / size, im / size)


def _modulus(re: Tensor, im: Tensor) -> Tensor:
    origin = (re == 0) & (im == 0)
    return torch.where(origin, 0.0, torch.hypot(torch.where(origin, 1.0, re), im))


# Exponentials and logarithms


@register(aten.exp)
@by_parts
def exp(re: Tensor, im: Tensor) -> Parts:
    """eᵃ·(cos b + i·sin b), real where b = 0, even where eᵃ overflows. ≤ 3 ULP."""
    size = torch.exp(re)
    return size * torch.cos(im), product(size, torch.sin(im), im)


@register(aten.exp2)
@by_parts
def exp2(re: Tensor, im: Tensor) -> Parts:
    """2ᵃ·(cos(b·ln 2) + i·sin(b·ln 2)). The rounded b·ln 2 costs |b| / 2 ULP, as it does the kernel."""
    size, turn = torch.exp2(re), im * math.log(2)
    return size * torch.cos(turn), product(size, torch.sin(turn), im)


@register(aten.expm1)
@by_parts
def expm1(re: Tensor, im: Tensor) -> Parts:
    """(eᵃ − 1)·cos b − 2·sin²(b/2) + i·eᵃ·sin b. ≤ 4 ULP."""
    half = torch.sin(im * 0.5)
    return torch.expm1(re) * torch.cos(im) - 2 * half * half, torch.exp(re) * torch.sin(im)


@register(aten.log)
def log(x: Tensor) -> Tensor:
    """log₂z·ln 2, part by part. 1.5 ULP more than log₂."""
    return _scaled_log2(x, math.log(2))


@register(aten.log10)
def log10(x: Tensor) -> Tensor:
    """log₂z·log₁₀2, part by part. 1.5 ULP more than log₂."""
    return _scaled_log2(x, math.log10(2))


def _scaled_log2(x: Tensor, factor: float) -> Tensor:
    if not x.is_complex():
        return decline("only complex numbers")
    return torch.view_as_complex(torch.view_as_real(torch.log2(x)) * factor)


@register(aten.log2)
@by_parts
def log2(re: Tensor, im: Tensor) -> Parts:
    """log₂|z| + i·angle·log₂e, for targets without it; near 1 from |z|² − 1 = (m − 1)·(m + 1) + n². ≤ 3 ULP."""
    steep = torch.abs(re) < torch.abs(im)
    larger, smaller = torch.abs(torch.where(steep, im, re)), torch.where(steep, re, im)
    near = (0.5 < larger) & (larger < 2)
    m, n = torch.where(near, larger, 1.0), torch.where(near, smaller, 0.0)
    around_one = torch.log1p((m - 1) * (m + 1) + n * n) * (LOG2_E / 2)
    size = torch.where(near, around_one, torch.log2(_modulus(re, im)))
    return size, torch.atan2(im, re) * LOG2_E


@register(aten.log1p)
@by_parts
def log1p(re: Tensor, im: Tensor) -> Parts:
    """ln(1 + z), on the side of the cut that the sign of b says; for small z the real part is
    log1p(a·(2 + a) + b²) / 2. ≤ 4 ULP."""
    below = torch.signbit(im)
    size, turn = parts(torch.log(torch.complex(1 + re, torch.where(below, -im, im))))
    near = (torch.abs(re) < 0.5) & (torch.abs(im) < 0.5)
    a, b = torch.where(near, re, 0.0), torch.where(near, im, 0.0)
    return torch.where(near, 0.5 * torch.log1p(a * (2 + a) + b * b), size), torch.where(below, -turn, turn)


@register(aten.sigmoid)
def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + e⁻ᶻ). As the kernel, which has no digits next to a pole."""
    if not x.is_complex():
        return decline("only complex numbers")
    re, im = parts(x)
    size = torch.exp(-re)
    return torch.reciprocal(torch.complex(1 + size * torch.cos(im), -product(size, torch.sin(im), im)))


@register(aten.silu)
def silu(x: Tensor) -> Tensor:
    """z / (1 + e⁻ᶻ)."""
    return x * torch.sigmoid(x) if x.is_complex() else decline("only complex numbers")


# Quotients and powers


@register(aten.div)
def divide(x: Any, other: Any) -> Tensor:
    """z·(1/w); of numbers w the inverse is taken beforehand. ≤ 3 ULP."""
    dtype = promoted_in_any_order(x, other)
    if not dtype.is_complex:
        return decline("only complex numbers")
    if is_tensor(other):
        inverse = torch.reciprocal(cast(other, dtype))
        return cast(x, dtype) * inverse if is_tensor(x) else inverse if x == 1 else inverse * x
    inverse = 1 / other if other and math.isfinite(abs(other)) else torch.reciprocal(constant(x, other, dtype))
    return cast(x, dtype) * inverse


@register(aten.reciprocal)
def reciprocal(x: Tensor) -> Tensor:
    """1 / z, by Smith's quotient: with r = d/c for |d| ≤ |c|, (1 − i·r) / (c + d·r). ≤ 3 ULP."""
    if not x.is_complex():
        return decline("only complex numbers")
    re, im = parts(x)
    steep = torch.abs(re) < torch.abs(im)
    larger, smaller = torch.where(steep, im, re), torch.where(steep, re, im)
    ratio = smaller / torch.where(larger == 0, 1.0, larger)
    inverse = torch.reciprocal(larger + smaller * ratio)
    rest = ratio * inverse
    return torch.complex(torch.where(steep, rest, inverse), -torch.where(steep, inverse, rest))


@register(aten.lerp)
def lerp(x: Tensor, end: Tensor, weight: Any) -> Tensor:
    """z + u·(w − z) for |u| < 1/2, else w − (1 − u)·(w − z): exact at both ends."""
    if not is_tensor(weight) or not weight.is_complex():
        return decline("only complex weights")
    step = end - x
    return torch.where(torch.abs(weight) < 0.5, x + step * weight, end - step * (1 - weight))


@register(aten.rsqrt)
def rsqrt(x: Tensor) -> Tensor:
    """1 / √z."""
    return torch.reciprocal(torch.sqrt(x)) if x.is_complex() else decline("only complex numbers")


@register(aten.pow)
def power(x: Any, exponent: Any) -> Tensor:
    """zⁿ by products for whole n up to 4 in size, √z and 1/√z; else the power of two tensors."""
    dtype = promoted_in_any_order(x, exponent)
    if not dtype.is_complex or (is_tensor(x) and is_tensor(exponent)):
        return decline("only complex numbers, one of them no tensor")
    if not is_tensor(x):
        return torch.pow(constant(exponent, x, dtype), cast(exponent, dtype))
    base = cast(x, dtype)
    if exponent in (0.5, -0.5):
        return torch.sqrt(base) if exponent == 0.5 else torch.rsqrt(base)
    if exponent in (-4, -3, -2, -1, 0, 1, 2, 3, 4):
        result = _product(base, int(abs(exponent)))
        return torch.reciprocal(result) if exponent.real < 0 else result
    return torch.pow(base, constant(base, exponent))


def _product(x: Tensor, count: int) -> Tensor:
    if count < 2:
        return x.clone() if count else torch.ones_like(x)
    square = x * x
    return {2: lambda: square, 3: lambda: square * x, 4: lambda: square * square}[count]()


@register(aten.pow)
def power_of_tensors(x: Tensor, exponent: Tensor) -> Tensor:
    """e^(w·ln z), for targets without a power; 0 of 0, but 1 where w is 0. Up to |w·ln z| ULP."""
    if not (is_tensor(x) and is_tensor(exponent)) or not promoted_in_any_order(x, exponent).is_complex:
        return decline("only complex tensors")
    dtype = promoted_in_any_order(x, exponent)
    x, exponent = cast(x, dtype), cast(exponent, dtype)
    nothing = x == 0
    found = torch.exp(exponent * torch.log(torch.where(nothing, 1.0, x)))
    found = torch.where(nothing, 0.0, found)
    return torch.where(exponent == 0, 1.0, found)


@register(aten.float_power)
def float_power(x: Any, exponent: Any) -> Tensor:
    """zʷ in complex128."""
    if not promoted_in_any_order(x, exponent).is_complex:
        return decline("only complex numbers")
    x, exponent = (cast(value, torch.complex128) if is_tensor(value) else value for value in (x, exponent))
    return torch.pow(x, exponent)
