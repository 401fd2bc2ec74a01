"""The kernels of the Fourier transform: real to complex, complex to real, complex to complex, of any length.

A target with the first two has the third by linearity. For all others a transform is a product with the matrix of
e^(∓2πi·jk/n) where n is small, and otherwise split into r transforms of n/r points and n/r of r (J. W. Cooley, J. W.
Tukey, Math. Comp. 19, 1965); a long prime is a convolution of the next power of two (L. I. Bluestein, 1970). All these
roots of unity are constants, rounded once from double precision. The error grows with the number of splits, as that of
PyTorch's own kernel does: relative to the norm it stays below 2e-7 in float32, for primes below 5e-7.
"""

from __future__ import annotations

from collections.abc import Sequence
import functools
import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.complex.numbers import parts, real_part
from decomp_rules.reduce.reduction import known_empty
from decomp_rules.support.operands import cast

RULES = Rules(level="exact")
register = RULES.register

UNSCALED, BY_ROOT, BY_SIZE = range(3)
SMALL, LARGE_PRIME = 32, 128
"""Up to the first, any length is a product with a matrix; up to the second, a prime is."""
ONE_STEP, LONGEST = 64, 128
"""For targets that multiply matrices fast: up to the first, a transform is one product with a matrix; up to the second,
one of its two steps is."""
STEP = 16
"""The cost of one more split, in multiplications per element: for nodes, and passes over memory."""


@register(aten._fft_c2c, needs=("matmul",))
def complex_by_products(x: Tensor, dim: Sequence[int], normalization: int, forward: bool) -> Tensor:
    """Along each dimension the product with the matrix of e^(∓2πi·jk/n), for targets that multiply matrices fast; of
    more than 64 points in two steps. Its error relative to the norm stays below 2e-7 in float32."""
    if not _fit_matrices(x, dim):
        return decline(_NO_MATRIX)
    re, im = parts(x)
    for d in dim:
        re, im = _by_products(re, im, d, forward)
    return _scaled(torch.complex(re, im), normalization, _count(x, dim))


@register(aten._fft_r2c, needs=("matmul",))
def real_by_products(x: Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> Tensor:
    """The same of real numbers, which takes half of the products along the last dimension."""
    if not _fit_matrices(x, dim):
        return decline(_NO_MATRIX)
    *others, last = dim
    re, im = _by_products(x, None, last, True)
    if onesided:
        re, im = (part.narrow(last, 0, x.shape[last] // 2 + 1) for part in (re, im))
    for d in others:
        re, im = _by_products(re, im, d, True)
    return _scaled(torch.complex(re, im), normalization, _count(x, dim))


_NO_MATRIX = "only for known lengths with two factors of at most 128"


def _fit_matrices(x: Tensor, dims: Sequence[int]) -> bool:
    return _known_sizes(x, dims) and not known_empty(x) and all(_factors(x.shape[d]) is not None for d in dims)


def _factors(n: int) -> tuple[int, int] | None:
    """The most equal factors of a length, 1 and n if one matrix will do; None if one is longer than a matrix may be."""
    root = next(r for r in range(math.isqrt(n), 0, -1) if n % r == 0) if n > ONE_STEP else 1
    return (root, n // root) if n // root <= LONGEST else None


def _by_products(re: Tensor, im: Tensor | None, dim: int, forward: bool) -> tuple[Tensor, Tensor]:
    """The transform along one dimension, of real numbers if there is no imaginary part."""
    n = re.shape[dim]
    radix, rest = _factors(n) or (1, n)
    if radix == 1:
        return _turned(re, im, _roots(n, n, n, forward), lambda x, roots: _product(x, roots, dim))
    # As in `_lines`: transform j₁, turn by j₂·k₁ / n, transform j₂.
    lines = [None if part is None else part.transpose(dim, -1) for part in (re, im)]
    shape = lines[0].shape
    re, im = (None if part is None else part.reshape(*shape[:-1], radix, rest) for part in lines)
    re, im = _turned(re, im, _roots(radix, radix, radix, forward), lambda x, roots: _product(x, roots, -2))
    re, im = _turned(re, im, _roots(radix, rest, n, forward), torch.mul)
    re, im = _turned(re, im, _roots(rest, rest, rest, forward), lambda x, roots: _product(x, roots, -1))
    re, im = (part.transpose(-1, -2).reshape(shape).transpose(dim, -1) for part in (re, im))
    return re, im


def _turned(re: Tensor, im: Tensor | None, roots: list[list[complex]], product: Any) -> tuple[Tensor, Tensor]:
    """The product of complex numbers, by parts."""
    cosines, sines = (_constant([[getattr(root, of) for root in row] for row in roots], re) for of in ("real", "imag"))
    if im is None:
        return product(re, cosines), product(re, sines)
    return product(re, cosines) - product(im, sines), product(re, sines) + product(im, cosines)


def _roots(rows: int, columns: int, n: int, forward: bool) -> list[list[complex]]:
    """e^(∓2πi·jk/n), j a row and k a column."""
    roots = [_root(k, n, forward) for k in range(n)]
    return [[roots[j * k % n] for k in range(columns)] for j in range(rows)]


def _product(x: Tensor, matrix: Tensor, dim: int) -> Tensor:
    """Σⱼ x[…, j, …]·matrix[j, k] along one dimension; the matrix is symmetric."""
    dim = dim % x.dim()
    if dim == x.dim() - 2:
        return torch.matmul(matrix, x)
    found = torch.matmul(x if dim == x.dim() - 1 else x.transpose(dim, -1), matrix)
    return found if dim == x.dim() - 1 else found.transpose(dim, -1)


@register(aten._fft_c2c, needs=(aten._fft_r2c,))
def complex_by_real_transforms(x: Tensor, dim: Sequence[int], normalization: int, forward: bool) -> Tensor:
    """F(re + i·im) = F(re) + i·F(im); the inverse is the transform of the mirrored input."""
    if known_empty(x):
        return decline("the kernel needs an element")
    first, second = parts(x if forward else mirrored(x, dim))
    dims = list(dim)
    return aten._fft_r2c(first, dims, normalization, False) + aten._fft_r2c(second, dims, normalization, False) * 1j


@register(aten._fft_c2c)
def complex_to_complex(x: Tensor, dim: Sequence[int], normalization: int, forward: bool) -> Tensor:
    """X[k] = Σ x[j]·e^(∓2πi·jk/n), along one dimension after the other."""
    if not _known_sizes(x, dim):
        return decline("a length is not known")
    return _scaled(_along(x, dim, forward), normalization, _count(x, dim))


@register(aten._fft_r2c)
def real_to_complex(x: Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> Tensor:
    """The same of real numbers; one-sided, the first half of the last dimension, which mirrors the other."""
    if not _known_sizes(x, dim):
        return decline("a length is not known")
    count, last = _count(x, dim), dim[-1]
    out = _real_at_ends(_transformed(cast(x, x.dtype.to_complex()), last, True), last)
    if onesided:
        out = out.narrow(last, 0, x.shape[last] // 2 + 1)
    return _scaled(_along(out, dim[:-1], True), normalization, count)


def _real_at_ends(x: Tensor, dim: int) -> Tensor:
    """The transform of real numbers, with no imaginary part at 0 and at half of the length: also where it is NaN."""
    n = x.shape[dim]
    ends = [2 * k % n == 0 for k in range(n)] if n else []
    shape = [n if d == dim else 1 for d in range(x.dim())]
    return torch.where(torch.tensor(ends, device=x.device).view(shape), cast(real_part(x), x.dtype), x) if n else x


@register(aten._fft_c2r, needs=("matmul",))
def real_result_by_products(x: Tensor, dim: Sequence[int], normalization: int, last_dim_size: int) -> Tensor:
    """The inverse of that, of the half that is there, mirrored."""
    *others, last = dim
    n = last_dim_size
    if not isinstance(n, int) or _factors(n) is None or not _fit_matrices(x, others) or known_empty(x):
        return decline(_NO_MATRIX)
    re, im = parts(x)
    for d in others:
        re, im = _by_products(re, im, d, False)
    last = last % x.dim()
    half = min(n // 2 + 1, x.shape[last])
    weights = [1.0 if k == 0 or 2 * k == n else 2.0 for k in range(half)]
    weight = _constant(weights, re).view([half if d == last else 1 for d in range(re.dim())])
    padding = [0, 0] * (re.dim() - 1 - last) + [0, n - half]
    re, im = (F.pad(part.narrow(last, 0, half) * weight, padding) for part in (re, im))
    return _scaled(_by_products(re, im, last, False)[0], normalization, _count(x, others) * n)


@register(aten._fft_c2r)
def complex_to_real(x: Tensor, dim: Sequence[int], normalization: int, last_dim_size: int) -> Tensor:
    """The inverse of that: the real part of the transform of the half that is there, all but its ends doubled."""
    if not _known_sizes(x, dim) or not isinstance(last_dim_size, int):
        return decline("a length is not known")
    last, n = dim[-1], last_dim_size
    x = _along(x, dim[:-1], False)
    half = min(n // 2 + 1, x.shape[last])
    weights = [1.0 if k == 0 or 2 * k == n else 2.0 for k in range(half)]
    shape = [half if d == last else 1 for d in range(x.dim())]
    weighted = x.narrow(last, 0, half) * torch.tensor(weights, dtype=x.dtype, device=x.device).view(shape)
    whole = F.pad(weighted, [0, 0] * (x.dim() - 1 - last) + [0, n - half]) if half < n else weighted
    return _scaled(real_part(_transformed(whole, last, False)), normalization, _count(x, dim[:-1]) * n)


@register(aten._fft_c2c)
def complex_of_unknown_length(x: Tensor, dim: Sequence[int], normalization: int, forward: bool) -> Tensor:
    """The product with a matrix that is computed when it is needed, in double precision."""
    out = x.to(torch.complex128)
    for d in dim:
        n = x.shape[d]
        line = torch.arange(n, dtype=torch.int64, device=x.device)
        angles = _angles(line, line, n, forward)
        matrix = torch.complex(torch.cos(angles), torch.sin(angles))
        out = torch.matmul(out.transpose(d, -1), matrix).transpose(d, -1)
    return _scaled(out, normalization, _count(x, dim)).to(x.dtype)


@register(aten._fft_r2c)
def real_of_unknown_length(x: Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> Tensor:
    """The transform of complex numbers; one-sided, the first half of the last dimension."""
    found = aten._fft_c2c(cast(x, x.dtype.to_complex()), list(dim), normalization, True)
    return aten.slice.Tensor(found, dim[-1], 0, x.shape[dim[-1]] // 2 + 1, 1) if onesided else found


@register(aten._fft_c2r)
def real_result_of_unknown_length(x: Tensor, dim: Sequence[int], normalization: int, last_dim_size: Any) -> Tensor:
    """Twice the real part of the half that is there, but for its ends, by a matrix that is computed when it is needed,
    in double precision."""
    *others, last = dim
    n, half = last_dim_size, x.shape[last]
    whole = aten._fft_c2c(x, others, UNSCALED, False) if others else x
    re, im = (part.to(torch.float64).transpose(last, -1) for part in parts(whole))
    k, j = (torch.arange(size, dtype=torch.int64, device=x.device) for size in (half, n))
    angles = _angles(k, j, n, forward=False)
    times = torch.where((k == 0) | (2 * k == n), 1.0, 2.0).to(torch.float64)
    found = torch.matmul(re * times, torch.cos(angles)) - torch.matmul(im * times, torch.sin(angles))
    scaled_result = _scaled(found.transpose(last, -1), normalization, _count(x, others) * n)
    return scaled_result.to(x.dtype.to_real())


def _angles(k: Tensor, j: Tensor, n: Any, forward: bool) -> Tensor:
    """∓2π·jk/n of a matrix of rows k and columns j, jk taken modulo n, in double precision."""
    return ((k.unsqueeze(1) * j) % n).to(torch.float64) * ((-2 if forward else 2) * math.pi / n)


def mirrored(x: Tensor, dims: Sequence[int]) -> Tensor:
    """x[−j], indices modulo the size, along some dimensions."""
    return torch.roll(torch.flip(x, list(dims)), [1] * len(dims), list(dims))


def _scaled(x: Tensor, normalization: int, count: Any) -> Tensor:
    if normalization == UNSCALED:
        return x
    if normalization == BY_ROOT:
        # A root of a symbol would guard on it; a power is one of the symbolic numbers.
        return x * (1 / math.sqrt(count) if isinstance(count, int) else count**-0.5)
    return x * (1 / count)


def scaled(x: Tensor, normalization: int, dims: Sequence[int]) -> Tensor:
    """x times what a transform along some dimensions is scaled by."""
    return _scaled(x, normalization, _count(x, dims))


def _count(x: Tensor, dims: Sequence[int]) -> Any:
    return math.prod(x.shape[d] for d in dims)


def _known_sizes(x: Tensor, dims: Sequence[int]) -> bool:
    return all(isinstance(x.shape[d], int) for d in dims)


def _along(x: Tensor, dims: Sequence[int], forward: bool) -> Tensor:
    for d in dims:
        x = _transformed(x, d, forward)
    return x


def _transformed(x: Tensor, dim: int, forward: bool) -> Tensor:
    """The transform along one dimension, as lines of a matrix."""
    n = x.shape[dim]
    if n == 1:
        return x
    turned = x.transpose(dim, -1)
    return _lines(turned.reshape(-1, n), n, forward).view(turned.shape).transpose(dim, -1)


def _lines(x: Tensor, n: int, forward: bool) -> Tensor:
    """The transform of every line of length n."""
    radix = _plan(n)[1]
    if radix == n:
        return _direct(x.unsqueeze(2), n, forward).squeeze(2)
    if radix == 0:
        return _by_convolution(x, n, forward)
    # With j = m·j₁ + j₂ and k = k₁ + r·k₂: transform j₁, turn by j₂·k₁ / n, transform j₂.
    rest = n // radix
    columns = x.view(-1, radix, rest)
    if radix <= LARGE_PRIME:
        columns = _direct(columns, radix, forward)
    else:
        turned = columns.transpose(1, 2).reshape(-1, radix)
        columns = _lines(turned, radix, forward).view(-1, rest, radix).transpose(1, 2)
    turns = [[_root(k * j, n, forward) for j in range(rest)] for k in range(radix)]
    rows = (columns * _constant(turns, x)).reshape(-1, rest)
    return _lines(rows, rest, forward).view(-1, radix, rest).transpose(1, 2).reshape(-1, n)


def _direct(columns: Tensor, n: int, forward: bool) -> Tensor:
    """Σⱼ w[k, j]·x[b, j, m]."""
    matrix = [[[_root(k * j, n, forward)] for j in range(n)] for k in range(n)]
    return torch.sum(columns.unsqueeze(1) * _constant(matrix, columns), [2])


def _by_convolution(x: Tensor, n: int, forward: bool) -> Tensor:
    """With jk = (j² + k² − (k − j)²) / 2: chirp, convolve with the opposite chirp, chirp."""
    size = 1 << (2 * n - 2).bit_length()
    chirp = [_root(j * j, 2 * n, forward) for j in range(n)]
    opposite = [0j] * size
    for j, value in enumerate(chirp):
        opposite[j] = opposite[-j] = value.conjugate() / size
    spectrum = _constant(_transform_of_list(opposite), x)
    turn = _constant(chirp, x)
    product = _lines(F.pad(x * turn, [0, size - n]), size, True) * spectrum
    return _lines(product, size, False).narrow(1, 0, n) * turn


def _constant(values: Any, like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)


def _root(k: int, n: int, forward: bool) -> complex:
    """e^(∓2πi·k/n) from an angle of at most π/4, so that 0, 1 and √½ come out as they are."""
    quarter, rest = divmod(4 * (k % n), n)
    near = 2 * rest < n
    angle = math.pi / 2 * (rest if near else n - rest) / n
    c, s = (math.cos(angle), math.sin(angle)) if near else (math.sin(angle), math.cos(angle))
    if 2 * rest == n:
        c = s = math.sqrt(0.5)
    re, im = ((c, s), (-s, c), (-c, -s), (s, -c))[quarter]
    return complex(re, -im if forward else im)


@functools.lru_cache(maxsize=None)
def _plan(n: int) -> tuple[int, int]:
    """The least number of multiplications an element, and the first factor to split off on that way: n itself for a
    matrix, 0 for a prime that is too long for one."""
    divisors = [r for r in range(2, min(n, SMALL) + 1) if n % r == 0]
    prime = next((p for p in range(2, math.isqrt(n) + 1) if n % p == 0), n)
    if not divisors and prime <= LARGE_PRIME:
        divisors = [prime]
    if prime == n and n > LARGE_PRIME:
        size = 1 << (2 * n - 2).bit_length()
        return 2 * size // n * _plan(size)[0] + 3 * STEP, 0
    options = [(r + STEP + (_plan(n // r)[0] if r < n else 0), r) for r in divisors or [prime]]
    return min(options)


def _transform_of_list(values: list[complex]) -> list[complex]:
    """The transform of a power of two of numbers, in double precision."""
    return _split(values, [_root(k, len(values), True) for k in range(len(values) // 2)])


def _split(values: list[complex], roots: list[complex]) -> list[complex]:
    if len(values) == 1:
        return values
    even, odd = _split(values[::2], roots[::2]), _split(values[1::2], roots[::2])
    turned = [root * value for root, value in zip(roots, odd)]
    return [a + b for a, b in zip(even, turned)] + [a - b for a, b in zip(even, turned)]
