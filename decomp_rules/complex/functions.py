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
from decomp.ops import aten
from decomp_rules.complex.numbers import CHOICE, beside, parts, real_part
from decomp_rules.support.floating import is_tensor, promoted_in_any_order
from decomp_rules.support.operands import cast, constant, is_scalar, is_unknown, with_zero_gradient_to

RULES = Rules(level="exact")
register = RULES.register

Parts = tuple[Tensor, Tensor]
LOG2_E = 1 / math.log(2)
# What is taken off a large exponent, and e to that power: of all steps, ones whose powers are all but exact.
STEPS = {torch.float32: (85.5, 1.3557455983959101e37), torch.float64: (654.25, 1.3714020212022128e284)}


def by_parts(function: Callable[[Tensor, Tensor], Parts]) -> Callable[[Tensor], Any]:
    """A rule from the function of the parts. Declines real operands, which other rules handle."""

    def rule(x: Tensor) -> Any:
        if not x.is_complex():
            return decline("only complex numbers")
        return torch.complex(*function(*parts(x)))

    rule.__name__, rule.__doc__ = function.__name__, function.__doc__
    return rule


def product(size: Tensor, wave: Tensor) -> Tensor:
    """size·wave, which is 0 where one of them is, of the sign that it then has: also where the other is infinite or no
    number."""
    found = size * wave
    zero = torch.where(size == 0, size, torch.where(size < 0, -wave, wave))
    return torch.where((zero == 0) & (found != found), zero, found)


def zero_for_nan(part: Tensor, found: Tensor) -> Tensor:
    """`found`, but `part` where that is 0 and `found` no number."""
    return torch.where((part == 0) & (found != found), part, found)


def infinite(bound: Tensor, found: Tensor) -> Tensor:
    """`found`, but ∞ where it is no number and `bound` is infinite, as C99 has it."""
    return torch.where((torch.abs(bound) == math.inf) & (found != found), math.inf, found)


def hyperbolic(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """sinh x / f, cosh x / f and a factor f, so that they are finite where a product with a small number is."""
    size, (step, factor) = torch.abs(x), STEPS[x.dtype]
    large = size > step
    half, near = torch.exp(torch.where(large, size - step, 0.0)) * 0.5, torch.where(large, 0.0, x)
    sinh = torch.where(large, torch.copysign(half, x), torch.sinh(near))
    return sinh, torch.where(large, half, torch.cosh(near)), torch.where(large, factor, constant(x, 1))


# Modulus and direction


@register(aten.abs, needs=CHOICE)
def absolute(x: Tensor) -> Tensor:
    """√(a² + b²) that does not overflow; the gradient at 0 is 0. ≤ 1.5 ULP."""
    return modulus(*parts(x)) if x.is_complex() else decline("only complex numbers")


@register(aten.abs)
def absolute_by_root(x: Tensor) -> Tensor:
    """`absolute` for targets that lose b beside NaN: of NaN ± i∞ the root is infinite."""
    if not x.is_complex():
        return decline("only complex numbers")
    return infinite(real_part(torch.sqrt(x.detach())), modulus(*parts(x)))


@register(aten.angle)
def angle(x: Tensor) -> Tensor:
    """The angle of the point (a, b); of a real number 0 or π, with a gradient of zero. ≤ 2 ULP."""
    if x.is_complex():
        re, im = parts(x)
        return torch.atan2(im, re)
    x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    value = x.detach()
    return with_zero_gradient_to(
        torch.where(value != value, value, torch.where(value < 0, constant(value, math.pi), 0.0)), x
    )


@register(aten.sgn)
def sgn(x: Tensor) -> Tensor:
    """z / |z|, 0 of 0. ≤ 2.5 ULP a part."""
    if not x.is_complex():
        return decline("only complex numbers")
    re, im = parts(x)
    size = modulus(re, im)
    is_zero = size == 0
    size = torch.where(is_zero, 1.0, size)
    return torch.complex(*(torch.where(is_zero, 0.0, part / size) for part in (re, im)))


def modulus(re: Tensor, im: Tensor) -> Tensor:
    origin = (re == 0) & (im == 0)
    return torch.where(origin, 0.0, torch.hypot(torch.where(origin, 1.0, re), im))


# Exponentials and logarithms


@register(aten.exp)
@by_parts
def exp(re: Tensor, im: Tensor) -> Parts:
    """eᵃ·(cos b + i·sin b), real where b = 0, even where eᵃ overflows; infinities as in C99. ≤ 3 ULP."""
    return _exp(re, im)


def _exp(re: Tensor, im: Tensor) -> Parts:
    step, factor = STEPS[re.dtype]
    large = re > step
    return _spiral(re, im, torch.exp(torch.where(large, re - step, re)), torch.where(large, factor, constant(re, 1)))


@register(aten.exp2)
@by_parts
def exp2(re: Tensor, im: Tensor) -> Parts:
    """2ᵃ·(cos(b·ln 2) + i·sin(b·ln 2)). The rounded b·ln 2 costs |b| / 2 ULP, as it does the kernel."""
    step = float(math.frexp(torch.finfo(re.dtype).max)[1] - 1)
    large = re > step
    size = torch.exp2(torch.where(large, re - step, re))
    return _spiral(re, im * math.log(2), size, torch.where(large, 2.0**step, constant(re, 1)))


def _spiral(re: Tensor, turn: Tensor, size: Tensor, factor: Tensor) -> Parts:
    """size·factor·(cos t + i·sin t); 0 at −∞ for any t."""
    vanishes = (re == -math.inf) & ((torch.abs(turn) == math.inf) | (turn != turn))
    turn = torch.where(vanishes, torch.copysign(constant(turn, 0), turn), turn)
    wave = torch.sin(turn)
    return infinite(re, size * torch.cos(turn) * factor), zero_for_nan(wave, size * wave * factor)


@register(aten.expm1)
@by_parts
def expm1(re: Tensor, im: Tensor) -> Parts:
    """(eᵃ − 1)·cos b − 2·sin²(b/2) + i·eᵃ·sin b. ≤ 4 ULP."""
    half = torch.sin(im * 0.5)
    return torch.expm1(re) * torch.cos(im) - 2 * half * half, torch.exp(re) * torch.sin(im)


@register(aten.log, needs=(aten.take,))
def log_by_turning(x: Tensor) -> Tensor:
    """`log`, with the angle of numbers whose logarithm is infinite from their signs: no target that turns numbers for
    their imaginary part tells it there."""
    return _with_angle_of_ends(x, math.log(2))


@register(aten.log10, needs=(aten.take,))
def log10_by_turning(x: Tensor) -> Tensor:
    """`log10`, likewise."""
    return _with_angle_of_ends(x, math.log10(2))


def _with_angle_of_ends(x: Tensor, factor: float) -> Tensor:
    if not x.is_complex():
        return decline("only complex numbers")
    (re, im), (size, turn) = parts(x.detach()), parts(torch.log2(x))
    is_zero, endless = (re == 0) & (im == 0), torch.isfinite(re) & (torch.abs(im) == math.inf)
    angle = torch.where(is_zero & torch.signbit(re), math.pi, torch.where(endless, constant(re, math.pi / 2), 0.0))
    angle = torch.copysign(angle * (factor / math.log(2)), im)
    return torch.complex(size * factor, torch.where(is_zero | endless, angle, turn * factor))


@register(aten.log, needs=CHOICE)
def log(x: Tensor) -> Tensor:
    """log₂z·ln 2, part by part, for targets that choose between numbers: those that multiply to choose have the rules
    above. 1.5 ULP more than log₂."""
    return _scaled_log2(x, math.log(2))


@register(aten.log10, needs=CHOICE)
def log10(x: Tensor) -> Tensor:
    """log₂z·log₁₀2, likewise. 1.5 ULP more than log₂."""
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
    shift = torch.where(larger > 2.0**100, -8.0, torch.where(larger < 2.0**-100, 64.0, constant(re, 0)))
    scale = torch.exp2(shift)
    size = torch.log2(modulus(re * scale, im * scale)) - shift
    return torch.where(near, around_one, size), torch.atan2(im, re) * LOG2_E


@register(aten.log1p)
@by_parts
def log1p(re: Tensor, im: Tensor) -> Parts:
    """ln(1 + z), on the side of the cut that the sign of b says; for small z the real part is
    log1p(a·(2 + a) + b²) / 2. ≤ 4 ULP."""
    below = torch.signbit(im)
    size, turn = parts(torch.log(torch.complex(1 + re, torch.where(below, -im, im))))
    near = (torch.abs(re) < 0.5) & (torch.abs(im) < 0.5)
    a, b = torch.where(near, re, 0.0), torch.where(near, im, 0.0)
    square = torch.where(b == 0, -0.0, b * b)  # so that a zero keeps its sign
    return torch.where(near, 0.5 * torch.log1p(a * (2 + a) + square), size), torch.where(below, -turn, turn)


@register(aten.sigmoid)
def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + e⁻ᶻ), 0 where that is infinite. As the kernel, which has no digits next to a pole."""
    if not x.is_complex():
        return decline("only complex numbers")
    first, second = _one_more(x)
    return torch.reciprocal(torch.complex(first, beside(first, second)))


@register(aten.silu)
def silu(x: Tensor) -> Tensor:
    """z / (1 + e⁻ᶻ)."""
    return x * torch.reciprocal(torch.complex(*_one_more(x))) if x.is_complex() else decline("only complex numbers")


def _one_more(x: Tensor) -> Parts:
    """1 + e⁻ᶻ."""
    re, im = parts(x)
    first, second = _exp(-re, -im)
    return 1 + first, 0 + second  # which makes 0 of −0, as the sum with 1 + 0i does


# Quotients and powers


@register(aten.div)
def divide(x: Any, other: Any) -> Tensor:
    """Smith's quotient (Comm. ACM 5, 1962): with r = d/c for |d| ≤ |c|, (a + b·r, b − a·r) / (c + d·r). By numbers
    and real tensors a product with the inverse, which may change the sign of a zero. By 0 of either sign each part is
    infinite, or NaN where it is 0. ≤ 3 ULP."""
    dtype = promoted_in_any_order(x, other)
    if not dtype.is_complex:
        return decline("only complex numbers")
    if not is_tensor(other) and not is_unknown(other):
        return _over_number(cast(x, dtype), other)
    if not is_tensor(other):
        other = constant(x, other, dtype.to_real())
    if not other.is_complex():
        inverse = torch.reciprocal(0 + cast(other, dtype.to_real()))  # of −0 that of 0, as the kernel has it
        return (cast(x, dtype) if is_tensor(x) else x) * inverse
    a, b = _parts_of(x, dtype)
    b = beside(a, b) if is_tensor(x) else b
    c, d = parts(cast(other, dtype))
    steep, ratio, inverse = _smith(c, d)
    along, across = torch.where(steep, b, a), torch.where(steep, a, b)
    turned = along * ratio
    first = (along + across * ratio) * inverse
    second = torch.where(steep, turned - across, across - turned) * inverse
    is_zero = (c == 0) & (d == 0)
    return torch.complex(torch.where(is_zero, _endless(a), first), torch.where(is_zero, _endless(b), second))


def _endless(x: Any) -> Any:
    return (x.detach() if is_tensor(x) else x) * math.inf


def _over_number(x: Tensor, number: complex) -> Tensor:
    if number == 0:
        return torch.complex(*map(_endless, parts(x)))
    return x * (1 / number if math.isfinite(abs(number)) else torch.reciprocal(constant(x, number)))


def _parts_of(x: Any, dtype: torch.dtype) -> Any:
    """The parts of a tensor or a number; of a real one, 0 for the second."""
    if is_tensor(x) and x.is_complex():
        return parts(cast(x, dtype))
    if is_tensor(x):
        return cast(x, dtype.to_real()), torch.zeros_like(x, dtype=dtype.to_real())
    return x.real, x.imag


def _smith(c: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Whether |c| < |d|; the smaller of them over the larger one; and 1 / (larger + smaller · ratio)."""
    steep = torch.abs(c) < torch.abs(d)
    larger, smaller = torch.where(steep, d, c), torch.where(steep, c, beside(c, d))
    ratio = smaller / torch.where(larger == 0, 1.0, larger)
    return steep, ratio, torch.reciprocal(larger + smaller * ratio)


@register(aten.reciprocal)
def reciprocal(x: Tensor) -> Tensor:
    """1 / z, by Smith's quotient: with r = d/c for |d| ≤ |c|, (1 − i·r) / (c + d·r). ≤ 3 ULP."""
    if not x.is_complex():
        return decline("only complex numbers")
    steep, ratio, inverse = _smith(*parts(x))
    # A sum with 0, for the kernel has no −0 here either.
    rest = (0 + torch.where(steep, ratio, -ratio)) * inverse
    return torch.complex(torch.where(steep, rest, inverse), torch.where(steep, -inverse, rest))


@register(aten.lerp)
def lerp(x: Tensor, end: Tensor, weight: Any) -> Tensor:
    """z + u·(w − z) for |u| < 1/2, else w + (u − 1)·(w − z): exact at both ends. In parts, for a sum or a difference of
    complex numbers is multiplied by 1 + 0i, which makes the part next to an infinite one NaN (torch 2.13)."""
    if not x.is_complex():
        return decline("only complex numbers")
    weight = constant(x, weight, x.dtype.to_real()) if is_unknown(weight) else weight
    (a, b), (c, d), (u, v) = parts(x), parts(end), _parts_of(weight, x.dtype)
    b, d = beside(a, b), beside(c, d)
    if is_scalar(weight):
        near = abs(weight) < 0.5
        first, second, u = (a, b, u) if near else (c, d, u - 1)
    else:
        near, v = torch.abs(weight) < 0.5, beside(u, v)
        first, second, u = torch.where(near, a, c), torch.where(near, b, d), torch.where(near, u, u - 1)
    along, across = c - a, d - b
    return torch.complex(first + (along * u - across * v), second + (along * v + across * u))


@register(aten.rsqrt)
def rsqrt(x: Tensor) -> Tensor:
    """1 / √z."""
    return torch.reciprocal(torch.sqrt(x)) if x.is_complex() else decline("only complex numbers")


@register(aten.pow)
def power(x: Any, exponent: Any) -> Tensor:
    """zⁿ by products for whole n up to 4 in size, √z and 1/√z; else the power of two tensors, e^(w·ln z), for targets
    without a power. Up to |w·ln z| ULP, as the kernel."""
    dtype = promoted_in_any_order(x, exponent)
    if not dtype.is_complex:
        return decline("only complex numbers")
    if not is_tensor(x):
        return torch.pow(constant(exponent, x, dtype), cast(exponent, dtype))
    base = cast(x, dtype)
    if is_tensor(exponent):
        return _power_of_tensors(base, cast(exponent, dtype))
    if is_unknown(exponent):
        return torch.pow(base, constant(base, exponent))
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


def _power_of_tensors(x: Tensor, exponent: Tensor) -> Tensor:
    """e^(w·ln z); of 0 that is 0 for Re w > 0, ∞ for Re w < 0 and else NaN. Where Re w·ln |z| is infinite, Im w and the
    angle count only if it stays a number with them; where it is ∞·0 they alone do, if Im w is infinite too."""
    is_zero = x == 0
    (size, turn), (a, b) = parts(torch.log(torch.where(is_zero, 1.0, x))), parts(exponent)
    scale, spin = a * size, b * turn
    growth = scale - spin
    growth = torch.where((torch.abs(scale) == math.inf) & (growth != growth), scale, growth)
    growth = torch.where((scale != scale) & (torch.abs(a) == math.inf) & (torch.abs(b) == math.inf), -spin, growth)
    found = torch.complex(*_exp(growth, b * size + a * turn))
    along = a.detach()
    infinite, none = (constant(x, complex(value, math.nan)) for value in (math.inf, math.nan))
    of_zero = torch.where(along > 0, constant(x, 0.0), torch.where(along < 0, infinite, none))
    return torch.where(is_zero, of_zero, found)


@register(aten.float_power)
def float_power(x: Any, exponent: Any) -> Tensor:
    """zʷ in complex128."""
    if not promoted_in_any_order(x, exponent).is_complex:
        return decline("only complex numbers")
    x, exponent = (cast(value, torch.complex128) if is_tensor(value) else value for value in (x, exponent))
    return torch.pow(x, exponent)
