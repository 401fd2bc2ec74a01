"""Ops of the target `stablehlo` that move elements, as calls of `jax.lax`: shapes, slices, indices, sorts."""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any

from jax import lax, numpy as jnp
import numpy as np

from decomp_rules.backends.xla_operands import (
    Array,
    CallTable,
    cast,
    is_array,
    is_empty,
    kind,
    number,
    promoted,
    spread,
    wrap,
)

CALLS = CallTable()
_IN_BOUNDS = lax.GatherScatterMode.PROMISE_IN_BOUNDS


# Shapes.


@CALLS.implements("expand")
def expand(x: Array, size: Sequence[Any]) -> Array:
    front = len(size) - x.ndim
    known = [n if not (isinstance(n, int) and n == -1) else x.shape[d - front] for d, n in enumerate(size)]
    return spread(x, known, x.dtype)


@CALLS.implements("unsqueeze")
def unsqueeze(x: Array, dim: int) -> Array:
    return jnp.expand_dims(x, wrap(dim, x.ndim + 1))


@CALLS.implements("view.default")
def view(x: Array, size: Sequence[Any]) -> Array:
    return jnp.reshape(x, tuple(size))


@CALLS.implements("permute")
def permute(x: Array, dims: Sequence[int]) -> Array:
    return lax.transpose(x, [wrap(d, x.ndim) for d in dims])


@CALLS.implements("slice.Tensor")
def slice_(x: Array, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Array:
    dim = wrap(dim, x.ndim)
    size = x.shape[dim]
    first = _place(0 if start is None else start, size)
    last = size if end is None else _place(end, size)
    last = first if isinstance(first, int) and isinstance(last, int) and last < first else last
    return lax.slice_in_dim(x, first, last, step, dim)


def _place(place: Any, size: Any) -> Any:
    """A place counted from the end where it is negative, within the array."""
    if isinstance(place, int) and place >= 2**62:
        return size
    place = place + size if place < 0 else place
    return 0 if place <= 0 else place if place <= size else size


@CALLS.implements("constant_pad_nd")
def constant_pad_nd(x: Array, pad: Sequence[Any], value: Any = 0) -> Array:
    edges = [(0, 0, 0)] * x.ndim
    for back in range(len(pad) // 2):
        edges[-1 - back] = (pad[2 * back], pad[2 * back + 1], 0)
    return lax.pad(x, number(value, x.dtype), edges)


@CALLS.implements("cat")
def cat(tensors: Sequence[Array], dim: int = 0) -> Array:
    """Of what has elements; a tensor of shape (0,) may stand beside any."""
    dtype, rank = promoted(*(jnp.empty((1,), t.dtype) for t in tensors)), max(t.ndim for t in tensors)
    kept = [cast(t, dtype) for t in tensors if t.ndim == rank]
    return lax.concatenate(kept, wrap(dim, rank))


@CALLS.implements("flip")
def flip(x: Array, dims: Sequence[int]) -> Array:
    return lax.rev(x, [wrap(d, x.ndim) for d in dims])


@CALLS.implements("arange.default")
def arange(end: Any, dtype: Any = None) -> Array:
    length = math.ceil(end) if isinstance(end, float) else end
    dtype = promoted(end) if dtype is None else dtype
    return lax.iota(dtype, length) if isinstance(length, int) else lax.broadcasted_iota(dtype, (length,), 0)


@CALLS.implements("full.default")
def full(size: Sequence[Any], fill_value: Any, dtype: Any = None) -> Array:
    return spread(fill_value, size, promoted(fill_value) if dtype is None else dtype)


# Gather.


@CALLS.implements("index_select")
def index_select(x: Array, dim: int, index: Array) -> Array:
    if not x.ndim:
        return jnp.copy(x)
    dim, index = wrap(dim, x.ndim), jnp.reshape(index, (-1,))
    return _taken(x, index, [dim], dim)


@CALLS.implements("embedding")
def embedding(
    weight: Array, indices: Array, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Array:
    return _taken(weight, indices, [0], 0)


def _taken(x: Array, number: Array, dims: list[int], first: int) -> Array:
    """The parts of x at places in `dims`, the last dimension of `number` running over these if they are several; the
    dimensions of the places stand at `first` in the result."""
    if len(dims) == 1:
        number = jnp.expand_dims(number, number.ndim)
    count = number.ndim - 1
    sizes = [1 if d in dims else size for d, size in enumerate(x.shape)]
    rest = x.ndim - len(dims)
    if is_empty(number.shape):
        shape = [size for d, size in enumerate(x.shape) if d not in dims]
        return jnp.zeros((*shape[:first], *number.shape[:-1], *shape[first:]), x.dtype)
    offset = tuple(d if d < first else d + count for d in range(rest))
    names = lax.GatherDimensionNumbers(offset, tuple(dims), tuple(dims))
    return lax.gather(x, number, names, tuple(sizes), mode=_IN_BOUNDS)


@CALLS.implements("gather")
def gather(x: Array, dim: int, index: Array, sparse_grad: bool = False) -> Array:
    if not x.ndim or not index.ndim:
        shape = index.shape
        return jnp.reshape(_taken(jnp.reshape(x, (-1,)), jnp.reshape(index, (-1,)), [0], 0), shape)
    if is_empty(index.shape):
        return jnp.zeros(index.shape, x.dtype)
    dim = wrap(dim, x.ndim)
    x, others = _cut(x, index, dim), tuple(d for d in range(x.ndim) if d != dim)
    names = lax.GatherDimensionNumbers((), (dim,), (dim,), others, others)
    return lax.gather(x, jnp.expand_dims(index, index.ndim), names, (1,) * x.ndim, mode=_IN_BOUNDS)


def _cut(x: Array, index: Array, but: int | None = None) -> Array:
    """The part of x that the index covers, all of it along the dimension `but`."""
    for d in range(x.ndim):
        if d != but and _differ(x.shape[d], index.shape[d]):
            x = lax.slice_in_dim(x, 0, index.shape[d], 1, d)
    return x


def _differ(one: Any, two: Any) -> bool:
    return isinstance(one, int) and isinstance(two, int) and one != two


@CALLS.implements("index")
def index_(x: Array, indices: Sequence[Array | None]) -> Array:
    place, dims, first = _places(x, indices)
    return _taken(x, place, dims, first)


def _places(x: Array, indices: Sequence[Array | None]) -> tuple[Array, list[int], int]:
    """Where index arrays point, counted from the start and side by side; the dimensions that they index, and where
    those of the index stand in the result: first, if the indexed ones are apart."""
    dims = [d for d, index in enumerate(indices) if index is not None]
    given = [index for index in indices if index is not None]
    shape = lax.broadcast_shapes(*(index.shape for index in given))
    counted = []
    for d, index in zip(dims, given):
        index = cast(index, np.dtype(np.int64))
        index = lax.select(
            lax.lt(index, spread(0, index.shape, index.dtype)),
            lax.add(index, spread(x.shape[d], index.shape, index.dtype)),
            index,
        )
        counted.append(spread(index, shape, index.dtype))
    together = dims == list(range(dims[0], dims[0] + len(dims)))
    first = dims[0] if together else 0
    return (counted[0] if len(dims) == 1 else jnp.stack(counted, -1)), dims, first


# Scatter.

_SCATTERS = {
    None: lax.scatter,
    "sum": lax.scatter_add,
    "add": lax.scatter_add,
    "prod": lax.scatter_mul,
    "multiply": lax.scatter_mul,
    "amax": lax.scatter_max,
    "amin": lax.scatter_min,
}


def _scatter(dtype: Any, reduce: str | None) -> Any:
    """The function that writes or adds; for booleans a sum is an or, a product an and."""
    if kind(dtype) == 0 and reduce is not None:
        reduce = {"sum": "amax", "add": "amax", "prod": "amin", "multiply": "amin"}.get(reduce, reduce)
    return _SCATTERS[reduce]


@CALLS.implements("index_put")
def index_put(x: Array, indices: Sequence[Array | None], values: Array, accumulate: bool = False) -> Array:
    place, dims, first = _places(x, indices)
    place = jnp.expand_dims(place, place.ndim) if len(dims) == 1 else place
    count, rest = place.ndim - 1, [size for d, size in enumerate(x.shape) if d not in dims]
    source = spread(values, (*rest[:first], *place.shape[:-1], *rest[first:]), x.dtype)
    window = tuple(d if d < first else d + count for d in range(len(rest)))
    names = lax.ScatterDimensionNumbers(window, tuple(dims), tuple(dims))
    return _scatter(x.dtype, "sum" if accumulate else None)(x, place, source, names, mode=_IN_BOUNDS)


@CALLS.implements("scatter")
def scatter(x: Array, dim: int, index: Array, src: Any = None, value: Any = None, reduce: str | None = None) -> Array:
    return _scattered(x, dim, index, src if value is None else value, reduce)


@CALLS.implements("scatter.src", "scatter.value")
def scatter_of(x: Array, dim: int, index: Array, src: Any) -> Array:
    return _scattered(x, dim, index, src, None)


@CALLS.implements("scatter_add")
def scatter_add(x: Array, dim: int, index: Array, src: Array) -> Array:
    return _scattered(x, dim, index, src, "sum")


@CALLS.implements("scatter.reduce", "scatter.value_reduce")
def scatter_named(x: Array, dim: int, index: Array, src: Any, reduce: str) -> Array:
    return _scattered(x, dim, index, src, reduce)


@CALLS.implements("scatter_reduce")
def scatter_reduce(x: Array, dim: int, index: Array, src: Array, reduce: str) -> Array:
    return _scattered(x, dim, index, src, reduce)


def _scattered(x: Array, dim: int, index: Array, src: Any, reduce: str | None) -> Array:
    if is_empty(index.shape):
        return jnp.copy(x)
    shape = x.shape
    x, index = (jnp.reshape(each, (-1,)) if not each.ndim else each for each in (x, index))
    if is_array(src) and src.ndim:
        src = _cut(src, index)
    src, dim = spread(src, index.shape, x.dtype), wrap(dim, x.ndim)
    others = tuple(d for d in range(x.ndim) if d != dim)
    if any(_differ(x.shape[d], index.shape[d]) for d in others):
        places = [index if d == dim else lax.broadcasted_iota(index.dtype, index.shape, d) for d in range(x.ndim)]
        every = tuple(range(x.ndim))
        names, index = lax.ScatterDimensionNumbers((), every, every), jnp.stack(places, -1)
    else:
        names = lax.ScatterDimensionNumbers((), (dim,), (dim,), others, others)
        index = jnp.expand_dims(index, index.ndim)
    return jnp.reshape(_scatter(x.dtype, reduce)(x, index, src, names, mode=_IN_BOUNDS), shape)


@CALLS.implements("sort")
def sort(x: Array, stable: bool | None = None, dim: int = -1, descending: bool = False) -> tuple[Array, Array]:
    """Ascending, NaN last; always stable."""
    if not x.ndim:
        return jnp.copy(x), jnp.zeros((), np.int64)
    dim = wrap(dim, x.ndim)
    places = lax.broadcasted_iota(np.dtype(np.int64), x.shape, dim)
    values, indices = lax.sort((x, places), dimension=dim, is_stable=True, num_keys=1)
    return values, indices
