"""Laws that turn calls on constant-filled tensors into one factory call."""

from __future__ import annotations

from typing import Any

import torch

from decomp.metadata.ambient_modes import without_ambient_modes
from decomp.metadata.symbolic_sizes import has_fixed_sizes
from decomp.ops import aten
from decomp.simplification.chains import RESHAPING
from decomp.simplification.laws import Law, constant_of, law
from decomp.simplification.terms import Term, TermCall

# Not `exp` and its like: their vector kernels give other bits than the scalar one by which one element is computed.
_EXACT = (
    aten.add.Tensor,
    aten.sub.Tensor,
    aten.mul.Tensor,
    aten.div.Tensor,
    aten.reciprocal.default,
    aten.neg.default,
    aten.abs.default,
    aten.sqrt.default,
    aten._to_copy.default,
    aten.maximum.default,
    aten.minimum.default,
    aten.where.self,
    aten.bitwise_not.default,
    aten.logical_not.default,
    aten.logical_and.default,
    aten.logical_or.default,
    *(
        getattr(getattr(aten, name), overload)
        for overload in ("Tensor", "Scalar")
        for name in ("eq", "ne", "lt", "le", "gt", "ge", "bitwise_and", "bitwise_or", "bitwise_xor")
    ),
)
"""Elementwise ops whose kernels return the correctly rounded result, so that it does not depend on vectorisation."""


@law("constants", *_EXACT, copies=True)
def of_full_tensors(call: TermCall) -> TermCall | None:
    terms = [arg for arg in call.args if type(arg) is Term]
    # A number for any size needs no sizes, but `full` takes them as numbers here.
    if not terms or not all(constant_of(term) is not None for term in terms) or not has_fixed_sizes(call.value):
        return None
    # `alpha` and rounding modes are left alone.
    if any(key != "dtype" for key in call.kwargs):
        return None
    number = _computed(call)
    return _full(call, terms[0], number) if number is not None else None


@law(
    "constants",
    *RESHAPING,
    aten.permute.default,
    aten.slice.Tensor,
    aten.expand.default,
    aten.clone.default,
    copies=True,
)
def view_of_a_full_tensor(call: TermCall) -> TermCall | None:
    given = call.operand(0, aten.full.default)
    number = constant_of(given)
    # `full` makes contiguous memory, and views that follow were traced for these strides.
    if given is None or number is None or not isinstance(call.value, torch.Tensor) or not call.value.is_contiguous():
        return None
    return _full(call, given, number)


def _full(call: TermCall, like: Term, number: Any) -> TermCall | None:
    shape = list(call.value.shape)
    if not all(type(size) is int for size in shape):
        return None
    # Device and layout are those of the operand; the dtype is the result's, as a comparison gives booleans.
    kwargs = {name: value for name, value in like.kwargs.items() if name != "dtype"}
    return call.made(aten.full.default, shape, number, dtype=call.value.dtype, **kwargs)


def _computed(call: TermCall) -> Any:
    """The number that the call returns, by its own kernel."""

    def one(arg: Any) -> Any:
        if type(arg) is not Term:
            return arg
        return torch.full([1] * arg.value.dim(), constant_of(arg), dtype=arg.value.dtype)

    # One element is enough: all elements of the operands are equal, and the ops are elementwise and exact.
    with without_ambient_modes(), torch.no_grad():
        result = call.target(*map(one, call.args), **call.kwargs)
    return result.item() if result.numel() == 1 and result.dtype is call.value.dtype else None


CONSTANTS: tuple[Law, ...] = (of_full_tensors, view_of_a_full_tensor)
