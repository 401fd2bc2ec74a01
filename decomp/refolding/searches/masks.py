"""Combines the steps that mask attention scores, by adding to them or hiding some, into one mask operand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from decomp.ops import aten
from decomp.refolding.prepared import Operand, PreparedOperand, reshape_operand, shape_of
from decomp.refolding.regions import GraphIndex, op_schema_name


@dataclass(frozen=True)
class Mask:
    """One step by which scores are masked."""

    node: fx.Node
    """The tensor that is added; or a boolean tensor that hides scores."""
    hidden: Any = None
    """The value of hidden scores; None if the mask is added."""
    hides: bool = False
    """Whether the boolean mask is true where scores are hidden, rather than where they are kept."""


def combine_masks(around: GraphIndex, masks: Sequence[Mask], like: Operand, shape: Sequence[Any]) -> Iterator[Operand]:
    """The candidates for one mask that is equivalent to several, which are listed from the softmax upwards. `shape` is
    that of the scores, and `like` has their dtype."""
    nearest = masks[0]
    if not nearest.hides:
        # Farthest up first: a mask of two dimensions broadcasts, and need not be expanded.
        yield from reversed(around.views_above(nearest.node))
    # Attention takes a boolean mask that is true where scores are kept.
    if len(masks) == 1 and nearest.hides and number_of(nearest.hidden) == float("-inf"):
        yield PreparedOperand(aten.logical_not.default, (nearest.node,))
    elif len(masks) > 1 or nearest.hides:
        found = _sum(masks, like, shape)
        if found is not None:
            yield found


def _sum(masks: Sequence[Mask], like: Operand, shape: Sequence[Any]) -> Operand | None:
    """All masks combined, in the order of application; None if that would need other tensors."""
    found: Operand | None = None
    for mask in reversed(masks):
        shown, number = _broadcasting(mask.node, shape), number_of(mask.hidden)
        if shown is None or (mask.hidden is not None and number is None):
            return None
        # A scalar of the dtype of the scores, which broadcasts.
        rest = found if found is not None else PreparedOperand(aten.new_zeros.default, (like, []))
        if mask.hidden is None:
            found = shown if found is None else PreparedOperand(aten.add.Tensor, (found, shown))
        elif mask.hides:
            found = PreparedOperand(aten.where.ScalarSelf, (shown, number, rest))
        else:
            found = PreparedOperand(aten.where.ScalarOther, (shown, rest, number))
    return found


def _broadcasting(node: fx.Node, shape: Sequence[Any]) -> Operand | None:
    """A mask, reshaped if necessary to broadcast to the shape of the scores."""
    given = shape_of(node)
    pairs = zip(reversed(given), reversed(shape))
    if len(given) <= len(shape) and all(str(own) in ("1", str(size)) for own, size in pairs):
        return node
    return reshape_operand(node, [*shape[:-2], *given[-2:]])


def number_of(arg: Any) -> float | None:
    """The number that an argument is, or with which a tensor is filled; None for other values."""
    if type(arg) in (int, float):
        return float(arg)
    place = {"aten::full": 1, "aten::scalar_tensor": 0}.get(op_schema_name(arg)) if isinstance(arg, fx.Node) else None
    return number_of(arg.args[place]) if place is not None else None
