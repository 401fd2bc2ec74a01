"""Operands that are not in the graph in the form that an op takes, and the extra calls that compute them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
import functools
import math
from typing import Any, TypeAlias

import torch
from torch import fx

from decomp.graphs.tracing import on_metadata
from decomp.ir.call import inherited_meta, metadata
from decomp.ops import aten
from decomp.refolding.folding import Fold


@dataclass(frozen=True)
class PreparedOperand:
    """A call whose result is an operand. Its arguments are nodes of the graph, numbers, or `PreparedOperand`."""

    target: Any
    args: tuple[Any, ...]

    def __call__(self, values: Mapping[fx.Node, Any]) -> Any:
        """Compute the operand from the values of nodes."""
        return self.target(*(value_of(arg, values) for arg in self.args))

    @functools.cached_property
    def metadata(self) -> Any:
        """The metadata of the operand. Raises what the op raises."""
        return run_fake(self.target, self.args, {}, next(nodes_in(self)))

    @property
    def calls(self) -> int:
        """The number of calls."""
        return 1 + sum(arg.calls for arg in self.args if isinstance(arg, PreparedOperand))

    def fold(self, root: fx.Node) -> Fold:
        """The call as a fold, whose origin is `root`."""
        args = tuple(arg.fold(root) if isinstance(arg, PreparedOperand) else arg for arg in self.args)
        meta = {**inherited_meta(root), "val": self.metadata}
        return Fold("call_function", self.target, args, {}, {}, f"{root.name}_operand", meta, origin=root)

    def spelled(self, names: Mapping[fx.Node, str]) -> str:
        """The call as text."""
        return f"{self.target}({', '.join(spell_operand(arg, names) for arg in self.args)})"


Operand: TypeAlias = "fx.Node | PreparedOperand"
"""A tensor operand of a call."""


def nodes_in(arg: Any) -> Iterator[fx.Node]:
    """The nodes in an argument."""
    if isinstance(arg, fx.Node):
        yield arg
    elif isinstance(arg, PreparedOperand):
        for inner in arg.args:
            yield from nodes_in(inner)


def value_of(arg: Any, values: Mapping[fx.Node, Any]) -> Any:
    """The value of an argument, given the values of nodes."""
    if isinstance(arg, fx.Node):
        return values[arg]
    return arg(values) if isinstance(arg, PreparedOperand) else arg


def spell_operand(arg: Any, names: Mapping[fx.Node, str]) -> str:
    """An argument as text."""
    if isinstance(arg, PreparedOperand):
        return arg.spelled(names)
    return names[arg] if isinstance(arg, fx.Node) else repr(arg)


def meta_of(arg: Any) -> Any:
    """The metadata of an argument; non-tensors are returned unchanged."""
    if isinstance(arg, PreparedOperand):
        return arg.metadata
    return metadata(arg) if isinstance(arg, fx.Node) else arg


def shape_of(operand: Operand) -> list[Any]:
    """The shape of an operand."""
    # Known without running the call in the fake mode, which is asked for each of many candidates.
    if isinstance(operand, PreparedOperand) and operand.target is aten.view.default:
        return list(operand.args[1])
    return list(meta_of(operand).shape)


def run_fake(target: Any, args: Any, kwargs: Mapping[str, Any], like: fx.Node) -> Any:
    """The metadata of a call, computed in the fake mode of the node `like`."""
    value = metadata(like)
    mode = getattr(value, "fake_mode", None)
    if mode is None:
        return value
    args = fx.node.map_aggregate(args, meta_of)
    with on_metadata(mode):
        return target(*args, **kwargs)


def reshape_operand(node: fx.Node, shape: Sequence[Any]) -> PreparedOperand | None:
    """A value reshaped; None if sizes are dynamic or the numbers of elements differ."""
    sizes = shape_of(node)
    if not all(type(size) is int for size in (*sizes, *shape)) or math.prod(sizes) != math.prod(shape):
        return None
    found = PreparedOperand(aten.view.default, (node, list(shape)))
    # A view costs nothing. A reshape may be no op of the target, and copies here anyway.
    return found if _has_view(found) else PreparedOperand(aten.reshape.default, (node, list(shape)))


def _has_view(view: PreparedOperand) -> bool:
    """Whether a value can be viewed in a shape. Tried on a meta tensor, which is much cheaper than a fake one."""
    node, shape = view.args
    value = metadata(node)
    if value.is_contiguous():
        return True
    strides = value.stride()
    if not all(type(stride) is int for stride in strides):
        return can_be_made(view)
    try:
        torch.empty_strided(value.shape, strides, device="meta").view(shape)
    except RuntimeError:  # these strides allow no view
        return False
    return True


def transpose_operand(operand: Operand) -> PreparedOperand:
    """An operand with its last two dimensions swapped."""
    rank = len(shape_of(operand))
    return PreparedOperand(aten.permute.default, (operand, [*range(rank - 2), rank - 1, rank - 2]))


def can_be_made(found: PreparedOperand) -> bool:
    """Whether a prepared call accepts its operands."""
    try:
        return found.metadata is not None
    except (RuntimeError, ValueError):  # these strides allow no view
        return False
