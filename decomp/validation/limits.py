"""Operands at the limits of their dtype: the smallest and the largest integer, −1 and 0; subnormal floats and both
zeros. Where integer arithmetic overflows in the op itself, its result is undefined, and any is accepted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import itertools
from typing import Any

import torch
from torch import fx

from decomp.ir.call import bound_call, metadata
from decomp.ir.dtypes import is_integer
from decomp.torch_internals import pytree
from decomp.validation.operands import NoOperands, concrete_size, made_alike

_OVERFLOWS = (torch.int32, torch.int64)
"""The dtypes whose overflow is undefined: narrower integers are computed in `int` and truncated, unsigned ones wrap."""
# https://github.com/pytorch/pytorch/issues/121343
_WITHOUT_SMALLEST = ("gcd", "lcm")
"""Ops whose kernels end the process for the smallest integer (`lcm`, torch 2.13)."""
# A shift by the width of the dtype or more, or by a negative number, is undefined in C++.
_SHIFTS = (0, 1, 2, 3, 7)
"""Counts by which integers of each width can be shifted."""


def of_integers(node: fx.Node) -> bool:
    """Whether a call takes integers, no floats, and returns integers or bools. (The kernels of float functions are
    imprecise at large integers themselves.)"""
    given = pytree.tensors_in([metadata(each) for each in node.all_input_nodes])
    results = pytree.tensors_in([metadata(node)])
    inexact = any(leaf.is_floating_point() or leaf.is_complex() for leaf in (*given, *results))
    return any(map(is_integer, given)) and bool(results) and not inexact


def integer_limits(node: fx.Node, turn: int = 0) -> Iterator[list[Any]]:
    """The limits of integers in combinations that differ in each `turn`, but for the smallest with −1, whose quotient
    overflows and ends the process; then the same without 0 in other operands than the first. Raises `NoOperands`."""
    values = [metadata(given) for given in node.all_input_nodes]
    name, bound = str(node.target), bound_call(node)
    numbers = [each for each in bound.arguments.values() if type(each) is int] if bound is not None else []
    # The smallest integer divided by −1 raises SIGFPE on x86: https://github.com/pytorch/pytorch/issues/190042. A
    # number in the call, as in `x // -1`, meets all elements.
    smallest = -1 not in numbers and not any(each in name for each in _WITHOUT_SMALLEST)
    # Operands of different shapes are broadcast, so that any element of one may meet any of the other. Only for equal
    # shapes does the position tell which pairs occur.
    integers = [leaf for leaf in pytree.tensors_in(values) if is_integer(leaf)]
    aligned = len({tuple(map(concrete_size, leaf.shape)) for leaf in integers}) < 2
    # Integer division by zero raises in PyTorch. The second set is for
    # those ops, and is tried only if the kernel refuses the first.
    for zeros in (True, False):
        places = itertools.count()

        def make(like: torch.Tensor, zeros: bool = zeros, places: Iterator[int] = places) -> torch.Tensor:
            if not is_integer(like):
                return torch.arange(like.numel()).reshape(like.shape) % 2 == 0
            info, place = torch.iinfo(like.dtype), next(places)
            first = [info.min, info.max, -1, 0, 1, info.min + 1, info.max - 1, 7]
            first = [n for n in first if n >= info.min and (smallest or n > info.min)]
            if place == 0:
                return _combined(like, 0, first, turn)
            others = [1 if n == -1 and not aligned or n == 0 and not zeros else n for n in first]
            found = _combined(like, place, _SHIFTS if "shift" in name else others, turn)
            dividend = _combined(like, 0, first, turn)
            return torch.where((dividend == info.min) & (found == -1) | (found == 0) & (not zeros), 1, found)

        yield [made_alike(value, make) for value in values]


def float_limits(node: fx.Node) -> Iterator[list[Any]]:
    """Subnormal numbers, both zeros and the smallest normal numbers, in combinations with each other and with ±1.
    Raises `NoOperands` if the call takes others than real floats and bools."""
    values = [metadata(given) for given in node.all_input_nodes]
    leaves = pytree.tensors_in(values)
    if any(is_integer(leaf) or leaf.is_complex() for leaf in leaves) or not any(map(torch.is_floating_point, leaves)):
        raise NoOperands("no float operands")
    places = itertools.count()

    def make(like: torch.Tensor) -> torch.Tensor:
        if not like.is_floating_point():
            return torch.arange(like.numel()).reshape(like.shape) % 2 == 0
        info = torch.finfo(like.dtype)
        # A quarter of the smallest normal number is subnormal in
        # every dtype; its product with ε is the smallest subnormal.
        sizes = [info.tiny / 4, info.tiny * info.eps, 0.0, info.tiny, 1.0]
        return _combined(like, next(places), [sign * size for size in sizes for sign in (1.0, -1.0)], 0)

    yield [made_alike(value, make) for value in values]


def _combined(like: torch.Tensor, place: int, numbers: Sequence[int | float], turn: int) -> torch.Tensor:
    """These numbers in the shape of the operand at a place: one after the other in the first, and in the others so that
    each meets each after as many rounds as there are numbers."""
    count = torch.arange(like.numel())
    chosen = (count + turn * like.numel()) % len(numbers)
    if place > 0:
        rounds = torch.div(count + turn * like.numel(), len(numbers), rounding_mode="floor")
        # A random but fixed order: in the same order for all operands, equal numbers would meet in the first round.
        other = torch.randperm(len(numbers), generator=torch.Generator().manual_seed(place))[chosen]
        chosen = (other + place * rounds) % len(numbers)
    dtype = torch.float64 if like.is_floating_point() else like.dtype
    return torch.tensor(numbers, dtype=dtype)[chosen].reshape(like.shape)


def overflowing(
    call: Callable[[Sequence[Any]], list[torch.Tensor]], operands: Sequence[Any], own: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    """For each result of a call on integers, where it does not fit its dtype, by the same call in float64; None where
    that is not known, as for bitwise ops."""
    try:
        wide = call(pytree.tree_map(_as_double, list(operands)))
    except Exception:  # the op takes integers only
        return [None] * len(own)
    return [_overflows(*each) for each in zip(own, wide)] if len(wide) == len(own) else [None] * len(own)


def _as_double(leaf: Any) -> Any:
    return leaf.double() if isinstance(leaf, torch.Tensor) and is_integer(leaf) else leaf


def _overflows(own: torch.Tensor, wide: torch.Tensor) -> torch.Tensor | None:
    if own.dtype not in _OVERFLOWS or not wide.is_floating_point() or wide.shape != own.shape:
        return None
    # What wraps is off by a multiple of 2ⁿ, whatever float64 rounds.
    return ~((own.double() - wide).abs() < 2.0 ** (torch.iinfo(own.dtype).bits - 1))
