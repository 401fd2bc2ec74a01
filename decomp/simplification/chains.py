"""Laws that contract two calls of the same kind to one."""

from __future__ import annotations

from typing import Any

import torch

from decomp.metadata.strides import is_surely_contiguous
from decomp.ops import aten
from decomp.simplification.laws import PERMUTATIONS, Law, dim_of, is_bool, is_number, law, order_of, same_sizes
from decomp.simplification.terms import Term, TermCall

RESHAPING = (
    aten.view.default,
    aten._unsafe_view.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.unflatten.int,
    aten.view_as.default,
)
"""Views of all elements in the same order."""
RESHAPING_WHERE_POSSIBLE = (aten.reshape.default, aten.flatten.using_ints, aten.reshape_as.default)
"""Views of all elements in the same order where strides allow it, copies otherwise."""


@law("chains", *RESHAPING, *RESHAPING_WHERE_POSSIBLE)
def view_of_a_view(call: TermCall) -> TermCall | None:
    inner = call.operand(0, *RESHAPING, *RESHAPING_WHERE_POSSIBLE)
    # That case is another law's, which gives the operand itself.
    if inner is None or not isinstance(call.value, torch.Tensor) or same_sizes(inner.value, call.value):
        return None
    given, outer = inner.args[0], call.target
    copies = outer in RESHAPING_WHERE_POSSIBLE or inner.target in RESHAPING_WHERE_POSSIBLE
    # A copy in between may have made the outer view possible, so that `view` on the original strides would fail.
    reshapes = outer is aten.reshape.default or copies and not is_surely_contiguous(given.value)
    target = aten.reshape.default if reshapes else aten.view.default
    shape = list(call.value.shape)
    # Symbolic sizes are values of the graph: those of the outer call are used, if it is spelled by sizes.
    if all(type(size) is int for size in shape):
        return call.made(target, given, shape)
    return call.made(target, given, call.args[1]) if outer in (aten.view.default, aten.reshape.default) else None


@law("chains", *PERMUTATIONS)
def permutation_of_a_permutation(call: TermCall) -> TermCall | None:
    inner, order = call.operand(0, *PERMUTATIONS), order_of(call)
    first = order_of(inner) if inner is not None else None
    # Left to the law of no-ops, as above.
    if inner is None or order is None or first is None or order == sorted(order):
        return None
    return call.made(aten.permute.default, inner.args[0], [first[dim] for dim in order])


@law("chains", *PERMUTATIONS)
def permutation_there_and_back(call: TermCall) -> Term | None:
    inner, order = call.operand(0, *PERMUTATIONS), order_of(call)
    first = order_of(inner) if inner is not None else None
    back = inner is not None and order is not None and first is not None and [first[dim] for dim in order]
    return inner.args[0] if inner is not None and back and back == sorted(back) else None


@law("chains", aten.expand.default)
def expansion_of_an_expansion(call: TermCall) -> TermCall | None:
    inner = call.operand(0, aten.expand.default)
    shape = list(call.value.shape)
    if inner is None or not all(type(size) is int for size in shape) or same_sizes(inner.value, call.value):
        return None
    return call.made(aten.expand.default, inner.args[0], shape)


_CASTS = (aten._to_copy.default, aten.to.dtype)


@law("chains", *_CASTS, copies=True)
def cast_there_and_back(call: TermCall) -> Term | None:
    given = _before_a_wider_cast(call)
    return given if given is not None and given.value.dtype is _cast_to(call) else None


@law("chains", *_CASTS, gradients=False)
def cast_of_a_wider_cast(call: TermCall) -> TermCall | None:
    # Gradients are rounded in the backward pass, twice if there are two casts.
    given = _before_a_wider_cast(call)
    if given is None:
        return None
    own, final = given.value.dtype, call.value.dtype
    # Conversion of a float outside of the integer's range depends on the float's dtype.
    lossy = own.is_floating_point and not (final.is_floating_point or final is torch.bool)
    if lossy or final is own:
        return None
    if call.target is aten.to.dtype:
        return call.made(aten.to.dtype, given, final)
    return call.made(aten._to_copy.default, given, dtype=final)


def _before_a_wider_cast(call: TermCall) -> Term | None:
    inner = call.operand(0, *_CASTS)
    middle, final = _cast_to(inner) if inner is not None else None, _cast_to(call)
    if inner is None or middle is None or final is None:
        return None
    if middle is final and (call.target is not inner.target or call.target is aten.to.dtype):
        return None  # a cast to the same dtype
    given: Term = inner.args[0]
    known = isinstance(given.value, torch.Tensor) and holds(middle, given.value.dtype)
    return given if known else None


def _cast_to(call: TermCall | Term) -> torch.dtype | None:
    """The dtype to which a call casts, if it does nothing else."""
    if call.target is aten.to.dtype:
        number = call.args[1] if len(call.args) == 2 and not call.kwargs else None
    else:
        number = call.kwargs["dtype"] if set(call.kwargs) == {"dtype"} else None
    return number if isinstance(number, torch.dtype) else None


def holds(wide: torch.dtype, narrow: torch.dtype) -> bool:
    """Whether one dtype can represent every number of another."""
    if wide is narrow or narrow is torch.bool:
        return True
    if wide.is_complex or narrow.is_complex or wide is torch.bool:
        return False
    if narrow.is_floating_point:
        return wide.is_floating_point and narrow in _NARROWER.get(wide, ())
    low, high = torch.iinfo(narrow).min, torch.iinfo(narrow).max
    if not wide.is_floating_point:
        return bool(torch.iinfo(wide).min <= low and high <= torch.iinfo(wide).max)
    # The smallest integer of a signed dtype is a power of two, so both limits matter.
    return bool(max(high, -low) <= _WHOLE_NUMBERS.get(wide, 0))


_NARROWER = {
    torch.float64: (torch.float32, torch.float16, torch.bfloat16),
    torch.float32: (torch.float16, torch.bfloat16),
}
# 2^p for a significand of p bits (IEEE 754-2019, table 3.5; bfloat16 has 8).
_WHOLE_NUMBERS = {torch.float64: 2**53, torch.float32: 2**24, torch.float16: 2**11, torch.bfloat16: 2**8}
"""The number up to which a dtype represents all integers."""


@law("chains", aten.slice.Tensor)
def slice_of_a_slice(call: TermCall) -> TermCall | None:
    inner = call.operand(0, aten.slice.Tensor)
    dim = dim_of(call)
    if inner is None or dim is None or dim_of(inner) != dim or not isinstance(call.value, torch.Tensor):
        return None
    outer, first = _range(call, dim), _range(inner, dim)
    # An empty slice has no first element to compute from.
    if outer is None or first is None or not len(outer):
        return None
    start, step = first[outer[0]], first.step * outer.step
    # Just past the last element that is taken, so that equal slices are spelled alike.
    end = start + step * (len(outer) - 1) + 1
    return call.made(aten.slice.Tensor, inner.args[0], dim, start, end, *([step] if step != 1 else []))


def _range(call: TermCall | Term, dim: int) -> range | None:
    """The indices selected by a slice; None for symbolic sizes."""
    bounds = (*call.args[2:], *[None] * (3 - len(call.args[2:])))
    size = call.args[0].value.shape[dim]
    if call.kwargs or type(size) is not int or any(type(b) is not int and b is not None for b in bounds):
        return None
    return range(size)[slice(*bounds)]


@law("chains", aten.constant_pad_nd.default)
def padding_of_a_padding(call: TermCall) -> TermCall | None:
    inner = call.operand(0, aten.constant_pad_nd.default)
    if inner is None:
        return None
    outer_pad, inner_pad = list(call.args[1]), list(inner.args[1])
    values = [each.args[2] if len(each.args) > 2 else 0 for each in (call, inner)]
    # A negative padding crops, and crop and pad do not add up.
    if any(type(n) is not int or n < 0 for n in outer_pad + inner_pad) or repr(values[0]) != repr(values[1]):
        return None
    length = max(len(outer_pad), len(inner_pad))
    both = [pad + [0] * (length - len(pad)) for pad in (outer_pad, inner_pad)]
    return call.made(aten.constant_pad_nd.default, inner.args[0], [a + b for a, b in zip(*both)], *call.args[2:])


_NOT = (aten.ne.Scalar, aten.eq.Scalar, aten.logical_not.default, aten.bitwise_not.default, aten.bitwise_xor.Scalar)


def _negated(call: TermCall | Term | None) -> Term | None:
    """The term of which a call is the logical negation."""
    given = call.args[0] if call is not None and call.target in _NOT else None
    # `bitwise_not` of an integer is no negation.
    if call is None or type(given) is not Term or not is_bool(given.value) or not is_bool(call.value):
        return None
    if call.target in (aten.ne.Scalar, aten.bitwise_xor.Scalar):
        return given if is_number(call.args[1], 1) else None
    if call.target is aten.eq.Scalar:
        return given if is_number(call.args[1], 0) else None
    return given


@law("chains", *_NOT, copies=True)
def negation_of_a_negation(call: TermCall) -> Term | None:
    inner = _negated(call)
    return _negated(inner) if inner is not None else None


@law("chains", aten.where.self)
def choice_by_a_negation(call: TermCall) -> TermCall | None:
    condition = call.operand(0)
    given = _negated(condition)
    if given is None or condition is None or given.value.shape != condition.value.shape:
        return None
    return call.made(aten.where.self, given, call.args[2], call.args[1])


_COMPARISONS: dict[Any, tuple[Any, ...]] = {
    aten.ne.Scalar: (aten.ne, aten.eq),
    aten.eq.Scalar: (aten.ne, aten.eq),
    aten.logical_not.default: (aten.ne, aten.eq),
    aten.bitwise_not.default: (aten.ne, aten.eq),
}


@law("chains", *_COMPARISONS)
def negation_of_a_comparison(call: TermCall) -> TermCall | None:
    """`not (a != b)` is `a == b` and vice versa; but `not (a < b)` is not `a >= b`, because of NaN."""
    inner = _negated(call)
    if inner is None or len(inner.args) != 2 or not isinstance(inner.target, torch._ops.OpOverload):
        return None
    opposites = {aten.ne: aten.eq, aten.eq: aten.ne}
    opposite: Any = opposites.get(inner.target.overloadpacket)
    return call.made(getattr(opposite, inner.target._overloadname), *inner.args) if opposite is not None else None


CHAINS: tuple[Law, ...] = (
    view_of_a_view,
    permutation_of_a_permutation,
    permutation_there_and_back,
    expansion_of_an_expansion,
    cast_there_and_back,
    cast_of_a_wider_cast,
    slice_of_a_slice,
    padding_of_a_padding,
    negation_of_a_negation,
    choice_by_a_negation,
    negation_of_a_comparison,
)
