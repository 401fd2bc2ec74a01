"""Where the runtimes of the backends deviate from PyTorch by design. Any other difference is a fault, which bring-up
reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from decomp import Backend

Table = Iterable[tuple[str, Mapping[str, Any]]]
"""Ops, separated by blanks, and the statements for `Backend.deviates` about them."""


def state(backend: Backend, table: Table) -> None:
    """Make the statements of a table."""
    for ops, statement in table:
        backend.deviates(*ops.split(), **statement)


def not_finite(own: torch.Tensor, *operands: torch.Tensor) -> bool:
    """Whether an operand has NaN or infinities."""
    return any(t.is_floating_point() and not bool(t.isfinite().all()) for t in operands)


def has_nan(own: torch.Tensor, *operands: torch.Tensor) -> bool:
    """Whether an operand has NaN."""
    return any(bool(t.isnan().any()) for t in operands)


def _is_empty(own: torch.Tensor, *operands: torch.Tensor) -> bool:
    return any(t.numel() == 0 for t in operands)


def _in_float64(own: torch.Tensor, *operands: torch.Tensor) -> bool:
    return own.dtype == torch.float64


# ONNX Runtime


def _beyond_float64(combine: Any) -> Any:
    """Whether the absolute values of integers come together to more than float64 tells apart."""

    def where(own: torch.Tensor, x: torch.Tensor) -> bool:
        return not x.is_floating_point() and float(combine(x.double().abs())) > 2**53

    return where


def _tiny(own: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return x.abs() < 1e-35


def _zero_times_no_number(own: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (x == 0) & ~weight.isfinite()


def _far_away(own: torch.Tensor, x: torch.Tensor, grid: torch.Tensor) -> bool:
    return not_finite(own, x, grid) or bool((grid.abs() > 1e8).any())


def _quotient_overflows(own: torch.Tensor, x: torch.Tensor, *other: torch.Tensor) -> torch.Tensor:
    return own.isnan() & ~x.isnan()


def _squares_overflow(own: torch.Tensor, x: torch.Tensor, *others: torch.Tensor) -> bool:
    return bool((x.abs() > 1e18).any())


def _scores_overflow(own: torch.Tensor, query: torch.Tensor, key: torch.Tensor, *others: torch.Tensor) -> bool:
    if query.numel() == 0 or key.numel() == 0:
        return False
    most = query.abs().max().double() * key.abs().max().double() * query.shape[-1]
    return bool(most > torch.finfo(query.dtype).max)


ONNX: Table = (
    (
        "amax amin argmax argmin max_pool1d max_pool2d max_pool3d scatter_reduce.two",
        {"where": has_nan, "reason": "ONNX leaves open what comes of NaN, and ONNX Runtime passes over it"},
    ),
    (
        "grid_sampler_2d grid_sampler_3d",
        {
            "where": _far_away,
            "reason": "ONNX leaves open what is sampled beside infinities and NaN; ONNX Runtime counts positions in "
            "32 bits",
        },
    ),
    ("linalg_det", {"where": not_finite, "reason": "determinants with infinities depend on the order of pivots"}),
    ("mean.dim", {"where": _is_empty, "reason": "ONNX leaves the mean of nothing open, and ONNX Runtime gives 0"}),
    (
        "sum.dim_IntList",
        {
            "where": _beyond_float64(torch.sum),
            "reason": "ONNX Runtime adds integers in float64, which has 53 bits",
        },
    ),
    (
        "prod.dim_int",
        {
            "where": _beyond_float64(lambda x: x.clamp(min=1).prod()),
            "reason": "ONNX Runtime multiplies integers in float64, which has 53 bits",
        },
    ),
    (
        "instance_norm group_norm",
        {"where": _squares_overflow, "reason": "ONNX Runtime adds squares in float32, which overflow above 1e18"},
    ),
    ("sin cos", {"where": _in_float64, "epsilons": 3, "reason": "ONNX Runtime's sin and cos of float64 miss zeros"}),
    (
        "fmod",
        {
            "where": _quotient_overflows,
            "reason": "ONNX Runtime's remainder is exact where PyTorch's in float64 is NaN, as the quotient overflows",
        },
    ),
    (
        "sigmoid",
        {"epsilons": 2, "reason": "ONNX Runtime's sigmoid is a rational function, right to so many digits of 1"},
    ),
    (
        "hardsigmoid hardswish",
        {
            "epsilons": 3,
            "reason": "ONNX's HardSigmoid is x/6 + 1/2 of rounded numbers, right to so many digits of 1",
        },
    ),
    (
        "_prelu_kernel",
        {"where": _zero_times_no_number, "reason": "ONNX Runtime's PRelu is 0 at 0 where a weight is infinite or NaN"},
    ),
    (
        "scaled_dot_product_attention",
        {
            "where": _scores_overflow,
            "reason": "a row of scores that are all −∞, as products overflowed, is NaN; rows that a mask hides are 0",
        },
    ),
    ("tanh", {"where": _tiny, "ulp": 128, "reason": "ONNX Runtime's tanh meets subnormal numbers below 1e-35"}),
    ("tanh", {"ulp": 8, "reason": "ONNX Runtime's tanh is a rational function, up to 7 ULP off"}),
)

# XLA on the CPU


def _no_normal_numbers(own: torch.Tensor, *operands: torch.Tensor) -> bool:
    small = (bool(((t != 0) & (t.abs() < torch.finfo(t.dtype).tiny)).any()) for t in operands)
    return not_finite(own, *operands) or any(small)


def _any_part(is_it: Any) -> Any:
    """The results of which an operand, or a part of a complex one, is so."""

    def where(own: torch.Tensor, *operands: torch.Tensor) -> Any:
        found = torch.zeros(own.shape, dtype=torch.bool)
        for t in operands:
            if t.is_complex():
                parts = torch.view_as_real(t.resolve_conj())
                found = found | is_it(parts).any(-1).expand(own.shape)
        return found

    return where


def _on_the_cut(own: torch.Tensor, x: torch.Tensor, *exponent: torch.Tensor) -> Any:
    return (x.imag == 0) & x.imag.signbit() if x.is_complex() else False


def _of_complex(own: torch.Tensor, *operands: torch.Tensor) -> bool:
    return own.is_complex()


def _own_is_lost(own: torch.Tensor, x: torch.Tensor) -> Any:
    """Whether PyTorch's result of a complex number is NaN where it has a value."""
    return own.isnan() & ~x.isnan() if own.is_complex() else False


def _power_overflows(own: torch.Tensor, base: torch.Tensor, *exponent: torch.Tensor) -> Any:
    """Whether a complex power overflows, or its computation by the logarithm does."""
    if not own.is_complex():
        return False
    size = base.to(torch.complex128).log().abs() * (exponent[0].abs().double() if exponent else 1.0)
    most = 0.1 * torch.finfo(own.dtype).max
    large = (own.to(torch.complex128).abs() > most) | (base.to(torch.complex128).abs() > most)
    return large | (size > 60) | ~torch.isfinite(size)


def _has_subnormal(own: torch.Tensor, *operands: torch.Tensor) -> bool:
    return any(bool(((t != 0) & (t.abs() < torch.finfo(t.dtype).tiny)).any()) for t in operands if not t.is_complex())


def _inverse_is_lost(own: torch.Tensor, *operands: torch.Tensor) -> bool:
    """Whether the inverse of an operand is subnormal."""
    return any(bool((t.abs() > 1 / torch.finfo(t.dtype).tiny).any()) for t in operands)


STABLEHLO: Table = (
    ("exp expm1 tanh", {"ulp": 6, "reason": "XLA's exp, expm1 and tanh are up to 6 ULP off"}),
    ("log1p", {"where": _in_float64, "ulp": 256, "reason": "XLA's log1p of float64 is up to 256 ULP off"}),
    (
        "fmod",
        {
            "where": _quotient_overflows,
            "reason": "XLA's remainder is exact where PyTorch's in float64 is NaN, as the quotient overflows",
        },
    ),
    (
        "abs div.Tensor div.Scalar exp expm1 log log1p mul pow rsqrt sigmoid sqrt tan tanh",
        {
            "where": _any_part(lambda t: ~t.isfinite()),
            "reason": "XLA leaves open what comes of complex infinities and NaN",
        },
    ),
    (
        "expm1 tan tanh",
        {"where": _of_complex, "ulp": 1024, "reason": "XLA's complex tan, tanh and expm1 are up to 1,024 ULP off"},
    ),
    (
        "log1p",
        {"where": _any_part(lambda t: (t != 0) & (t.abs() < 1e-18)), "reason": "XLA's complex log1p squares its parts"},
    ),
    ("sigmoid", {"where": _own_is_lost, "reason": "XLA's logistic has a value where PyTorch's own is NaN"}),
    ("pow", {"where": _power_overflows, "reason": "XLA's complex power is exp(b·log a), which may overflow"}),
    ("pow sqrt", {"where": _on_the_cut, "reason": "XLA's complex roots do not heed the sign of zero"}),
    ("sort", {"where": _has_subnormal, "reason": "XLA compares subnormal numbers as 0"}),
    (
        "triangular_solve",
        {"where": _inverse_is_lost, "reason": "XLA multiplies by inverses of blocks, which may be subnormal"},
    ),
    (
        "triangular_solve",
        {
            "where": _no_normal_numbers,
            "reason": "XLA multiplies by inverses of blocks, which spread infinities, NaN and what is flushed to 0",
        },
    ),
)

# tinygrad


def _signed_base(own: torch.Tensor, base: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    """Bases whose sign counts, where it is lost."""
    return base.signbit() & ((base == 0) | (exponent.abs() >= 2**31))


def _near_overflow(own: torch.Tensor, *operands: torch.Tensor) -> torch.Tensor:
    return own.abs() > 0.5 * torch.finfo(own.dtype).max


TINYGRAD: Table = (
    ("sin", {"epsilons": 8, "reason": "tinygrad's SIN is up to 1e-6 off, whatever its result is"}),
    ("sin", {"where": _in_float64, "epsilons": 2**35, "reason": "tinygrad's SIN of float64 is up to 1e-5 off"}),
    (
        "sin",
        {
            "where": lambda own, x: (x.abs() > 2**13) & _in_float64(own, x),
            "reason": "tinygrad's SIN of float64 loses |x|/2³¹ beyond 2¹³",
        },
    ),
    (
        "pow.Tensor_Tensor",
        {
            "where": _signed_base,
            "reason": "tinygrad's POW is 2^(y·log2 |x|) with a sign: -0 loses it, and exponents from 2³¹ on are no "
            "integers to it",
        },
    ),
    (
        "pow.Tensor_Tensor",
        {"where": _in_float64, "ulp": 4096, "reason": "tinygrad's POW of float64 is up to 4,096 ULP off"},
    ),
    ("pow.Tensor_Tensor", {"ulp": 256, "reason": "tinygrad's POW is 2^(y·log2 x), up to 256 ULP off"}),
    ("pow.Tensor_Tensor", {"where": _near_overflow, "reason": "tinygrad's POW is inf just below the largest numbers"}),
)
