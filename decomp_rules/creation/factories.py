"""Tensors made from nothing: constants, ramps, triangles.

All constants are `full`. A ramp of known length is built by squaring: with r = 0 … m−1, the outer sum m·r + r counts to
m², so that a ramp of n takes log log n steps; a ramp of symbolic length counts the ones in the columns of a triangle.
"""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.support.operands import cast, is_scalar, ramp, with_zero_gradient_to

RULES = Rules(level="exact")
register = RULES.register


@register(aten.zeros)
def zeros(size: Sequence[Any], dtype: torch.dtype | None = None, device: Any = None) -> Tensor:
    """full(size, 0)."""
    dtype = dtype or torch.get_default_dtype()
    return torch.full(size, _zero(dtype), dtype=dtype, device=device)


@register(aten.ones)
def ones(size: Sequence[Any], dtype: torch.dtype | None = None, device: Any = None) -> Tensor:
    """full(size, 1)."""
    dtype = dtype or torch.get_default_dtype()
    return torch.full(size, _one(dtype), dtype=dtype, device=device)


@register(aten.zero)
def zero(x: Tensor) -> Tensor:
    """full(x.shape, 0); x gets a gradient of zero."""
    return with_zero_gradient_to(torch.full(x.shape, _zero(x.dtype), dtype=x.dtype, device=x.device), x)


@register(aten.zeros_like)
def zeros_like(x: Tensor, dtype: torch.dtype | None = None, device: Any = None) -> Tensor:
    """full(x.shape, 0)."""
    dtype = dtype or x.dtype
    return torch.full(x.shape, _zero(dtype), dtype=dtype, device=device or x.device)


@register(aten.ones_like)
def ones_like(x: Tensor, dtype: torch.dtype | None = None, device: Any = None) -> Tensor:
    """full(x.shape, 1)."""
    dtype = dtype or x.dtype
    return torch.full(x.shape, _one(dtype), dtype=dtype, device=device or x.device)


@register(aten.full_like)
def full_like(x: Tensor, fill_value: Any, dtype: torch.dtype | None = None, device: Any = None) -> Tensor:
    """full(x.shape, fill_value)."""
    return torch.full(x.shape, fill_value, dtype=dtype or x.dtype, device=device or x.device)


@register(aten.new_full)
def new_full(
    x: Tensor, size: Sequence[Any], fill_value: Any, dtype: torch.dtype | None = None, device: Any = None
) -> Tensor:
    """full(size, fill_value)."""
    return torch.full(size, fill_value, dtype=dtype or x.dtype, device=device or x.device)


@register(aten.new_zeros)
def new_zeros(x: Tensor, size: Sequence[Any], dtype: torch.dtype | None = None, device: Any = None) -> Tensor:
    """full(size, 0)."""
    dtype = dtype or x.dtype
    return torch.full(size, _zero(dtype), dtype=dtype, device=device or x.device)


@register(aten.new_ones)
def new_ones(x: Tensor, size: Sequence[Any], dtype: torch.dtype | None = None, device: Any = None) -> Tensor:
    """full(size, 1)."""
    dtype = dtype or x.dtype
    return torch.full(size, _one(dtype), dtype=dtype, device=device or x.device)


@register(aten.scalar_tensor)
def scalar_tensor(s: Any, dtype: torch.dtype | None = None, device: Any = None) -> Tensor:
    """full((), s)."""
    return torch.full((), s, dtype=dtype or torch.get_default_dtype(), device=device)


@register(aten.empty, aten.empty_strided, aten.empty_permuted)
def empty(
    size: Sequence[Any],
    stride: Any = None,
    physical_layout: Any = None,
    dtype: torch.dtype | None = None,
    device: Any = None,
) -> Tensor:
    """full(size, 0): the op leaves memory uninitialised, so that any values are allowed."""
    dtype = dtype or torch.get_default_dtype()
    return torch.full(size, _zero(dtype), dtype=dtype, device=device)


@register(aten.empty_like)
def empty_like(x: Tensor, dtype: torch.dtype | None = None, device: Any = None) -> Tensor:
    """full(x.shape, 0)."""
    dtype = dtype or x.dtype
    return torch.full(x.shape, _zero(dtype), dtype=dtype, device=device or x.device)


@register(aten.new_empty, aten.new_empty_strided)
def new_empty(
    x: Tensor, size: Sequence[Any], stride: Any = None, dtype: torch.dtype | None = None, device: Any = None
) -> Tensor:
    """full(size, 0)."""
    dtype = dtype or x.dtype
    return torch.full(size, _zero(dtype), dtype=dtype, device=device or x.device)


def _zero(dtype: torch.dtype) -> bool | int | float:
    """The 0 of a dtype: False, 0 or 0.0, so that a program that names no dtype would still get this one."""
    return False if dtype == torch.bool else 0.0 if dtype.is_floating_point or dtype.is_complex else 0


def _one(dtype: torch.dtype) -> bool | int | float:
    return True if dtype == torch.bool else 1.0 if dtype.is_floating_point or dtype.is_complex else 1


@register(aten.arange)
def arange_start_step(
    end: Any, start: Any = 0, step: Any = 1, dtype: torch.dtype | None = None, device: Any = None
) -> Tensor:
    """arange(start, end, step), every argument given: the form of Core ATen."""
    dtype = dtype or _ramp_dtype(start, end, step)
    return torch.arange(start, end, step, dtype=dtype, device=device)


TABLED = 1 << 16
"""The longest ramp that is kept as a table: half a megabyte."""


@register(aten.arange)
def arange_as_table(
    end: Any, start: Any = 0, step: Any = 1, dtype: torch.dtype | None = None, device: Any = None
) -> Tensor:
    """A copy of a constant. Reading a table costs less than counting, and compilers do not see that a ramp built from
    stacks is constant. Floats are made in float64 and rounded once."""
    dtype = dtype or _ramp_dtype(start, end, step)
    if not all(type(bound) in (int, float) for bound in (start, end, step)):
        return decline("the length is not known")
    if not dtype.is_floating_point:
        start, end, step = (_whole(bound) for bound in (start, end, step))
    length = max(math.ceil((end - start) / step), 0)
    if length > TABLED:
        return decline(f"it is longer than {TABLED:,}")
    return torch.tensor([start + i * step for i in range(length)], dtype=dtype, device=device).clone()


@register(aten.arange)
def arange(end: Any, start: Any = 0, step: Any = 1, dtype: torch.dtype | None = None, device: Any = None) -> Tensor:
    """start + step · (0, 1, …), floats in float64 and rounded once: correctly rounded for float32 and below."""
    dtype = dtype or _ramp_dtype(start, end, step)
    if dtype == torch.int64:
        start, end, step = (_whole(bound) for bound in (start, end, step))
    integral = all(isinstance(bound, (int, torch.SymInt)) for bound in (start, end, step))
    length = -((start - end) // step) if integral else math.ceil((end - start) / step)
    if type(length) is int:
        counted = count_by_squares(max(length, 0), device)
    elif integral:
        counted = _count_by_triangle(length, device)
    else:
        return decline("a fractional ramp of symbolic length")
    if not dtype.is_floating_point:
        start, step = _whole(start), _whole(step)
    elif not integral:
        counted = counted.to(torch.float64)
    scaled = counted if step == 1 else counted * step
    shifted = scaled if type(start) is int and start == 0 else scaled + start
    return cast(shifted, dtype)


def _ramp_dtype(*bounds: Any) -> torch.dtype:
    floating = any(isinstance(bound, (float, torch.SymFloat)) for bound in bounds)
    return torch.get_default_dtype() if floating else torch.int64


def _whole(bound: Any) -> Any:
    """A number as an integer dtype has it; a symbol is one already."""
    return int(bound) if isinstance(bound, float) else bound


def count_by_squares(length: int, device: Any) -> Tensor:
    """0 … length − 1 in int64: the outer sum m · r + r of the ramp r of m = ⌈√length⌉, cut to length."""
    if length <= 4:
        digits = [torch.full((), digit, dtype=torch.int64, device=device) for digit in range(length)]
        return torch.stack(digits) if digits else torch.full((0,), 0, dtype=torch.int64, device=device)
    base = math.isqrt(length - 1) + 1
    digit = count_by_squares(base, device)
    rows = -(-length // base)
    high = digit if rows == base else digit.narrow(0, 0, rows)
    counted = (high.view(rows, 1) * base + digit).view(rows * base)
    return counted if rows * base == length else counted.narrow(0, 0, length)


def _count_by_triangle(length: Any, device: Any) -> Tensor:
    """0 … length − 1 in int64: column sums, less one, of the ones on and above the diagonal.

    A row of n ones and n zeros, repeated n times and read in rows of 2n − 1, moves one step to the right each row.
    """
    row = torch.full((length,), 1, dtype=torch.int64, device=device)
    row = torch.constant_pad_nd(row, [0, length])
    flat = row.unsqueeze(0).expand(length, 2 * length).reshape(2 * length * length)
    triangle = flat.narrow(0, 0, length * (2 * length - 1)).view(length, 2 * length - 1).narrow(1, 0, length)
    return torch.sum(triangle, dim=[0], dtype=torch.int64) + -1


@register(aten.linspace)
def linspace(start: Any, end: Any, steps: int, dtype: torch.dtype | None = None, device: Any = None) -> Tensor:
    """start + i · h up to the middle, end − (n − 1 − i) · h from there, in float64: both ends are exact."""
    bounds = [bound for bound in (start, end) if not is_scalar(bound)]
    device = bounds[0].device if bounds else device
    dtype = dtype or torch.get_default_dtype()
    if dtype.is_complex or any(map(_is_complex, (start, end))):
        return decline("only real dtypes")
    if not dtype.is_floating_point:
        start, end = (_whole(bound) if is_scalar(bound) else bound.to(dtype) for bound in (start, end))
    working = dtype if dtype.is_floating_point and bounds else torch.float64
    index = torch.arange(0, steps, 1, dtype=torch.int64, device=device)
    if steps < 2:
        return (index.to(working) + start).to(dtype)
    step = (end - start) / (steps - 1)
    up = index.to(working) * step + start
    down = (steps - 1 - index).to(working) * -step + end
    return cast(torch.where(index < steps // 2, up, down), dtype)


@register(aten.logspace)
def logspace(
    start: Any, end: Any, steps: int, base: float = 10.0, dtype: torch.dtype | None = None, device: Any = None
) -> Tensor:
    """base to the powers linspace(start, end, steps), in float64."""
    dtype = dtype or torch.get_default_dtype()
    if dtype.is_complex or any(map(_is_complex, (start, end))):
        return decline("only real dtypes")
    device = next((bound.device for bound in (start, end) if not is_scalar(bound)), device)
    if not dtype.is_floating_point:
        start, end = (_whole(bound) if is_scalar(bound) else bound.to(dtype) for bound in (start, end))
    start, end = (bound if is_scalar(bound) else bound.to(torch.float64) for bound in (start, end))
    exponents = torch.linspace(start, end, steps, dtype=torch.float64, device=device)
    return torch.pow(base, exponents).to(dtype)


def _is_complex(bound: Any) -> bool:
    return isinstance(bound, complex) if is_scalar(bound) else bool(bound.is_complex())


@register(aten.eye)
def eye(n: Any, m: Any = None, dtype: torch.dtype | None = None, device: Any = None) -> Tensor:
    """i = j."""
    rows = torch.arange(0, n, 1, dtype=torch.int64, device=device)
    columns = rows if m is None else torch.arange(0, m, 1, dtype=torch.int64, device=device)
    return torch.eq(rows.unsqueeze(1), columns).to(dtype or torch.get_default_dtype())


@register(aten.tril, level="standard")
def tril_of_table(x: Tensor, diagonal: int = 0) -> Tensor:
    """x where column < row + diagonal + 1, counted in tables, else 0."""
    tables = _places(x, diagonal + 1)
    return (
        decline("the size is not known, or large")
        if tables is None
        else torch.where(torch.lt(tables[1], tables[0]), x, _zero(x.dtype))
    )


@register(aten.triu, level="standard")
def triu_of_table(x: Tensor, diagonal: int = 0) -> Tensor:
    """x where row + diagonal − 1 < column, counted in tables, else 0."""
    tables = _places(x, diagonal - 1)
    return (
        decline("the size is not known, or large")
        if tables is None
        else torch.where(torch.lt(tables[0], tables[1]), x, _zero(x.dtype))
    )


def _places(x: Tensor, shift: int) -> tuple[Tensor, Tensor] | None:
    """The number of each row, plus `shift`, as a column, and that of each column, where both are known."""
    rows, columns = x.shape[-2:]
    if type(rows) is not int or type(columns) is not int or max(rows, columns) > TABLED:
        return None
    if not rows:
        return None
    down, across = [[i + shift] for i in range(rows)], list(range(columns))
    first, second = (torch.tensor(table, dtype=torch.int64, device=x.device) for table in (down, across))
    return first, second


@register(aten.tril)
def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    """x where column ≤ row + diagonal, else 0."""
    return torch.where(
        torch.logical_not(_above(x, diagonal)), x, torch.full((), _zero(x.dtype), dtype=x.dtype, device=x.device)
    )


@register(aten.triu)
def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    """x where column ≥ row + diagonal, else 0."""
    return torch.where(_above(x, diagonal - 1), x, torch.full((), _zero(x.dtype), dtype=x.dtype, device=x.device))


def _above(x: Tensor, diagonal: int) -> Tensor:
    """Where column > row + diagonal, (rows, columns)."""
    rows, columns = ramp(x, x.shape[-2]), ramp(x, x.shape[-1])
    return torch.lt((rows + diagonal).unsqueeze(1), columns)


@register(aten.tril_indices)
def tril_indices(row: int, col: int, offset: int = 0, dtype: torch.dtype = torch.int64, device: Any = None) -> Tensor:
    """The rows and columns of the lower triangle, a constant."""
    pairs = [(i, j) for i in range(row) for j in range(min(max(i + offset + 1, 0), col))]
    return _pairs(pairs, dtype, device)


@register(aten.triu_indices)
def triu_indices(row: int, col: int, offset: int = 0, dtype: torch.dtype = torch.int64, device: Any = None) -> Tensor:
    """The rows and columns of the upper triangle, a constant."""
    pairs = [(i, j) for i in range(row) for j in range(max(i + offset, 0), col)]
    return _pairs(pairs, dtype, device)


def _pairs(pairs: list[tuple[int, int]], dtype: Any, device: Any) -> Tensor:
    table = [[i for i, _ in pairs], [j for _, j in pairs]]
    return torch.tensor(table, dtype=dtype if isinstance(dtype, torch.dtype) else torch.int64, device=device)
