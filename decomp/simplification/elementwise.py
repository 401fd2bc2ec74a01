"""Laws about features of elementwise ops: implicit broadcasting, and numbers instead of constant-filled tensors."""

from __future__ import annotations

import math
from typing import Any

import torch

from decomp.ir.aliases import short_name
from decomp.ir.op_facts import COMMUTATIVE
from decomp.metadata.symbolic_sizes import has_fixed_sizes
from decomp.ops import aten
from decomp.simplification.laws import Law, constant_of, law
from decomp.simplification.terms import Term, TermCall

_BINARY = (
    aten.add.Tensor,
    aten.sub.Tensor,
    aten.mul.Tensor,
    aten.div.Tensor,
    aten.maximum.default,
    aten.minimum.default,
    aten.eq.Tensor,
    aten.ne.Tensor,
    aten.lt.Tensor,
    aten.le.Tensor,
    aten.gt.Tensor,
    aten.ge.Tensor,
    aten.bitwise_and.Tensor,
    aten.bitwise_or.Tensor,
    aten.bitwise_xor.Tensor,
    aten.logical_and.default,
    aten.logical_or.default,
    aten.logical_xor.default,
    aten.remainder.Tensor,
    aten.fmod.Tensor,
)
_BROADCASTING = (*_BINARY, aten.where.self)


# The gradient of `expand` sums over the new dimensions before it is added to others, that of broadcasting afterwards.
@law("broadcasting", *_BROADCASTING, gradients=False)
def operand_that_was_expanded(call: TermCall) -> TermCall | None:
    return _without(call, lambda term: term.target is aten.expand.default)


@law("broadcasting", *_BROADCASTING)
def operand_with_leading_dimensions(call: TermCall) -> TermCall | None:
    return _without(call, _has_leading_ones)


def _without(call: TermCall, is_needless: Any) -> TermCall | None:
    """The call without the first view of an operand that broadcasting makes unnecessary."""
    for place, term in enumerate(call.args):
        if type(term) is Term and is_needless(term) and _broadcast_gives(call, place, term.args[0]):
            return call.made(call.target, *call.args[:place], term.args[0], *call.args[place + 1 :], **call.kwargs)
    return None


def _has_leading_ones(term: Term) -> bool:
    if term.target not in (aten.view.default, aten.unsqueeze.default) or not has_fixed_sizes(term.args[0].value):
        return False
    # Only leading ones: one in the middle moves other dimensions, and broadcasting aligns from the right.
    shape, given = tuple(term.value.shape), tuple(term.args[0].value.shape)
    more = len(shape) - len(given)
    return more > 0 and bool(given) and shape == (1,) * more + given


def _broadcast_gives(call: TermCall, place: int, given: Any) -> bool:
    """Whether the shapes of the other operands and of `given` broadcast to that of the result."""
    values = [each.value for i, each in enumerate(call.args) if type(each) is Term and i != place] + [given.value]
    # Zero-dimensional tensors are excluded, as they take part in type promotion differently.
    if not all(map(has_fixed_sizes, [*values, call.value])) or any(value.dim() == 0 for value in values):
        return False
    return bool(torch.broadcast_shapes(*[value.shape for value in values]) == call.value.shape)


# Not `div`: on CUDA it multiplies by the reciprocal of a number (`div_true_kernel_cuda`), which rounds twice.
_WITH_NUMBER: dict[Any, Any] = {
    aten.add.Tensor: aten.add.Tensor,
    aten.sub.Tensor: aten.sub.Tensor,
    aten.mul.Tensor: aten.mul.Tensor,
    aten.eq.Tensor: aten.eq.Scalar,
    aten.ne.Tensor: aten.ne.Scalar,
    aten.lt.Tensor: aten.lt.Scalar,
    aten.le.Tensor: aten.le.Scalar,
    aten.gt.Tensor: aten.gt.Scalar,
    aten.ge.Tensor: aten.ge.Scalar,
    aten.bitwise_and.Tensor: aten.bitwise_and.Scalar,
    aten.bitwise_or.Tensor: aten.bitwise_or.Scalar,
    aten.bitwise_xor.Tensor: aten.bitwise_xor.Scalar,
}
"""By overload, the one with a number as second operand and a bitwise equal result."""
_COMMUTES = frozenset(target for target in _WITH_NUMBER if short_name(target) in COMMUTATIVE)


@law("scalars", *_WITH_NUMBER)
def number_for_a_full_tensor(call: TermCall) -> TermCall | None:
    # Second operand first, which is the place of a number in every overload.
    for place, other in ((1, 0), (0, 1)):
        term, tensor = call.operand(place, aten.full.default), call.operand(other)
        # `alpha` scales the second operand, so that the two cannot change places.
        if term is None or tensor is None or place == 0 and (call.target not in _COMMUTES or call.kwargs):
            continue
        number = constant_of(term)
        if number is not None and _means_the_same(number, term.value.dtype, tensor.value.dtype):
            return call.made(_WITH_NUMBER[call.target], tensor, number, **call.kwargs)
    return None


def _means_the_same(number: Any, own: torch.dtype, other: torch.dtype) -> bool:
    """Whether an element of dtype `own` and a Python number have the same effect next to a tensor of dtype `other`."""
    # NaN is equal to no number, so what follows could not compare it.
    if isinstance(number, complex) or number != number:
        return False
    if own is other:
        return True
    # Integers below 2⁸ are exact in float16 and bfloat16 as well.
    return own is torch.bool or math.isfinite(number) and float(number) == int(number) and abs(number) < 2**8


ELEMENTWISE: tuple[Law, ...] = (
    operand_that_was_expanded,
    operand_with_leading_dimensions,
    number_for_a_full_tensor,
)
