"""In-place ops that write several tensors, or lists of them: the variant of the same arguments that returns all new
values, found by schema (`rrelu_with_noise_functional`, `_foreach_add`, `_fused_adam`).

PyTorch takes the elements of lists one after another (`ForeachOpsKernels.cpp`), the variant as all of them were before.
A call that writes an element before it reads another one that shares its memory is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
import operator
from typing import Any, NamedTuple

import torch
from torch import fx

from decomp.errors import MutationError
from decomp.functionalize.functional_ops import NO_VARIANT, functional_overloads
from decomp.functionalize.overlap import memory_range_of, overlap
from decomp.functionalize.storage import Storage, Tensor
from decomp.graphs.graph_builder import Emitter
from decomp.ir.aliases import argument, is_list_at, method_name, mutable_arguments, overload_on_lists, refusal
from decomp.ir.call import metadata


@dataclass(frozen=True, slots=True)
class NewValues:
    """The variant of a call that returns the new values of what the call writes, after the results of its own."""

    target: Any
    written: tuple[tuple[Any, int], ...]
    """Each written argument, a tensor or a list of tensors, and the place of its new value among the results."""
    own: int
    """The number of results of the call itself."""
    is_list: bool
    """Whether one argument is written, a list, and the variant returns its new value alone."""

    @property
    def returned(self) -> fx.Node | None:
        """The written tensor that is the result of the call, if one is."""
        found = [given for given, place in self.written if place == 0 and isinstance(given, fx.Node)]
        return found[0] if found and self.own == 1 else None

    def items(self, emit: Emitter, node: fx.Node, whole: fx.Node) -> Iterator[tuple[fx.Node, fx.Node, bool]]:
        """Each written tensor, its new value, taken out of `whole`, and whether that is a result of the op."""

        def item(of: fx.Node, index: int, label: str = "") -> fx.Node:
            return emit.node("call_function", operator.getitem, (of, index), {}, at=node, label=label)

        for given, place in self.written:
            is_result = place < self.own or not self.own
            if isinstance(given, fx.Node):
                yield given, item(whole, place, given.name), is_result
                continue
            listed = whole if self.is_list else item(whole, place)
            for index, one in enumerate(given or ()):
                yield one, item(listed, index, one.name), is_result


def returning_new_values(node: fx.Node) -> NewValues | None:
    """The variant of an in-place call that returns several new values, or a list of them; None if it has none."""
    overload = overload_on_lists(node.target)
    if overload is None and isinstance(node.target, torch._ops.OpOverload):
        overload = node.target
    if overload is None:
        return None
    places, count = _places(overload)
    for variant in functional_overloads(overload):
        returns = variant._schema.returns
        is_list = [str(each.type) for each in returns] == ["List[Tensor]"]
        if len(returns) == count and (count > 1 or is_list):
            written = tuple((_written(node, overload, *which), place) for which, place in places.items())
            target: Any = variant
            if overload is not node.target:  # which of the overloads a function runs may not be known
                packet = variant._overloadpacket
                target = getattr(torch, packet.__name__, packet)
            return NewValues(target, written, len(overload._schema.returns), is_list)
    return None


def _written(node: fx.Node, overload: torch._ops.OpOverload, position: int, name: str) -> Any:
    given = argument(node, position, name)
    if isinstance(given, fx.Node) and is_list_at(overload, position):
        raise refusal(
            node,
            f"it writes the tensors in {given.name!r}, and which these are cannot be determined",
            "take the tensors out of the list one by one, and pass a list of them",
        )
    return given


def without_variant(node: fx.Node) -> MutationError:
    """The error for a call that writes several tensors, where no variant returns their new values."""
    if node.op == "call_module":
        why, remedy = "it writes its arguments", "let the module be traced, or return new tensors from it"
    else:
        name = method_name(node)
        why, remedy = f"{name} writes several tensors", "use an op that returns new tensors"
        if isinstance(node.target, torch._ops.OpOverload):
            variant = name.removesuffix("_") if name.endswith("_") else f"{name}_functional"
            remedy = f"register {node.target.namespace}::{variant}, which returns the new values, or {remedy}"
    return refusal(node, f"{why}, and {NO_VARIANT}", remedy)


def _places(overload: torch._ops.OpOverload) -> tuple[dict[tuple[int, str], int], int]:
    """The place of the new value of each written argument among the results of a variant, and how many these are."""
    returned = [set(each.alias_info.before_set) if each.alias_info else set() for each in overload._schema.returns]
    places, count = {}, len(returned)
    for position, name in mutable_arguments(overload):
        sets = set(overload._schema.arguments[position].alias_info.before_set)
        own = [place for place, of_result in enumerate(returned) if of_result & sets]
        places[position, name] = own[0] if own else count
        count += not own
    return places, count


class _Use(NamedTuple):
    """An operand of a call on lists."""

    node: fx.Node
    step: int
    """The index in a list; for an operand beside the lists, which is read with each element, that of the last one."""
    place: int
    """That of the argument among those of the call."""
    is_written: bool


def refuse_dependence_on_order(node: fx.Node, values: NewValues, tensors: Mapping[fx.Node, Tensor]) -> None:
    """Raise `MutationError` where a call on lists writes a tensor and reads another one after that, or the same one
    again, of which part is in the same memory. `tensors`: those of nodes that may share memory with written ones."""
    given = [*node.args, *node.kwargs.values()]
    last = max((len(each) for each in given if isinstance(each, (list, tuple))), default=0) - 1
    uses: dict[Storage, list[_Use]] = {}
    for place, each in enumerate(given):
        is_written = any(each is written for written, _ in values.written)
        for index, one in enumerate(each) if isinstance(each, (list, tuple)) else ((last, each),):
            if isinstance(one, fx.Node) and one in tensors:
                uses.setdefault(tensors[one].alias.storage, []).append(_Use(one, index, place, is_written))
    for sharing in uses.values():
        for one, other in product([use for use in sharing if use.is_written], sharing):
            later = one.step < other.step or other.is_written and one.step == other.step and one.place < other.place
            if later and not _are_apart(metadata(one.node), metadata(other.node)):
                same = one.node is other.node
                which = f"{one.node.name!r} twice" if same else f"{one.node.name!r} and {other.node.name!r}"
                raise refusal(
                    node,
                    f"it takes {which}{'' if same else ', which may share memory'}, and its result depends on the "
                    "order in which it does",
                    "pass a tensor once, and clone() views that are not written",
                )


def _are_apart(one: Any, other: Any) -> bool:
    """Whether two tensors on one storage are known to share no element."""
    for each in (one, other):
        if isinstance(each, torch.Tensor) and any(type(size) is int and size == 0 for size in each.shape):
            return True
    first, second = memory_range_of(one), memory_range_of(other)
    if first is None or second is None or first.memory != second.memory:
        return False
    return not overlap(first, second)
