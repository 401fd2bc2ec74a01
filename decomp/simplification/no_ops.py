"""Laws that remove calls which return their operand's values."""

from __future__ import annotations

from typing import Any

import torch

from decomp.ops import aten
from decomp.simplification.laws import PERMUTATIONS, Law, is_bool, is_number, law, order_of, same_sizes
from decomp.simplification.terms import Term, TermCall

SAME_ORDER = (
    aten.view.default,
    aten._unsafe_view.default,
    aten.expand.default,
    aten.slice.Tensor,
    aten.alias.default,
    aten.unsqueeze.default,
    aten.squeeze.dims,
    aten.squeeze.dim,
    aten.squeeze.default,
    aten.split.Tensor,
    aten.reshape.default,
    aten.flatten.using_ints,
    aten.unflatten.int,
    aten.view_as.default,
    aten.reshape_as.default,
    aten.expand_as.default,
)
"""Views of all or some elements in the same order; copies where a view is impossible."""
_CONVERTING = (aten.to.dtype, aten.to.dtype_layout, aten.to.device, aten.to.other, aten.type_as.default)
"""Casts that return the operand itself if there is nothing to cast."""


@law("no_ops", *SAME_ORDER)
def view_to_the_same_shape(call: TermCall) -> Term | None:
    # A slice of the same shape is the whole tensor.
    given = call.operand(0)
    # `split` returns a list, also of one part.
    whole = call.target is not aten.split.Tensor
    return given if given is not None and whole and same_sizes(given.value, call.value) else None


@law("no_ops", *PERMUTATIONS)
def permutation_to_the_same_order(call: TermCall) -> Term | None:
    order = order_of(call)
    return call.operand(0) if order is not None and order == list(range(len(order))) else None


@law("no_ops", aten.contiguous.default, *_CONVERTING)
def conversion_of_what_is_so_already(call: TermCall) -> Term | None:
    # Without copy=True the result is the operand itself.
    return call.operand(0) if not _asks(call, "copy", "pin_memory", "memory_format", but=aten.contiguous) else None


@law("no_ops", *_CONVERTING, copies=True)
def conversion_that_only_copies(call: TermCall) -> Term | None:
    return call.operand(0) if not _asks(call, "pin_memory") else None


def _asks(call: TermCall, *names: str, but: Any = None) -> bool:
    """Whether a call passes a true argument of one of these names, by position or by name."""
    if call.target.overloadpacket is but:
        return False
    parameters = call.target._schema.arguments
    # By position in the schema, as `aten.to` has overloads with the same arguments at other places.
    given = {**{each.name: value for each, value in zip(parameters, call.args)}, **call.kwargs}
    return any(given.get(name) not in (None, False) for name in names)


@law("no_ops", aten.detach.default)
def detach_of_what_has_no_gradient(call: TermCall) -> Term | None:
    # If the operand has a gradient the result differs: see `Conditions.may_apply`.
    return call.operand(0)


@law("no_ops", aten.clone.default, copies=True)
def copy_that_nobody_writes(call: TermCall) -> Term | None:
    return call.operand(0)


@law("no_ops", aten._to_copy.default, copies=True)
def cast_to_the_same_dtype(call: TermCall) -> Term | None:
    return call.operand(0)


@law("no_ops", aten.constant_pad_nd.default, copies=True)
def padding_by_nothing(call: TermCall) -> Term | None:
    # A padding by a symbolic size may be zero at one size only.
    return call.operand(0) if all(type(n) is int and n == 0 for n in call.args[1]) else None


@law("no_ops", aten.mul.Tensor, aten.div.Tensor, copies=True)
def times_one(call: TermCall) -> Term | None:
    # A complex number times one is NaN where a part is infinite.
    if not isinstance(call.value, torch.Tensor) or call.value.is_complex():
        return None
    if is_number(call.args[1], 1):
        return call.operand(0)
    return call.operand(1) if call.target is aten.mul.Tensor and is_number(call.args[0], 1) else None


@law("no_ops", aten.add.Tensor, aten.sub.Tensor, copies=True)
def plus_zero(call: TermCall) -> Term | None:
    # -0.0 + 0.0 is 0.0, so x + 0.0 is not always x; x + (-0.0) and x - 0.0 are.
    if not isinstance(call.value, torch.Tensor) or call.value.is_complex() or call.kwargs:
        return None
    adds = call.target is aten.add.Tensor
    nothing = -0.0 if adds and call.value.is_floating_point() else 0.0
    if is_number(call.args[1], nothing):
        return call.operand(0)
    return call.operand(1) if adds and is_number(call.args[0], nothing) else None


@law("no_ops", aten.add.Tensor, copies=True, exact=False)
def plus_zero_of_either_sign(call: TermCall) -> Term | None:
    for one, other in ((0, 1), (1, 0)):
        if is_number(call.args[one], 0) and not call.kwargs:
            return call.operand(other)
    return None


# -1 has all bits set; for booleans that is True.
_NEUTRAL: dict[Any, int] = {
    aten.bitwise_and.Tensor: -1,
    aten.bitwise_and.Scalar: -1,
    aten.bitwise_or.Tensor: 0,
    aten.bitwise_or.Scalar: 0,
    aten.bitwise_xor.Tensor: 0,
    aten.bitwise_xor.Scalar: 0,
    aten.logical_or.default: 0,
    aten.logical_and.default: -1,
    aten.logical_xor.default: 0,
}


@law("no_ops", *_NEUTRAL, copies=True)
def bits_that_change_nothing(call: TermCall) -> Term | None:
    # `logical_or(x, 0)` of numbers is a boolean, not `x`.
    if "logical" in str(call.target) and not all(is_bool(term.value) for term in call.args if type(term) is Term):
        return None
    neutral = _NEUTRAL[call.target]
    neutral = 1 if neutral and is_bool(call.value) else neutral
    for one, other in ((0, 1), (1, 0)):
        if is_number(call.args[one], neutral):
            return call.operand(other)
    return None


@law("no_ops", aten.ne.Scalar, aten.ne.Tensor, aten.eq.Scalar, aten.eq.Tensor, copies=True)
def truth_of_a_truth(call: TermCall) -> Term | None:
    """`b != False` and `b == True` are `b`."""
    given = call.operand(0)
    neutral = 0 if call.target in (aten.ne.Scalar, aten.ne.Tensor) else 1
    return given if given is not None and is_bool(given.value) and is_number(call.args[1], neutral) else None


# The gradient of `where` is split into two, of which one is zero: the sum of the two may turn −0 into +0.
@law("no_ops", aten.where.self, copies=True, gradients=False)
def choice_between_equals(call: TermCall) -> Term | None:
    return call.operand(1) if call.args[1] is call.args[2] else None


# `maximum(x, x)` gives each operand half of the gradient: the halves of an odd subnormal number do not add up.
@law(
    "no_ops",
    aten.maximum.default,
    aten.minimum.default,
    aten.bitwise_and.Tensor,
    aten.bitwise_or.Tensor,
    aten.logical_and.default,
    aten.logical_or.default,
    copies=True,
    gradients=False,
)
def of_a_value_with_itself(call: TermCall) -> Term | None:
    return call.operand(0) if call.args[0] is call.args[1] else None


NO_OPS: tuple[Law, ...] = (
    view_to_the_same_shape,
    permutation_to_the_same_order,
    conversion_of_what_is_so_already,
    conversion_that_only_copies,
    detach_of_what_has_no_gradient,
    copy_that_nobody_writes,
    cast_to_the_same_dtype,
    padding_by_nothing,
    times_one,
    plus_zero,
    plus_zero_of_either_sign,
    bits_that_change_nothing,
    truth_of_a_truth,
    choice_between_equals,
    of_a_value_with_itself,
)
