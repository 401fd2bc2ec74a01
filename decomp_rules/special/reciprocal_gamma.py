"""1/|Γ(−m)| for m from 1/2 on, and how much it exceeds 1 next to where it is 1: there lnΓ is 0 on the left.

1/Γ(1 − d) is entire, and so is 1/Γ(−n − d), which is this times −d·(−1 − d)·…·(−n − d): short polynomials do between a
whole number n and the halves beside it. Their excess over 1 is the distance from the point where they are 1, which is
stored in two parts, times a divided difference. Polynomials and points are computed from the series of 1/Γ(1 − d), in
40 digits, when a dtype is first used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from decimal import Context, Decimal, localcontext
import functools
import itertools
import math
from typing import Any

import torch
from torch import Tensor

from decomp_rules.support.floating import nearest_float, polynomial
from decomp_rules.support.operands import along, ramp

LAST = {torch.float32: 12, torch.float64: 22}
"""The last whole number around which the polynomials are known: its factorial is exact, and further out no float is
near a 1."""
# How many coefficients follow the factorial, and how many there are between the first two places.
_LENGTH = {torch.float32: (8, 7), torch.float64: (15, 13)}
# 1/|Γ| is 1 twice between 2 and 3: between these bounds what it exceeds 1 by has both distances as factors.
_AMONG = (2.375, 2.9)
# 1/Γ(1 − d) in powers of d (DLMF 5.7.1).
_SERIES = tuple(
    Decimal(text)
    for text in (
        "1",
        "-0.577215664901532860606512090082402431",
        "-0.655878071520253881077019515145390481",
        "0.042002635034095235529003934875429819",
        "0.166538611382291489501700795102105236",
        "0.042197734555544336748208301289187391",
        "-0.009621971527876973562114921672348199",
        "-0.007218943246663099542395010340446573",
        "-0.001165167591859065112113971084018389",
        "0.000215241674114950972815729963053648",
        "0.000128050282388116186153198626328164",
        "0.000020134854780788238655689391421022",
        "-0.000001250493482142670657345359473833",
        "-0.000001133027231981695882374129620331",
        "-2.05633841697760710345015413002e-7",
        "-6.116095104481415817862498683e-9",
        "5.002007644469222930055665048e-9",
        "1.181274570487020144588126565e-9",
        "1.04342671169110051049154033e-10",
        "-7.782263439905071254049937e-12",
        "-3.696805618642205708187816e-12",
        "-5.10037028745447597901548e-13",
        "-2.0583260535665067832224e-14",
        "5.34812253942301798237e-15",
        "1.226778628238260790159e-15",
        "1.18125930169745876951e-16",
        "1.186692254751600333e-18",
        "-1.412380655318031782e-18",
        "-2.29874568443537021e-19",
        "-1.7144063219273374e-20",
        "1.33735173049369e-22",
        "2.05423355176667e-22",
        "2.736030048608e-23",
        "1.732356445911e-24",
        "-2.3606190245e-26",
        "-1.8649829417e-26",
    )
)

_HALF = Decimal("0.5")

Polynomial = Sequence[Decimal]
Table = Sequence[Sequence[float]]
Rows = Callable[[Tensor, Table], Sequence[Tensor]]
"""Looks up rows of a table by number, and returns the columns: `gathered` or `summed`."""


def reciprocal_gamma(m: Tensor, distance: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """1/|Γ(−m)| for 1/2 ≤ m < `LAST` + 1/2, where `distance` is m minus the nearest whole number; and a correction
    (without gradient) to add to its logarithm, for the rounding of m."""
    apart, centre = torch.abs(distance), torch.where(distance < 0, 0.5, 0.0).to(m.dtype)
    detached, size = m.detach(), apart.detach()
    place, place_rest, first, *lower, value = rows(torch.trunc(detached * 2), _table(m.dtype))
    x, at = apart - centre, place - centre
    slope, value = value, value * x + lower.pop()
    for coefficient in reversed(lower):
        slope, value = slope * at + value.detach(), value * x + coefficient
    slope, value = slope * at + value.detach(), value * x
    product = apart * (value + first)
    # The term of the first coefficient is added last, because it is the largest and is exact on the right.
    tau = (size - place) - place_rest
    excess = tau * first + tau * (value.detach() + slope * place)
    among = torch.logical_and(detached >= _AMONG[0], detached < _AMONG[1])
    excess = torch.where(among, _excess_among_places(detached), excess)
    rounded = product.detach()
    repair = (excess + (1 - rounded)) * torch.reciprocal(rounded)
    near = torch.logical_and(torch.logical_and(excess > -0.45, excess < 1), detached >= 2)
    return product, torch.where(near, repair, 0.0)


def gathered(row: Tensor, table: Table) -> Sequence[Tensor]:
    """The columns of the rows with these numbers."""
    values = torch.tensor(table, dtype=row.dtype, device=row.device)
    columns: Sequence[Tensor] = torch.unbind(torch.nn.functional.embedding(row.to(torch.int64), values), -1)
    return columns


def summed(row: Tensor, table: Table) -> Sequence[Tensor]:
    """The same for targets that cannot look up: each is a sum of which all terms but one are 0. The rows come first, so
    that the sum runs over contiguous elements."""
    there = along(ramp(row, len(table), dtype=row.dtype), 0, row.dim() + 1) == row
    columns = torch.unbind(torch.tensor(table, dtype=row.dtype, device=row.device), 1)
    return [torch.sum(torch.where(there, along(column, 0, row.dim() + 1), 0.0), [0]) for column in columns]


def _excess_among_places(m: Tensor) -> Tensor:
    first, second, coefficients = _between_places(m.dtype)
    product = ((m - first[0]) - first[1]) * ((m - second[0]) - second[1])
    return product * -4 + product * polynomial(m - 2.5, coefficients)


@functools.cache
def _table(dtype: torch.dtype) -> Table:
    """For m from each half to the next, by how far it is from the whole number: where 1/|Γ(−m)| is 1, in two parts, and
    the polynomial which times the distance is 1/|Γ(−m)|, in powers of the distance on the right of the whole number,
    and less 1/2 on the left, where it falls with the distance."""
    rows = [[0.0] * (_LENGTH[dtype][0] + 3)]
    with _digits():
        for whole in range(1, LAST[dtype] + 1):
            for side in (-1, 1):
                series = _over_distance(whole, side)
                centre = Decimal(0) if side > 0 else _HALF
                place = _two_parts(_place(series), dtype) if 2 * whole + side > 4 else (0.0, 0.0)
                about = _about(series, centre)
                others = _interpolated(about[1:], -centre, _HALF - centre, _LENGTH[dtype][0])
                rows.append([*place, float(about[0]), *others])
    return rows


@functools.cache
def _between_places(dtype: torch.dtype) -> tuple[tuple[float, float], tuple[float, float], list[float]]:
    """The two m between 2 and 3 where 1/|Γ(−m)| is 1, each in two parts, and the polynomial in m − 5/2 which less 4,
    times the distances from both, is 1/|Γ(−m)| − 1."""
    with _digits():
        series = _over_distance(2, 1)
        first, second = _place(series), 1 - _place(_over_distance(3, -1))
        rest = _about(_divided(_divided([Decimal(-1), *series], first), second), _HALF)
        low, high = (Decimal(str(bound)) - Decimal("2.5") for bound in _AMONG)
        coefficients = _interpolated([rest[0] + 4, *rest[1:]], low, high, _LENGTH[dtype][1])
        return _two_parts(2 + first, dtype), _two_parts(2 + second, dtype), coefficients


def _digits() -> AbstractContextManager[Any]:
    return localcontext(Context(prec=40))


def _over_distance(whole: int, side: int) -> Polynomial:
    """1/|Γ(−m)| over |d| in powers of |d|, where d = m − whole has the sign of `side`."""
    result = [c * (side if k % 2 else 1) for k, c in enumerate(_SERIES)]
    for k in range(1, whole + 1):
        result = [k * c + side * before for c, before in zip([*result, Decimal(0)], [Decimal(0), *result])]
    return result


def _place(series: Polynomial) -> Decimal:
    """Where x·series(x) is 1, next to 0."""
    x = 1 / series[0]
    for _ in range(9):
        rest, slope = _value([Decimal(-1), *series], x), _value([(k + 1) * c for k, c in enumerate(series)], x)
        x -= rest / slope
    return x


def _value(coefficients: Polynomial, x: Decimal) -> Decimal:
    return functools.reduce(lambda result, c: result * x + c, reversed(coefficients), Decimal(0))


def _divided(coefficients: Polynomial, place: Decimal) -> Polynomial:
    """The polynomial over x − place, where it is 0."""
    return _with_rest(coefficients, place)[1:]


def _with_rest(coefficients: Polynomial, place: Decimal) -> Polynomial:
    """The rest of the division by x − place, and the quotient."""
    return list(itertools.accumulate(reversed(coefficients), lambda result, c: result * place + c))[::-1]


def _about(coefficients: Polynomial, centre: Decimal) -> Polynomial:
    """The same polynomial in powers of x − centre."""
    result: list[Decimal] = []
    rest = coefficients
    while rest:
        first, *rest = _with_rest(rest, centre)
        result.append(first)
    return result


def _interpolated(coefficients: Polynomial, low: Decimal, high: Decimal, length: int) -> list[float]:
    """The first coefficients of a shorter polynomial that approximates a longer one between the bounds: equal at
    Chebyshev points."""
    angles = (math.pi * (k + 0.5) / length for k in range(length))
    points = [(low + high) / 2 + (high - low) / 2 * Decimal(math.cos(angle)) for angle in angles]
    values = [_value(coefficients, x) for x in points]
    for k in range(1, length):  # Newton's divided differences
        for i in reversed(range(k, length)):
            values[i] = (values[i] - values[i - 1]) / (points[i] - points[i - k])
    result = [values[-1]]
    for x, value in zip(points[-2::-1], values[-2::-1]):
        first, *others = (before - x * c for c, before in zip([*result, Decimal(0)], [Decimal(0), *result]))
        result = [first + value, *others]
    return [float(c) for c in result]


def _two_parts(value: Decimal, dtype: torch.dtype) -> tuple[float, float]:
    high = nearest_float(value, dtype)
    return high, float(value - Decimal(high))
