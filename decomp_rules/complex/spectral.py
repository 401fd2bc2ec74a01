"""The public Fourier transforms: each is one of the three kernels of `fourier`, on an input that is cut, padded or
mirrored. The inverse of a real signal, and the transforms of half a spectrum, take no conjugates: a conjugate in one
domain is a mirror image in the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from decomp import Rules
from decomp.ops import aten
from decomp_rules.complex import fourier
from decomp_rules.complex.fourier import BY_ROOT, BY_SIZE, UNSCALED, mirrored
from decomp_rules.spatial.windows import fit

RULES = Rules(fourier.RULES, level="exact")
register = RULES.register


def _scaling(norm: str | None, forward: bool) -> int:
    """The kernel's number for a normalisation mode."""
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
    """The complex transform of a real or complex input."""
    x, mode = _resized(_floating(x), s, dims), _scaling(norm, forward)
    if x.is_complex():
        return aten._fft_c2c(x, list(dims), mode, forward)
    return aten._fft_r2c(x if forward else mirrored(x, dims), list(dims), mode, False)


def _half(x: Tensor, s: Any, dims: Sequence[int], norm: str | None, forward: bool) -> Tensor:
    """The transform of a real input, of which the half is kept that is not the mirror of the other."""
    x, mode = _resized(_floating(x), s, dims), _scaling(norm, forward)
    if forward:
        return aten._fft_r2c(x, list(dims), mode, True)
    if len(dims) > 1:  # scaled before it is added up, for the op scales one dimension before it adds up the next
        x, mode = fourier.scaled(x, mode, dims), UNSCALED
    return aten._fft_r2c(mirrored(x, dims), list(dims), mode, True)


def _real(x: Tensor, s: Any, dims: Sequence[int], norm: str | None, forward: bool) -> Tensor:
    """The real signal with such a half spectrum."""
    x = _complex(x)
    wanted = list(s) if s is not None else [-1] * len(dims)
    last = wanted[-1] if wanted[-1] not in (None, -1) else 2 * (x.shape[dims[-1]] - 1)
    x = _resized(x, [*wanted[:-1], last // 2 + 1], dims)
    out = aten._fft_c2r(x, list(dims), _scaling(norm, forward), last)
    return mirrored(out, dims) if forward else out


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


@register(aten.fft_ihfftn, aten.fft_ihfft2)
def ihfftn(x: Tensor, s: Any = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """ifftn of a real input, of the last dimension the first n // 2 + 1 elements."""
    return _half(x, s, _dims(x, s, dim), norm, False)


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


@register(aten.fft_hfftn, aten.fft_hfft2)
def hfftn(x: Tensor, s: Any = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """The inverse of ihfftn."""
    return _real(x, s, _dims(x, s, dim), norm, True)


@register(aten.fft_fftshift)
def fftshift(x: Tensor, dim: Any = None) -> Tensor:
    """The frequency 0 moved to the middle. Exact."""
    dims = _dims(x, None, dim)
    return torch.roll(x, [x.shape[d] // 2 for d in dims], dims) if dims else x


@register(aten.fft_ifftshift)
def ifftshift(x: Tensor, dim: Any = None) -> Tensor:
    """The inverse of fftshift. Exact."""
    dims = _dims(x, None, dim)
    return torch.roll(x, [(x.shape[d] + 1) // 2 for d in dims], dims) if dims else x


@register(aten.fft_fftfreq)
def fftfreq(n: int, d: float = 1.0, dtype: torch.dtype | None = None, device: Any = None) -> Tensor:
    """0, 1, …, −2, −1, over n·d."""
    dtype = dtype or torch.get_default_dtype()
    ends = (0, (n + 1) // 2), (-(n // 2), 0)
    return torch.cat([torch.arange(*end, dtype=dtype, device=device) for end in ends]) * (1 / (n * d))


@register(aten.fft_rfftfreq)
def rfftfreq(n: int, d: float = 1.0, dtype: torch.dtype | None = None, device: Any = None) -> Tensor:
    """0, 1, …, n // 2, over n·d."""
    return torch.arange(n // 2 + 1, dtype=dtype or torch.get_default_dtype(), device=device) * (1 / (n * d))
