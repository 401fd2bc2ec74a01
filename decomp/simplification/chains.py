"""Calls of what a call of the same kind gave, as one call."""

from __future__ import annotations

from typing import Any

import torch

from decomp.simplification.laws import Law, dim_of, is_bool, is_number, law
from decomp.simplification.terms import Call, Term

aten = torch.ops.aten

RESHAPING = (
    aten.view.default, aten._unsafe_view.default, aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim,
    aten.squeeze.dims,
)  # fmt: skip
"""Views of all elements in their order."""


@law("chains", *RESHAPING)
def view_of_a_view(call: Call) -> Call | None:
    inner = call.operand(0, *RESHAPING)
    if inner is None or not isinstance(call.value, torch.Tensor):
        return None
    shape = list(call.value.shape)
    if all(type(size) is int for size in shape):
        return call.made(aten.view.default, inner.args[0], shape)
    views = call.target is aten.view.default
    return call.made(aten.view.default, inner.args[0], call.args[1]) if views else None


@law("chains", aten.permute.default)
def permutation_of_a_permutation(call: Call) -> Call | None:
    inner = call.operand(0, aten.permute.default)
    if inner is None:
        return None
    rank, first = len(call.args[1]), inner.args[1]
    return call.made(aten.permute.default, inner.args[0], [first[d % rank] % rank for d in call.args[1]])


@law("chains", aten._to_copy.default, copies=True)
def cast_there_and_back(call: Call) -> Term | None:
    given = _before_a_wider_cast(call)
    return given if given is not None and given.value.dtype is call.kwargs["dtype"] else None


@law("chains", aten._to_copy.default, gradients=False)
def cast_of_a_wider_cast(call: Call) -> Call | None:
    # Gradients are rounded on the way back, once more where there are two casts.
    given = _before_a_wider_cast(call)
    if given is None:
        return None
    own, final = given.value.dtype, call.kwargs["dtype"]
    # Out of the range of integers, a conversion depends on the float that it starts from.
    lossy = own.is_floating_point and not (final.is_floating_point or final is torch.bool)
    return None if lossy or final is own else call.made(aten._to_copy.default, given, dtype=final)


def _before_a_wider_cast(call: Call) -> Term | None:
    inner = call.operand(0, aten._to_copy.default)
    if inner is None or set(inner.kwargs) != {"dtype"} or set(call.kwargs) != {"dtype"}:
        return None
    given: Term = inner.args[0]
    known = isinstance(given.value, torch.Tensor) and holds(inner.value.dtype, given.value.dtype)
    return given if known else None


def holds(wide: torch.dtype, narrow: torch.dtype) -> bool:
    """Whether each number of one dtype is one of another."""
    if wide is narrow or narrow is torch.bool:
        return True
    if wide.is_complex or narrow.is_complex or wide is torch.bool:
        return False
    if narrow.is_floating_point:
        return wide.is_floating_point and narrow in _NARROWER.get(wide, ())
    low, high = torch.iinfo(narrow).min, torch.iinfo(narrow).max
    if not wide.is_floating_point:
        return bool(torch.iinfo(wide).min <= low and high <= torch.iinfo(wide).max)
    return bool(max(high, -low) <= _WHOLE_NUMBERS.get(wide, 0))


_NARROWER = {
    torch.float64: (torch.float32, torch.float16, torch.bfloat16),
    torch.float32: (torch.float16, torch.bfloat16),
}
_WHOLE_NUMBERS = {torch.float64: 2**53, torch.float32: 2**24, torch.float16: 2**11, torch.bfloat16: 2**8}
"""Up to where a dtype has all whole numbers."""


@law("chains", aten.slice.Tensor)
def slice_of_a_slice(call: Call) -> Call | None:
    inner = call.operand(0, aten.slice.Tensor)
    dim = dim_of(call)
    if inner is None or dim is None or dim_of(inner) != dim or not isinstance(call.value, torch.Tensor):
        return None
    outer, first = _range(call, dim), _range(inner, dim)
    if outer is None or first is None or not len(outer):
        return None
    start, step = first[outer[0]], first.step * outer.step
    end = start + step * (len(outer) - 1) + 1
    return call.made(aten.slice.Tensor, inner.args[0], dim, start, end, *([step] if step != 1 else []))


def _range(call: Call | Term, dim: int) -> range | None:
    """The indices that a slice takes; None where sizes are symbolic."""
    bounds = (*call.args[2:], *[None] * (5 - len(call.args)))
    size = call.args[0].value.shape[dim]
    if call.kwargs or type(size) is not int or any(type(b) is not int and b is not None for b in bounds):
        return None
    return range(size)[slice(*bounds)]


@law("chains", aten.constant_pad_nd.default)
def padding_of_a_padding(call: Call) -> Call | None:
    inner = call.operand(0, aten.constant_pad_nd.default)
    if inner is None:
        return None
    outer_pad, inner_pad = list(call.args[1]), list(inner.args[1])
    values = [each.args[2] if len(each.args) > 2 else 0 for each in (call, inner)]
    if any(type(n) is not int or n < 0 for n in outer_pad + inner_pad) or repr(values[0]) != repr(values[1]):
        return None
    length = max(len(outer_pad), len(inner_pad))
    both = [pad + [0] * (length - len(pad)) for pad in (outer_pad, inner_pad)]
    return call.made(aten.constant_pad_nd.default, inner.args[0], [a + b for a, b in zip(*both)], *call.args[2:])


_NOT = (aten.ne.Scalar, aten.eq.Scalar, aten.logical_not.default, aten.bitwise_not.default, aten.bitwise_xor.Scalar)


def _negated(call: Call | Term | None) -> Term | None:
    """What a call is the logical negation of."""
    given = call.args[0] if call is not None and call.target in _NOT else None
    if call is None or type(given) is not Term or not is_bool(given.value) or not is_bool(call.value):
        return None
    if call.target in (aten.ne.Scalar, aten.bitwise_xor.Scalar):
        return given if is_number(call.args[1], 1) else None
    if call.target is aten.eq.Scalar:
        return given if is_number(call.args[1], 0) else None
    return given


@law("chains", *_NOT, copies=True)
def negation_of_a_negation(call: Call) -> Term | None:
    inner = _negated(call)
    return _negated(inner) if inner is not None else None


@law("chains", aten.where.self)
def choice_by_a_negation(call: Call) -> Call | None:
    condition = call.operand(0)
    given = _negated(condition)
    if given is None or condition is None or given.value.shape != condition.value.shape:
        return None
    return call.made(aten.where.self, given, call.args[2], call.args[1])


_COMPARISONS: dict[Any, tuple[Any, ...]] = {
    aten.ne.Scalar: (aten.ne, aten.eq), aten.eq.Scalar: (aten.ne, aten.eq),
    aten.logical_not.default: (aten.ne, aten.eq), aten.bitwise_not.default: (aten.ne, aten.eq),
}  # fmt: skip


@law("chains", *_COMPARISONS)
def negation_of_a_comparison(call: Call) -> Call | None:
    """`not (a != b)` is `a == b`, and the other way round; of `<` it is not `>=`, because of NaN."""
    inner = _negated(call)
    if inner is None or len(inner.args) != 2 or not isinstance(inner.target, torch._ops.OpOverload):
        return None
    opposites = {aten.ne: aten.eq, aten.eq: aten.ne}
    opposite: Any = opposites.get(inner.target.overloadpacket)
    return call.made(getattr(opposite, inner.target._overloadname), *inner.args) if opposite is not None else None


CHAINS: tuple[Law, ...] = (
    view_of_a_view,
    permutation_of_a_permutation,
    cast_there_and_back,
    cast_of_a_wider_cast,
    slice_of_a_slice,
    padding_of_a_padding,
    negation_of_a_negation,
    choice_by_a_negation,
    negation_of_a_comparison,
)
