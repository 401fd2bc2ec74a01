"""Points to measure pointwise ops on: every exponent, densely around zeros, kinks, poles and the limits of the range,
and random bit patterns. All 65,536 values for a single 16-bit argument. Always `COUNT` points, so that all programs of
a dtype have the same signature and share plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
import math

import torch

COUNT = 1 << 16

_INTEGERS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}
_LANDMARKS = (
    0.0, 1e-4, 0.25, 1 / 3, 0.5, math.log(2), 2 / 3, 0.7071067811865476, 0.75, 1.0, math.sqrt(2), 1.5,
    math.pi / 2, 2.0, 2.5, math.e, 3.0, math.pi, 4.0, 4.5, 5.0, 6.0, 2 * math.pi, 7.0, 8.0, 8.5, 9.0, 10.0, 12.0, 16.0,
    17.0, 20.0, 24.0, 30.0, 32.0, 35.0, 64.0, 88.02969193, 88.3762626647, 88.72283905, 89.41598629, 100.0, 103.2789,
    103.9720770, 104.0, 126.0, 127.0, 128.0, 149.0, 150.0, 151.0, 171.6, 256.0, 709.78, 745.13, 1e3, 1024.0, 1074.0,
    2.0**23, 2.0**24, 1e6, 1e10, 1e19, 1.8446743e19, 1e30,
)  # fmt: skip # packed numbers
"""Zeros, kinks, poles and limits of the elementary functions; the numbers in a rule's code are added."""


def grid(count: int, dtype: torch.dtype, numbers: Sequence[float] = (), seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Points for a pointwise op of `count` float arguments: as many tensors of `COUNT` values each, deterministic by
    seed. `numbers`: thresholds of the rule."""
    random = torch.Generator().manual_seed(seed)
    if count == 1:
        return (_one(dtype, tuple(numbers), random),)
    return _several(count, dtype, tuple(numbers), random)


FEW = 192
"""How many points `few` gives: a multiple of the vector width, so that one kernel computes all of them."""
_BEYOND_INTEGERS = (2.0**31, -(2.0**31) - 512, 3e9, 2.0**63, -(2.0**63), 1e20)
_TIES = (0.0, -0.0, 0.5, 1.0, -1.0, 2.0, -2.0)


def few(count: int, dtype: torch.dtype, numbers: Sequence[float] = (), seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Points at which the meaning of an op shows: special values, ties of arguments with each other and with `numbers`,
    what no integer holds, and some ordinary ones; as many tensors of `FEW` values each."""
    random = torch.Generator().manual_seed(seed)
    marks = [value for n in _small(tuple(numbers))[:8] for value in (n, -n)]
    ends = [math.inf, -math.inf, math.nan, torch.finfo(dtype).max, torch.finfo(dtype).tiny]
    if count == 1:
        listed = [_specials(dtype), torch.tensor([*marks, *_BEYOND_INTEGERS, *_LANDMARKS[::2]]).to(dtype)]
        columns: Sequence[torch.Tensor] = [torch.cat(listed)[: FEW - 32]]
    else:
        special = torch.tensor([*_TIES, *ends, *marks[:4]], dtype=torch.float64).to(dtype).unique()
        tied = torch.tensor([*_TIES, *marks], dtype=torch.float64).to(dtype)
        product = _product([special] * count, FEW - 32 - len(tied), random)
        columns = [torch.cat([tied, column])[: FEW - 32] for column in product]
    return tuple(torch.cat([column, _log_uniform(FEW - len(column), dtype, random)]) for column in columns)


def few_whole_numbers(count: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """The same for integers that do not divide by zero; the widths of integers, by which they may be shifted, are among
    them."""
    random, info = torch.Generator().manual_seed(0), torch.iinfo(dtype)
    listed = [0, 1, 2, 3, 7, 8, 31, 32, 33, 63, 64, 65, -1, -2, -7, info.max, info.max - 1]
    special = torch.tensor([value for value in listed if info.min <= value <= info.max], dtype=dtype)
    rows = _product([special] * count, FEW, random)
    return without_ends([row.repeat(FEW // len(row) + 1)[:FEW] for row in rows])


def whole_numbers(count: int, dtype: torch.dtype, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Points for integer or bool arguments: the limits of the range, small numbers, and random ones."""
    random = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return tuple(torch.randint(2, (COUNT,), generator=random).bool() for _ in range(count))
    info = torch.iinfo(dtype)
    edges = [0, 1, 2, 3, 7, -1, -2, -3, -7, info.min, info.min + 1, info.max, info.max - 1]
    special = torch.tensor([v for v in edges if info.min <= v <= info.max], dtype=dtype)
    rows = _product([special] * count, 20_000, random)
    rest = COUNT - len(rows[0])
    return tuple(torch.cat([row, _random_integers(rest, dtype, random)]) for row in rows)


def without_ends(numbers: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Integers for ops that divide: the smallest integer is replaced by the next one, and a divisor 0 by 1."""
    first, *others = [torch.where(t == torch.iinfo(t.dtype).min, t + 1, t) for t in numbers]
    return (first, *(torch.where(t == 0, 1, t) for t in others))


def moderate(points: torch.Tensor) -> torch.Tensor:
    """Whether each point is zero or of moderate magnitude, so that second derivatives neither overflow nor vanish."""
    size = points.double().abs()
    return (size == 0) | ((size >= 2.0**-12) & (size <= 2.0**7))


def _one(dtype: torch.dtype, numbers: tuple[float, ...], random: torch.Generator) -> torch.Tensor:
    if torch.finfo(dtype).bits == 16:
        return _from_bits(torch.arange(COUNT), dtype)
    parts = [_specials(dtype), *_about(dtype, numbers), _every_exponent(dtype, random)]
    parts += [torch.rand(6000, generator=random, dtype=torch.float64) * 2 - 1]
    parts += [torch.rand(6000, generator=random, dtype=torch.float64) * 40 - 20]
    parts += [torch.arange(-400, 401, dtype=torch.float64) / 2]
    listed = torch.cat([part.to(dtype) for part in parts])[:COUNT]
    return torch.cat([listed, _random_bits(COUNT - len(listed), dtype, random)])


def _several(
    count: int, dtype: torch.dtype, numbers: tuple[float, ...], random: torch.Generator
) -> tuple[torch.Tensor, ...]:
    """Products of special values, random values over exponents, moderate ones, equal and nearly equal ones."""
    special = torch.cat([_specials(dtype), *(torch.tensor([n, -n], dtype=dtype) for n in _small(numbers)[:8])])
    blocks = [_product([special] * count, 16_000, random)]
    makers: tuple[Callable[[int], torch.Tensor], ...] = (
        lambda n: _random_bits(n, dtype, random),
        lambda n: torch.randn(n, generator=random, dtype=torch.float64).to(dtype),
        lambda n: (torch.rand(n, generator=random, dtype=torch.float64) * 40 - 20).to(dtype),
        lambda n: torch.randint(-12, 13, (n,), generator=random).to(dtype) / 2,
        lambda n: _log_uniform(n, dtype, random),
        lambda n: special[torch.randint(len(special), (n,), generator=random)],
    )
    for first in range(len(makers)):
        for second in range(len(makers)):
            blocks.append(tuple(makers[first if i == 0 else second](1000) for i in range(count)))
    near = makers[4](4000)
    steps = [torch.randint(-3, 4, near.shape, generator=random) for _ in range(count)]
    blocks.append(tuple(_from_bits(_bits(near) + step, dtype) for step in steps))
    columns = [torch.cat(column)[:COUNT] for column in zip(*blocks)]
    rest = COUNT - len(columns[0])
    return tuple(torch.cat([column, _log_uniform(rest, dtype, random)]) for column in columns)


def _product(values: Sequence[torch.Tensor], most: int, random: torch.Generator) -> tuple[torch.Tensor, ...]:
    """The cartesian product, randomly subsampled to at most `most`."""
    size = math.prod(map(len, values))
    chosen = torch.arange(size) if size <= most else torch.randint(size, (most,), generator=random)
    columns = []
    for column in reversed(values):
        columns.append(column[chosen % len(column)])
        chosen = chosen // len(column)
    return tuple(reversed(columns))


@functools.cache
def _specials(dtype: torch.dtype) -> torch.Tensor:
    info = torch.finfo(dtype)
    positive = [0.0, info.smallest_normal * info.eps, info.smallest_normal * (1 - info.eps), info.smallest_normal,
                info.eps / 4, info.eps, 0.5, 1 - info.eps / 2, 1.0, 1 + info.eps, 1.5, 2.0, 3.0, 10.0, 1 / info.eps,
                1 / info.eps + 1, math.sqrt(info.max), info.max / 2, info.max, math.inf]  # fmt: skip # packed numbers
    return torch.tensor([*positive, *(-p for p in positive), math.nan], dtype=torch.float64).to(dtype)


def _about(dtype: torch.dtype, numbers: tuple[float, ...]) -> list[torch.Tensor]:
    """The neighbours of each landmark and of the rule's numbers, on both sides of zero."""
    parts = []
    marks = torch.tensor([*_LANDMARKS, *_small(numbers)], dtype=torch.float64).to(dtype).unique()
    for reach, near in ((24, marks), (200, torch.tensor([0.0, 1.0], dtype=dtype))):
        beside = _bits(near)[:, None] + torch.arange(-reach, reach + 1)
        beside = beside[beside >= 0]
        parts += [_from_bits(beside, dtype), -_from_bits(beside, dtype)]
    return parts


def _small(numbers: tuple[float, ...]) -> tuple[float, ...]:
    """At most a hundred of the rule's numbers; coefficients of long polynomials are dropped first."""
    round_ones = [n for n in numbers if n == float(f"{n:.4g}")]
    return tuple(dict.fromkeys((*round_ones, *numbers)))[:100]


def _every_exponent(dtype: torch.dtype, random: torch.Generator) -> torch.Tensor:
    """For every exponent the power of two, its neighbours and random mantissas, with both signs."""
    info = torch.finfo(dtype)
    mantissa_bits = round(-math.log2(info.eps))
    exponents = torch.arange(0, (1 << (info.bits - 1 - mantissa_bits)) - 1)
    if len(exponents) > 256:
        exponents = exponents[torch.cat([torch.arange(0, len(exponents), 16), torch.arange(990, 1060)])].unique()
    mantissas = torch.randint(1 << mantissa_bits, (len(exponents), 30), generator=random)
    mantissas[:, :3] = torch.tensor([0, 1, (1 << mantissa_bits) - 1])
    positive = _from_bits(((exponents << mantissa_bits)[:, None] + mantissas).flatten(), dtype)
    return torch.cat([positive, -positive])


def _log_uniform(n: int, dtype: torch.dtype, random: torch.Generator) -> torch.Tensor:
    """Random magnitudes over moderate exponents, with both signs."""
    reach = 8 if dtype is torch.float16 else 40
    size = torch.exp2((torch.rand(n, generator=random, dtype=torch.float64) * 2 - 1) * reach)
    return torch.where(torch.rand(n, generator=random) < 0.5, size, -size).to(dtype)


def _random_bits(n: int, dtype: torch.dtype, random: torch.Generator) -> torch.Tensor:
    # The product makes NaNs quiet: for signalling NaNs, kernels of one op disagree between NaN and C99's results.
    return _random_integers(n, _INTEGERS[dtype], random).view(dtype) * 1


def _random_integers(n: int, dtype: torch.dtype, random: torch.Generator) -> torch.Tensor:
    size = torch.iinfo(dtype).bits // 8
    random_bytes = torch.randint(256, (n * size,), generator=random, dtype=torch.uint8)
    return random_bytes.view(dtype) if n else torch.empty(0, dtype=dtype)


def _bits(values: torch.Tensor) -> torch.Tensor:
    return values.view(_INTEGERS[values.dtype]).long()


def _from_bits(bits: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return bits.to(_INTEGERS[dtype]).view(dtype)
