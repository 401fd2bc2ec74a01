"""Helpers for operands of rules: constants of the right dtype, wider dtypes, index ramps, reshapes.

Each function is plain PyTorch and is called in rules, so it neither mutates a tensor nor reads its data.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
import math
from numbers import Number
from typing import Any

import torch
from torch import Tensor

HALVES = (torch.bfloat16, torch.float16)
WIDE_INTEGERS = (torch.int32, torch.int64)
"""Integers whose overflow has no value in C++: narrower ones are computed in `int` and cut off, unsigned ones wrap."""


def is_scalar(value: Any) -> bool:
    """Whether `value` is a Python number (a SymInt counts) and no tensor."""
    return isinstance(value, (Number, torch.SymInt, torch.SymFloat, torch.SymBool))


def is_unknown(value: Any) -> bool:
    """Whether `value` is a number that is not known while the rule runs, such as an open size."""
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def plain(value: Any) -> bool:
    """Whether `value` is a real Python number, known while the rule runs."""
    return isinstance(value, (bool, int, float))


def constant(like: Tensor, value: Any, dtype: torch.dtype | None = None) -> Tensor:
    """A 0-d tensor of `value` on the device of `like`, of its dtype unless another is given."""
    return torch.full((), value, dtype=dtype or like.dtype, device=like.device)


def promoted(*operands: Any) -> torch.dtype:
    """The dtype that PyTorch promotes these to: tensors count before 0-d tensors, and those before numbers."""
    classes: list[list[torch.dtype]] = [[], [], []]
    for operand in operands:
        if is_scalar(operand):
            classes[2].append(_number_dtype(operand))
        else:
            classes[0 if operand.dim() else 1].append(operand.dtype)
    tops = [reduce(torch.promote_types, dtypes) for dtypes in classes if dtypes]
    return reduce(_joined, tops)


def _joined(strong: torch.dtype, weak: torch.dtype) -> torch.dtype:
    """`strong`, unless `weak` is of a kind beyond it."""
    return torch.promote_types(strong, weak) if _kind(weak) > _kind(strong) else strong


def _number_dtype(number: Any) -> torch.dtype:
    if isinstance(number, (bool, torch.SymBool)):
        return torch.bool
    if isinstance(number, (int, torch.SymInt)):
        return torch.int64
    return torch.get_default_dtype() if isinstance(number, (float, torch.SymFloat)) else torch.complex64


def _kind(dtype: torch.dtype) -> int:
    """Bool, integer, float, complex: 0, 1, 2, 3."""
    return 3 if dtype.is_complex else 2 if dtype.is_floating_point else int(dtype is not torch.bool)


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x` in `dtype`; `x` itself where it is so already."""
    return x if x.dtype == dtype else x.to(dtype)


def with_zero_gradient_to(result: Tensor, x: Tensor) -> Tensor:
    """`result`, made to depend on x with a gradient of zero, by adding x cut to length 0 and padded with −0."""
    if not (x.is_floating_point() or x.is_complex()) or not (result.is_floating_point() or result.is_complex()):
        return result
    line = x if x.dim() else x.view(1)
    zeros = torch.neg(torch.constant_pad_nd(line.narrow(0, 0, 0), [0, 0] * (line.dim() - 1) + [0, line.shape[0]]))
    return result + cast(zeros if x.dim() else zeros.view([]), result.dtype)


def wide(x: Tensor) -> Tensor:
    """`x` in float32 where it is of a half type: what PyTorch's CPU kernels compute in before they round once."""
    return x.to(torch.float32) if x.dtype in HALVES else x


def rounded(number: float, dtype: torch.dtype) -> float:
    """A Python number as a tensor of a floating `dtype` holds it: the nearest there, the even one of two."""
    if dtype == torch.float64 or not math.isfinite(number):
        return float(number)
    quantum = _quantum(number, dtype)
    nearest = round(float(number) / quantum) * quantum
    return math.copysign(nearest if abs(nearest) <= torch.finfo(dtype).max else math.inf, number)


def number_below(number: float, dtype: torch.dtype) -> float | None:
    """The next value of a floating `dtype` below `number` as it is held there; None if there is none that is normal."""
    number = rounded(number, dtype)
    limits = torch.finfo(dtype)
    if number == math.inf:
        return limits.max
    if not limits.smallest_normal < abs(number) <= limits.max:
        return None
    step = _quantum(number, dtype)
    narrower = number > 0 and math.frexp(number)[0] == 0.5  # below a power of two the values are closer to each other
    below = number - (step / 2 if narrower else step)
    return below if -limits.max <= below else -math.inf


def above_zero(dtype: torch.dtype) -> float:
    """The first number above 0 of a dtype, subnormals left out: what is less is not positive."""
    return torch.finfo(dtype).smallest_normal if dtype.is_floating_point else 1


def _quantum(number: float, dtype: torch.dtype) -> float:
    """The distance of the values of `dtype` at `number`."""
    limits = torch.finfo(dtype)
    return math.ldexp(limits.eps, max(math.frexp(number)[1] - 1, math.frexp(limits.smallest_normal)[1] - 1))


def wrap(dim: int, rank: int) -> int:
    """A dimension counted from the end, counted from the start; of a 0-d tensor, 0."""
    return dim % rank if rank else 0


def ramp(like: Tensor, length: Any, dim: int = 0, rank: int = 1, dtype: torch.dtype = torch.int64) -> Tensor:
    """0, 1, …, length − 1 along `dim` of a tensor with `rank` dimensions, all others of size one."""
    line = torch.arange(0, length, 1, dtype=dtype, device=like.device)
    return along(line, dim, rank)


def along(line: Tensor, dim: int, rank: int) -> Tensor:
    """A 1-d tensor laid along `dim` of `rank` dimensions, the others of size one."""
    if rank == 1:
        return line
    shape: list[Any] = [1] * rank
    shape[dim] = line.shape[0]
    return line.view(shape)


def same_size(first: Any, second: Any) -> bool:
    """Whether two sizes are known to be equal: of symbols, by their expressions, which adds no guard."""
    if type(first) is int and type(second) is int:
        return first == second
    return str(first) == str(second)


def view_or_copy(x: Tensor, shape: Sequence[Any]) -> Tensor:
    """`x` in `shape` (without −1), as a view where its strides allow one and as a view of a copy otherwise."""
    if not _view_exists(x, shape):
        x = x.clone(memory_format=torch.contiguous_format)
    return x.view(list(shape))


def _view_exists(x: Tensor, shape: Sequence[Any]) -> bool:
    """Whether `shape` only splits and merges dimensions of `x` that are contiguous with each other."""
    if x.is_contiguous():
        return True
    sizes, strides = list(x.shape), list(x.stride())
    if not all(type(size) is int for size in (*sizes, *strides, *shape)):
        return False  # a copy is always right, and comparing symbols would add a guard
    if 0 in sizes:
        return True
    blocks: list[int] = []  # sizes of the runs of dimensions that are contiguous with the next, outermost first
    inner = 0
    for size, stride in [pair for pair in zip(sizes, strides) if pair[0] != 1]:
        if blocks and inner == stride * size:
            blocks[-1] *= size
        else:
            blocks.append(size)
        inner = stride
    wanted = [size for size in shape if size != 1]
    for block in reversed(blocks):
        taken = 1
        while taken < block:
            taken *= wanted.pop()
        if taken != block:
            return False
    return True
