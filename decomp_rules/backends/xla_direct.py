"""Fourier transforms, and ops of the target `stablehlo` that `jax.lax` lowers to something else on CPUs or does not
have: the logistic function, batch norm by given statistics, normal numbers, triangular systems. These are primitives
of their own, whose lowering is the operation of the specification."""

from __future__ import annotations

from collections.abc import Sequence
import functools
import math
from typing import Any

import jax
from jax import lax, numpy as jnp
from jax.extend.core import Primitive
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir
import numpy as np

from decomp_rules.backends.xla_operands import Array, CallTable, cast, floating, number, wrap

CALLS = CallTable()

# Functions.


_logistic_p = Primitive("stablehlo.logistic")


@CALLS.implements("sigmoid")
def sigmoid(x: Array) -> Array:
    return _logistic(cast(x, floating(x)))


@functools.partial(jax.jit, inline=True)
def _logistic(x: Array) -> Array:
    return _logistic_p.bind(x)


def _logistic_type(x: Any) -> Any:
    return jax.core.ShapedArray(x.shape, x.dtype)


_logistic_p.def_abstract_eval(_logistic_type)
mlir.register_lowering(_logistic_p, lambda ctx, x: stablehlo.LogisticOp(x).results)


# Batch norm by given statistics.


@CALLS.implements("_native_batch_norm_legit_no_training")
def batch_norm_inference(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    momentum: float,
    eps: float,
) -> tuple[Array, Array, Array]:
    """The normalised x, and two empty arrays instead of the statistics of the batch."""
    scale = jnp.ones_like(running_mean) if weight is None else weight
    offset = jnp.zeros_like(running_mean) if bias is None else bias
    empty = jnp.zeros((0,), x.dtype)
    return _batch_norm(x, scale, offset, running_mean, running_var, eps), empty, empty


_batch_norm_p = Primitive("stablehlo.batch_norm_inference")


@functools.partial(jax.jit, static_argnums=5, inline=True)
def _batch_norm(x: Array, scale: Array, offset: Array, mean: Array, variance: Array, eps: float) -> Array:
    return _batch_norm_p.bind(x, scale, offset, mean, variance, eps=eps)


def _batch_norm_type(x: Any, *channels: Any, eps: float) -> Any:
    return jax.core.ShapedArray(x.shape, x.dtype)


def _emit_batch_norm(ctx: Any, x: Any, *channels: Any, eps: float) -> Any:
    return stablehlo.BatchNormInferenceOp(x, *channels, np.float32(eps), 1).results


_batch_norm_p.def_abstract_eval(_batch_norm_type)
mlir.register_lowering(_batch_norm_p, _emit_batch_norm)


# Fourier transforms.


@CALLS.implements("_fft_c2c")
def fft_c2c(x: Array, dim: Sequence[int], normalization: int, forward: bool) -> Array:
    lengths = [x.shape[d] for d in dim]
    moved, back = _at_end(x, dim)
    return _scaled(_along(moved, lengths, forward), lengths, normalization, forward).transpose(back)


@CALLS.implements("_fft_r2c")
def fft_r2c(x: Array, dim: Sequence[int], normalization: int, onesided: bool) -> Array:
    lengths = [x.shape[d] for d in dim]
    moved, back = _at_end(x, dim)
    if onesided:
        out = _along(lax.fft(moved, "RFFT", tuple(lengths[-3:])), lengths[:-3], True, 3)
    else:
        out = _along(lax.complex(moved, jnp.zeros_like(moved)), lengths, True)
    return _scaled(out, lengths, normalization, True).transpose(back)


@CALLS.implements("_fft_c2r")
def fft_c2r(x: Array, dim: Sequence[int], normalization: int, last_dim_size: int) -> Array:
    lengths = [*(x.shape[d] for d in dim[:-1]), last_dim_size]
    moved, back = _at_end(x, dim)
    out = lax.fft(_along(moved, lengths[:-3], False, 3), "IRFFT", tuple(lengths[-3:]))
    return _scaled(out, lengths, normalization, False).transpose(back)


def _at_end(x: Array, dim: Sequence[int]) -> tuple[Array, list[int]]:
    """x with the dimensions `dim` last in their order, and the permutation back."""
    dims = [wrap(d, x.ndim) for d in dim]
    order = [d for d in range(x.ndim) if d not in dims] + dims
    return lax.transpose(x, order), [order.index(d) for d in range(x.ndim)]


def _along(x: Array, lengths: Sequence[Any], forward: bool, done: int = 0) -> Array:
    """Complex transforms of the dimensions before the last `done`, three at a time."""
    end = x.ndim - done
    while lengths:
        part, lengths = lengths[-3:], lengths[:-3]
        order = [d for d in range(x.ndim) if not end - len(part) <= d < end] + list(range(end - len(part), end))
        out = lax.fft(lax.transpose(x, order), "FFT" if forward else "IFFT", tuple(part))
        x, end = lax.transpose(out, [order.index(d) for d in range(x.ndim)]), end - len(part)
    return x


def _scaled(x: Array, lengths: Sequence[Any], normalization: int, forward: bool) -> Array:
    """By 1, 1/√n or 1/n; the inverse transform has divided by n already."""
    power = -normalization / 2 if forward else 1 - normalization / 2
    if power == 0 or not x.size:
        return x
    return lax.mul(x, lax.full_like(x, math.prod(lengths) ** power))


# Random numbers.


@CALLS.implements("rand.default")
def rand(size: Sequence[Any], dtype: Any = None) -> Array:
    """Uniform in [0, 1), drawn by the device: `torch.manual_seed` has no part in it."""
    dtype = np.dtype(dtype or np.float32)
    return lax.rng_uniform(number(0, dtype), number(1, dtype), tuple(size))


@CALLS.implements("randn.default")
def randn(size: Sequence[Any], dtype: Any = None) -> Array:
    """Normal, drawn by the device."""
    dtype = np.dtype(dtype or np.float32)
    return _normal(number(0, dtype), number(1, dtype), tuple(size))


_normal_p = Primitive("stablehlo.rng_normal")


@functools.partial(jax.jit, static_argnums=2, inline=True)
def _normal(mean: Any, deviation: Any, shape: tuple[int, ...]) -> Array:
    return _normal_p.bind(mean, deviation, shape=shape)


def _normal_type(mean: Any, deviation: Any, shape: tuple[int, ...]) -> Any:
    return jax.core.ShapedArray(shape, mean.dtype)


def _emit_normal(ctx: Any, mean: Any, deviation: Any, shape: tuple[int, ...]) -> Any:
    sizes = mlir.ir_constant(np.array(shape, np.int64))
    distribution = stablehlo.RngDistributionAttr.get("NORMAL")
    return stablehlo.RngOp(mean, deviation, sizes, distribution).results


_normal_p.def_abstract_eval(_normal_type)
mlir.register_lowering(_normal_p, _emit_normal)


# Triangular systems.


@CALLS.implements("triangular_solve")
def triangular_solve(
    x: Array, A: Array, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Array, Array]:
    """The solution y of A y = x, and A."""
    batch = lax.broadcast_shapes(x.shape[:-2], A.shape[:-2])
    x, A = (jnp.broadcast_to(each, (*batch, *each.shape[-2:])) for each in (x, A))
    return _solve(A, x, upper, transpose, unitriangular), jnp.copy(A)


_solve_p = Primitive("stablehlo.triangular_solve")


@functools.partial(jax.jit, static_argnums=(2, 3, 4), inline=True)
def _solve(a: Array, b: Array, upper: bool, transpose: bool, unit: bool) -> Array:
    return _solve_p.bind(a, b, upper=upper, transpose=transpose, unit=unit)


def _solve_type(a: Any, b: Any, **how: bool) -> Any:
    return jax.core.ShapedArray(b.shape, b.dtype)


def _emit_solve(ctx: Any, a: Any, b: Any, upper: bool, transpose: bool, unit: bool) -> Any:
    side = stablehlo.TransposeAttr.get("TRANSPOSE" if transpose else "NO_TRANSPOSE")
    return stablehlo.TriangularSolveOp(a, b, True, not upper, unit, side).results


_solve_p.def_abstract_eval(_solve_type)
mlir.register_lowering(_solve_p, _emit_solve)
