"""Logarithms and powers of two to more digits than a float has: as sums of two floats, without a wider dtype.

The logarithm is P. T. P. Tang's (ACM TOMS 16, 1990): a number m from 1 to 2 is multiplied by one of nine bits, r, out
of a table, so that m·r is next to 1 and exact; then log₂m = −log₂r + log₂(m·r), the first from the table in two parts,
the second a short series.
"""

from __future__ import annotations

from decimal import Decimal, localcontext
import functools
import math

import torch
from torch import Tensor

from decomp_rules.support.floating import nearest, polynomial, product_error, split

_BUCKETS = 128
# Bits after the point of the first part of a logarithm in the table: with those of an exponent they fill a float.
_FIRST_BITS = {torch.float32: 14, torch.float64: 40}
# log₂(1 + z) = z·log₂e + z²·(c0 + c1·z + …) for |z| < 2⁻⁷: the first terms of the Taylor series.
_TERMS = {torch.float32: 3, torch.float64: 7}


def binary_logarithm(x: Tensor) -> tuple[Tensor, Tensor]:
    """log₂x of a positive, finite x as a sum of two, the second less than 2⁻¹⁰ of the first; off by 2⁻³³ of itself
    (2⁻⁶² in float64). Without gradient."""
    mantissa, exponent = mantissa_and_exponent(x)
    bucket = nearest((mantissa - 1) * _BUCKETS).to(torch.int64)
    factors, firsts, seconds = (_column(x, values) for values in zip(*_table(_FIRST_BITS[x.dtype])))
    factor = torch.take(factors, bucket)
    high, low = split(mantissa)
    rest = (high * factor - 1) + low * factor  # exact
    first, second = _logarithm_next_to_one(rest)
    whole = exponent + torch.take(firsts, bucket)
    total = whole + first
    return total, (first - (total - whole)) + (torch.take(seconds, bucket) + second)


def mantissa_and_exponent(x: Tensor) -> tuple[Tensor, Tensor]:
    """m and n of a positive, finite x = m·2ⁿ, where m is from 1 to 2, or next to it if x is next to a power of two."""
    exponent = nearest(torch.log2(x) - 0.5)
    half = nearest(exponent * 0.5)
    # In two steps, as 2¹⁴⁹ has no float32.
    return x * torch.exp2(-half) * torch.exp2(half - exponent), exponent


def _column(like: Tensor, values: tuple[float, ...]) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)


@functools.cache
def _table(bits: int) -> tuple[tuple[float, float, float], ...]:
    """For each bucket, by its middle m: 1/m to nine bits, and minus its binary logarithm in two parts."""
    rows = []
    with localcontext() as context:
        context.prec = 40
        for k in range(_BUCKETS + 1):
            factor = round(512 / (1 + k / _BUCKETS)) / 512
            logarithm = -Decimal(factor).ln() / Decimal(2).ln()
            first = round(float(logarithm) * 2**bits) / 2**bits
            rows.append((factor, first, float(logarithm - Decimal(first))))
    return tuple(rows)


def _logarithm_next_to_one(z: Tensor) -> tuple[Tensor, Tensor]:
    """log₂(1 + z) as a sum of two for |z| < 2⁻⁷."""
    scale = 2.0**11 if z.dtype == torch.float32 else 2.0**25
    with localcontext() as context:
        context.prec = 40
        exact = 1 / Decimal(2).ln()
        first = math.floor(float(exact) * scale) / scale
        second = float(exact - Decimal(first))
    series = [float(exact) * (-1) ** (k + 1) / k for k in range(2, 2 + _TERMS[z.dtype])]
    high, low = split(z)
    return high * first, low * first + (z * second + z * z * polynomial(z, series))


def exponent_of_power(factor: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """factor·(first + second) as a whole number, or almost what it is if it is beyond 2¹², and the rest, rounded once.
    Without gradient."""
    product = factor * first
    lost = product_error(split(factor), split(first), product) + factor * second
    # Only of a product that is 0 can the factor be too large to be split.
    lost = torch.where(product != 0, lost, 0.0)
    moderate = product * product < 2.0**24
    whole = nearest(product)
    return torch.where(moderate, whole, product), torch.where(moderate, (product - whole) + lost, 0.0)
