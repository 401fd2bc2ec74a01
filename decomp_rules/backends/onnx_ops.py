"""Emits the ops of the ONNX target for arithmetic, products, reductions, windows and norms: one operator each, plus
casts to the dtype that PyTorch computes in, constants, and the few others stated in a function's docstring."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from decomp_rules.backends.onnx_graph import (
    Size,
    Table,
    Value,
    cast,
    compute,
    constant,
    entering,
    kernel_dtype,
    node,
    result,
    rounded,
)

OPS: Table = {}
emits = entering(OPS)

# Element by element.

_UNARY = {
    "abs": "Abs",
    "acos": "Acos",
    "acosh": "Acosh",
    "asin": "Asin",
    "asinh": "Asinh",
    "atan": "Atan",
    "atanh": "Atanh",
    "cos": "Cos",
    "cosh": "Cosh",
    "sin": "Sin",
    "sinh": "Sinh",
    "tan": "Tan",
    "tanh": "Tanh",
    "neg": "Neg",
    "sign": "Sign",
    "reciprocal": "Reciprocal",
    "sqrt": "Sqrt",
    "exp": "Exp",
    "log": "Log",
    "erf": "Erf",
    "sigmoid": "Sigmoid",
    "ceil": "Ceil",
    "floor": "Floor",
    "round.default": "Round",
    "bitwise_not": "BitwiseNot",
    "logical_not": "Not",
}
_BINARY = {
    "add": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "div.Tensor": "Div",
    "div.Scalar": "Div",
    "pow.Tensor_Tensor": "Pow",
    "pow.Scalar": "Pow",
    "maximum": "Max",
    "minimum": "Min",
    "bitwise_and": "BitwiseAnd",
    "bitwise_or": "BitwiseOr",
    "bitwise_xor": "BitwiseXor",
    "logical_and": "And",
    "logical_or": "Or",
    "logical_xor": "Xor",
}
_OF_BOOLS = {
    "Add": "Or",
    "Mul": "And",
    "Max": "Or",
    "Min": "And",
    "BitwiseAnd": "And",
    "BitwiseOr": "Or",
    "BitwiseXor": "Xor",
    "BitwiseNot": "Not",
}
"""The bool counterparts of operators that ONNX only has for numbers."""
_COMPARISONS = {"eq": "Equal", "lt": "Less", "gt": "Greater"}


def _unary(op_type: str) -> Callable[..., Value]:
    return lambda self: _elementwise(op_type, self)


def _binary(op_type: str) -> Callable[..., Value]:
    return lambda self, other: _elementwise(op_type, self, other)


def _elementwise(op_type: str, *operands: Any) -> Value:
    at = result().dtype
    return compute(_OF_BOOLS.get(op_type, op_type) if at == torch.bool else op_type, *operands, at=at)


def _comparison(op_type: str) -> Callable[..., Value]:
    def compared(self: Any, other: Any) -> Value:
        return _to_bool(op_type, self, other, at=_promoted(self, other))

    return compared


OPS.update({name: _unary(op_type) for name, op_type in _UNARY.items()})
OPS.update({name: _binary(op_type) for name, op_type in _BINARY.items()})
OPS.update({name: _comparison(op_type) for name, op_type in _COMPARISONS.items()})


def _to_bool(op_type: str, *operands: Any, at: torch.dtype) -> Value:
    wide = kernel_dtype(op_type, at)
    found: Value = node(op_type, *(cast(each, wide) for each in operands), dtype=torch.bool)
    return found


def _promoted(*operands: Any) -> torch.dtype:
    """The dtype that PyTorch computes in."""
    stand = [1 if isinstance(each, Size) else _stand_in(each) for each in operands]
    return torch.result_type(*stand)


def _stand_in(value: Any) -> Any:
    return torch.empty([1] * value.rank, dtype=value.dtype, device="meta") if isinstance(value, Value) else value


@emits("isnan")
def isnan(self: Value) -> Value:
    return _to_bool("IsNaN", self, at=self.dtype)


@emits("isinf")
def isinf(self: Value) -> Value:
    return _to_bool("IsInf", self, at=self.dtype)


@emits("pow.Tensor_Scalar")
def power(self: Value, exponent: Any) -> Value:
    """A power of 0.5 is Sqrt, and one of -0.5 its Reciprocal, as in PyTorch, which differ at -inf and -0."""
    at = result().dtype
    if exponent not in (0.5, -0.5):
        return compute("Pow", self, exponent, at=at)
    root = compute("Sqrt", self, at=at)
    return root if exponent > 0 else compute("Reciprocal", root, at=at)


@emits("fmod")
def fmod(self: Any, other: Any) -> Value:
    return compute("Mod", self, rounded(other, result().dtype), at=result().dtype, fmod=1)


@emits("remainder")
def remainder(self: Any, other: Any) -> Value:
    return compute("Mod", self, other, at=result().dtype)


@emits("bitwise_left_shift")
def left_shift(self: Any, other: Any) -> Value:
    return compute("BitShift", self, other, at=result().dtype, direction="LEFT")


@emits("bitwise_right_shift")
def right_shift(self: Any, other: Any) -> Value:
    return compute("BitShift", self, other, at=result().dtype, direction="RIGHT")


@emits("where.self")
def where(condition: Value, self: Value, other: Value) -> Value:
    wide = kernel_dtype("Where", result().dtype)
    found = node("Where", condition, cast(self, wide), cast(other, wide), dtype=wide)
    return cast(found, result().dtype)


@emits("_to_copy")
def to_copy(self: Value, dtype: torch.dtype | None = None) -> Value:
    return self if dtype is None else cast(self, dtype)


@emits("clone", "detach")
def identity(self: Value) -> Value:
    return self


# Products.


@emits("matmul", "mm", "bmm")
def matmul(self: Value, other: Value) -> Value:
    return compute("MatMul", self, other, at=result().dtype)


@emits("addmm")
def addmm(self: Value, mat1: Value, mat2: Value, beta: Any = 1, alpha: Any = 1) -> Value:
    added = (self,) if beta != 0 else ()
    return compute("Gemm", mat1, mat2, *added, at=result().dtype, alpha=float(alpha), beta=float(beta))


@emits("linalg_det")
def det(self: Value) -> Value:
    return compute("Det", self, at=result().dtype)


@emits("convolution")
def convolution(
    input: Value,
    weight: Value,
    bias: Value | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Value:
    space = weight.rank - 2
    how = {"strides": _each(stride, space), "dilations": _each(dilation, space), "pads": 2 * _each(padding, space)}
    if transposed:
        how["output_padding"] = _each(output_padding, space)
    kind = "ConvTranspose" if transposed else "Conv"
    return compute(kind, input, weight, bias, at=result().dtype, group=groups, **how)


def _each(value: Any, length: int) -> list[int]:
    """One number a dimension."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return values if len(values) == length else values * length


# Reductions.


@emits("sum.dim_IntList")
def sum_(self: Value, dim: Any, keepdim: bool = False, dtype: Any = None) -> Value:
    return _reduced("ReduceSum", self, dim, keepdim)


@emits("prod.dim_int")
def prod(self: Value, dim: int, keepdim: bool = False, dtype: Any = None) -> Value:
    return _reduced("ReduceProd", self, dim, keepdim)


@emits("mean.dim")
def mean(self: Value, dim: Any, keepdim: bool = False, dtype: Any = None) -> Value:
    return _reduced("ReduceMean", self, dim, keepdim)


@emits("amax")
def amax(self: Value, dim: Any = (), keepdim: bool = False) -> Value:
    return _reduced("ReduceMax", self, dim, keepdim)


@emits("amin")
def amin(self: Value, dim: Any = (), keepdim: bool = False) -> Value:
    return _reduced("ReduceMin", self, dim, keepdim)


def _reduced(op_type: str, self: Value, dim: Any, keepdim: bool) -> Value:
    dims = [dim] if isinstance(dim, int) else list(dim or ())
    axes = [dims] if dims and self.rank else []
    return compute(op_type, self, at=result().dtype, extra=axes, keepdims=int(keepdim))


@emits("argmax")
def argmax(self: Value, dim: int, keepdim: bool = False) -> Value:
    return _place("ArgMax", self, dim, keepdim)


@emits("argmin")
def argmin(self: Value, dim: int, keepdim: bool = False) -> Value:
    return _place("ArgMin", self, dim, keepdim)


def _place(op_type: str, self: Value, dim: int, keepdim: bool) -> Value:
    if not self.rank:
        return constant(torch.tensor(0))
    operand = cast(self, kernel_dtype(op_type, self.dtype))
    found: Value = node(op_type, operand, dtype=torch.int64, axis=dim, keepdims=int(keepdim))
    return found


@emits("cumsum")
def cumsum(self: Value, dim: int, dtype: Any = None) -> Value:
    if not self.rank:
        return cast(self, result().dtype)
    return compute("CumSum", self, at=result().dtype, extra=[constant(torch.tensor(dim))])


# Windows.


@emits("max_pool1d", "max_pool2d", "max_pool3d")
def max_pool(
    self: Value, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Value:
    how = _window(self, kernel_size, stride, padding, ceil_mode)
    return compute("MaxPool", self, at=self.dtype, dilations=_each(dilation, self.rank - 2), **how)


@emits("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(
    self: Value,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Value:
    how = _window(self, kernel_size, stride, padding, ceil_mode)
    return compute("AveragePool", self, at=self.dtype, count_include_pad=int(count_include_pad), **how)


def _window(self: Value, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool) -> Mapping[str, Any]:
    space = self.rank - 2
    kernel = _each(kernel_size, space)
    strides = _each(stride, space) if stride not in ((), []) else kernel
    pads = 2 * _each(padding, space)
    return {"kernel_shape": kernel, "strides": strides, "pads": pads, "ceil_mode": int(ceil_mode)}


@emits("adaptive_avg_pool1d", "adaptive_avg_pool2d")
def global_avg_pool(self: Value, output_size: Any) -> Value:
    return compute("GlobalAveragePool", self, at=self.dtype)


@emits("grid_sampler_2d", "grid_sampler_3d")
def grid_sample(input: Value, grid: Value, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Value:
    how = {
        "mode": ("linear", "nearest", "cubic")[interpolation_mode],
        "padding_mode": ("zeros", "border", "reflection")[padding_mode],
    }
    return compute("GridSample", input, grid, at=input.dtype, align_corners=int(align_corners), **how)


@emits("col2im")
def col2im(self: Value, output_size: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Value:
    how = {"dilations": _each(dilation, 2), "pads": 2 * _each(padding, 2), "strides": _each(stride, 2)}
    return compute("Col2Im", self, at=self.dtype, extra=[list(output_size), list(kernel_size)], **how)


# Normalization.


@emits("_native_batch_norm_legit_no_training")
def batch_norm(
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: float,
    eps: float,
) -> Sequence[Value]:
    """The statistics of the batch, which are empty, are constants."""
    scale, shift = (_of_channels(value, input, fill) for value, fill in ((weight, 1.0), (bias, 0.0)))
    found = compute("BatchNormalization", input, scale, shift, running_mean, running_var, at=input.dtype, epsilon=eps)
    empty = constant(torch.empty(0, dtype=input.dtype))
    return found, empty, empty


@emits("instance_norm")
def instance_norm(
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: None,
    running_var: None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
) -> Value:
    scale, shift = (_of_channels(value, input, fill) for value, fill in ((weight, 1.0), (bias, 0.0)))
    return compute("InstanceNormalization", input, scale, shift, at=input.dtype, epsilon=eps)


def _of_channels(value: Value | None, input: Value, fill: float) -> Value:
    """A weight, or a constant for each channel if it is None."""
    return value if value is not None else constant(torch.full((input.meta.shape[1],), fill, dtype=input.dtype))
