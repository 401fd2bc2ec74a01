"""Unspecified behaviour of complex ops: which part of a result is infinite, the signs of zeros, and products and powers
of infinities and NaN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from decomp import Sample

Results = Sequence[Tensor]


def products(call: Sample, found: Results) -> Results:
    """Complex numbers that a product of complex numbers is part of, be it one by an alpha or an inverse: their
    infinities are all one, in whatever part they are (C99, annex G), and the signs of their zeros are open, for in
    PyTorch's vectorised and scalar kernels, and those of complex64 and complex128, they differ."""
    return [without_sign_of_zero(_with_one_infinity(z)) if z.is_complex() else z for z in found]


def quotients_and_powers(call: Sample, found: Results) -> Results:
    """`products`, and of arguments with a NaN part no zeros and infinities: whether an infinite part counts for more
    than the NaN beside it is left open."""
    lost = torch.stack(torch.broadcast_tensors(*(t.detach().isnan() for t in call.tensors))).any(0)
    none = complex(float("nan"), float("nan"))
    known = [torch.where(lost & ((z == 0) | ~z.isfinite()), none, z) if z.is_complex() else z for z in found]
    return products(call, known)


def resolved_powers(call: Sample, found: Results) -> Results:
    """The same in complex64, and 0 where w·ln z is so large that complex128 has not these digits of its turns: the
    kernel is its own reference, and has lost as many as any e^(w·ln z)."""
    if not found[0].is_complex():
        return found
    base, exponent = (torch.as_tensor(number).to(torch.complex128) for number in call.args[:2])
    turns = (exponent * torch.log(base)).abs()
    far = (turns > 2.0**24) & turns.isfinite()
    return quotients_and_powers(call, [torch.where(far, 0, z).to(torch.complex64) for z in found])


def signs(call: Sample, found: Results) -> Results:
    """Complex numbers whose zeros have a sign that differs between PyTorch's kernels, or is one of their products."""
    return [without_sign_of_zero(z) if z.is_complex() else z for z in found]


def unsigned_beside_nan(call: Sample, found: Results) -> Results:
    """Complex functions of numbers with a NaN part: C99 leaves the signs of zeros and infinities open there."""
    lost = call.tensors[0].detach().isnan()
    return [torch.where(lost, _unsigned(z), z) if z.is_complex() else z for z in found]


def from_either_end(call: Sample, found: Results) -> Results:
    """x + w · (y − x), but where y − (1 − w) · (y − x) is of another kind, a zero of the other sign among them, where
    the step is subnormal and part of it vanishes, or where part of a product overflows, as a fused one may not."""
    x, y = (t.detach() for t in call.tensors[:2])
    weight = call.args[2].detach() if isinstance(call.args[2], Tensor) else call.args[2]
    step = torch.view_as_complex(torch.view_as_real(y) - torch.view_as_real(x)) if x.is_complex() else y - x
    near, far = x + weight * step, y - (1 - weight) * step
    gap, (result,) = step.abs(), found
    known = _alike(near, far) & ((gap == 0) | (gap >= torch.finfo(result.dtype).tiny))
    known &= ~(_overflows(step, weight) | _overflows(step, 1 - weight))
    return products(call, [torch.where(known, result, 0)])


def _overflows(x: Tensor, y: Any) -> Tensor:
    """Where, of complex numbers, a product of two parts that are finite is not."""
    if not x.is_complex():
        return torch.zeros((), dtype=torch.bool)
    first, second = (torch.view_as_real(torch.as_tensor(z, dtype=x.dtype)) for z in (x, y))
    parts = first[..., :, None] * second[..., None, :]
    finite = first.isfinite()[..., :, None] & second.isfinite()[..., None, :]
    return (parts.isinf() & finite).flatten(-2).any(-1)


def _alike(x: Tensor, y: Tensor) -> Tensor:
    """Where both are finite and no zeros, or the same."""
    if x.is_complex():
        return _alike(x.real, y.real) & _alike(x.imag, y.imag)
    ordinary = x.isfinite() & y.isfinite() & (x != 0) & (y != 0)
    return ordinary | (x.isnan() & y.isnan()) | (x == y) & (torch.signbit(x) == torch.signbit(y))


def without_sign_of_zero(x: Tensor) -> Tensor:
    """Zeros of either sign are equal values."""
    return x + 0.0 if x.is_floating_point() or x.is_complex() else x


def _unsigned(z: Tensor) -> Tensor:
    return torch.complex(*(torch.where(part.isinf() | (part == 0), part.abs(), part) for part in (z.real, z.imag)))


def _with_one_infinity(z: Tensor) -> Tensor:
    return torch.where(z.real.isinf() | z.imag.isinf(), complex(float("inf"), 0.0), z)
