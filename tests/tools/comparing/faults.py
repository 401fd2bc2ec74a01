"""Small models, and faults of backends: each changes the function of one primitive. A fault takes the right function
first, then what the primitive takes."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

import decomp
from decomp_rules.backends import numpy_arrays, onnx_graph, onnx_models, onnx_ops, onnx_shapes

FAULTS = []


@dataclass(frozen=True)
class Fault:
    backend: str
    primitive: str
    model: Any
    function: Any

    def __str__(self):
        return f"{self.backend}-{self.function.__name__}"


def planted(backend, primitive, model):
    """Adds a fault of a primitive that a model shows."""

    def add(function):
        FAULTS.append(Fault(backend, primitive, model, function))
        return function

    return add


def made(fault):
    """A backend with one fault."""
    chip = {"numpy": numpy_arrays, "onnx": onnx_models}[fault.backend].make()
    right = next(each.function for each in chip if each.key == decomp.runtime.tables._key(fault.primitive))

    def wrong(*args, **kwargs):
        return fault.function(right, *args, **kwargs)

    chip.implements(fault.primitive)(wrong if fault.backend == "numpy" else onnx_models._emitting(chip, wrong))
    return chip


# Models: functions of tensors, and these.


def arithmetic(x, y):
    powers = torch.exp2(x * 3.0)
    roots = torch.sqrt(powers + 1.0)
    logs = torch.log2(torch.maximum(roots, y))
    waves = torch.sin(x * 4000.0)
    return torch.where(logs < 1.0, logs, roots.reciprocal()) + waves, torch.trunc(x * 5.0), x.fmod(y)


def exponents(x, y):
    return x.abs().pow(y), torch.exp2(x * 200.0)


def special(x):
    return torch.maximum(x, torch.full_like(x, 0.5)), torch.where(x != x, 1.0, x * 2.0)


def squares(x):
    """Of a square, where a wrong axis has the right shape."""
    a = x.permute(1, 2, 0).flip(1)
    b = torch.stack([x, x * 2.0, x * 3.0])[:, 0].reshape(9, 3)
    return a, b, x.sum(1), x.amax(0), x.amax(2, keepdim=True).expand(3, 3, 3) + 1.0, torch.prod(x, 1)


def edges(x):
    return F.pad(x, (1, 2)) * 2.0, x[:, 1:4] + 1.0, x[::2] + 1.0, x.sum(1), (x - 9.0).amax(1)


def integers(n):
    return (n << 2) ^ 5, (n >> 1) & 12, n | 64, n.sum(1), torch.div(n, -3, rounding_mode="trunc"), n.prod(1), n % -7


def conversions(x):
    return x.half(), (x * 9.0).int(), (x > 0).float() + x, x.double().sum(1), x.half().sum(1)


def zeros(x):
    """The sign of a zero becomes that of an infinity."""
    return (x * 0.0).reciprocal(), torch.trunc(x * 0.1).reciprocal()


def tiny(x):
    return x * 1e-20 * 1e-20 * 1e20 * 1e20


def twice(x, y):
    a, b = torch.sqrt(x.abs()), torch.sqrt(y.abs())
    return a.view(3, 4) * 2.0 + torch.exp2(b).view(3, 4) + b.view(3, 4), x * y


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.weight = torch.nn.Parameter(torch.randn(3, 4))
        self.inner = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.LayerNorm(8))

    def forward(self, x):
        return self.inner(self.weight + x).softmax(-1)


def network(x):
    return NETWORK(x)


NETWORK = Network().eval().requires_grad_(False)


def images(x, weight):
    y = F.conv2d(x, weight, stride=2, padding=1)
    return y, F.avg_pool2d(x, 2, padding=1), F.pad(x, (1, 1, 1, 1), "reflect"), F.max_pool2d(x, 2) * 2.0


def tables(x, index):
    rows = x.index_select(0, index)
    return rows, x.cumsum(0), x.tril(), torch.cat([x, rows], 1), x.topk(2)[0]


def formulas(x, y):
    return torch.erf(x), torch.round(x * 2.5), x - y, x / y, x @ y.mT, x.mean(0), torch.tanh(x) * torch.sign(y)


SEED = torch.Generator().manual_seed(0)


def draw(*shape):
    return torch.randn(shape, generator=SEED)


NAN = torch.tensor([[0.25, float("nan"), 2.0, -1.0]])
INPUTS = {
    arithmetic: (draw(4, 6), draw(4, 6).abs() + 0.5),
    exponents: (draw(3, 4), draw(3, 4) + 1.0),
    special: (NAN,),
    squares: (draw(3, 3, 3),),
    edges: (draw(5, 7),),
    integers: (torch.arange(1, 13).view(3, 4) * 700001003,),
    conversions: (draw(4, 37),),
    zeros: (torch.tensor([1.0, -1.0, -2.0, 3.0]),),
    tiny: (draw(8),),
    twice: (draw(12), draw(12)),
    network: (draw(3, 4),),
    images: (draw(1, 2, 6, 6), draw(3, 2, 3, 3)),
    tables: (draw(3, 5), torch.tensor([2, 0, 1])),
    formulas: (draw(4, 6), draw(4, 6)),
}

# Wrong for one dtype, shape, or kind of value.


@planted("numpy", "sum.dim_IntList", integers)
def sum_of_integers_in_32_bits(right, x, dim, **how):
    return right(x.astype(np.int32), dim, **how).astype(np.int32).astype(x.dtype)


@planted("numpy", "sum.dim_IntList", conversions)
def sum_of_doubles_in_single(right, x, dim, **how):
    return right(x.astype(np.float32), dim, **how).astype(x.dtype) if x.dtype == np.float64 else right(x, dim, **how)


@planted("numpy", "sum.dim_IntList", edges)
def sum_in_half_precision(right, x, dim, **how):
    return right(x.astype(np.float16), dim, **how).astype(x.dtype)


@planted("numpy", "sum.dim_IntList", edges)
def sum_without_the_tail_of_a_vector(right, x, dim, **how):
    return right(x[:, : x.shape[1] // 4 * 4], dim, **how)


@planted("numpy", "amax", edges)
def largest_of_nothing_is_zero(right, x, dim, **how):
    return np.maximum(right(x, dim, **how), 0)


@planted("numpy", "prod.dim_int", squares)
def product_that_forgets_the_last(right, x, dim, **how):
    return right(np.take(x, range(x.shape[dim] - 1), dim), dim, **how)


@planted("numpy", "prod.dim_int", integers)
def product_of_integers_in_floats(right, x, dim, **how):
    return right(x.astype(np.float32), dim, **how).astype(x.dtype)


@planted("numpy", "exp2", exponents)
def power_that_saturates(right, x):
    return np.minimum(right(x), np.finfo(x.dtype).max)


@planted("numpy", "sin", arithmetic)
def sine_without_argument_reduction(right, x):
    return np.where(np.abs(x) > 1000, right((x % np.float32(6.28)).astype(x.dtype)), right(x))


@planted("numpy", "maximum", special)
def maximum_that_drops_nan(right, x, y):
    return np.fmax(x, y)


@planted("numpy", "ne", special)
def nan_equal_to_itself(right, x, y):
    return right(x, y) & ~(np.isnan(x) & np.isnan(y))


@planted("numpy", "mul", zeros)
def product_without_the_sign_of_zero(right, x, y):
    return right(x, y) + np.float32(0)


@planted("numpy", "trunc", zeros)
def truncation_without_the_sign_of_zero(right, x):
    return right(x) + np.float32(0)


@planted("numpy", "mul", tiny)
def product_without_subnormals(right, x, y):
    found = right(x, y)
    return np.where(np.abs(found) < np.finfo(np.float32).tiny, np.float32(0), found)


# Less precise.


@planted("numpy", "sqrt", arithmetic)
def root_off_by_a_thousandth(right, x):
    return right(x) * np.float32(1.001)


@planted("numpy", "reciprocal", arithmetic)
def reciprocal_of_twelve_bits(right, x):
    return (right(x).view(np.int32) & np.int32(-4096)).view(np.float32)


@planted("numpy", "log2", arithmetic)
def logarithm_in_half_precision(right, x):
    return right(x.astype(np.float16)).astype(x.dtype)


@planted("numpy", "exp2", network)
def power_by_a_table(right, x):
    return right(np.round(x * 64) / np.float32(64))


@planted("numpy", "_to_copy", conversions)
def half_truncated_instead_of_rounded(right, x, dtype=None):
    found = right(x, dtype=dtype)
    if dtype != np.float16:
        return found
    return np.where(np.abs(found.astype(x.dtype)) > np.abs(x), np.nextafter(found, np.float16(0)), found)


@planted("numpy", "_to_copy", conversions)
def integer_rounded_instead_of_truncated(right, x, dtype=None):
    return right(np.round(x) if dtype == np.int32 else x, dtype=dtype)


@planted("numpy", "div.Tensor_mode", integers)
def quotient_rounded_down_instead_of_to_zero(right, x, y, rounding_mode):
    return np.floor_divide(x, y)


# Other operands.


@planted("numpy", "fmod", arithmetic)
def operands_of_fmod_swapped(right, x, y):
    return right(y, x)


@planted("numpy", "remainder", integers)
def remainder_with_the_sign_of_the_dividend(right, x, y):
    return np.fmod(x, y)


@planted("numpy", "pow.Tensor_Tensor", exponents)
def operands_of_pow_swapped(right, x, y):
    return right(np.abs(y), np.abs(x))


@planted("numpy", "lt", arithmetic)
def operands_of_lt_swapped(right, x, y):
    return right(y, x)


@planted("numpy", "where.self", arithmetic)
def branches_of_where_swapped(right, condition, x, y):
    return right(condition, y, x)


@planted("numpy", "bitwise_xor", integers)
def or_instead_of_xor(right, x, y):
    return x | y


@planted("numpy", "bitwise_left_shift", integers)
def shift_by_one_too_many(right, x, y):
    return right(x, y + 1)


@planted("numpy", "add", network)
def sum_with_a_neighbour(right, x, y, **how):
    return right(x, np.roll(y, 1, -1) if np.ndim(y) and y.size == 8 else y, **how)


# Other places.


@planted("numpy", "permute", squares)
def permutation_inverted(right, x, dims):
    return right(x, np.argsort(dims))


@planted("numpy", "flip", squares)
def another_axis_flipped(right, x, dims):
    return right(x, [dims[0] - 1])


@planted("numpy", "stack", squares)
def stacked_along_another_axis(right, tensors, dim=0):
    return right(tensors, 1)


@planted("numpy", "view.default", squares)
def view_in_the_order_of_columns(right, x, size):
    return np.reshape(x, size, order="F")


@planted("numpy", "sum.dim_IntList", squares)
def sum_over_another_axis(right, x, dim, **how):
    return right(x, [(each + 1) % 3 for each in dim], **how)


@planted("numpy", "amax", squares)
def largest_over_another_axis(right, x, dim, keepdim=False):
    return right(x, [2] if list(dim) == [0] else dim, keepdim=keepdim)


@planted("numpy", "expand", squares)
def broadcast_along_another_axis(right, x, size):
    return right(np.swapaxes(x, 1, 2) if x.ndim == 3 else x, size)


@planted("numpy", "constant_pad_nd", edges)
def padding_on_the_other_side(right, x, pad, value=0):
    return right(x, [pad[1], pad[0], *pad[2:]], value)


@planted("numpy", "slice.Tensor", edges)
def slice_one_too_late(right, x, dim=0, start=None, end=None, step=1):
    late = 1 if start == 1 and end == 4 else 0
    return right(x, dim, start if start is None else start + late, end if end is None else end + late, step)


# Memory.

BUFFERS: dict[Any, Any] = {}


@planted("numpy", "exp2", twice)
def operand_overwritten(right, x):
    return np.exp2(x, out=x)


@planted("numpy", "sqrt", twice)
def one_buffer_for_two_results(right, x):
    return np.sqrt(x, out=BUFFERS.setdefault(x.shape, np.empty_like(x)))


@planted("numpy", "add", network)
def parameter_overwritten(right, x, y, **how):
    if x.shape == (3, 4):
        x += y
        return x
    return right(x, y, **how)


@planted("numpy", "mul", twice)
def input_overwritten_later(right, x, y):
    found = right(x, y)
    if x.shape == np.shape(y):
        x[0] = 0.0
    return found


@planted("numpy", "constant_pad_nd", edges)
def margin_not_initialised(right, x, pad, value=0):
    return right(x, pad, 7.5e30)


@planted("numpy", "sqrt", twice)
def result_of_the_call_before(right, x):
    before = BUFFERS.get("before", np.zeros_like(x))
    BUFFERS["before"] = right(x)
    return before if before.shape == x.shape else right(x)


@planted("numpy", "sum.dim_IntList", edges)
def another_shape(right, x, dim, keepdim=False, **how):
    return right(x, dim, keepdim=not keepdim, **how)


@planted("numpy", "log2", arithmetic)
def an_error_raised(right, x):
    raise MemoryError("no kernel for this shape")


# In models of ONNX Runtime.


@planted("onnx", "sub", formulas)
def operands_of_sub_swapped(right, x, y):
    return right(y, x)


@planted("onnx", "div.Tensor", formulas)
def operands_of_div_swapped(right, x, y):
    return right(y, x)


@planted("onnx", "erf", formulas)
def hyperbolic_tangent_instead_of_erf(right, x):
    return onnx_ops.OPS["tanh"](x)


@planted("onnx", "round.default", formulas)
def halves_rounded_down(right, x):
    return onnx_ops.OPS["floor"](x)


@planted("onnx", "mean.dim", formulas)
def sum_instead_of_mean(right, x, dim, keepdim=False, **how):
    return onnx_ops.OPS["sum.dim_IntList"](x, dim, keepdim)


@planted("onnx", "convolution", images)
def convolution_padded_before_alone(right, x, weight, bias, stride, padding, *rest):
    return right(onnx_shapes.OPS["constant_pad_nd"](x, [2, 0, 2, 0]), weight, bias, stride, [0, 0], *rest)


@planted("onnx", "reflection_pad2d", images)
def replication_instead_of_reflection(right, x, padding):
    return onnx_shapes.OPS["replication_pad2d"](x, padding)


@planted("onnx", "max_pool2d", images)
def mean_instead_of_maximum(right, x, kernel_size, *rest, **how):
    return onnx_ops.OPS["avg_pool2d"](x, kernel_size, *rest)


@planted("onnx", "index_select", tables)
def rows_reversed(right, x, dim, index):
    return right(x, dim, onnx_ops.OPS["sub"](onnx_shapes.constant(torch.tensor(2)), index))


@planted("onnx", "cumsum", tables)
def running_sum_along_another_axis(right, x, dim, **how):
    return right(x, 1, **how)


@planted("onnx", "tril", tables)
def diagonal_one_too_low(right, x, diagonal=0):
    return right(x, -1)


@planted("onnx", "cat", tables)
def parts_in_another_order(right, tensors, dim=0):
    return right(tensors[::-1], dim)


@planted("onnx", "topk", tables)
def the_smallest_instead_of_the_largest(right, x, k, *rest, **how):
    return right(x, k, -1, False)


@planted("onnx", "mul", formulas)
def product_in_half_precision(right, x, y):
    return right(onnx_graph.cast(onnx_graph.cast(x, torch.float16), torch.float32), y)
