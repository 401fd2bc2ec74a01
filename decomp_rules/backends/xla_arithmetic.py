"""Elementwise ops, reductions, products and windows of the target `stablehlo` as calls of `jax.lax`, each of which
emits one operation of StableHLO."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax import lax, numpy as jnp
import numpy as np

from decomp_rules.backends.xla_operands import (
    Array,
    CallTable,
    cast,
    dims_of,
    extremes,
    floating,
    is_empty,
    kind,
    ntuple,
    number,
    paired,
    promoted,
    spread,
    wide,
    wrap,
)

CALLS = CallTable()

# Elementwise.

_FLOAT = {
    "exp": lax.exp,
    "expm1": lax.expm1,
    "log": lax.log,
    "log1p": lax.log1p,
    "tanh": lax.tanh,
    "sin": lax.sin,
    "cos": lax.cos,
    "tan": lax.tan,
    "sqrt": lax.sqrt,
    "rsqrt": lax.rsqrt,
}
_ROUND = {
    "ceil": lax.ceil,
    "floor": lax.floor,
    "round.default": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
}
_ALONE = {
    "neg": lax.neg,
    "sign": lax.sign,
    "bitwise_not": lax.bitwise_not,
    "real": lax.real,
    "imag": lax.imag,
    "isfinite": lax.is_finite,
    "logical_not": lax.bitwise_not,
}
_TWO = {
    "maximum": lax.max,
    "minimum": lax.min,
    "fmod": lax.rem,
    "bitwise_and": lax.bitwise_and,
    "bitwise_or": lax.bitwise_or,
    "bitwise_xor": lax.bitwise_xor,
    "bitwise_left_shift": lax.shift_left,
    "logical_and": lax.bitwise_and,
    "logical_or": lax.bitwise_or,
    "logical_xor": lax.bitwise_xor,
    "eq": lax.eq,
    "ne": lax.ne,
    "lt": lax.lt,
    "le": lax.le,
    "gt": lax.gt,
    "ge": lax.ge,
    "pow": lax.pow,
    "div": lax.div,
    "complex": lax.complex,
}


def _float_function(call: Any) -> Callable[[Array], Array]:
    return lambda x: call(cast(x, floating(x)))


def _rounding(call: Any) -> Callable[[Array], Array]:
    return lambda x: call(x) if kind(x.dtype) > 1 else x


def _of_two(call: Any) -> Callable[[Any, Any], Array]:
    return lambda x, other: call(*paired(x, other))


CALLS.update({name: _float_function(call) for name, call in _FLOAT.items()})
CALLS.update({name: _rounding(call) for name, call in _ROUND.items()})
CALLS.update({name: lambda x, call=call: call(x) for name, call in _ALONE.items()})
CALLS.update({name: _of_two(call) for name, call in _TWO.items()})


@CALLS.implements("abs")
def absolute(x: Array) -> Array:
    """Unsigned integers are their own."""
    return jnp.copy(x) if jnp.issubdtype(x.dtype, jnp.unsignedinteger) else lax.abs(x)


@CALLS.implements("add")
def add(x: Any, other: Any) -> Array:
    """Of booleans, or; as for mul, and."""
    left, right = paired(x, other)
    return (lax.bitwise_or if kind(left.dtype) == 0 else lax.add)(left, right)


@CALLS.implements("mul")
def mul(x: Any, other: Any) -> Array:
    left, right = paired(x, other)
    return (lax.bitwise_and if kind(left.dtype) == 0 else lax.mul)(left, right)


@CALLS.implements("sub")
def sub(x: Any, other: Any) -> Array:
    return lax.sub(*paired(x, other))


@CALLS.implements("div.Tensor_mode", "div.Scalar_mode")
def quotient(x: Any, other: Any, rounding_mode: str) -> Array:
    """Of integers, cut off towards 0."""
    return lax.div(*paired(x, other))


@CALLS.implements("pow.Tensor_Scalar")
def power(x: Array, exponent: Any) -> Array:
    """PyTorch's kernel takes roots for the exponents ±1/2, which differ at −0 and −∞."""
    if exponent in (0.5, -0.5):
        return (lax.sqrt if exponent > 0 else lax.rsqrt)(cast(x, floating(x, exponent)))
    return lax.pow(*paired(x, exponent))


@CALLS.implements("atan2")
def atan2(x: Array, other: Array) -> Array:
    return lax.atan2(*paired(x, other, dtype=floating(x, other)))


@CALLS.implements("bitwise_right_shift")
def right_shift(x: Any, other: Any) -> Array:
    left, right = paired(x, other)
    unsigned = jnp.issubdtype(left.dtype, jnp.unsignedinteger)
    return (lax.shift_right_logical if unsigned else lax.shift_right_arithmetic)(left, right)


@CALLS.implements("clamp")
def clamp(x: Array, min: Any = None, max: Any = None) -> Array:
    """min(max(x, least), most); a bound that is missing is the last of the dtype."""
    dtype = promoted(*(each for each in (x, min, max) if each is not None))
    least, most = extremes(dtype)
    low, middle, high = paired(least if min is None else min, x, most if max is None else max, dtype=dtype)
    return lax.clamp(low, middle, high)


@CALLS.implements("where.self")
def where(condition: Array, x: Any, other: Any) -> Array:
    left, right = paired(x, other)
    shape = lax.broadcast_shapes(condition.shape, left.shape)
    return lax.select(spread(condition, shape, np.dtype(np.bool_)), *(spread(s, shape, s.dtype) for s in (left, right)))


@CALLS.implements("_to_copy")
def to_copy(x: Array, dtype: Any = None) -> Array:
    return copy(x) if dtype is None or x.dtype == dtype else cast(x, dtype)


@CALLS.implements("clone")
def copy(x: Array) -> Array:
    """A copy, so that results never share memory with arguments."""
    return jnp.copy(x)


@CALLS.implements("detach")
def detach(x: Array) -> Array:
    return x


@CALLS.implements("view.dtype")
def view_dtype(x: Array, dtype: Any) -> Array:
    old, new = x.dtype.itemsize, np.dtype(dtype).itemsize
    if new > old:
        x = jnp.reshape(x, (*x.shape[:-1], x.shape[-1] // (new // old), new // old))
    x = lax.bitcast_convert_type(x, dtype)
    return jnp.reshape(x, (*x.shape[:-2], x.shape[-2] * x.shape[-1])) if new < old else x


# Reductions and products.


def _reduction(call: Any, x: Array, dims: list[int], keepdim: bool, dtype: Any) -> Array:
    """Over `dims`, in the dtype that the op computes in."""
    reduced = cast(call(cast(x, wide(dtype)), dims), dtype)
    return jnp.expand_dims(reduced, dims) if keepdim else reduced


def _sum_dtype(x: Array, dtype: Any) -> Any:
    return dtype if dtype is not None else np.dtype(np.int64) if kind(x.dtype) < 2 else x.dtype


@CALLS.implements("sum.dim_IntList")
def sum_(x: Array, dim: Any, keepdim: bool = False, dtype: Any = None) -> Array:
    return _reduction(lax.reduce_sum, x, dims_of(dim, x.ndim), keepdim, _sum_dtype(x, dtype))


@CALLS.implements("prod.dim_int")
def prod(x: Array, dim: int, keepdim: bool = False, dtype: Any = None) -> Array:
    return _reduction(lax.reduce_prod, x, dims_of(dim, x.ndim), keepdim, _sum_dtype(x, dtype))


@CALLS.implements("amax")
def amax(x: Array, dim: Any = (), keepdim: bool = False) -> Array:
    return _extreme(lax.reduce_max, lax.reduce_or, x, dim, keepdim)


@CALLS.implements("amin")
def amin(x: Array, dim: Any = (), keepdim: bool = False) -> Array:
    return _extreme(lax.reduce_min, lax.reduce_and, x, dim, keepdim)


def _extreme(call: Any, of_bools: Any, x: Array, dim: Any, keepdim: bool) -> Array:
    dims = dims_of(dim, x.ndim)
    reduced = (of_bools if kind(x.dtype) == 0 else call)(x, dims)
    return jnp.expand_dims(reduced, dims) if keepdim else reduced


@CALLS.implements("any")
def any_(x: Array, dim: Any = None, keepdim: bool = False) -> Array:
    return _extreme(lax.reduce_max, lax.reduce_or, x, dim, keepdim)


@CALLS.implements("all")
def all_(x: Array, dim: Any = None, keepdim: bool = False) -> Array:
    return _extreme(lax.reduce_min, lax.reduce_and, x, dim, keepdim)


@CALLS.implements("mm")
def mm(x: Array, other: Array) -> Array:
    return lax.dot_general(x, other, (((1,), (0,)), ((), ())))


@CALLS.implements("bmm")
def bmm(x: Array, other: Array) -> Array:
    return lax.dot_general(x, other, (((2,), (1,)), ((0,), (0,))))


@CALLS.implements("convolution")
def convolution(
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Array:
    """A transposed one is the convolution of the dilated input with the reversed kernel."""
    count = weight.ndim - 2
    stride, padding, dilation, extra = (ntuple(v, count) for v in (stride, padding, dilation, output_padding))
    spatial = tuple(range(2, 2 + count))
    numbers = lax.ConvDimensionNumbers((0, 1, *spatial), (0, 1, *spatial), (0, 1, *spatial))
    if transposed:
        reach = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:])]
        pads = [(r - p, r - p + e) for r, p, e in zip(reach, padding, extra)]
        kernel = _turned(lax.rev(weight, spatial), groups)
        out = lax.conv_general_dilated(x, kernel, [1] * count, pads, stride, dilation, numbers, groups)
    else:
        pads = [(p, p) for p in padding]
        out = lax.conv_general_dilated(x, weight, stride, pads, None, dilation, numbers, groups)
    return out if bias is None else out + lax.broadcast_in_dim(bias, out.shape, (1,))


def _turned(weight: Array, groups: int) -> Array:
    """A kernel (inputs, outputs / groups, …) as (outputs, inputs / groups, …)."""
    inner, outer, *sides = weight.shape
    apart = jnp.reshape(weight, (groups, inner // groups, outer, *sides))
    return jnp.reshape(jnp.swapaxes(apart, 1, 2), (groups * outer, inner // groups, *sides))


# Windows.


def _pooling(count: int) -> Callable[..., Array]:
    def max_pool(x: Array, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1) -> Array:
        front = [1] * (x.ndim - count)
        kernel, pad, dilate = (ntuple(v, count) for v in (kernel_size, padding, dilation))
        step = ntuple(stride, count) if stride not in ((), []) else kernel
        least = number(extremes(x.dtype)[0], x.dtype)
        pads = [(0, 0)] * len(front) + [(p, p) for p in pad]
        return lax.reduce_window(x, least, lax.max, front + kernel, front + step, pads, None, front + dilate)

    return max_pool


CALLS.update({f"max_pool{count}d": _pooling(count) for count in (1, 2, 3)})


def _running(call: Any, start: int, x: Array, dim: int, dtype: Any) -> Array:
    """A window that reaches from the first element to each."""
    dtype = _sum_dtype(x, dtype)
    if not x.ndim or is_empty(x.shape):
        return cast(x, dtype)
    dim, ones = wrap(dim, x.ndim), [1] * x.ndim
    window, pads = list(ones), [(0, 0)] * x.ndim
    window[dim], pads[dim] = x.shape[dim], (x.shape[dim] - 1, 0)
    x = cast(x, wide(dtype))
    return cast(lax.reduce_window(x, number(start, x.dtype), call, window, ones, pads), dtype)


@CALLS.implements("cumsum")
def cumsum(x: Array, dim: int, dtype: Any = None) -> Array:
    return _running(lax.add, 0, x, dim, dtype)


@CALLS.implements("cumprod")
def cumprod(x: Array, dim: int, dtype: Any = None) -> Array:
    return _running(lax.mul, 1, x, dim, dtype)
