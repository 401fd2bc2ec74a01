"""Complex numbers as pairs of real numbers: parts, pairs, conjugates, and predicates.

Two ops carry everything, `view_as_real` and `complex`, and each target does them with what it has: by a Fourier
transform of four points, which neither multiplies nor rounds, by looking at the bits, or by turning with i and casting.
All of them are differentiable. A cast of a complex number to a real dtype is exactly its real part, for any value.
"""

from __future__ import annotations

import math
from typing import Any
import warnings

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten, prims
from decomp_rules.reduce.reduction import known_empty
from decomp_rules.support.operands import cast, constant, is_scalar, same_size, wide

RULES = Rules(level="exact")
register = RULES.register

BY_FOURIER = (aten._fft_c2r, aten._fft_r2c)
# What targets have that choose between numbers, and do not multiply by 0 and 1: they tell all imaginary parts.
CHOICE = ((aten.where, prims.where),)


def real_part(x: Tensor) -> Tensor:
    """The real part, exactly, by a cast."""
    with warnings.catch_warnings():
        # PyTorch warns once a process that the imaginary part is dropped, which is intended here.
        warnings.simplefilter("ignore")
        return x.to(x.dtype.to_real())


def parts(x: Tensor) -> tuple[Tensor, Tensor]:
    """The real and the imaginary part."""
    pair = torch.view_as_real(x)
    return pair.select(-1, 0), pair.select(-1, 1)


def imaginary_part(x: Tensor) -> Tensor:
    """The imaginary part."""
    return torch.view_as_real(x).select(-1, 1)


def added(x: Tensor, y: Tensor) -> Tensor:
    """x + y, part by part: PyTorch's sum of two multiplies the second by 1 + 0i, which makes the part next to an
    infinite one NaN (torch 2.13)."""
    # Reported as https://github.com/pytorch/pytorch/issues/82510.
    return torch.stack(torch.broadcast_tensors(x, y)).sum(0)


def beside(first: Tensor, second: Tensor) -> Tensor:
    """`second`, but 0 where it is no number and `first` is infinite: so is the number that they are parts of, whatever
    its second part (C99, annex G)."""
    return torch.where((torch.abs(first) == math.inf) & (second != second), 0.0, second)


# From complex to real


@register(aten.view_as_real, needs=(aten.real, aten.imag))
def view_as_real_of_parts(x: Tensor) -> Tensor:
    """(Re z, Im z). Exact."""
    return torch.stack([torch.real(x), torch.imag(x)], -1)


@register(aten.view_as_real, needs=BY_FOURIER)
def view_as_real_by_fourier(x: Tensor) -> Tensor:
    """Re z is a transform of one point, Im z = Re −iz the last of the four of (−0, z, 0, 0), which a transform of one
    point after it brings to real numbers. Exact, infinities, NaN and zeros too."""
    if known_empty(x):
        return decline("a Fourier transform needs an element")
    first, zero = (constant(x, value).expand(x.shape) for value in (-0.0, 0.0))
    points = torch.stack([first, x, zero, zero], -1).unsqueeze(-1)
    turned = aten._fft_c2r(points, [x.dim(), x.dim() + 1], 0, 1).squeeze(-1).select(-1, 3)
    return torch.stack([_real_point(x), turned], -1)


@register(aten.view_as_real)
def view_as_real_by_bits(x: Tensor) -> Tensor:
    """The bits of x read as pairs. Exact; the gradient is that of casts, which knows no infinity."""
    bits = torch.stack([x], -1).view(x.dtype.to_real())
    return bits - _slope(real_part(torch.stack([x, x * -1j], -1)))


@register(aten.view_as_real)
def view_as_real_by_turning(x: Tensor) -> Tensor:
    """(Re z, Re −iz). Exact, but Im is NaN where Re is not finite. A target without Fourier transforms and bits has no
    number that depends on it: all products are infinite or NaN there, sums keep the two apart, and of its functions of
    ∞ + ib none tells more than whether b is 0, infinite or NaN, and the signs of cos and sin of b·ln 2; not even the
    sign of b = ±0. What asks for no more than that has a rule of its own."""
    # (Re z − 1)·(±0) is −0 for the right sign, and then −iz has the imaginary part, of a zero its sign too.
    ahead = x + torch.tensor(complex(-1.0, -0.0), dtype=x.dtype, device=x.device)
    turns = torch.tensor([complex(-0.0, -1.0), complex(0.0, -1.0)], dtype=x.dtype, device=x.device)
    turn = torch.take(turns, torch.lt(real_part(ahead.detach()), 0).to(torch.int64))
    return torch.stack([real_part(x), real_part(ahead * turn)], -1)


@register(aten.real, needs=BY_FOURIER)
def real_by_fourier(x: Tensor) -> Tensor:
    """The transform of one point. Exact."""
    if not x.is_complex() or known_empty(x):
        return decline("a Fourier transform needs a complex element")
    return _real_point(x)


@register(aten.real)
def real(x: Tensor) -> Tensor:
    """Re z. Exact."""
    return real_part(x) if x.is_complex() else x


@register(aten.imag)
def imag(x: Tensor) -> Tensor:
    """Im z. Exact."""
    return imaginary_part(x)


@register(aten.view_as_real_copy)
def view_as_real_copy(x: Tensor) -> Tensor:
    """(Re z, Im z). Exact."""
    return torch.view_as_real(x)


# From real to complex


@register(aten.complex, needs=BY_FOURIER)
def complex_by_fourier(real: Tensor, imag: Tensor) -> Tensor:
    """The second of the transform of (re, 0, 0, im). Exact."""
    if known_empty(real) or known_empty(imag):
        return decline("a Fourier transform needs an element")
    dtype = _complex_dtype(real, imag)
    real, imag = map(wide, _broadcast(real, imag))  # there is no transform of halves
    zero = torch.zeros_like(real)
    points = torch.stack([real, zero, zero, imag], -1)
    return cast(aten._fft_r2c(points, [real.dim()], 0, True).select(-1, 1), dtype)


@register(aten.complex)
def complex_by_bits(real: Tensor, imag: Tensor) -> Tensor:
    """The bits of the pair read as one number, with the gradient of re + i·im. Exact, but for the signs of zeros in
    complex128, as no zero to add has two negative parts; where a part is not finite it has no gradient: no op of such
    a target both takes ∞ to a number and has a slope there."""
    pairs = torch.stack(_broadcast(real, imag), -1)
    bits = _without_zeros(pairs).view(torch.complex128).squeeze(-1)
    units = torch.tensor([-1, -1j], dtype=torch.complex128, device=real.device)
    slope = torch.sum(cast(_slope(pairs), torch.complex128) * units, [-1])
    return cast(bits + slope, _complex_dtype(real, imag))


@register(aten.complex)
def complex_by_table(real: Tensor, imag: Tensor) -> Tensor:
    """Non-finite numbers from a table of sixteen cases, plus re + i·im of the others. Exact, but for the signs of zeros
    in complex128; where a part is not finite it has no gradient, as above."""
    dtype = _complex_dtype(real, imag)
    (first, real), (second, imag) = map(_kind_and_rest, _broadcast(real, imag))
    table = [complex(a, b) for a in _KINDS for b in _KINDS]
    constants = torch.tensor(table, dtype=torch.complex128, device=real.device)
    rest = cast(real, torch.complex128) + cast(imag, torch.complex128) * 1j
    # A sum of complex numbers multiplies its second by alpha, which has to be finite.
    return cast(torch.take(constants, first * len(_KINDS) + second) + rest, dtype)


_KINDS = (0.0, math.inf, -math.inf, math.nan)


def _kind_and_rest(x: Tensor) -> tuple[Tensor, Tensor]:
    """The place of x among the kinds of numbers, the finite ones first, and x without zeros if it is finite, else 0."""
    top = torch.finfo(x.dtype).max
    infinite = torch.gt(x, top).to(torch.int64) + torch.lt(x, -top).to(torch.int64) * 2
    kind = infinite + torch.ne(x, x).to(torch.int64) * 3
    return kind, torch.where(kind == 0, _without_zeros(x), 0.0)


def _without_zeros(x: Tensor) -> Tensor:
    """x in float64, and for zeros so small a number of their sign that they are zeros again in what x was: so the sign
    outlives sums and products. Of float64, x."""
    if x.dtype == torch.float64:
        return x
    return cast(x, torch.float64) + torch.where(torch.signbit(x), -1e-60, constant(x, 1e-60, torch.float64))


@register(aten.view_as_complex, aten.view_as_complex_copy)
def view_as_complex(x: Tensor) -> Tensor:
    """re + i·im of the pairs along the last dimension. As `complex`."""
    return torch.complex(x.select(-1, 0), x.select(-1, 1))


@register(aten.polar, needs=(aten.cos,))
def polar(abs: Tensor, angle: Tensor) -> Tensor:
    """r·(cos φ + i·sin φ). ≤ 3 ULP a part. As the op's, the gradient by r is that by |r|, 0 where the result is; both
    are NaN where that is not finite."""
    return torch.complex(*_on_circle(abs, angle))


@register(aten.polar)
def polar_wide(abs: Tensor, angle: Tensor) -> Tensor:
    """`polar` for targets without a cosine, in float64: what there is in its place has steps with larger gradients,
    which overflow though the op's do not."""
    wide_parts = _on_circle(cast(abs, torch.float64), cast(angle, torch.float64))
    return torch.complex(*(cast(part, abs.dtype) for part in wide_parts))


def _on_circle(size: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    """r·cos φ and r·sin φ."""
    magnitude = torch.abs(size)
    held = torch.where(torch.isfinite(size), size.detach() - (magnitude.detach() - magnitude), size)
    # Taken only of NaN, but 0 times a gradient of NaN is NaN too.
    lost = (size + angle) * (size.detach() * 0 + 1)
    return torch.where(size != size, lost, held * torch.cos(angle)), held * torch.sin(angle)


# Conjugates


@register(aten._conj)
def conj_of_number(x: Any) -> Tensor:
    """The conjugate of a constant, which backward graphs ask for."""
    if not is_scalar(x):
        return decline("only numbers")
    return torch.full((), x.conjugate(), dtype=torch.complex128 if isinstance(x, complex) else None)


@register(aten._conj, aten._conj_physical, aten._conj_copy, needs=BY_FOURIER)
def conj_by_parts(x: Tensor) -> Tensor:
    """Re z − i·Im z. Exact."""
    if is_scalar(x):
        return decline("only tensors")
    if not x.is_complex():
        return x
    re, im = parts(x)
    return torch.complex(re, -im)


@register(aten._conj, aten._conj_physical, aten._conj_copy)
def conj_by_bits(x: Tensor) -> Tensor:
    """The sign bit of the imaginary part turned, with the gradient of 2·Re z − z. Exact, but for the signs of zeros in
    complex128; where a part is not finite it has no gradient."""
    if is_scalar(x):
        return decline("only tensors")
    if not x.is_complex():
        return x
    pairs = _without_zeros(torch.stack([x], -1).view(x.dtype.to_real()))
    signs = torch.tensor([1.0, -1.0], dtype=pairs.dtype, device=x.device)
    slope = cast(_slope(x), torch.complex128)
    bits = (pairs * signs).view(torch.complex128).squeeze(-1)
    return cast(bits + (slope + real_part(slope) * -2), x.dtype)


@register(aten._conj, aten._conj_physical, aten._conj_copy)
def conj_by_turning(x: Tensor) -> Tensor:
    """Re z − i·Im z, for targets that read no bits. As `view_as_real` and `complex` are there."""
    return conj_by_parts(x)


@register(aten.conj, aten.conj_physical)
def conj(x: Tensor) -> Tensor:
    """The conjugate; a real number unchanged. Exact."""
    return aten._conj_physical.default(x) if x.is_complex() else x


@register(aten.resolve_conj, aten.resolve_neg)
def resolved(x: Tensor) -> Tensor:
    """x itself: in lowered programs conjugates and negatives are always materialised."""
    return x


@register(aten._neg_view, aten._neg_view_copy)
def neg_view(x: Tensor) -> Tensor:
    """−x. Exact."""
    return decline("bools have no negative") if x.dtype == torch.bool else torch.neg(x)


@register(aten.mH, aten.adjoint, aten.matrix_H)
def adjoint(x: Tensor) -> Tensor:
    """The conjugate, the last two dimensions swapped. Exact."""
    return _conjugate(x.transpose(-2, -1)) if x.dim() else _conjugate(x)


@register(aten.vdot)
def vdot(x: Tensor, other: Tensor) -> Tensor:
    """Σ conj(xₖ)·yₖ."""
    return torch.dot(_conjugate(x), other) if x.is_complex() else decline("only complex numbers")


@register(aten.linalg_vecdot)
def vecdot(x: Tensor, y: Tensor, dim: int = -1) -> Tensor:
    """Σ conj(x)·y along a dimension."""
    return torch.sum(_conjugate(x) * y, [dim]) if x.is_complex() else decline("only complex numbers")


def _conjugate(x: Tensor) -> Tensor:
    return aten._conj_physical.default(x) if x.is_complex() else x


def _slope(x: Tensor) -> Tensor:
    """0 with the gradient of −x; without one where x is not finite."""
    zero = x.detach() + x * -1
    return torch.where(zero != zero, 0.0, zero)


def _broadcast(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    alike = x.dim() == y.dim() and all(map(same_size, x.shape, y.shape))
    return (x, y) if alike else torch.broadcast_tensors(x, y)


def _real_point(x: Tensor) -> Tensor:
    return aten._fft_c2r(x.unsqueeze(-1), [x.dim()], 0, 1).squeeze(-1)


def _complex_dtype(real: Tensor, imag: Tensor) -> torch.dtype:
    return torch.promote_types(real.dtype, imag.dtype).to_complex()
