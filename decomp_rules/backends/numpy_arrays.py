"""NumPy as a backend: tinygrad's primitives on arrays, with no computation by PyTorch. It is the smallest complete
backend, to read before writing one's own, and a second opinion on what lowered programs compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
from typing import Any

import numpy as np
import torch

import decomp
from decomp_rules import targets

DTYPES: dict[torch.dtype, Any] = {
    torch.bool: np.dtype("bool"),
    torch.uint8: np.dtype("uint8"),
    torch.uint16: np.dtype("uint16"),
    torch.uint32: np.dtype("uint32"),
    torch.uint64: np.dtype("uint64"),
    torch.int8: np.dtype("int8"),
    torch.int16: np.dtype("int16"),
    torch.int32: np.dtype("int32"),
    torch.int64: np.dtype("int64"),
    torch.float16: np.dtype("float16"),
    torch.float32: np.dtype("float32"),
    torch.float64: np.dtype("float64"),
    torch.complex64: np.dtype("complex64"),
    torch.complex128: np.dtype("complex128"),
}
"""NumPy has no bfloat16."""

Array = Any
"""An array, or a NumPy scalar, which is what NumPy makes of arrays without dimensions."""


def to_numpy(x: torch.Tensor) -> Array:
    """A tensor as an array, in the same memory where it has one."""
    return x.detach().cpu().resolve_conj().resolve_neg().numpy()


def to_torch(x: Array) -> torch.Tensor:
    """An array as a tensor; views are copied, as the memory that they look at may be a parameter's."""
    array = np.asarray(x)
    return torch.from_numpy(array if array.base is None and array.flags.writeable else array.copy(order="K"))


# Dtypes of results: PyTorch's promotion, in which numbers count less than arrays without dimensions, and these less
# than others; NumPy's own differs in what int64 and float32 are together, and for arrays without dimensions.

_NUMBERS = {bool: np.dtype("bool"), int: np.dtype("int64"), float: np.dtype("float32"), complex: np.dtype("complex64")}
_RANKS = "biufc"


def _kind(dtype: Any) -> int:
    """0 for bool, 1 for integers, 2 for floats, 3 for complex numbers."""
    return max(0, _RANKS.index(dtype.kind) - (dtype.kind in "ufc"))


def _wider(a: Any, b: Any) -> Any:
    """The dtype of two that count alike."""
    if _kind(a) == _kind(b):
        return np.promote_types(a, b)
    low, high = (a, b) if _kind(a) < _kind(b) else (b, a)
    return np.promote_types(high, low) if _kind(high) == 3 and _kind(low) == 2 else high


def _joined(high: Any, low: Any) -> Any:
    """The dtype of two of which the first counts more: the other is heard only if it is of another kind of number."""
    if high is None or low is None:
        return low if high is None else high
    if _kind(low) <= _kind(high):
        return high
    return np.promote_types(high, "complex64") if _kind(low) == 3 and _kind(high) == 2 else low


def common(*values: Any) -> Any:
    """The dtype that PyTorch computes in for these arrays and numbers."""
    found: list[Any] = [None, None, None]
    for value in values:
        number = type(value) in _NUMBERS
        place = 2 if number else int(value.ndim == 0)
        dtype = _NUMBERS[type(value)] if number else value.dtype
        found[place] = dtype if found[place] is None else _wider(found[place], dtype)
    return _joined(found[0], _joined(found[1], found[2]))


def promoting(function: Callable[..., Array], floats: bool = False) -> Callable[..., Array]:
    """A NumPy function on operands of PyTorch's common dtype; with `floats`, integers are computed as float32."""

    @functools.wraps(function)
    def called(*operands: Any) -> Array:
        dtype = common(*operands)
        if floats and _kind(dtype) < 2:
            dtype = _NUMBERS[float]
        with np.errstate(all="ignore"):
            return function(*(np.asarray(each).astype(dtype, copy=False) for each in operands))

    return called


def make() -> decomp.Backend:
    """The backend."""
    chip = decomp.Backend("numpy", targets.tinygrad, from_torch=to_numpy, to_torch=to_torch, dtypes=DTYPES)
    for name, function in _ELEMENTWISE.items():
        chip.implements(name)(function)
    for function, *ops in _OTHERS:
        chip.implements(*ops)(function)
    return chip


def _power(a: Array, b: Array) -> Array:
    if a.dtype.kind not in "iu":
        return np.power(a, b)
    powers = np.power(a, np.maximum(b, 0))
    inverse = np.where(a == 1, 1, np.where(a == -1, 1 - 2 * (b & 1), 0)).astype(a.dtype)
    return np.where(b < 0, inverse, powers)


def _divided(a: Array, b: Array, rounding_mode: str) -> Array:
    """Integer division; the target has no other."""
    if not np.all(b):
        raise ZeroDivisionError("an integer is divided by zero")
    floors = np.floor_divide(a, b)
    return floors if rounding_mode == "floor" else floors + ((np.remainder(a, b) != 0) & ((a < 0) != (b < 0)))


def div(a: Array, b: Array, rounding_mode: str) -> Array:
    def quotient(x: Array, y: Array) -> Array:
        return _divided(x, y, rounding_mode).astype(x.dtype)

    return promoting(quotient)(a, b)


_ELEMENTWISE: dict[str, Callable[..., Array]] = {
    "add": promoting(np.add),
    "mul": promoting(np.multiply),
    "maximum": promoting(np.maximum),
    "lt": promoting(np.less),
    "ne": promoting(np.not_equal),
    "bitwise_and": promoting(np.bitwise_and),
    "bitwise_or": promoting(np.bitwise_or),
    "bitwise_xor": promoting(np.bitwise_xor),
    "bitwise_left_shift": promoting(np.left_shift),
    "bitwise_right_shift": promoting(np.right_shift),
    "pow.Tensor_Tensor": promoting(_power),
    "fmod": promoting(np.fmod),
    "remainder": promoting(np.remainder),
    "exp2": promoting(np.exp2, floats=True),
    "log2": promoting(np.log2, floats=True),
    "sin": promoting(np.sin, floats=True),
    "sqrt": promoting(np.sqrt, floats=True),
    "reciprocal": promoting(np.reciprocal, floats=True),
    "trunc": promoting(lambda x: x if x.dtype.kind in "iu" else np.trunc(x)),
}


def where(condition: Array, a: Array, b: Array) -> Array:
    dtype = common(a, b)
    return np.where(condition, np.asarray(a).astype(dtype), np.asarray(b).astype(dtype))


def reshape(x: Array, size: Sequence[int]) -> Array:
    return np.reshape(x, size)


def expand(x: Array, size: Sequence[int]) -> Array:
    shape = (1,) * (len(size) - x.ndim) + np.shape(x)
    return np.broadcast_to(x, [old if new == -1 else new for old, new in zip(shape, size)])


def pad(x: Array, pad: Sequence[int], value: Any = 0) -> Array:
    pairs = list(zip(pad[::2], pad[1::2]))[::-1]
    return np.pad(x, [(0, 0)] * (x.ndim - len(pairs)) + pairs, constant_values=value)


def narrow(x: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    return x[(slice(None),) * (dim % x.ndim) + (slice(start, end, step),)]


def _axes(x: Array, dim: Any) -> tuple[int, ...]:
    dims = range(x.ndim) if dim is None or dim == [] else dim if isinstance(dim, (list, tuple)) else [dim]
    return tuple(d % x.ndim for d in dims if x.ndim)


def _reduced(reduce: Any, x: Array, dim: Any, keepdim: bool, dtype: Any) -> Array:
    """A sum or product. PyTorch adds integers in int64, and half floats in float32."""
    wanted = dtype or (np.dtype("int64") if x.dtype.kind in "biu" else x.dtype)
    within = np.dtype("float32") if wanted == np.dtype("float16") else wanted
    with np.errstate(all="ignore"):
        made = reduce(np.asarray(x).astype(within, copy=False), axis=_axes(x, dim), keepdims=keepdim, dtype=within)
    return made.astype(wanted, copy=False)


def stack(tensors: Sequence[Array], dim: int = 0) -> Array:
    dtype = common(*tensors)
    return np.stack([np.asarray(each).astype(dtype, copy=False) for each in tensors], dim)


def sum(x: Array, dim: Any, keepdim: bool = False, dtype: Any = None) -> Array:
    return _reduced(np.add.reduce, x, dim, keepdim, dtype)


def prod(x: Array, dim: int, keepdim: bool = False, dtype: Any = None) -> Array:
    return _reduced(np.multiply.reduce, x, dim, keepdim, dtype)


def amax(x: Array, dim: Any = (), keepdim: bool = False) -> Array:
    return np.max(x, axis=_axes(x, list(dim)), keepdims=keepdim)


def cast(x: Array, dtype: Any = None) -> Array:
    if dtype is None or x.dtype == dtype:
        return x
    with np.errstate(all="ignore"):
        return (x.real if x.dtype.kind == "c" and dtype.kind in "fiu" else x).astype(dtype)


def bitcast(x: Array, dtype: Any) -> Array:
    return np.asarray(x).copy().view(dtype)


def full(size: Sequence[int], value: Any, dtype: Any = None) -> Array:
    return np.full(size, value, dtype or _NUMBERS[type(value)])


def random(size: Sequence[int], dtype: Any = None) -> Array:
    return np.random.default_rng().random(size, dtype or np.float32)


def same(x: Array) -> Array:
    """Nobody writes into an array, so that a copy is the array itself."""
    return x


def cond(pred: Array, true: Callable[..., Any], false: Callable[..., Any], operands: Sequence[Array]) -> Any:
    return (true if pred else false)(*operands)


def while_loop(goes_on: Callable[..., Array], body: Callable[..., Any], carried: Any, more: Any = ()) -> Any:
    while goes_on(*carried, *more):
        carried = body(*carried, *more)
    return carried


def scan(step: Callable[..., Any], carried: Any, rows: Sequence[Array], more: Any = ()) -> list[Array]:
    carried, found = list(carried), []
    for row in zip(*rows):
        results = step(*carried, *row, *more)
        carried = list(results[: len(carried)])
        found.append(results[len(carried) :])
    return carried + [np.stack(each) for each in zip(*found)]


def map_rows(function: Callable[..., Any], rows: Sequence[Array], more: Any = ()) -> list[Array]:
    return scan(function, (), rows, more)


_OTHERS: tuple[tuple[Any, ...], ...] = (
    (div, "div.Tensor_mode", "div.Scalar_mode"),
    (where, "where.self"),
    (reshape, "view.default"),
    (lambda x, dims: np.transpose(x, dims), "permute"),
    (expand, "expand"),
    (pad, "constant_pad_nd"),
    (narrow, "slice.Tensor"),
    (lambda x, dims: np.flip(x, _axes(x, list(dims))) if dims else x, "flip"),
    (stack, "stack"),
    (sum, "sum.dim_IntList"),
    (prod, "prod.dim_int"),
    (amax, "amax"),
    (cast, "_to_copy"),
    (bitcast, "view.dtype"),
    (full, "full.default"),
    (random, "rand.default"),
    (same, "clone", "detach"),
    (cond, "cond"),
    (while_loop, "while_loop"),
    (scan, "scan"),
    (map_rows, "map_impl"),
)
