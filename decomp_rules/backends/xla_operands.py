"""The ops of the target `stablehlo` as calls of `jax.lax`, each of which emits one operation of StableHLO.

PyTorch's implicit conversions are explicit: operands are promoted (`convert`) and broadcast (`broadcast_in_dim`),
numbers become constants, half types are reduced in float32. Beyond these, a call is several operations only where
`SEVERAL` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
import math
from typing import Any

from jax import lax, numpy as jnp
import numpy as np

Array = Any

SEVERAL: dict[str, str] = {
    "convolution": "with a bias, an add; transposed, a reverse and a transpose of the kernel",
    "index": "indices below 0 are counted from the end, and several are laid side by side",
    "index_put": "as index",
    "gather": "the operand is sliced where the index covers less of it",
    "scatter": "the source is sliced to the index; an index that covers less is joined to coordinates",
    "scatter_add": "as scatter",
    "scatter_reduce": "as scatter",
    "view.dtype": "a reshape where the sizes of the dtypes differ",
    "_to_copy": "from complex to real, the real part and a convert",
    "_fft_c2c": "the dimensions are moved to the end, three at a time; scaled otherwise than by 1 or, back, by 1/n",
    "_fft_r2c": "as _fft_c2c; two-sided, of a complex operand",
    "_fft_c2r": "as _fft_c2c",
}
"""Ops that may be more than one operation of StableHLO, and what else they are."""


class CallTable(dict[str, Callable[..., Any]]):
    """By the name of an op, or of an overload: its function over arrays."""

    def implements(self, *names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Enter a function for these names."""

        def entered(function: Callable[..., Any]) -> Callable[..., Any]:
            self.update(dict.fromkeys(names, function))
            return function

        return entered


# Dtypes and shapes of operands.


def kind(dtype: Any) -> int:
    """Bool, integer, float, complex: 0, 1, 2, 3."""
    if dtype == np.bool_:
        return 0
    return 1 if jnp.issubdtype(dtype, jnp.integer) else 3 if jnp.issubdtype(dtype, jnp.complexfloating) else 2


def _number_dtype(value: Any) -> Any:
    if isinstance(value, (bool, np.bool_)):
        return np.dtype(np.bool_)
    if isinstance(value, (float, complex)):
        return np.dtype(np.float32 if isinstance(value, float) else np.complex64)
    return np.dtype(np.int64)  # a symbolic size too


def is_array(value: Any) -> bool:
    """Whether a value is an array, and no Python number or symbolic size."""
    return hasattr(value, "dtype")


def promoted(*operands: Any) -> Any:
    """The dtype that PyTorch promotes to: arrays count before 0-d arrays, and those before numbers."""
    classes: list[list[Any]] = [[], [], []]
    for operand in operands:
        if is_array(operand):
            classes[0 if operand.ndim else 1].append(operand.dtype)
        else:
            classes[2].append(_number_dtype(operand))
    ranked = [functools.reduce(jnp.promote_types, dtypes) for dtypes in classes if dtypes]
    return functools.reduce(lambda high, low: jnp.promote_types(high, low) if kind(low) > kind(high) else high, ranked)


def cast(x: Array, dtype: Any) -> Array:
    """`x` in `dtype`, which emits nothing where it is so already."""
    if x.dtype == dtype:
        return x
    if kind(x.dtype) == 3 and kind(dtype) == 0:
        return lax.ne(x, spread(0, x.shape, x.dtype))
    return lax.convert_element_type(lax.real(x) if kind(x.dtype) == 3 and kind(dtype) < 3 else x, dtype)


def number(value: Any, dtype: Any) -> Any:
    """A constant; integers wrap."""
    if not isinstance(value, (bool, int, float, complex)):
        return cast(jnp.asarray(value), dtype)  # a symbolic size
    if kind(dtype) == 1 and isinstance(value, (int, float)) and math.isfinite(value):
        bits = 8 * np.dtype(dtype).itemsize
        return np.array(int(value) % 2**bits, np.dtype(f"uint{bits}")).astype(dtype)
    with np.errstate(all="ignore"):
        return np.asarray(value).astype(dtype)


def spread(value: Any, shape: Sequence[Any], dtype: Any) -> Array:
    """A number or array in a dtype and a shape."""
    x = cast(value, dtype) if is_array(value) else number(value, dtype)
    if tuple(x.shape) == tuple(shape):
        return x
    front = len(shape) - x.ndim
    if not x.ndim:
        return lax.broadcast_in_dim(x, shape, ())
    kept = [d for d in range(x.ndim) if not (_is_one(x.shape[d]) and not _is_one(shape[front + d]))]
    if len(kept) < x.ndim:
        x = lax.reshape(x, [x.shape[d] for d in kept])
    return lax.broadcast_in_dim(x, shape, [front + d for d in kept])


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1


def paired(*operands: Any, dtype: Any = None) -> list[Array]:
    """The operands in the dtype that they promote to, or one that is given, and in the shape that they broadcast to."""
    dtype = promoted(*operands) if dtype is None else dtype
    shape = lax.broadcast_shapes(*(each.shape for each in operands if is_array(each)))
    return [spread(each, shape, dtype) for each in operands]


def floating(*operands: Any) -> Any:
    """The dtype that they promote to; float32 for integers."""
    dtype = promoted(*operands)
    return dtype if kind(dtype) > 1 else np.dtype(np.float32)


def wide(dtype: Any) -> Any:
    """float32 for half types, in which PyTorch's reductions compute."""
    return np.dtype(np.float32) if kind(dtype) == 2 and np.dtype(dtype).itemsize < 4 else dtype


def wrap(dim: int, rank: int) -> int:
    return dim % max(rank, 1)


def dims_of(dim: Any, rank: int) -> list[int]:
    """Dimensions counted from the start; all where none are given."""
    listed = dim if isinstance(dim, (list, tuple)) else [] if dim is None else [dim]
    return sorted(wrap(d, rank) for d in listed) if listed and rank else list(range(rank))


def is_empty(shape: Sequence[Any]) -> bool:
    """Whether an array of this shape surely has no elements."""
    return any(isinstance(size, int) and size == 0 for size in shape)


def extremes(dtype: Any) -> tuple[Any, Any]:
    """The least and the greatest of a dtype."""
    if kind(dtype) == 2:
        return -math.inf, math.inf
    return (False, True) if kind(dtype) == 0 else (int(jnp.iinfo(dtype).min), int(jnp.iinfo(dtype).max))


def ntuple(value: Any, count: int) -> list[Any]:
    listed = list(value) if isinstance(value, (list, tuple)) else [value]
    return listed * count if len(listed) == 1 else listed
