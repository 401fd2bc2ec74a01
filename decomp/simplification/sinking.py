"""Sinking of views: `f(view(a))` becomes `view(f(a))`, if `f` is elementwise, or works along dimensions that the view
does not change. The law saves nothing by itself; `sinking_regions` finds where it pays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
import functools
from typing import Any

import torch

from decomp.ir.aliases import view_arguments
from decomp.metadata.symbolic_sizes import has_fixed_sizes
from decomp.ops import aten
from decomp.simplification.chains import RESHAPING
from decomp.simplification.laws import PERMUTATIONS, Law, order_of
from decomp.simplification.terms import Term, TermCall, ViewSinking, terms_in


@dataclass(frozen=True)
class ShapeChange:
    """The effect of a view on shapes."""

    given: tuple[int, ...]
    """The sizes before the view of the leading dimensions that it changes; or the order of a permutation."""
    leading: tuple[int, ...] | None
    """The sizes of these after the view; None for a permutation."""

    def before(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """The shape that the view maps to `shape`, if any."""
        if self.leading is None:
            back = dict(zip(self.given, shape))
            return tuple(back[dim] for dim in range(len(shape))) if len(shape) == len(self.given) else None
        first = len(self.leading)
        return (*self.given, *shape[first:]) if shape[:first] == self.leading else None


@dataclass(frozen=True)
class ViewOf:
    """A value as a view of another one."""

    turn: ShapeChange
    base: Term
    shape: tuple[int, ...]
    """The shape of the view."""


def as_view(term: Term) -> ViewOf | None:
    """The term as a view of another; None if it is not such a view, or has symbolic sizes."""
    if id(term.target) not in _VIEWS or not term.args:
        return None
    base: Term = term.args[0]
    given, shape = shape_of(base), shape_of(term)
    # With no elements, `-1` and divisions of sizes are not defined.
    if given is None or shape is None or not given or not shape or 0 in shape:
        return None
    order = order_of(term)
    if order is not None:
        return ViewOf(ShapeChange(tuple(order), None), base, shape)
    kept = 0
    # Trailing dimensions of equal size are unchanged by a reshape, so ops along them commute with it.
    while kept < min(len(given), len(shape)) and given[-1 - kept] == shape[-1 - kept]:
        kept += 1
    return ViewOf(ShapeChange(given[: len(given) - kept], shape[: len(shape) - kept]), base, shape)


_VIEWS = frozenset(map(id, (*RESHAPING, *PERMUTATIONS)))


def shape_of(term: Term | TermCall) -> tuple[int, ...] | None:
    """The shape of a tensor; None if it has symbolic sizes."""
    return tuple(term.value.shape) if has_fixed_sizes(term.value) else None


def sink_view(
    call: TermCall | Term, known: Callable[[Term], ViewOf | None] = as_view
) -> tuple[ShapeChange, ViewSinking] | None:
    """A call on views as a view of the same call on their bases; `known` returns the base of a term."""
    views = [known(arg) if type(arg) is Term else None for arg in call.args]
    # The first view decides: others must be equal, or the operand must broadcast the same on either side.
    turn = next((view.turn for view in views if view is not None), None)
    kind, shape = _kind(call) if turn is not None else None, shape_of(call)
    if turn is None or kind is None or shape is None or turn.before(shape) is None:
        return None
    args = call.args if kind is _POINTWISE else call.args[:1]
    new = list(call.args)
    for place, (arg, view) in enumerate(zip(args, views)):
        if view is not None and view.turn == turn and len(view.shape) == len(shape) and _fits(turn, view.shape, shape):
            new[place] = view.base
        elif not _is_free(arg, turn, len(shape)):
            return None
    if kind is not _POINTWISE and not _along(turn, new, kind, len(shape)):
        return None
    inner = TermCall("call_function", call.target, tuple(new), call.kwargs, None)
    if turn.leading is None:
        return turn, ViewSinking(inner, aten.permute.default, (list(turn.given),))
    return turn, ViewSinking(inner, aten.view.default, (list(shape),))


def _fits(turn: ShapeChange, shape: tuple[int, ...], result: tuple[int, ...]) -> bool:
    """Whether dimensions of an operand are broadcast only where the view does not change them."""
    # A permutation changes every dimension, so all operands must have the result's shape.
    return turn.leading is not None or shape == result


def _is_free(arg: Any, turn: ShapeChange, rank: int) -> bool:
    """Whether an operand broadcasts the same before and after a view."""
    if type(arg) is Term:
        shape = shape_of(arg)
        kept = rank - len(turn.leading) if turn.leading is not None else 0
        return shape is not None and len(shape) <= kept
    return not terms_in((arg,))


_POINTWISE, _DIM, _DIMS = "pointwise", "dim", "dims"
_ALONG = {
    aten.amax.default: _DIMS,
    aten.amin.default: _DIMS,
    aten.sum.dim_IntList: _DIMS,
    aten.mean.dim: _DIMS,
    aten._softmax.default: _DIM,
    aten._log_softmax.default: _DIM,
    aten.softmax.int: _DIM,
    aten.log_softmax.int: _DIM,
    aten.slice.Tensor: _DIM,
}
"""Ops along the dimensions given by their second argument."""


def _kind(call: TermCall | Term) -> str | None:
    """How a call treats dimensions; None if it may not be moved above a view."""
    # Its tag is not pointwise, as it may also move to another device.
    if call.target is aten._to_copy.default or call.target is aten.detach.default:
        return _POINTWISE if set(call.kwargs) <= {"dtype"} else None
    if not isinstance(call.target, torch._ops.OpOverload) or call.kwargs and terms_in(call.kwargs.values()):
        return None
    return _kind_of_op(call.target)


@functools.cache
def _kind_of_op(target: torch._ops.OpOverload) -> str | None:
    if target in _ALONG:
        return _ALONG[target]
    # Random numbers are drawn in the order of memory, so that another layout gives other ones.
    plain = torch.Tag.pointwise in target.tags and torch.Tag.nondeterministic_seeded not in target.tags
    # The strides of a clone are specified by its memory format.
    if not plain or target is aten.clone.default or target._schema.is_mutable or len(target._schema.returns) != 1:
        return None
    # A pointwise op that may return its operand would make a view of a view.
    return None if view_arguments("call_function", target) else _POINTWISE


def _along(turn: ShapeChange, args: list[Any], kind: str, rank: int) -> bool:
    """Whether the view leaves alone the dimensions along which a call works; they are renumbered in `args`."""
    # A reduction over permuted memory adds in another order.
    if turn.leading is None or len(args) < 2:
        return False
    dims = args[1] if kind is _DIMS else [args[1]]
    first = len(turn.leading)
    if not isinstance(dims, (list, tuple)) or not dims or any(type(dim) is not int for dim in dims):
        return False
    whole = [dim % rank for dim in dims]
    if min(whole) < first:
        return False
    moved = [dim - first + len(turn.given) for dim in whole]
    args[1] = moved if kind is _DIMS else moved[0]
    return True


def _below(call: TermCall) -> ViewSinking | None:
    found = sink_view(call)
    return found[1] if found is not None else None


SINKING = Law("view below what was done to it", "sinking", frozenset(), _below, copies=True)
