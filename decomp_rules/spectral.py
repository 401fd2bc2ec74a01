"""Fourier transforms: every public one is one of three kernels, real to complex, complex to real, complex to complex.

The last is no op of Core ATen: it is a product with the matrix of the discrete Fourier transform, one dimension after
the other. Targets without complex numbers are out of reach.
"""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any

import torch
from torch import Tensor

from decomp import Rules

from .windows import fit

RULES = Rules()
register = RULES.register
aten = torch.ops.aten

UNSCALED, BY_ROOT, BY_SIZE = range(3)


def _scaling(norm: str | None, forward: bool) -> int:
    """How the kernel scales, as it counts."""
    if norm == "ortho":
        return BY_ROOT
    return BY_SIZE if (norm == "forward") == forward else UNSCALED


def _floating(x: Tensor) -> Tensor:
    return x if x.is_floating_point() or x.is_complex() else x.to(torch.get_default_dtype())


def _complex(x: Tensor) -> Tensor:
    x = _floating(x)
    return x if x.is_complex() else x.to(torch.complex128 if x.dtype == torch.float64 else torch.complex64)


def _dims(x: Tensor, s: Any, dim: Any) -> list[int]:
    """The dimensions to transform, counted from the start."""
    if dim is None:
        dim = range(x.dim() - (x.dim() if s is None else len(s)), x.dim())
    return [d % x.dim() for d in (dim if isinstance(dim, (list, tuple, range)) else [dim])]


def _resized(x: Tensor, s: Any, dims: Sequence[int]) -> Tensor:
    """`x` cut or padded with zeros at the end to sizes `s`, −1 and None keeping what is there."""
    for d, n in zip(dims, s or []):
        if n is not None and n != -1 and n != x.shape[d]:
            x = fit(x, d, 0, n - x.shape[d])
    return x


def _transform(x: Tensor, s: Any, dims: Sequence[int], norm: str | None, forward: bool) -> Tensor:
    """The complex transform of a real or complex input; for a real one, the inverse is the conjugate of the forward."""
    x, mode = _resized(_floating(x), s, dims), _scaling(norm, forward)
    if x.is_complex():
        return aten._fft_c2c(x, list(dims), mode, forward)
    out = aten._fft_r2c(x, list(dims), mode, False)
    return out if forward else torch.conj_physical(out)


def _half(x: Tensor, s: Any, dims: Sequence[int], norm: str | None, forward: bool) -> Tensor:
    """The transform of a real input, of which the half is kept that is not the mirror of the other."""
    out = aten._fft_r2c(_resized(_floating(x), s, dims), list(dims), _scaling(norm, forward), True)
    return out if forward else torch.conj_physical(out)


def _real(x: Tensor, s: Any, dims: Sequence[int], norm: str | None, forward: bool) -> Tensor:
    """The real signal that such a half stands for."""
    x = _complex(x)
    wanted = list(s) if s is not None else [-1] * len(dims)
    last = wanted[-1] if wanted[-1] not in (None, -1) else 2 * (x.shape[dims[-1]] - 1)
    x = _resized(x, [*wanted[:-1], last // 2 + 1], dims)
    return aten._fft_c2r(torch.conj_physical(x) if forward else x, list(dims), _scaling(norm, forward), last)


@register(aten.fft_fft)
def fft(x: Tensor, n: Any = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """X[k] = Σ x[j] · exp(−2πi·jk/n)."""
    return _transform(x, [n], _dims(x, None, dim), norm, True)


@register(aten.fft_ifft)
def ifft(x: Tensor, n: Any = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """x[j] = Σ X[k] · exp(2πi·jk/n) / n."""
    return _transform(x, [n], _dims(x, None, dim), norm, False)


@register(aten.fft_fftn, aten.fft_fft2)
def fftn(x: Tensor, s: Any = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """fft along several dimensions."""
    return _transform(x, s, _dims(x, s, dim), norm, True)


@register(aten.fft_ifftn, aten.fft_ifft2)
def ifftn(x: Tensor, s: Any = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """ifft along several dimensions."""
    return _transform(x, s, _dims(x, s, dim), norm, False)


@register(aten.fft_rfft)
def rfft(x: Tensor, n: Any = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The first n // 2 + 1 elements of fft."""
    return _half(x, [n], _dims(x, None, dim), norm, True)


@register(aten.fft_ihfft)
def ihfft(x: Tensor, n: Any = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The first n // 2 + 1 elements of ifft."""
    return _half(x, [n], _dims(x, None, dim), norm, False)


@register(aten.fft_rfftn, aten.fft_rfft2)
def rfftn(x: Tensor, s: Any = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """fftn, of the last dimension the first n // 2 + 1 elements."""
    return _half(x, s, _dims(x, s, dim), norm, True)


@register(aten.fft_irfft)
def irfft(x: Tensor, n: Any = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of rfft."""
    return _real(x, [n], _dims(x, None, dim), norm, False)


@register(aten.fft_hfft)
def hfft(x: Tensor, n: Any = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of ihfft."""
    return _real(x, [n], _dims(x, None, dim), norm, True)


@register(aten.fft_irfftn, aten.fft_irfft2)
def irfftn(x: Tensor, s: Any = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """The inverse of rfftn."""
    return _real(x, s, _dims(x, s, dim), norm, False)


@register(aten._fft_c2c)
def fft_c2c(x: Tensor, dim: Sequence[int], normalization: int, forward: bool) -> Tensor:
    """Along each dimension the product with exp(∓2πi·jk/n), jk taken modulo n, in double precision."""
    count: Any = 1
    out = x.to(torch.complex128)
    for d in dim:
        n = x.shape[d]
        count = count * n
        line = torch.arange(n, dtype=torch.int64, device=x.device)
        turns = (line.unsqueeze(1) * line) % n
        matrix = torch.exp(turns.to(torch.float64) * complex(0, (-2 if forward else 2) * math.pi / n))
        out = torch.matmul(out.transpose(d, -1), matrix).transpose(d, -1)
    if normalization != UNSCALED:
        out = out / (math.sqrt(count) if normalization == BY_ROOT else count)
    return out.to(x.dtype)
