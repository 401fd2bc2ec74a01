"""Backends with faults, at the top level of a module, where other processes find them."""

from collections.abc import Callable
import os
import time
from typing import Any

import numpy as np

import decomp
from decomp_rules.backends import numpy_arrays

right = numpy_arrays.make()


def _made(name: str, faults: dict[str, Callable[..., Any]], target: decomp.Target | None = None) -> decomp.Backend:
    chip = decomp.Backend(
        name,
        target or right.target,
        from_torch=numpy_arrays.to_numpy,
        to_torch=numpy_arrays.to_torch,
        dtypes=numpy_arrays.DTYPES,
    )
    for each in right:
        op, overload = each.key
        chip.implements(f"{op}.{overload}" if overload else str(op))(each.function)
    for op, function in faults.items():
        chip.implements(op)(function)
    return chip


def _maximum(a: Any, b: Any) -> Any:
    """Drops NaN."""
    return numpy_arrays.promoting(lambda x, y: np.where(x > y, x, y))(a, np.asarray(b))


def _axis(x: Any, dim: Any, keepdim: bool = False, dtype: Any = None) -> Any:
    """Takes dimensions from the end to be one further, and adds integers in 32 bits."""
    return numpy_arrays.sum(x, [d if d >= 0 else max(d - 1, -x.ndim) for d in dim], keepdim, dtype)


def _narrow_product(x: Any, dim: int, keepdim: bool = False, dtype: Any = None) -> Any:
    """Multiplies integers in 32 bits."""
    found = numpy_arrays.prod(x, dim, keepdim, dtype)
    return found.astype(np.int32).astype(found.dtype) if found.dtype == np.int64 else found


def _slice(x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    """Ends where it should not, if it starts after the beginning."""
    size = x.shape[dim]
    start = 0 if start is None else start + size if start < 0 else start
    if 0 < start < size and end is not None and 0 <= end < size:
        start = start - 1
        end = end - 1
    return numpy_arrays.narrow(x, dim, start, end, step)


def _trunc(x: Any) -> Any:
    """Rounds -0.5 away from zero."""
    return np.where(x == -0.5, np.ceil(x) - 1, np.trunc(x)).astype(x.dtype) if x.dtype.kind == "f" else x


FAULTS = {
    "maximum": _maximum,
    "sum.dim_IntList": _axis,
    "prod.dim_int": _narrow_product,
    "slice.Tensor": _slice,
    "trunc": _trunc,
}
faulty = _made("faulty", FAULTS)


def _hang(x: Any) -> Any:
    time.sleep(3600)


def _crash(x: Any) -> Any:
    os.abort()


lost = _made("lost", {"sin": _hang, "sqrt": _crash}, decomp.Target("lost", ["sin", "sqrt", "mul", "reciprocal"]))
